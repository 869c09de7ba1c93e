"""The archiver beside others: other archivers, closing, forks, writers and readers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import streamkeep
from archived_streams import fill, rows, segments, shown, sum_of
from crash.losses import in_child
from inside import environment_of
from patience import PATIENCE_S, thread_of, wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import maintenance, publish
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import StoreClosedError, StoreError, StoreLockedError
from streamkeep.format.core.keys import RETIRED, SEGMENTS


def test_one_archiver_works_at_a_time(archived: tuple[Store, list[bytes]]) -> None:
    store, ids = archived
    with ArchiveLock(environment_of(store)):
        with pytest.raises(StoreLockedError):
            store.archive(wait=False)
        waiting = thread_of(store.archive)
        waiting.join(0.1)
        assert waiting.is_alive()
        assert rows(store, SEGMENTS) == 0
    waiting.join(PATIENCE_S)
    assert rows(store, SEGMENTS) == 1
    assert shown(store) == ids


def test_a_thread_in_a_transaction_waits_for_no_archiver(
    archived: tuple[Store, list[bytes]],
) -> None:
    """An archiver may wait for the end of the transaction."""
    store, ids = archived
    with store.transaction(), pytest.raises(StoreError, match="transaction open"):
        store.archive()
    with store.transaction(), pytest.raises(StoreError, match="transaction open"):
        store.erase("s", ids[0])
    assert shown(store) == ids


def test_close_waits_for_a_thread_that_archives(store: Store) -> None:
    store.set_retention("s", archive=True)
    ids = fill(store, 1000)
    store.xtrim("s", maxlen=0, approximate=False)
    inside, go_on = threading.Event(), threading.Event()

    def stop_inside() -> None:
        inside.set()
        go_on.wait(PATIENCE_S)

    failpoints.arm("segment:written", stop_inside)
    reports: list[Any] = []
    archiving = thread_of(lambda: reports.append(store.archive()))
    assert inside.wait(PATIENCE_S)
    closing = thread_of(store.close)
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    for thread in (archiving, closing):
        thread.join(PATIENCE_S)
    assert [report.entries for report in reports] == [len(ids)]
    assert not list(store.path.rglob("*.tmp"))
    with streamkeep.open(store.path) as again:
        assert shown(again) == ids


def test_archiving_that_begins_while_the_store_closes_reports_that_it_is_closed(
    store: Store,
) -> None:
    store.set_retention("s", archive=True)
    fill(store, 10)
    store.xtrim("s", maxlen=0, approximate=False)
    environment = environment_of(store)
    store.close()
    with pytest.raises(StoreClosedError), ArchiveLock(environment):
        raise AssertionError


def test_a_forked_child_does_not_wait_for_an_archiver_of_its_parent(
    archived: tuple[Store, list[bytes]],
) -> None:
    store, ids = archived

    def archive_in_the_child() -> None:
        with pytest.raises(StoreClosedError, match="forked"):
            store.archive()

    with ArchiveLock(environment_of(store)):
        assert in_child(archive_in_the_child)
    assert shown(store) == ids


def test_a_thread_cannot_close_the_store_while_it_archives(
    archived: tuple[Store, list[bytes]],
) -> None:
    store, ids = archived
    errors: list[StoreLockedError] = []

    def close(done: int, total: int) -> None:
        with pytest.raises(StoreLockedError, match="working on the archive") as caught:
            store.close()
        errors.append(caught.value)

    store.archive(progress=close)
    assert errors
    assert shown(store) == ids


def test_a_row_that_changes_meanwhile_is_written_again(archived: tuple[Store, list[bytes]]) -> None:
    store, ids = archived

    def change() -> None:
        """Take the first node away, as an erasure may."""
        with store.transaction() as txn:
            cursor = txn.txn.cursor(RETIRED)
            assert cursor.first()
            txn.txn.delete(RETIRED, cursor.key())

    failpoints.arm("archive:written", change)
    before = rows(store, RETIRED)
    report = store.archive()
    assert report.segments == len(segments(store)) == 1
    left = shown(store)
    assert 0 < report.entries < len(left) < 1000
    assert left == ids[-len(left) :]
    assert sum_of(store) == report.entries
    assert before > 1


def test_a_thread_of_the_store_archives(open_store: Open) -> None:
    store = open_store(archive_every=0.02)
    store.set_retention("s", maxlen=10, archive=True)
    ids = fill(store, 800)
    wait_until(lambda: rows(store, SEGMENTS) >= 1)
    assert shown(store) == ids
    store.close()
    assert not [one for one in threading.enumerate() if one.name == "streamkeep-archive"]


def test_a_thread_of_the_store_removes_the_files_of_old_segments(
    open_store: Open, clock: ManualClock
) -> None:
    store = open_store(archive_every=0.02)
    store.set_retention("s", archive=True, archive_max_age=1)
    fill(store, 800)
    store.xtrim("s", maxlen=0, approximate=False)
    store.archive()
    assert segments(store)
    clock.ms += 10_000_000
    wait_until(lambda: not segments(store))
    assert rows(store, SEGMENTS) == 0


def test_a_thread_of_the_store_waits_for_no_archiver(store: Store, clock: ManualClock) -> None:
    store.set_retention("s", archive=True, archive_max_age=1)
    fill(store, 800)
    store.xtrim("s", maxlen=0, approximate=False)
    store.archive()
    clock.ms += 10_000_000
    environment = environment_of(store)
    with ArchiveLock(environment), ThreadPoolExecutor(1) as beside:
        with pytest.raises(StoreLockedError):
            beside.submit(partial(maintenance.maintain, environment, wait=False)).result(PATIENCE_S)
        # Without a URI there is nothing to wait for.
        done = beside.submit(partial(publish.publish, environment)).result(PATIENCE_S)
        assert done == publish.PublishReport()


@pytest.mark.slow
def test_readers_see_each_entry_once_while_all_goes_on(open_store: Open) -> None:
    store = open_store(archive_every=0.01)
    store.set_retention("s", maxlen=30, archive=True)
    done = threading.Event()
    ids: list[bytes] = []

    def write() -> None:
        for _ in range(20):
            ids.extend(fill(store, 50))
            store.archive()
        done.set()

    writer = thread_of(write)
    before = 0
    while not done.is_set():
        found = shown(store)
        assert found == sorted(set(found), key=lambda one: tuple(map(int, one.split(b"-"))))
        assert len(found) >= before
        before = len(found)
    writer.join()
    assert shown(store) == ids
