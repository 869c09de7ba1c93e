"""Functions that run as commands: shared transactions, and waits for what they find."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inside import environment_of, tickets_in
from patience import PATIENCE_S, thread_of, wait_until
from streamkeep import IdTooSmallError, Snapshot, Store, StoreClosedError, Transaction, When
from streamkeep.engine.api.async_store import AsyncStore

ON = [("rows", "group")]


def take(txn: Transaction[Any]) -> list[Any]:
    """Take the first row of a space."""
    found = txn.row_range("rows", count=1)
    for key, _ in found:
        txn.row_delete("rows", key)
    return found


def look(snapshot: Snapshot[Any]) -> int:
    return 0 if snapshot.row_range("rows", count=1) else -1


def give(txn: Transaction[Any]) -> None:
    txn.row_put("rows", b"key", b"value")
    txn.wake("rows", "group")


@pytest.mark.parametrize("change", ["a row", "an entry"])
def test_a_function_that_raises_undoes_all_of_its_changes_and_no_others(
    store: Store, change: str
) -> None:
    def fail(txn: Transaction[Any]) -> None:
        if change == "a row":
            txn.row_put("rows", b"half", b"")
        else:
            txn.xadd("orders", {"half": 1})  # which no row shows before the commit
        txn.xadd("orders", {"a": 1}, id="0-0")

    def add(txn: Transaction[Any]) -> object:
        return txn.xadd("orders", {"a": 1})

    errors: list[BaseException] = []

    def run(work: Callable[[Transaction[Any]], Any]) -> None:
        try:
            store.apply(work)
        except IdTooSmallError as error:
            errors.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=run, args=[work]) for work in (fail, add, fail, fail)]
        with store.transaction():  # the calls gather, and share a commit
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
    assert (len(errors), store.row_range("rows"), store.xlen("orders")) == (15, [], 5)


@pytest.mark.parametrize("call", ["apply", "apply_when"])
def test_a_transaction_that_was_kept_takes_nothing_after_its_function(
    store: Store, call: str
) -> None:
    store.xadd("orders", {"a": 1})
    kept: list[Transaction[Any]] = []

    def keep(txn: Transaction[Any]) -> list[Any]:
        kept.extend([txn, txn.as_bytes()])
        return kept

    if call == "apply":
        store.apply(keep)
    else:
        store.apply_when(keep, When(look, ON))
    for txn in kept:
        with pytest.raises(StoreClosedError, match="the transaction has ended"):
            txn.xadd("orders", {"lost": 1})
    store.xadd("orders", {"a": 2})
    assert store.xlen("orders") == 2


def test_a_call_sleeps_until_a_commit_wakes_it(store: Store) -> None:
    found: list[Any] = []

    def run() -> None:
        found.extend(store.apply_when(take, When(look, ON)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    table = store._environment.context.wait_table
    wait_until(lambda: tickets_in(table) == 2)
    store.apply(give)
    wait_until(lambda: len(found) == 1)
    assert tickets_in(table) == 1
    store.apply(give)
    for thread in threads:
        thread.join()
    assert found == [(b"key", b"value")] * 2
    assert store.apply_when(take, When(look, ON), block=1) == []


def test_a_reader_is_woken_by_its_key(store: Store) -> None:
    found: list[Any] = []

    def read(snapshot: Snapshot[Any]) -> list[Any]:
        return snapshot.row_range("rows")

    thread = thread_of(lambda: found.extend(store.read_when(read, [("k", None)])))
    wait_until(lambda: tickets_in(store._environment.context.wait_table) == 1)
    with store.transaction() as txn:
        txn.row_put("rows", b"key", b"value")
        txn.wake("k")
    thread.join()
    assert found == [(b"key", b"value")]


async def test_tasks_apply_and_wait_as_threads_do(store: Store) -> None:
    def give_both(txn: Transaction[Any]) -> None:
        give(txn)
        txn.row_put("kept", b"1", b"")
        txn.wake("k")

    own = AsyncStore(store)
    waits = asyncio.create_task(own.apply_when(take, When(look, ON)))
    reads = asyncio.create_task(own.read_when(lambda one: one.row_range("kept"), [("k", None)]))
    await own.apply(give_both)
    assert await waits == [(b"key", b"value")]
    assert await reads == [(b"1", b"")]
    with pytest.raises(IdTooSmallError):
        await own.apply(lambda txn: txn.xadd("orders", {"a": 1}, id="0-0"))


@pytest.mark.parametrize("call", ["apply", "apply_when", "transaction", "async apply"])
def test_the_first_call_with_that_mode_begins_to_sync_at_intervals(store: Store, call: str) -> None:
    checkpointer = environment_of(store).checkpointer
    assert checkpointer is not None
    assert checkpointer._intervals == []
    if call == "apply":
        store.apply(give, sync="interval")
    elif call == "apply_when":
        store.apply_when(lambda txn: [1], When(look, ON), sync="interval")
    elif call == "transaction":
        with store.transaction(sync="interval"):
            pass
    else:

        async def run() -> None:
            await AsyncStore(store).apply(give, sync="interval")

        asyncio.run(run())
    assert checkpointer._intervals == [1]


def test_a_thread_finds_the_transaction_that_it_has_open(store: Store) -> None:
    assert store.open_transaction() is None
    with store.transaction() as txn:
        assert store.open_transaction() is txn
        found: list[object] = []
        thread = thread_of(lambda: found.append(store.open_transaction()))
        thread.join()
        assert found == [None]
    assert store.open_transaction() is None


def test_the_end_of_a_transaction_leaves_that_of_another_thread(store: Store) -> None:
    """The lock is free before the first block ends, so the second one begins in between."""
    ended, begun = threading.Event(), threading.Event()
    found: list[bool] = []

    def other() -> None:
        with store.transaction() as txn:
            begun.set()
            assert ended.wait(PATIENCE_S)
            found.append(store.open_transaction() is txn)

    thread = threading.Thread(target=other)
    with store.transaction() as first:
        first.abort()
        thread.start()
        assert begun.wait(PATIENCE_S)
    ended.set()
    thread.join()
    assert found == [True]
