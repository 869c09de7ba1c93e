"""Back pressure: what follows from a commit is done by a caller that holds no lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import streamkeep
from conftest import assert_sound
from inside import environment_of, run_read
from patience import PATIENCE_S, wait_until
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.archive import back_pressure
from streamkeep.engine.archive.archiver import ArchiveReport, retired_bytes
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.checkpoint.checkpoint import Hold
from streamkeep.engine.store import environment
from streamkeep.engine.whole_store.scrub import Mark
from streamkeep.format.core.errors import StoreLockedError
from tiers import slow_but

LIMIT = 1 << 16

MODES = pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RETIRED_LEAST", LIMIT)
    monkeypatch.setattr(back_pressure, "RETIRED_LEAST", LIMIT)


@pytest.fixture
def too_much(tmp_path: Path) -> Iterator[Callable[[Sync], Store[bytes]]]:
    """A function that opens a store with far too much retired, since archiving failed."""
    opened: list[Store[bytes]] = []

    def make(sync: Sync) -> Store[bytes]:
        store: Store[bytes] = streamkeep.open(
            tmp_path / "store", sync=sync, retired_max_bytes=LIMIT
        )
        opened.append(store)
        store.set_retention("s", archive=True)
        for _ in range(4):
            store.xadd_many("s", [{"x": b"v" * 3000} for _ in range(100)])
        in_the_way = store.path / "archive"
        in_the_way.write_text("in the way")
        store.xtrim("s", maxlen=1, approximate=False)
        in_the_way.unlink()
        assert retired(store) > 2 * LIMIT
        working = environment_of(store).back_pressure
        assert isinstance(working, back_pressure.BackPressure)
        working._not_before = 0.0  # as if time had passed since it failed
        return store

    yield make
    for store in opened:
        store.close()
        assert_sound(store.path)


def retired(store: Store[bytes]) -> int:
    return run_read(store, retired_bytes)


def finishes(call: Callable[[], object]) -> object:
    """Run a call in a thread; fail when it does not end."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert results, "it waits for itself"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@MODES
def test_the_archiver_can_be_called_after_back_pressure_failed(
    too_much: Callable[[Sync], Store[bytes]], sync: Sync
) -> None:
    store = too_much(sync)
    report = finishes(store.archive)
    assert isinstance(report, ArchiveReport)
    assert report.entries == 399
    assert retired(store) < LIMIT


@MODES
def test_the_next_command_archives_once_it_can(
    too_much: Callable[[Sync], Store[bytes]], sync: Sync
) -> None:
    store = too_much(sync)
    finishes(lambda: store.xadd("other", {"a": 1}))
    assert len(store.archived_segments("s")) == 1


def test_a_view_a_transaction_and_a_pipeline_archive_as_well(
    too_much: Callable[[Sync], Store[bytes]],
) -> None:
    def in_view(store: Store[bytes]) -> None:
        store.using("none").xadd("other", {"a": 1})

    def in_transaction(store: Store[bytes]) -> None:
        with store.transaction() as txn:
            txn.xadd("other", {"a": 1})

    def in_pipeline(store: Store[bytes]) -> None:
        store.pipeline().xadd("other", {"a": 1}).execute()

    store = too_much("commit")
    for number, write in enumerate((in_view, in_transaction, in_pipeline), start=1):
        finishes(lambda write=write: write(store))  # type: ignore[misc]
        assert len(store.archived_segments("s")) == number
        with ArchiveLock(environment_of(store)):  # no other thread archives
            store.xadd_many("s", [{"x": b"v" * 3000} for _ in range(60)])
            store.xtrim("s", maxlen=1, approximate=False)
        assert retired(store) > LIMIT


@MODES
def test_an_erasure_does_not_wait_for_an_archiver_that_needs_a_steady_point(
    too_much: Callable[[Sync], Store[bytes]], sync: Sync
) -> None:
    """Each held one lock and waited for that of the other."""
    store = too_much(sync)
    one = environment_of(store)
    with ArchiveLock(one):
        hold = finishes(lambda: Mark(one).begin_scrub(0))
        assert isinstance(hold, Hold)
        hold.txn.close()
        finishes(one.make_checkpoint)
    store.erase("s")


@MODES
def test_the_callers_of_adopt_may_archive_between_two_files(
    too_much: Callable[[Sync], Store[bytes]], sync: Sync, tmp_path: Path
) -> None:
    store = too_much(sync)
    store.archive()
    store.xadd_many("s", [{"x": b"v" * 3000} for _ in range(100)])
    store.xtrim("s", maxlen=1, approximate=False)
    store.archive()
    copies = list(store.export_segments(tmp_path / "copies", "s"))
    assert len(copies) >= 2

    def adopt_and_archive() -> int:
        with Store[bytes](tmp_path / "other", sync=sync) as other:
            count = 0
            for _ in other.adopt_segments(*copies, key="t"):
                other.archive()
                count += 1
            return count

    assert finishes(adopt_and_archive) == len(copies)
    assert_sound(tmp_path / "other")


def test_a_thread_that_works_on_the_archive_is_told_so_rather_than_to_wait_for_itself(
    too_much: Callable[[Sync], Store[bytes]],
) -> None:
    store = too_much("commit")
    told: list[str] = []

    def progress(done: int, total: int) -> None:
        store.xadd("other", {"a": 1})  # whose back pressure leaves it to this archiver
        with pytest.raises(StoreLockedError) as error:
            store.archive()
        told.append(str(error.value))

    finishes(lambda: store.archive(progress=progress))
    assert "this thread is already working on the archive" in told[0]


def test_a_caller_of_the_archiver_waits_for_no_thread_that_waits_for_the_archiver(
    too_much: Callable[[Sync], Store[bytes]],
) -> None:
    store = too_much("none")
    pressure = environment_of(store).back_pressure
    assert isinstance(pressure, back_pressure.BackPressure)
    others: list[threading.Thread] = []

    def progress(done: int, total: int) -> None:
        if not others:
            others.append(threading.Thread(target=lambda: store.xadd("a", {"a": 1}), daemon=True))
            others[0].start()
            wait_until(pressure._lock.locked, "no other thread waits for the archiver")
        store.xadd("b", {"a": 1})

    finishes(lambda: store.archive(progress=progress))
    others[0].join(PATIENCE_S)
    assert not others[0].is_alive()
