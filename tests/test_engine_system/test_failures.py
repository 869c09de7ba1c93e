"""Errors that concern several callers; the order of locks; calls that wait for long."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from inside import checkpoint_now, context_of, environment_of, group_commit_of, journal_of
from lock_order import ORDER, LockOrderError
from patience import PATIENCE_S, thread_of, wait_until
from stopped import ended, go_on, stop, stopped_child
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.store import ending
from streamkeep.engine.store.command import Write
from streamkeep.engine.system import failpoints, files, locks
from streamkeep.engine.system.failures import copy_of
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.system.locks import make_reentrant_lock as make_reentrant
from streamkeep.engine.system.long_wait import LongWait, PatientLock
from streamkeep.format.core.errors import (
    ChecksumError,
    CommandError,
    CorruptionError,
    ErasureBlockedError,
    RecoveryNeededError,
    StoreLockedError,
)

CALLERS = 4


def test_a_copy_has_all_of_an_error_and_shares_nothing_that_changes() -> None:
    blocked = ErasureBlockedError("blocked")
    blocked.processes = (1, 2)
    refused = CommandError("refused")
    refused.entry_index = 3
    for error in (
        RecoveryNeededError("failed"),
        ChecksumError("node 1", "no match", offset=5),
        OSError(5, "Input/output error", "data.mdb"),
        blocked,
        refused,
    ):
        error.add_note("first")
        copied = copy_of(error)
        copied.add_note("second")
        assert type(copied) is type(error)
        assert copied is not error
        assert str(copied) == str(error)
        assert copied.__cause__ is error
        assert error.__notes__ == ["first"]
        assert copied.__notes__ == ["first", "second"]
    assert copy_of(blocked).processes == (1, 2)
    assert copy_of(refused).entry_index == 3
    damaged = copy_of(CorruptionError("node 1", "torn", offset=5))
    assert (damaged.where, damaged.problem, damaged.offset) == ("node 1", "torn", 5)


def test_an_error_that_cannot_be_copied_stays_as_it_is() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")

    error = Odd(1, 2)
    assert copy_of(error) is error


def test_callers_of_one_group_commit_raise_errors_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = streamkeep.open(tmp_path / "store", sync="commit")
    store.xadd("s", {"n": 0})
    group_commit = group_commit_of(store)
    begun, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow(txn: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    def add() -> None:
        try:
            store.xadd("s", {"n": 1})
        except BaseException as error:
            errors.append(error)

    first = thread_of(lambda: group_commit.run(Write(slow, ())))
    assert begun.wait(PATIENCE_S)
    callers = [threading.Thread(target=add) for _ in range(CALLERS)]
    for thread in callers:
        thread.start()
    wait_until(lambda: len(group_commit._queue) == CALLERS)
    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_data", Mock(side_effect=OSError(5, "Input/output error")))
        go_on.set()
        for thread in (first, *callers):
            thread.join(PATIENCE_S)
    assert len(errors) == CALLERS
    assert {type(error) for error in errors} == {RecoveryNeededError}
    assert len({id(error) for error in errors}) == CALLERS
    assert len({str(error) for error in errors}) == 1
    # All but the leader's say by their cause where it happened.
    causes = [error.__cause__ for error in errors if error.__cause__ in errors]
    assert len(causes) == CALLERS - 1
    assert "Input/output error" in "".join(traceback.format_exception(errors[0]))
    with pytest.raises(RecoveryNeededError):
        store.close()


# --- locks: the order is checked in the tests, and costs nothing otherwise ------------------------

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_lock_out_of_order_names_both_locks() -> None:
    write, gate = make_lock("write", "a"), make_lock("gate", "a")
    with write, gate:
        pass
    with gate, pytest.raises(LockOrderError, match=r"takes the lock 'write' .* holds 'gate'"):
        write.acquire()
    with write:  # neither is held any more
        assert not gate.locked()


def test_a_lock_that_its_thread_holds_is_not_waited_for() -> None:
    with make_lock("write", "a"), pytest.raises(LockOrderError):
        make_lock("write", "a").acquire()


def test_locks_of_two_stores_have_no_order_but_common_locks_come_last() -> None:
    with make_lock("gate", "a"), make_lock("write", "b"):
        pass
    with make_lock("registry"), pytest.raises(LockOrderError):
        make_lock("write", "b").acquire()


def test_another_thread_may_release_a_lock() -> None:
    write = make_lock("write", "a")
    write.acquire()
    thread = thread_of(write.release)
    thread.join()
    with write:
        pass


def test_without_the_check_a_lock_is_a_plain_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_lock("write")) is not type(threading.Lock())
    monkeypatch.setattr(locks, "checked", None)
    assert type(make_lock("write")) is type(threading.Lock())
    assert isinstance(make_reentrant("registry"), type(threading.RLock()))


def test_the_table_has_every_lock_of_the_engine_and_no_other() -> None:
    made: dict[str, set[str]] = {}
    for path in sorted((ROOT / "engine").rglob("*.py")):
        for name in re.findall(r'(?:make_\w*lock|OwnedLock)\(\s*"([^"]+)"', path.read_text()):
            made.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    listed = {lock.name: lock.where.split(":")[0] for lock in ORDER if not lock.file}
    assert made.keys() == listed.keys()
    assert [name for name, where in listed.items() if where not in made[name]] == []


def test_other_locks_of_the_engine_only_pass_signals_between_threads() -> None:
    plain = {
        f"{path.relative_to(ROOT).as_posix()}: {line.strip()}"
        for path in sorted((ROOT / "engine").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"threading\.(R?Lock|Condition|Semaphore)\(", line)
        and path.name != "locks.py"
        and "make_" not in line
    }
    assert plain == {
        "engine/store/group_commit.py: call.lock = threading.Lock()  # which `wake` releases"
    }


# --- long wait ------------------------------------------------------------------------------------


def in_a_transaction(path: Path) -> None:
    with Store(path) as own, own.transaction() as txn:
        txn.xadd("s", {"of": "the child"})
        stop()


@pytest.mark.usefixtures("plain_locks")
def test_a_checkpoint_names_the_process_that_is_stopped_in_one(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def in_a_checkpoint() -> None:
        with Store(path) as own:
            own.xadd("s", {"of": "the child"})
            failpoints.arm("checkpoint:pinned", stop)
            checkpoint_now(own)

    with Store(path, sync="none") as store:
        store.xadd("s", {"of": "this process"})
        child = stopped_child(in_a_checkpoint)
        checkpoints = environment_of(store).checkpoints
        assert checkpoints is not None
        checkpoints.wait.limit_s = 0.1
        with ended(child):
            with pytest.raises(StoreLockedError, match=f"process {child}, which is stopped"):
                checkpoint_now(store)
            store.xadd("s", {"of": "this process"})
            go_on(child)
        checkpoint_now(store)
        assert store.xlen("s") == 3


def in_a_long_transaction(path: Path) -> None:
    with Store(path) as own, own.transaction() as txn:
        txn.xadd("s", {"of": "the child"})
        stop()
        time.sleep(PATIENCE_S)


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize("long", [False, True])
def test_a_store_is_closed_although_a_process_has_the_write_lock(
    tmp_path: Path, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is on disk, without the checkpoint that the other process prevents."""
    monkeypatch.setattr(ending, "_LAST_WAIT_S", 0.1)
    path = tmp_path / "store"
    store = Store(path, sync="none")
    store.xadd("s", {"of": "this process"})
    child = stopped_child(lambda: (in_a_long_transaction if long else in_a_transaction)(path))
    with ended(child):
        if long:
            os.kill(child, signal.SIGCONT)
        store.close()
        with Store(path) as again:
            found = again.durability()
            assert again.xlen("s") == 1
            assert found.durable_commit == found.last_commit
        if not long:
            go_on(child)
    with Store(path) as again:
        assert again.xlen("s") == 2 - long


def in_a_flush(path: Path) -> None:
    with Store(path) as own:
        own.xadd("s", {"of": "the child"})
        failpoints.arm("flush:ending", stop)
        checkpoint_now(own)


def with_the_archive(path: Path) -> None:
    with Store(path) as own, ArchiveLock(environment_of(own)):
        stop()


@pytest.mark.usefixtures("plain_locks")
def test_a_process_that_is_stopped_while_it_archives_is_named(tmp_path: Path) -> None:
    """Else the call waits without an end, and the closing of the store for it."""
    with Store(tmp_path / "store") as store:
        child = stopped_child(lambda: with_the_archive(store.path))
        with ended(child):
            for limit_s in (0.1, 30.0):  # the second call does not wait again
                environment_of(store).archive_wait.limit_s = limit_s
                with pytest.raises(StoreLockedError, match=f"process {child}, .*-CONT {child}"):
                    store.archive()
            go_on(child)
        store.archive()


def in_an_opening(path: Path) -> None:
    failpoints.arm("create:written", stop)
    Store(path).close()


@pytest.mark.slow
@pytest.mark.parametrize("hold", [in_a_flush, in_an_opening])
def test_an_opening_names_a_process_that_is_stopped_while_it_writes_to_lmdb(
    tmp_path: Path, hold: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    Store(path).close()
    child = stopped_child(lambda: hold(path))
    with ended(child):
        with pytest.raises(StoreLockedError, match=f"process {child}, .*kill -CONT {child}"):
            Store(path)
        with Store(path, readonly=True) as reader:
            assert reader.xlen("s") == (hold is in_a_flush)
        go_on(child)
    with Store(path) as store:
        assert store.xlen("s") == (hold is in_a_flush)


@pytest.mark.usefixtures("plain_locks")
def test_a_process_that_is_stopped_while_it_opens_a_store_keeps_no_other_from_writing(
    tmp_path: Path,
) -> None:
    """What the others write stays in their memory and in the journal."""
    with Store(tmp_path / "store") as store:
        child = stopped_child(lambda: in_an_opening(store.path))
        with ended(child):
            journal_of(store).control.wait.limit_s = 0.1
            context_of(store).memtable.most_commits = 1
            store.xadd("s", {"of": "this process"})
            for _ in range(2):
                with pytest.raises(StoreLockedError, match=f"process {child}, .*-CONT {child}"):
                    checkpoint_now(store)
                store.xadd("s", {"of": "this process"})  # although a flush is due
            context_of(store).max_bytes = 1  # it is full: only what makes room is written
            context_of(store).memtable.room = 0
            with pytest.raises(StoreLockedError):
                store.xadd("s", {"of": "this process"})
            assert store.xtrim("s", maxlen=2, approximate=False) == 1
            go_on(child)
        checkpoint_now(store)
        assert store.xlen("s") == 2


def test_an_opening_waits_for_no_transaction_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with ended(stopped_child(lambda: in_a_transaction(path))), Store(path) as store:
        assert store.xlen("s") == 0


def test_a_short_wait_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    wait = LongWait("the lock")
    lock = PatientLock(threading.Lock(), wait)
    with wait, lock:
        wait.check()
        wait.report()
        assert not lock.acquire(blocking=False)
        wait.limit_s = -1.0
        wait.check()  # it may be at work
    wait.check()


def test_a_wait_is_not_long_while_another_process_works(caplog: pytest.LogCaptureFixture) -> None:
    wait = LongWait("the lock")
    commits = iter(range(1, 100))
    wait.progress = lambda: next(commits)
    wait.limit_s = 0.0
    with wait:
        wait.check()
        wait.report()
    assert not caplog.text
