"""How a worker ends jobs: without a wait for the disk, which gets the end soon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S, wait_until
from streamkeep import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system import failpoints
from streamkeep.jobs.async_queue import AsyncQueue
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.worker import Worker
from streamkeep.jobs.worker_runs import end_soon


@contextmanager
def stuck_disk() -> Iterator[None]:
    """Let each sync wait until the end of the block."""
    free = threading.Event()

    def stick() -> None:
        free.wait(PATIENCE_S)

    failpoints.arm("journal:sync", stick)
    try:
        yield
    finally:
        free.set()


@contextmanager
def beside(work: Any) -> Iterator[threading.Thread]:
    """A function that runs in a thread, which has ended after the block."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_worker_ends_jobs_without_a_wait_for_the_disk(tmp_path: Path, mode: Any) -> None:
    with Queue(tmp_path / "store") as queue:

        @queue.task
        def plain() -> None: ...

        @queue.task
        async def coroutine() -> None: ...

        for _ in range(2):
            plain.delay()
            coroutine.delay()
        worker = Worker(queue, mode=mode)
        with beside(worker.run):
            try:
                with stuck_disk():
                    wait_until(lambda: queue.stats().done == 4)
            finally:
                worker.stop()


def test_other_ends_wait_for_the_disk(tmp_path: Path) -> None:
    """A control: `done` and a failed attempt return when they are on disk."""
    with Queue(tmp_path / "store", retries=0) as queue:
        queue.put_many(["a", "b"])
        first, second = queue.get_many(2)
        for end in (first.done, lambda: second.fail("no paper")):
            at_disk = threading.Event()
            free = threading.Event()

            def stick(at_disk: threading.Event = at_disk, free: threading.Event = free) -> None:
                at_disk.set()
                free.wait(PATIENCE_S)

            failpoints.arm("journal:sync", stick)
            with beside(end) as thread:
                try:
                    assert at_disk.wait(PATIENCE_S)
                    assert thread.is_alive()
                finally:
                    free.set()
        assert (queue.stats().done, queue.stats().failed) == (1, 1)


def test_the_disk_gets_the_end_of_a_job_though_nothing_follows(tmp_path: Path) -> None:
    with Queue(tmp_path / "store") as queue:
        synced = threading.Event()

        @queue.task
        def last() -> None:
            failpoints.arm("journal:synced", synced.set)

        job = last.delay()
        worker = Worker(queue)
        with beside(worker.run):
            job.result(PATIENCE_S)
            assert synced.wait(PATIENCE_S)
            worker.stop()


@pytest.mark.parametrize("how", ["result", "drain", "await"])
def test_an_end_is_on_disk_before_a_caller_is_told_of_it(tmp_path: Path, how: str) -> None:
    with Store(tmp_path / "store", interval=3600) as store:
        queue = Queue(store)
        job = queue.put("a")
        (taken,) = queue.get_many(1)
        end_soon(taken, 1)
        before = store.durability()
        assert before.durable_commit is not None
        assert before.durable_commit < before.last_commit

        async def wait() -> None:
            assert await AsyncQueue(queue).result_of(job.id) == 1

        if how == "result":
            assert job.result() == 1
        elif how == "drain":
            assert queue.drain()
        else:
            asyncio.run(wait())
        after = store.durability()
        assert after.durable_commit == after.last_commit


@pytest.mark.parametrize(("sync", "ends"), [("commit", "interval"), ("interval", None)])
def test_a_store_that_does_not_wait_keeps_its_mode(tmp_path: Path, sync: Sync, ends: Any) -> None:
    with Store(tmp_path / "store", sync=sync) as store:
        assert Queue(store).core.sync_of_ends() == ends


def test_a_queue_that_is_closed_leaves_no_end_to_the_next_checkpoint(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as other:
        with Queue(tmp_path / "store") as queue:
            queue.put("a")
            (taken,) = queue.get_many(1)
            end_soon(taken, 1)
        state = other.durability()
        assert state.durable_commit == state.last_commit
