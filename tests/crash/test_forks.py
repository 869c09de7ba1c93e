"""A forked child has what the parent had open, and must do no harm with it, however it ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from crash.power import another_boot, copy_store
from inside import checkpoint_now, environment_of, journal_of
from patience import PATIENCE_S, thread_of
from stopped import child_of, status_of
from streamkeep.engine.store.command import Write
from streamkeep.format.core.errors import StoreClosedError


def run_to_its_end(code: Callable[[], object]) -> int:
    """Fork; have the child run a function, and free what nothing leads to; return its status."""

    def run() -> None:
        code()
        gc.collect()

    return status_of(child_of(run))


def test_a_snapshot_outlives_a_child_that_drops_it(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store", sync="none") as store:
        store.xadd_many("s", [{"n": str(n), "pad": "x" * 100} for n in range(2000)])
        held = [store.snapshot()]
        snapshot = held[0]
        want = snapshot.xrange("s")

        def drop() -> None:
            held[0].close()
            held.clear()

        assert run_to_its_end(drop) == 0
        for number in range(6):
            store.delete(f"t{number}")
            store.xadd_many(f"t{number + 1}", [{"other": "y" * 100}] * 2000)
            checkpoint_now(store)
        assert snapshot.xrange("s") == want
        snapshot.close()


def test_a_transaction_belongs_to_the_parent(path: Path, tmp_path: Path) -> None:
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})
        with store.transaction() as txn:
            txn.xadd("s", {"n": 1})

            def end_it() -> None:
                for use in (
                    lambda: txn.xadd("s", {"child": "of the parent"}),
                    lambda: txn.xlen("s"),
                    lambda: list(txn.scan("s")),
                    lambda: txn.txn,
                ):
                    with pytest.raises(StoreClosedError, match="forked"):
                        use()
                txn.abort()

            assert run_to_its_end(end_it) == 0
        for number in range(2, 6):
            store.xadd("s", {"n": number})
        checkpointer = environment_of(store).checkpointer
        assert checkpointer is not None
        checkpointer.stop()  # between two files, a checkpoint would spoil the copy
        copy_store(path, tmp_path / "copy")
    with another_boot(), streamkeep.open(tmp_path / "copy") as copy:
        assert [entry.fields[b"n"] for entry in copy.xrange("s")] == [b"%d" % n for n in range(6)]


def test_a_child_does_not_wait_for_a_leader_of_the_parent(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"n": 0})
        environment = environment_of(store)
        leading, go_on = threading.Event(), threading.Event()

        def lead(txn: object) -> None:
            leading.set()
            go_on.wait(PATIENCE_S)

        thread = thread_of(lambda: environment.group_commit.run(Write(lead, ())))
        leading.wait(PATIENCE_S)

        def add() -> None:
            with pytest.raises(StoreClosedError, match="forked"):
                store.xadd("s", {"n": 1})

        assert run_to_its_end(add) == 0
        go_on.set()
        thread.join()
        assert store.xlen("s") == 1


def test_a_child_that_is_forked_after_any_file_was_closed_can_open_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes what the parent had open at that moment, and nothing twice."""
    close, parent = os.close, os.getpid()
    statuses: set[int] = set()

    def read() -> None:
        with streamkeep.open(path, readonly=True) as own:
            own.xlen("s")

    def close_and_fork(handle: int) -> None:
        close(handle)
        if os.getpid() == parent and threading.current_thread() is threading.main_thread():
            statuses.add(run_to_its_end(read))

    with streamkeep.open(path) as store:
        journal_of(store).file_size = 1 << 16
        store.xadd("s", {"n": 0})
        monkeypatch.setattr(os, "close", close_and_fork)
        for number in range(2):
            store.xadd("s", {"n": number, "pad": bytes(1 << 20)})
        monkeypatch.undo()
    assert statuses == {0}


def test_a_child_that_is_forked_while_another_store_closes_may_use_no_store_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of the other one is closed already: the child may find it first."""
    close, parent = os.close, os.getpid()
    statuses: list[int] = []

    def use() -> None:
        with pytest.raises(StoreClosedError, match="forked"):
            store.xlen("s")
        for name in "closed", "open":
            with streamkeep.open(tmp_path / name, readonly=True) as own:
                own.xlen("s")

    def close_and_fork(handle: int) -> None:
        close(handle)
        if os.getpid() == parent and threading.current_thread() is threading.main_thread():
            statuses.append(run_to_its_end(use))

    closed = streamkeep.open(tmp_path / "closed")
    closed.xadd("s", {"n": 0})
    with streamkeep.open(tmp_path / "open") as store:
        store.xadd("s", {"n": 0})
        monkeypatch.setattr(os, "close", close_and_fork)
        closed.close()
        monkeypatch.undo()
    assert len(statuses) > 5
    assert set(statuses) == {0}
