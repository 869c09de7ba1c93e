"""The queue for asyncio: waits without threads, blocks that end their jobs, tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamkeep import Store, aio
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.jobs import JobFailedError, JobLostError, Queue, QueueFullError
from test_jobs.test_queue import counts, letters


def test_jobs_go_through_an_asyncio_queue(store: Store) -> None:
    async def run() -> None:
        queue = aio.Queue(AsyncStore(store), "mails", backoff=0)
        getting = asyncio.create_task(queue.get_many(1, None))
        puts = await queue.put_many(range(3), priority="high")
        waits = [asyncio.create_task(one.result()) for one in puts]
        (job,) = await getting
        await asyncio.sleep(0)
        await job.done("first")
        async with queue.get(0) as job:
            job.set_result(job.payload)
        with pytest.raises(KeyError):
            async with queue.get(5) as job:
                raise KeyError("no")
        (job,) = await queue.get_many(5)
        assert (job.attempt, await job.state()) == (2, "running")
        await job.fail("for good")
        assert await waits[0] == "first"
        assert await waits[1] == 1
        with pytest.raises(JobFailedError, match="for good"):
            await waits[2]
        with pytest.raises(TimeoutError):
            async with queue.get(0.001):
                pass
        with pytest.raises(JobLostError):
            await job.done()
        assert (await queue.stats())[:5] == (0, 0, 0, 1, 2)

    asyncio.run(run())


def test_tasks_limits_and_control(store: Store) -> None:
    plain = Queue(store, "mails")

    @plain.task
    async def double(number: int) -> int:
        return 2 * number

    async def run() -> None:
        queue = aio.Queue(plain)
        job = await queue.delay(double.options(key="k"), 4)
        (taken,) = await queue.take(9, 0, tasks_only=True)
        assert (await queue.execute(taken)).state == "done"
        assert await job.result(0) == 8
        await queue.set_limits(max_length=1)
        first = await queue.put(1)
        with pytest.raises(QueueFullError):
            await queue.put(2)
        await queue.set_limits(when_full="block")
        blocked = asyncio.create_task(queue.put(2))
        await queue.pause()
        assert await queue.get_many(1) == []
        await queue.resume()
        (got,) = await queue.get_many(1)
        await asyncio.wait_for(blocked, 600)
        await got.give_back()
        assert not await first.cancel()
        assert await (await blocked).cancel()
        (again,) = await queue.get_many(9)
        await again.extend()
        await again.retry()
        assert not await queue.drain(0)

    asyncio.run(run())
    assert counts(plain) == (0, 0, 1, 0, 1)
    assert letters(plain) == []


def test_a_path_is_opened_by_an_asyncio_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.Queue(tmp_path / "store", sync="none") as queue:
            job = await queue.put("x", unique="u")
            assert not (await queue.put("y", unique="u")).is_new
            assert (await queue.find(job.id)).state == "waiting"
            assert await queue.cancel(job.id)

    asyncio.run(run())
