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


# --- blocked tasks ------------------------------------------------------------------------------


def test_hundreds_of_tasks_wait_with_one_descriptor(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        await store.xgroup_create("s", "g", mkstream=True)
        threads = threading.active_count()
        files = len(handles_below(store._store.path))
        readers = [asyncio.create_task(store.xread({"t": "$"}, block=0)) for _ in range(150)]
        await until(lambda: waiting_in(store) == 150)
        order: list[int] = []

        async def consume(number: int) -> None:
            assert await store.xreadgroup("g", f"c{number}", NEW, count=1, block=0)
            order.append(number)

        consumers = []
        for number in range(150):
            consumers.append(asyncio.create_task(consume(number)))
        await until(lambda: waiting_in(store) == 300)
        assert threading.active_count() <= threads  # the one that writes may have ended
        # One to wait with, the lease of the process, and the folder of the leases.
        assert len(handles_below(store._store.path)) == files + 3
        assert len(bells(store._store)) == 1
        await store.xadd("t", {"f": "v"}, id="1-1")
        for found in await asyncio.gather(*readers):
            assert found == [[b"t", [(b"1-1", {b"f": b"v"})]]]
        for number in range(50):
            await store.xadd("s", {"f": "v"})
            await until(lambda number=number: len(order) == number + 1)  # type: ignore[misc]
        assert order == list(range(50))
        await store.xadd_many("s", [{"f": "v"}] * 100)
        await asyncio.gather(*consumers)
        assert sorted(order) == list(range(150))
        assert waiting_in(store) == 0

    play(use)


def test_time_is_up(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        assert await store.xread({"s": "$"}, block=10) == []
        assert waiting_in(store) == 0
        assert bells(store._store) == []

    play(use)


def test_a_thread_wakes_a_task_and_a_task_a_thread(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        task = asyncio.create_task(store.xread({"s": "$"}, block=0))
        await until(lambda: waiting_in(store) == 1)
        await asyncio.to_thread(store._store.xadd, "s", {"f": "v"})
        assert len(await task) == 1
        thread = asyncio.create_task(asyncio.to_thread(store._store.xread, {"s": "$"}, None, 0))
        await until(lambda: waiting_in(store) == 1)
        await store.xadd("s", {"f": "v"})
        assert len(await thread) == 1

    play(use)


def test_cancelled_tasks_leave_nothing(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        await store.xgroup_create("s", "g", mkstream=True)
        calls: list[Callable[[], Any]] = [
            lambda: store.xread({"s": "$", "t": 0}, block=0),
            lambda: store.xreadgroup("g", "c", NEW, block=0),
        ]
        for call in calls:
            tasks = [asyncio.create_task(call()) for _ in range(5)]
            await until(lambda: waiting_in(store) == 5)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in results)
            assert waiting_in(store) == 0
            assert bells(store._store) == []
        await store.xadd("s", {"f": "v"})

    play(use)


def test_a_cancelled_consumer_passes_its_entry_on(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        await store.xgroup_create("s", "g", mkstream=True)
        tasks = [
            asyncio.create_task(store.xreadgroup("g", name, NEW, block=0)) for name in ("a", "b")
        ]
        await until(lambda: waiting_in(store) == 2)
        store._store.xadd("s", {"f": "v"})  # rings the first, which has no turn before ...
        tasks[0].cancel()
        assert len(await tasks[1]) == 1
        assert waiting_in(store) == 0

    play(use)


def test_closing_ends_what_waits(open_store: Open) -> None:
    async def main() -> None:
        store = AsyncStore(open_store())
        task = asyncio.create_task(store.xread({"s": "$"}, block=0))
        await until(lambda: waiting_in(store) == 1)
        store._store.close()  # before the loop can wake the task
        assert bells(store._store) == []
        with pytest.raises(streamkeep.StoreClosedError):
            await task

    asyncio.run(main())


def test_without_a_board_tasks_ask_again_and_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "mkfifo")

    async def use(store: AsyncStore) -> None:
        task = asyncio.create_task(store.xread({"s": 0}, block=5000))
        await asyncio.sleep(0.01)
        await store.xadd("s", {"f": "v"})
        assert len(await task) == 1

    play(use)


def test_another_sync_mode(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        view = store.using("commit")
        await view.xgroup_create("s", "g", mkstream=True)
        waits = asyncio.create_task(view.xreadgroup("g", "c", NEW, block=0))
        await until(lambda: waiting_in(store) == 1)
        assert await view.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
        assert await waits == [[b"s", [(b"1-1", {b"f": b"v"})]]]
        assert await view.xack("s", "g", "1-1") == 1
        assert await view.xlen("s") == 1
        assert (await store.durability()).durable_commit

    play(use)


# --- iterators ----------------------------------------------------------------------------------


async def first(entries: AsyncIterator[Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    async for entry in entries:
        found.append(entry.id)
        if len(found) == count:
            break
    return found


def test_follow_and_consume(play: Callable[..., None]) -> None:
    async def use(store: AsyncStore) -> None:
        await store.xgroup_create("s", "g", mkstream=True)
        following = asyncio.create_task(first(store.follow("s"), 4))
        consuming = asyncio.create_task(first(store.consume("s", "g", "c"), 4))
        await until(lambda: waiting_in(store) == 2)
        for number in range(1, 5):
            await store.xadd("s", {"f": "v"}, id=f"{number}-1")
        expected = [b"1-1", b"2-1", b"3-1", b"4-1"]
        assert await following == expected
        assert await consuming == expected
        assert await first(store.consume("s", "g", "c", block=None), 9) == expected  # pending
        assert await first(store.follow("s", "2-1", block=1), 9) == expected[2:]
        stopped = store.follow("s", 0, stop=lambda: True)
        assert await first(stopped, 9) == []
        with pytest.raises(streamkeep.NoSuchGroupError):
            await first(store.consume("s", "none", "c"), 1)

    play(use)


def test_an_iteration_that_catches_up_leaves_the_loop_to_other_tasks(
    play: Callable[..., None],
) -> None:
    async def use(store: AsyncStore) -> None:
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

    play(use, sync="none")
