"""Syncs of one process: what callers get that wait for the disk, also when the store is closed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from inside import checkpoint_now, checkpointer_of, environment_of, journal_of
from patience import PATIENCE_S, run_threads, thread_of, wait_until
from stopped import status_of, stop, stopped_child
from stores import Open
from streamkeep import Store, recovery
from streamkeep.engine.store.registry import registry
from streamkeep.engine.system import failpoints, files
from streamkeep.format.core.errors import RecoveryNeededError, StoreClosedError


def close_without_checkpoint(store: Store) -> None:
    environment = environment_of(store)
    environment.close_files()
    registry.remove(environment)


class Appends:
    """Two threads that append: one is in a sync, which goes on when told, and one waits for it."""

    def __init__(self, store: Store) -> None:
        self.in_sync = threading.Event()
        self.go_on = threading.Event()
        self.outcomes: list[object] = []
        self._store = store
        failpoints.arm("journal:sync", self._pause)
        self.threads = [threading.Thread(target=self._append) for _ in range(2)]
        self.threads[0].start()
        assert self.in_sync.wait(PATIENCE_S)
        before = store.durability().last_commit
        self.threads[1].start()
        journal = journal_of(store)
        wait_until(lambda: journal.syncs._awaited > before)

    def _pause(self) -> None:
        self.in_sync.set()
        assert self.go_on.wait(PATIENCE_S)

    def _append(self) -> None:
        try:
            self.outcomes.append(self._store.xadd("s", {"f": "v"}))
        except Exception as error:
            self.outcomes.append(error)

    def end(self) -> None:
        """Wait for both."""
        self.go_on.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_waits_for_the_disk_when_the_store_is_closed_is_on_disk(
    store: Store, checkpoint: bool
) -> None:
    store.xadd("s", {"f": "v"})
    appends = Appends(store)
    journal = journal_of(store)
    newest = journal.control.newest()
    # Without one, it is as if the appends had come after it.
    close = store.close if checkpoint else lambda: close_without_checkpoint(store)
    closing = thread_of(close)
    appends.end()
    closing.join(PATIENCE_S)
    assert all(isinstance(one, bytes) for one in appends.outcomes), appends.outcomes
    assert journal.control.durable() >= newest
    with pytest.raises(StoreClosedError):
        store.xadd("s", {"f": "v"})
    with Store(store.path) as again:
        assert again.xlen("s") == 3


def test_a_caller_that_the_end_has_left_without_a_sync_is_told_so(open_store: Open) -> None:
    store = open_store(sync="none")
    store.xadd("s", {"f": "v"})
    checkpoint_now(store)
    store.xadd("s", {"f": "v"})
    journal = journal_of(store)
    newest = journal.control.newest()
    close_without_checkpoint(store)
    assert journal.control.durable() < newest
    for patient in True, False:
        assert journal.syncs.wait_for(newest - 1, patient)
        with pytest.raises(StoreClosedError, match="its change is committed"):
            journal.syncs.wait_for(newest, patient)
    Store(store.path).close()  # which replays it


def test_a_sync_that_fails_at_the_end_is_an_error_of_the_callers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.xadd("s", {"f": "v"})
    appends = Appends(store)
    monkeypatch.setattr(files, "sync_data", Mock(side_effect=OSError(5, "the disk fails")))
    closing = thread_of(lambda: close_without_checkpoint(store))
    appends.end()
    closing.join(PATIENCE_S)
    monkeypatch.undo()
    assert [type(one) for one in appends.outcomes] == [RecoveryNeededError] * 2
    Store(store.path).close()  # which recovers it


def test_a_sync_is_tried_without_waiting_for_another_one(open_store: Open) -> None:
    store = open_store(sync="none")
    checkpointer_of(store).stop()  # so that nothing else syncs
    store.xadd("s", {"f": "v"})
    journal = journal_of(store)
    newest = store.durability().last_commit
    with journal.syncs._lock:  # as another thread
        assert not journal.syncs.wait_for(newest, patient=False)
    assert journal.control.durable() < newest
    assert journal.syncs.wait_for(newest, patient=False)
    assert journal.control.durable() >= newest
    journal.syncs.wait_for(newest)


def test_a_file_that_is_being_begun_does_not_count_for_a_sync(open_store: Open) -> None:
    """Its record may fail, and the next commit be in the file before it: that is synced, too."""
    store = open_store(sync="none")
    checkpointer_of(store).stop()
    store.xadd("s", {"n": "1"})
    journal = journal_of(store)
    newest = journal.control.newest()

    def sync_and_fail() -> None:
        thread_of(journal.syncs.wait_for, newest).join()
        raise OSError("the record fails")

    failpoints.arm("journal:new-file", sync_and_fail)
    with pytest.raises(OSError, match="the record fails"):
        store.xadd("s", {"n": bytes(journal.first_size)})  # which does not fit
    failpoints.disarm()
    assert journal.control.durable() == newest
    store.xadd("s", {"n": "2"})
    synced: list[str] = []

    def note() -> None:
        synced.append("")

    failpoints.arm("journal:sync", note)
    assert journal.control.durable_place()[0] <= journal.log.number
    journal.syncs.wait_for(journal.control.newest())
    assert synced


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL], ids=["goes on", "is killed"])
@pytest.mark.parametrize("name", ["journal:sync", "journal:synced"])
def test_a_process_that_is_stopped_in_a_sync_stops_no_other(
    path: Path, name: str, then: signal.Signals
) -> None:
    def append() -> None:
        with Store(path) as own:
            failpoints.arm(name, stop)
            own.xadd("s", {"of": "the child"})

    with Store(path) as store:
        child = stopped_child(append)
        journal = journal_of(store)
        store.xadd("s", {"of": "this process"})
        threads = [
            threading.Thread(target=store.xadd, args=("s", {"of": "a thread"})) for _ in range(3)
        ]
        run_threads(threads)
        store.sync()
        checkpoint_now(store)
        durable = journal.control.durable()
        assert durable == journal.control.newest()
        os.kill(child, then)
        assert status_of(child) == (0 if then == signal.SIGCONT else -then)
        assert journal.control.durable() >= durable
        assert store.xlen("s") == 5
        store.xadd("s", {"of": "this process"})
    assert list(recovery.check(path)) == []
