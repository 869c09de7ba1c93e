"""Tasks that wait for entries: woken, out of time, cancelled, and iterators that wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import streamkeep
from blocked import bells, tickets
from patience import handles_below
from stores import Open
from streamkeep.aio import AsyncStore

NEW = {"s": ">"}


def waiting_in(store: AsyncStore) -> int:
    return tickets(store._store)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_hundreds_of_tasks_wait_with_one_descriptor(twin: AsyncStore) -> None:
    await twin.xgroup_create("s", "g", mkstream=True)
    threads = threading.active_count()
    files = len(handles_below(twin._store.path))
    readers = [asyncio.create_task(twin.xread({"t": "$"}, block=0)) for _ in range(150)]
    await until(lambda: waiting_in(twin) == 150)
    order: list[int] = []

    async def consume(number: int) -> None:
        assert await twin.xreadgroup("g", f"c{number}", NEW, count=1, block=0)
        order.append(number)

    consumers = []
    for number in range(150):
        consumers.append(asyncio.create_task(consume(number)))
    await until(lambda: waiting_in(twin) == 300)
    assert threading.active_count() <= threads  # the one that writes may have ended
    # One to wait with, the lease of the process, and the folder of the leases.
    assert len(handles_below(twin._store.path)) == files + 3
    assert len(bells(twin._store)) == 1
    await twin.xadd("t", {"f": "v"}, id="1-1")
    for found in await asyncio.gather(*readers):
        assert found == [[b"t", [(b"1-1", {b"f": b"v"})]]]
    for number in range(50):
        await twin.xadd("s", {"f": "v"})
        await until(lambda number=number: len(order) == number + 1)  # type: ignore[misc]
    assert order == list(range(50))
    await twin.xadd_many("s", [{"f": "v"}] * 100)
    await asyncio.gather(*consumers)
    assert sorted(order) == list(range(150))
    assert waiting_in(twin) == 0


async def test_time_is_up(twin: AsyncStore) -> None:
    assert await twin.xread({"s": "$"}, block=10) == []
    assert waiting_in(twin) == 0
    assert bells(twin._store) == []


async def test_a_thread_wakes_a_task_and_a_task_a_thread(twin: AsyncStore) -> None:
    task = asyncio.create_task(twin.xread({"s": "$"}, block=0))
    await until(lambda: waiting_in(twin) == 1)
    await asyncio.to_thread(twin._store.xadd, "s", {"f": "v"})
    assert len(await task) == 1
    thread = asyncio.create_task(asyncio.to_thread(twin._store.xread, {"s": "$"}, None, 0))
    await until(lambda: waiting_in(twin) == 1)
    await twin.xadd("s", {"f": "v"})
    assert len(await thread) == 1


async def test_cancelled_tasks_leave_nothing(twin: AsyncStore) -> None:
    await twin.xgroup_create("s", "g", mkstream=True)
    calls: list[Callable[[], Any]] = [
        lambda: twin.xread({"s": "$", "t": 0}, block=0),
        lambda: twin.xreadgroup("g", "c", NEW, block=0),
    ]
    for call in calls:
        tasks = [asyncio.create_task(call()) for _ in range(5)]
        await until(lambda: waiting_in(twin) == 5)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in results)
        assert waiting_in(twin) == 0
        assert bells(twin._store) == []
    await twin.xadd("s", {"f": "v"})


async def test_a_cancelled_consumer_passes_its_entry_on(twin: AsyncStore) -> None:
    await twin.xgroup_create("s", "g", mkstream=True)
    tasks = [asyncio.create_task(twin.xreadgroup("g", name, NEW, block=0)) for name in ("a", "b")]
    await until(lambda: waiting_in(twin) == 2)
    twin._store.xadd("s", {"f": "v"})  # rings the first, which has no turn before ...
    tasks[0].cancel()
    assert len(await tasks[1]) == 1
    assert waiting_in(twin) == 0


async def test_closing_ends_what_waits(open_store: Open) -> None:
    store = AsyncStore(open_store())
    task = asyncio.create_task(store.xread({"s": "$"}, block=0))
    await until(lambda: waiting_in(store) == 1)
    store._store.close()  # before the loop can wake the task
    assert bells(store._store) == []
    with pytest.raises(streamkeep.StoreClosedError):
        await task


async def test_without_a_board_tasks_ask_again_and_again(
    twin: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "mkfifo")
    task = asyncio.create_task(twin.xread({"s": 0}, block=5000))
    await asyncio.sleep(0.01)
    await twin.xadd("s", {"f": "v"})
    assert len(await task) == 1


async def test_another_sync_mode(twin: AsyncStore) -> None:
    view = twin.using("commit")
    await view.xgroup_create("s", "g", mkstream=True)
    waits = asyncio.create_task(view.xreadgroup("g", "c", NEW, block=0))
    await until(lambda: waiting_in(twin) == 1)
    assert await view.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
    assert await waits == [[b"s", [(b"1-1", {b"f": b"v"})]]]
    assert await view.xack("s", "g", "1-1") == 1
    assert await view.xlen("s") == 1
    assert (await twin.durability()).durable_commit


async def first(entries: AsyncIterator[Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    async for entry in entries:
        found.append(entry.id)
        if len(found) == count:
            break
    return found


async def test_follow_and_consume(twin: AsyncStore) -> None:
    await twin.xgroup_create("s", "g", mkstream=True)
    following = asyncio.create_task(first(twin.follow("s"), 4))
    consuming = asyncio.create_task(first(twin.consume("s", "g", "c"), 4))
    await until(lambda: waiting_in(twin) == 2)
    for number in range(1, 5):
        await twin.xadd("s", {"f": "v"}, id=f"{number}-1")
    expected = [b"1-1", b"2-1", b"3-1", b"4-1"]
    assert await following == expected
    assert await consuming == expected
    assert await first(twin.consume("s", "g", "c", block=None), 9) == expected  # pending
    assert await first(twin.follow("s", "2-1", block=1), 9) == expected[2:]
    stopped = twin.follow("s", 0, stop=lambda: True)
    assert await first(stopped, 9) == []
    with pytest.raises(streamkeep.NoSuchGroupError):
        await first(twin.consume("s", "none", "c"), 1)


async def test_an_iteration_that_catches_up_leaves_the_loop_to_other_tasks(
    open_store: Open,
) -> None:
    store = AsyncStore(open_store(sync="none"))
    for number in range(1, 501):
        await store.xadd("s", {"n": number})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for entries, batches in (
        (store.follow("s", 0, count=10, block=None), 50),
        (store.changes(block=None), 3),
    ):
        before = turns
        async for _ in entries:
            pass
        assert turns - before >= batches
    counting.cancel()
