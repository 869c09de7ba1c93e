"""The queue that threads and tasks share: who shares a transaction, and who does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from unittest.mock import Mock

import pytest

import streamkeep
from inside import begin_read, group_commit_of
from patience import PATIENCE_S, wait_until
from stores import Open
from streamkeep.aio import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.store.command import Write
from streamkeep.engine.store.group_commit import TaskCall
from streamkeep.engine.system import files
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.keys import ROWS
from tiers import slow_but

THREADS: Final = 16
EACH: Final = 50
KIB: Final = 1 << 10
MIB: Final = 1 << 20


class Held:
    """A leader that holds the queue of a store until it is let go, with a thread of its own."""

    def __init__(self, store: Store[Any]) -> None:
        self.queue = group_commit_of(store)
        self._go_on = threading.Event()
        begun = threading.Event()

        def hold(txn: object) -> None:
            begun.set()
            assert self._go_on.wait(PATIENCE_S)

        self._thread = threading.Thread(target=self.queue.run, args=(Write(hold, ()),))
        self._thread.start()
        assert begun.wait(PATIENCE_S)

    def wait_for(self, calls: int) -> None:
        """Wait until this many calls are in the queue."""
        wait_until(lambda: len(self.queue._queue) == calls)

    def let_go(self, *others: threading.Thread) -> None:
        """Let it go on; return when it has ended, and other threads."""
        self._go_on.set()
        for thread in (self._thread, *others):
            thread.join(PATIENCE_S)


def start(*works: Callable[[], object]) -> tuple[list[threading.Thread], list[BaseException]]:
    """Start each function in a thread; return the threads, and the list that gets the errors."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    return threads, errors


def in_threads(work: Callable[[int], object]) -> list[BaseException]:
    """Run `work(number)` in threads at the same time; return the errors."""
    together = threading.Barrier(THREADS)

    def run(number: int) -> None:
        together.wait(PATIENCE_S)
        work(number)

    threads, errors = start(*[partial(run, number) for number in range(THREADS)])
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return errors


def commits(store: Store[Any]) -> int:
    """Return the number of the newest commit."""
    return store.durability().last_commit


@pytest.mark.parametrize("command", slow_but(["xadd", "xack", "xdel", "xtrim"], "xadd", "xack"))
def test_threads_share_transactions(
    store: Store, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [store.xadd("s", {"n": n}) for n in range(THREADS * EACH)]
    store.xgroup_create("s", "g", id=0)
    assert len(store.xreadgroup("g", "c", {"s": ">"})[0][1]) == THREADS * EACH
    before = commits(store)
    sync = files.sync_data

    def sync_of_a_disk(handle: int) -> None:  # in memory, a sync ends before others can join it
        time.sleep(0.002)
        sync(handle)

    monkeypatch.setattr(files, "sync_data", sync_of_a_disk)

    def work(number: int) -> None:
        for id in ids[number::THREADS]:
            if command == "xadd":
                store.xadd("s", {"n": number})
            elif command == "xack":
                assert store.xack("s", "g", id) == 1
            elif command == "xdel":
                assert store.xdel("s", id) == 1
            else:
                store.xtrim("s", minid=id, approximate=False)

    assert in_threads(work) == []
    # On a busy machine few threads come during a sync: then a transaction has two or three calls.
    assert commits(store) - before < THREADS * EACH * 0.9
    if command == "xack":
        assert store.xpending("s", "g")["pending"] == 0
    elif command == "xdel":
        assert store.xlen("s") == 0


def test_threads_and_tasks_share_a_transaction(store: Store) -> None:
    store.xadd("s", {"n": 0})
    held = Held(store)
    before = commits(store)

    async def main() -> list[bytes]:
        tasks = AsyncStore(store)
        calls = asyncio.gather(*(tasks.xadd("s", {"n": n}) for n in range(5)))
        await asyncio.to_thread(held.wait_for, 10)
        await asyncio.to_thread(held.let_go)
        return await calls

    threads, errors = start(*[lambda: store.xadd("s", {"n": "t"})] * 5)
    held.wait_for(5)
    ids = asyncio.run(main())
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    assert len(set(ids)) == 5
    assert store.xlen("s") == 11
    # That of the leader which was held, and those of at most two batches.
    assert commits(store) - before <= 3


@pytest.mark.parametrize("error", [OSError("no"), streamkeep.CommandError("no")], ids=repr)
def test_what_breaks_a_shared_transaction_breaks_itself_only(
    open_store: Open, error: Exception
) -> None:
    """A refused command writes no row: `test_refused.py`. If one did, it would be undone, too."""

    def broken(txn: WriteTxn) -> None:
        txn.put_row(ROWS, b"half", b"of it")
        raise error

    store = open_store()
    store.xadd("s", {"n": 0})
    held = Held(store)
    works = [lambda: store.xadd("s", {"n": "t"})] * 3
    threads, errors = start(*works, lambda: store._run(Write(broken, ())))
    held.wait_for(4)
    held.let_go(*threads)
    assert errors == [error]
    assert store.xlen("s") == 4
    with begin_read(store) as txn:
        assert txn.get(ROWS, b"half") is None


def test_a_batch_lends_the_reserve_to_no_append(open_store: Open) -> None:
    """A full store takes acknowledgements and deletions, also next to appends that it refuses."""
    store = open_store(max_store_bytes=MIB)
    store.xgroup_create("s", "g", id=0, mkstream=True)
    ids = []
    with pytest.raises(streamkeep.StoreFullError):
        while True:
            ids.append(store.xadd("s", {"big": bytes(10 * KIB)}))
    store.xreadgroup("g", "c", {"s": ">"}, count=4)
    held = Held(store)
    works: list[Callable[[], object]] = []
    for id in ids[:4]:
        works.append(partial(store.xack, "s", "g", id))
        works.append(lambda: store.xadd("s", {"big": bytes(200 * KIB)}))
    threads, errors = start(*works)
    held.wait_for(8)
    held.let_go(*threads)
    assert [type(error) for error in errors] == [streamkeep.StoreFullError] * 4
    assert store.xpending("s", "g")["pending"] == 0
    assert store.xlen("s") == len(ids)


def test_a_thread_in_a_transaction_is_refused_and_waits_for_nobody(store: Store) -> None:
    """Otherwise it would wait for a leader that waits for its transaction."""
    with Store(store.path), store.transaction() as txn:
        txn.xadd("s", {"n": 0})
        threads, errors = start(lambda: store.xadd("s", {"n": 1}))
        queue = group_commit_of(store)
        wait_until(lambda: queue._leader is not None)
        with pytest.raises(streamkeep.StoreError, match="this thread has a transaction open"):
            store.xadd("s", {"n": 2})
        with pytest.raises(streamkeep.StoreError, match="this thread has a transaction open"):
            store.xack("s", "g", "1-1")
        with pytest.raises(streamkeep.StoreError, match="this thread has a transaction open"):
            store.close()  # although another store of this process has it open, too
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    assert store.xlen("s") == 2


async def test_a_function_runs_after_the_calls_before_it_and_alone(open_store: Open) -> None:
    store = AsyncStore(open_store())
    lengths = await asyncio.gather(
        store.xadd("s", {"n": 0}),
        store.xadd("s", {"n": 1}),
        store.run(lambda txn: txn.xlen("s")),
        store.xadd("s", {"n": 2}),
        store.run(lambda txn: txn.xlen("s")),
    )
    assert (lengths[2], lengths[4]) == (2, 3)


async def test_a_cancelled_call_that_no_leader_has_taken_never_runs(store: Store) -> None:
    store.xadd("s", {"n": 0})

    tasks = AsyncStore(store)
    held = Held(store)
    calls = [asyncio.create_task(tasks.xadd("s", {"n": n})) for n in range(3)]
    await asyncio.to_thread(held.wait_for, 3)
    calls[0].cancel()
    calls[2].cancel()
    await asyncio.sleep(0)
    held.let_go()
    await calls[1]
    await tasks.run(lambda txn: None)  # after all of them
    assert [entry.fields for entry in store.xrange("s")] == [{b"n": b"0"}, {b"n": b"1"}]


def test_calls_of_an_interrupted_leader_run_once(open_store: Open) -> None:
    store = open_store()
    store.xadd("s", {"n": "first"})
    held = Held(store)

    async def main() -> list[bytes]:
        tasks = AsyncStore(store)
        calls = asyncio.gather(*(tasks.xadd("s", {"n": n}) for n in range(3)))
        await asyncio.to_thread(held.wait_for, 5)
        await asyncio.to_thread(held.let_go)
        return await asyncio.wait_for(calls, PATIENCE_S)

    leader, errors = start(lambda: store._run(Write(Mock(side_effect=KeyboardInterrupt), ())))
    held.wait_for(1)
    follower, others = start(lambda: store.xadd("s", {"n": "thread"}))
    held.wait_for(2)
    ids = asyncio.run(main())
    for thread in (*leader, *follower):
        thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [KeyboardInterrupt]
    assert others == []
    entries = store.xrange("s")
    assert set(ids) < {entry.id for entry in entries}
    assert sorted(entry.fields[b"n"] for entry in entries) == [
        b"0",
        b"1",
        b"2",
        b"first",
        b"thread",
    ]


def test_a_leader_that_is_interrupted_twice_at_its_end_keeps_nobody_waiting(store: Store) -> None:
    held = Held(store)
    leader, errors = start(lambda: store.xadd("s", {"n": "leader"}))
    held.wait_for(1)
    future = Mock(cancelled=Mock(return_value=False))
    future.get_loop().call_soon_threadsafe.side_effect = [KeyboardInterrupt, KeyboardInterrupt]
    for _ in range(10):  # the leader of so many leads until they are on disk
        held.queue.submit(TaskCall(Write(lambda txn: None, ()), True, future))
    held.let_go(*leader)
    assert [type(error) for error in errors] == [KeyboardInterrupt]
    (later,), _ = start(lambda: store.xadd("s", {"n": "later"}))
    later.join(PATIENCE_S)
    assert store.xlen("s") == 2
