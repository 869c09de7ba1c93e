"""The queue for asyncio: waits without threads, blocks that end their jobs, tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from blocked import tickets
from patience import PATIENCE_S, thread_of
from streamkeep import Store, aio, jobs
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.system import failpoints
from streamkeep.jobs.async_queue import AsyncJob, AsyncQueue


async def test_jobs_go_through_an_asyncio_queue(store: Store) -> None:
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
    with pytest.raises(jobs.JobFailedError, match="for good"):
        await waits[2]
    with pytest.raises(TimeoutError):
        async with queue.get(0.001):
            pass
    with pytest.raises(jobs.JobLostError):
        await job.done()
    assert (await queue.stats())[:5] == (0, 0, 0, 1, 2)


async def test_coroutines_run_at_once_also_where_an_event_loop_runs(store: Store) -> None:
    """As in a notebook: each was refused, and then ran for as long as its process lived."""
    queue = jobs.Queue(store, immediate=True)

    @queue.task
    async def send(again: bool) -> str:
        if again:
            assert send.delay(False).state() == "waiting"  # until this one has ended
        return "sent"

    assert send.delay(True).result(0) == "sent"
    assert queue.stats().done == 2


async def test_a_block_ends_the_job_before_it(store: Store) -> None:
    queue = aio.Queue(AsyncStore(store), "mails")
    await queue.put_many([1, 2])
    (first,) = await queue.get_many(1)
    async with queue.get(0, after=first) as second:
        assert (await first.state(), second.payload) == ("done", 2)
    with pytest.raises(jobs.JobLostError):
        async with queue.get(0, after=first):
            pass
    assert (await queue.stats())[:3] == (0, 0, 0)


async def test_a_block_whose_job_cannot_end_so_is_a_failed_attempt(store: Store) -> None:
    queue = aio.Queue(AsyncStore(store), "mails")
    await queue.put_many([1, 2])

    async def end() -> None:
        async with queue.get(0) as job:
            job.set_result(object())
            if job.payload == 2:
                ending.cancel()

    with pytest.raises(jobs.PayloadError):
        await asyncio.create_task(end())
    ending = asyncio.create_task(end())
    with pytest.raises(asyncio.CancelledError):
        await ending
    while (await queue.stats()).running:
        await asyncio.sleep(0.001)
    assert (await queue.stats())[:4] == (0, 0, 0, 2)


@pytest.mark.parametrize("after", [False, True])
async def test_what_a_cancelled_call_has_taken_goes_back(store: Store, after: bool) -> None:
    taking, cancelled = threading.Event(), threading.Event()

    def wait_in_commit(name: str) -> None:
        if name == "commit:journaled":
            taking.set()
            assert cancelled.wait(PATIENCE_S)

    queue = aio.Queue(AsyncStore(store), "mails")
    await queue.put_many([1, 2] if after else [1])
    former = (await queue.get_many(1))[0] if after else None
    failpoints.watch(wait_in_commit)

    async def get() -> None:
        async with queue.get(after=former):
            raise AssertionError("it was cancelled")

    task = asyncio.create_task(get())
    await asyncio.to_thread(taking.wait, PATIENCE_S)
    for _ in range(3):  # as nested timeouts do
        task.cancel()
        await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await queue.stats())[:3] == (0, 0, 1)  # a job that was given back is due


def test_the_job_of_a_block_that_is_cancelled_goes_back_though_the_loop_ends(store: Store) -> None:
    queue = aio.Queue(AsyncStore(store), "mails")
    free = threading.Event()

    async def main() -> None:
        loop, taken = asyncio.get_running_loop(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        await queue.put(1)

        async def work() -> None:
            async with queue.get():
                taken.set()
                await asyncio.sleep(PATIENCE_S)

        task = asyncio.create_task(work())
        await taken.wait()
        loop.run_in_executor(None, free.wait, PATIENCE_S)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        loop.call_later(0.01, free.set)

    asyncio.run(main())
    assert queue.queue.stats().running == 0


async def test_a_drain_that_is_cancelled_leaves_no_thread(store: Store) -> None:
    queue = aio.Queue(AsyncStore(store), "mails")
    await queue.put(1)
    (job,) = await queue.get_many(1)
    drain = asyncio.create_task(queue.drain())
    while not tickets(store):
        await asyncio.sleep(0.001)
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    left = tickets(store)
    drain = asyncio.create_task(queue.drain("1h"))
    await job.done()
    assert (left, await drain) == (0, True)


async def test_a_job_ends_though_its_task_is_cancelled(store: Store) -> None:
    """Its work is done, and while this process lives, no other one would get it."""
    free = threading.Event()
    queue = aio.Queue(AsyncStore(store), "mails")
    await queue.put(1)
    (job,) = await queue.get_many(1)
    writer = asyncio.create_task(queue.store.run(lambda txn: free.wait(PATIENCE_S)))
    await asyncio.sleep(0)
    end = asyncio.create_task(job.done())
    for _ in range(9):
        await asyncio.sleep(0)
    end.cancel()
    free.set()
    await writer
    with pytest.raises(asyncio.CancelledError):
        await end
    async with asyncio.timeout(PATIENCE_S):
        while not (await queue.stats()).done:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("what", ["get", "get after", "done"])
def test_a_call_ends_though_its_loop_ends(store: Store, what: str) -> None:
    """Otherwise its job would stay with this process, which lives."""
    queue = jobs.Queue(store, "mails")
    queue.put_many([1, 2])
    former = None if what == "get" else queue.get(0)
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            held.set()
            assert free.wait(PATIENCE_S)

    async def let_go_at_the_end() -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            free.set()

    async def run() -> None:
        own = aio.Queue(queue)
        mine = None if former is None else AsyncJob(own, former)
        await own.store.xlen("mails")
        thread_of(hold)
        assert await asyncio.to_thread(held.wait, PATIENCE_S)
        calls: list[Coroutine[Any, Any, object]]
        if mine and what == "done":  # behind another call, which the thread that writes has
            calls = [own.store.xadd("other", {"n": 1}), mine.done()]
        else:
            calls = [own.get(after=mine).__aenter__()]
        tasks = [asyncio.create_task(one) for one in (*calls, let_go_at_the_end())]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in tasks)

    asyncio.run(run())
    stats = queue.stats()
    assert (stats.running, stats.done) == (0, int(what != "get"))


def test_each_name_of_a_queue_exists_for_asyncio_with_the_same_arguments() -> None:
    of_jobs = {"transaction", "end", "end_attempt", "park", "fields"}
    for plain, its, left in ((jobs.Queue, AsyncQueue, set()), (jobs.Job, AsyncJob, of_jobs)):
        names = {one for one in dir(plain) if not one.startswith("_")} - left
        awaited = {one for one in names if one[0] == "a" and one[1:] in names}  # `aresult`
        for name in names - awaited:
            one, other = getattr(plain, name), getattr(its, name)
            assert callable(one) == callable(other), name
            if callable(one):
                its_own, other_ones = (
                    [
                        (each.name, each.kind, each.default)
                        for each in signature(of).parameters.values()
                    ]
                    for of in (one, other)
                )
                assert its_own == other_ones, name
                assert getattr(other, "__wrapped__", one).__name__ == name


def test_plain_tasks_and_jobs_are_awaited(tmp_path: Path) -> None:
    queue = jobs.Queue(tmp_path / "store", sync="none")

    @queue.task
    def pack(order: str) -> str:
        return f"{order} is packed"

    async def run() -> None:
        job = await pack.adelay("apples")
        other = await queue.aput(1, key="k")
        assert await job.astate() == "waiting"
        assert await other.acancel()
        wait = asyncio.create_task(job.aresult(600))
        await asyncio.sleep(0)
        assert await asyncio.to_thread(queue.run_until_idle) == 1
        assert await wait == "apples is packed"
        found = await queue.ajob(job.id)
        assert (type(found), await found.astate()) == (jobs.Job, "done")
        with pytest.raises(jobs.NoSuchJobError):
            await queue.ajob("1-1")

    with queue:
        asyncio.run(run())
        asyncio.run(run())  # in another event loop


async def test_tasks_are_declared_on_an_asyncio_queue_and_run_at_once_in_tests(
    tmp_path: Path,
) -> None:
    queue = aio.Queue(tmp_path / "store", immediate=True, sync="none")

    @queue.task(retries=0)
    async def double(number: int) -> int:
        return 2 * number

    async with queue:
        job = await double.adelay(4)
        assert (await job.astate(), await job.aresult(0)) == ("done", 8)
        put = await queue.put("x", unique="u", delay=9)
        assert not (await queue.put("y", unique="u")).is_new
        assert await (await queue.job(put.id)).state() == "delayed"
        assert await queue.cancel(put.id)
        assert await queue.store.xlen("default:dead") == 0
