"""Files of segments that were removed: no manifest that comes back names one of them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from crash.losses import in_child
from crash.power import another_boot, watched
from inside import checkpoint_now
from stopped import child_of, die, die_at, status_of
from streamkeep import recovery
from streamkeep.engine.archive import archiver, garbage
from streamkeep.engine.system import failpoints
from streamkeep.engine.whole_store import erase

COUNT, ARCHIVED, ERASED = 100, 90, 3
Work = Callable[[Any], object]


def filled(path: Path) -> Any:
    """Return a store with entries, most of which are retired."""
    store = streamkeep.open(path, node_max_entries=10)
    store.set_retention("s", archive=True)
    store.xadd_many("s", [{"n": n} for n in range(COUNT)], [f"{n + 1}-0" for n in range(COUNT)])
    store.xtrim("s", minid=ARCHIVED + 1, approximate=False)
    return store


def history(path: Path, **options: Any) -> list[int]:
    with streamkeep.open(path, **options) as store:
        return [int(entry.fields[b"n"]) for entry in store.xrange("s", history=True)]


def assert_sound(path: Path) -> None:
    assert [str(one) for one in recovery.check(path) if one.severity] == []


class LosesAll(random.Random):
    """A power loss that takes everything that was not synced."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize(
    ("work", "at", "left"),
    [
        (lambda store: store.erase("s", f"{ERASED + 1}-0"), "garbage:removed", COUNT - 1),
        (lambda store: store.drop_segments("s"), "garbage:removed", COUNT - ARCHIVED),
        (
            lambda store: store.archive(to=f"file://{store.path}.archive"),
            "publish:local-removed",
            COUNT,
        ),
    ],
    ids=["erase", "drop", "publish"],
)
def test_a_damaged_journal_brings_back_no_row_of_a_removed_file(
    path: Path, work: Work, at: str, left: int
) -> None:
    def remove() -> None:
        store = filled(path)
        assert store.archive().entries == ARCHIVED
        checkpoint_now(store)
        die_at(at, 1)
        work(store)

    assert not in_child(remove)
    for file in (path / "journal").glob("*.skj"):
        file.write_bytes(bytes(file.stat().st_size))
    assert len(history(path, force_recovery="checkpoint")) == left
    assert_sound(path)


def die_in_commit_after(step: str) -> None:
    """Die when the record of the first commit after a step is written, and not published."""
    passed = False

    def hit(name: str) -> None:
        nonlocal passed
        passed = passed or name == step
        if passed and name == "commit:journaled":
            die()

    failpoints.watch(hit)


@pytest.mark.parametrize(
    ("work", "step", "module", "following"),
    [
        (lambda store: store.archive(), "archive:written", archiver, "_retired_of"),
        (lambda store: store.erase("s", f"{ERASED + 1}-0"), "erase:written", erase, "erase_step"),
    ],
    ids=["archive", "erase"],
)
def test_a_record_of_a_killed_process_names_no_file_that_another_one_removed(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Work,
    step: str,
    module: object,
    following: str,
) -> None:
    """Both are killed: the first one with the record, the second one before it commits."""

    def first(told: int, go: int) -> None:
        store = filled(path)
        if step == "erase:written":
            store.archive()
        os.write(told, b"!")
        os.read(go, 1)
        die_in_commit_after(step)
        work(store)

    def both() -> None:
        ready, told = os.pipe()
        go, say = os.pipe()
        child = child_of(lambda: first(told, go))
        os.read(ready, 1)
        store = streamkeep.open(path)
        os.write(say, b"!")
        assert status_of(child) == -signal.SIGKILL
        monkeypatch.setattr(module, following, lambda *args: die())
        work(store)

    assert not in_child(both)
    assert {*history(path)} >= {*range(COUNT)} - {ERASED}
    assert_sound(path)


def test_a_file_that_is_adopted_where_it_is_survives_a_power_loss(tmp_path: Path) -> None:
    path, lost = tmp_path / "store", tmp_path / "lost"
    with filled(path) as store:
        store.archive()
        (record,) = store.archived_segments("s")
        data = (path / "archive" / record.path).read_bytes()
        store.drop_segments("s")
    with watched(path, safe=True) as disk:
        (path / "archive" / "put").mkdir()
        (path / "archive" / "put" / "back.seg").write_bytes(data)  # by another program
        with streamkeep.open(path) as store:
            assert len(list(store.adopt_segments(path / "archive"))) == 1
            disk.lose_power(lost, LosesAll())
    with another_boot():
        assert history(lost) == [*range(COUNT)]
        assert_sound(lost)


def test_a_leftover_that_is_removed_may_have_any_name(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        folder = os.fsencode(tmp_path) + b"/store/archive/\xfe"
        os.makedirs(folder)
        file = folder + b"/\xff.seg.tmp"
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
        assert store.archive().removed == 1
        assert not os.path.exists(file)
    assert_sound(tmp_path / "store")


def test_a_file_that_is_about_to_be_removed_is_adopted_as_a_copy(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        store.archive()
        (record,) = store.archived_segments("s")
        with pytest.MonkeyPatch.context() as patch:  # another process, before it removes the file
            patch.setattr(garbage, "remove_files", lambda environment: None)
            assert len(store.drop_segments("s")) == 1
        (adopted,) = store.adopt_segments(store.path / "archive")
        assert adopted.record.path != record.path
        store.maintain()
        assert not (store.path / "archive" / record.path).exists()
    assert history(tmp_path / "store") == [*range(COUNT)]
    assert_sound(tmp_path / "store")
