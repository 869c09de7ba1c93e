"""A call that waits for a process that is stopped: the process is named, and nothing is lost."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from inside import checkpoint_now, context_of, environment_of
from patience import PATIENCE_S, thread_of, wait_until
from stopped import stop, stopped_child
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.long_wait import LongWait, PatientLock, users_of
from streamkeep.format.core.errors import StoreLockedError


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
        try:
            with pytest.raises(StoreLockedError, match=f"process {child}, which is stopped"):
                checkpoint_now(store)
            store.xadd("s", {"of": "this process"})
        finally:
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
        checkpoint_now(store)
        assert store.xlen("s") == 3


@pytest.mark.usefixtures("plain_locks")
def test_a_store_is_closed_although_a_process_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = Store(path, sync="none")
    store.xadd("s", {"of": "this process"})
    child = stopped_child(lambda: in_a_transaction(path))
    context_of(store).wait.limit_s = 0.1
    try:
        with pytest.raises(StoreLockedError, match=f"process {child}, which is stopped"):
            store.close()
        with Store(path) as again:
            assert again.xlen("s") == 1
    finally:
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
    with Store(path) as again:
        assert again.xlen("s") == 2


def test_a_process_with_two_pins_is_one_user(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.xadd("s", {"of": "this process"})
        with store.snapshot() as snapshot:
            assert snapshot.xlen("s") == 1
            assert context_of(store).raw.readers().count("\n") > 2
            assert users_of(context_of(store).raw) == [os.getpid()]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_locks")
def test_an_opening_names_the_process_that_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    caplog.set_level(logging.WARNING, "streamkeep")

    def in_a_flush() -> None:
        with Store(path) as own:
            own.xadd("s", {"of": "the child"})
            failpoints.arm("flush:ending", stop)
            checkpoint_now(own)

    child = stopped_child(in_a_flush)
    opening = thread_of(lambda: Store(path).close())
    try:
        wait_until(lambda: f"process {child}, which is stopped" in caplog.text)
    finally:
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
    opening.join(PATIENCE_S)


def test_an_opening_waits_for_no_transaction_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store"
    child = stopped_child(lambda: in_a_transaction(path))
    try:
        with Store(path) as store:
            assert store.xlen("s") == 0
    finally:
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)


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
