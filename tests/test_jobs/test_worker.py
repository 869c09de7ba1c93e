"""Workers in this process: threads, an event loop, limits of time, and how they stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from failing import failing
from inside import journal_of
from patience import PATIENCE_S, beside, thread_of, wait_until
from streamkeep import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    NotAStoreError,
    StoreError,
    StoreFullError,
)
from streamkeep.jobs import take_call, worker_runs
from streamkeep.jobs import worker as worker_module
from streamkeep.jobs.async_queue import AsyncQueue
from streamkeep.jobs.errors import QueueError
from streamkeep.jobs.job import current_job
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.worker import Worker
from streamkeep.jobs.worker_log import JsonFormatter, Report, TextFormatter
from streamkeep.jobs.worker_processes import ChildReport
from streamkeep.jobs.worker_runs import end_soon


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "store", backoff="1ms..2ms", sync="none") as queue:
        yield queue


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """A worker that runs in a thread, and has ended after the block."""
    with beside(worker.run, stop=worker.stop_once):
        yield worker


class Seen(Report):
    """The names of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("ran", "too_long", "given_back", "too_large", "stopping", "ended"):
            return lambda *args: self.events.append(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_handlers_of_both_kinds_run_side_by_side(queue: Queue, mode: Any) -> None:
    both = threading.Barrier(2)

    @queue.task
    def plain(number: int) -> int:
        both.wait(PATIENCE_S)
        return number + 1

    @queue.task
    async def coroutine(number: int) -> int:
        await asyncio.to_thread(both.wait, PATIENCE_S)
        return number + 2

    jobs = [plain.delay(1), coroutine.delay(1)]
    worker = Worker(queue, concurrency=2, mode=mode)
    with working(worker):
        assert [job.result(timeout=PATIENCE_S) for job in jobs] == [2, 3]
    assert queue.stats().done == worker._ran == 2


def test_a_worker_takes_no_more_than_it_runs_and_stops_when_that_has_ended(queue: Queue) -> None:
    go = threading.Event()

    @queue.task
    def held() -> None:
        assert go.wait(PATIENCE_S)

    for _ in range(5):
        held.delay()
    worker = Worker(queue, concurrency=2, grace="1h")
    with working(worker):
        wait_until(lambda: len(worker.running) == 2)
        stats = queue.stats()
        assert (stats.running, stats.waiting) == (2, 3)
        worker.stop()
        go.set()
    stats = queue.stats()
    assert (stats.done, stats.waiting) == (2, 3)


@pytest.mark.parametrize("stops", [1, 2])
def test_what_does_not_end_in_time_is_given_back_as_no_attempt(queue: Queue, stops: int) -> None:
    """The second stop does not wait."""
    begun, go = threading.Event(), threading.Event()
    attempts: list[int] = []

    @queue.task(retries=0)
    def held() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            begun.set()
            go.wait(PATIENCE_S)

    held.delay()
    seen = Seen()
    worker = Worker(queue, grace="10ms" if stops == 1 else "1h", report=seen)
    with working(worker):
        assert begun.wait(PATIENCE_S)
        for _ in range(stops):
            worker.stop()
    assert seen.events == ["stopping", "given_back", "ended"]
    go.set()  # the abandoned thread ends; its outcome counts no more
    assert queue.stats().running == 0
    assert Worker(queue).run_until_idle() == 1
    assert attempts == [1, 1]
    assert queue.stats().done == 1


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_job_that_is_taken_while_the_worker_stops_does_not_begin(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Its process ended while it ran, after a second stop, which counted as a death."""
    ran: list[int] = []
    task = queue.task(name="task")(ran.append)
    task.delay(1)
    worker = Worker(queue, mode=mode)

    def take(*args: Any, **options: Any) -> list[Any]:
        jobs = take_call.take(*args, **options)
        worker.stop()
        worker.stop()
        wait_until(lambda: worker._over)
        return jobs

    monkeypatch.setattr(worker_module, "take", take)
    worker.run()
    wait_until(lambda: not queue.stats().running)
    assert (ran, queue.stats().delayed) == ([], 1)


def test_an_interrupt_of_a_program_without_a_handler_stops_its_worker(queue: Queue) -> None:
    """Its threads went on, and a job that ran counted a death when the program ended."""
    go = threading.Event()

    @queue.task
    def held() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go.wait(PATIENCE_S)

    held.delay()
    worker = Worker(queue)
    # In a process of its own there is no handler; Spark, in another test, leaves one.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.run()
    finally:
        signal.signal(signal.SIGINT, former)
    go.set()
    assert (queue.stats().running, worker.running) == (0, [])


def test_a_coroutine_that_cancels_itself_ends_no_thread(queue: Queue) -> None:
    @queue.task
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # no `await` follows

    jobs = [cancels_itself.delay() for _ in range(2)]
    with working(Worker(queue, grace=0)):
        for job in jobs:
            job.result(timeout=PATIENCE_S)


def test_the_second_stop_is_no_failure_of_coroutines(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of their event loop cancels those that were not given back yet."""
    begun = threading.Barrier(2)
    sweep = Worker._return

    def sweep_slowly(worker: Worker, run: worker_runs.Run) -> None:
        time.sleep(0.1)
        sweep(worker, run)

    @queue.task(retries=0)
    async def held(last: bool) -> None:
        if last:
            begun.wait(PATIENCE_S)
        await asyncio.sleep(PATIENCE_S)

    for last in (False, False, True):
        held.delay(last)
    monkeypatch.setattr(Worker, "_return", sweep_slowly)
    worker = Worker(queue, concurrency=3, mode="asyncio")
    with working(worker):
        begun.wait(PATIENCE_S)
        worker.stop()
        worker.stop()
    wait_until(lambda: not queue.stats().running)
    assert queue.dead_letters() == []


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_handler_that_hangs_fails_and_another_takes_its_place(queue: Queue, mode: Any) -> None:
    go = threading.Event()
    runs: list[str] = []

    @queue.task(max_runtime="200ms", retries=1000)  # on a busy machine, others are too long, too
    def hangs() -> str:
        runs.append("plain")
        if len(runs) == 1:
            go.wait(PATIENCE_S)
        return "second"

    @queue.task(max_runtime="200ms", retries=0)
    async def sleeps() -> None:
        await asyncio.sleep(PATIENCE_S)

    job, dead = hangs.delay(), sleeps.delay()
    seen = Seen()
    with working(Worker(queue, concurrency=2, mode=mode, grace=0, report=seen)):
        assert job.result(timeout=PATIENCE_S) == "second"
        wait_until(lambda: dead.state() == "failed")
    go.set()
    assert seen.events.count("too_long") >= 2
    (letter,) = queue.store.xrange("default:dead")
    assert b"max_runtime" in letter.fields[b"message"]


def test_a_parent_hears_of_a_limit_that_a_job_has_moved(queue: Queue) -> None:
    """It kills a process in which a job runs longer than it was told.

    It hears at once: a handler that does not give up the GIL lets no other thread tell it later.
    """
    events, to_parent = os.pipe()

    @queue.task(max_runtime="1m")
    def task() -> list[float]:
        current_job().extend("1h")
        return [json.loads(line)["left"] for line in os.read(events, 999).splitlines()]

    job = task.delay()
    with working(Worker(queue, exits=True, report=ChildReport(to_parent))):
        first, second = job.result(timeout=PATIENCE_S)
    os.close(to_parent)
    os.close(events)
    assert first <= 60 < second


def test_a_process_that_grew_too_large_stops_after_its_job(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.task
    def task() -> None:
        pass

    for _ in range(3):
        task.delay()
    monkeypatch.setattr(worker_runs, "resident_bytes", lambda: 101)
    seen = Seen()
    worker = Worker(queue, max_memory=100, report=seen)
    with working(worker):
        wait_until(lambda: worker.recycled)
    assert seen.events == ["ran", "too_large", "stopping", "ended"]
    assert queue.stats().waiting == 2


def test_an_error_of_the_store_ends_no_worker_and_is_told_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task
    def task() -> str:
        return "ran"

    job = task.delay()
    texts = [*["the disk is full"] * 9, *["not now"] * 9]
    take = failing(map(StoreFullError, texts), take_call.take)
    monkeypatch.setattr(worker_module, "take", take)
    monkeypatch.setattr(worker_runs, "FAILED_PAUSE_S", 0)
    with working(Worker(queue)):
        assert job.result(timeout=PATIENCE_S) == "ran"
    told = [one.getMessage() for one in caplog.records]
    for text in ("not now", "the disk is full"):
        assert told.count(f"no job can be taken, trying again: {text}") == 1


def test_a_worker_waits_for_a_store_that_cannot_take_its_rules(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [StoreFullError("the disk is full"), CorruptionError("row", "checksum")]
    register = failing(failures, queue.register_periodic)
    queue.periodic("0 3 * * *", name="nightly")(print)
    monkeypatch.setattr(queue, "register_periodic", register)
    monkeypatch.setattr(worker_runs, "FAILED_PAUSE_S", 0)
    with working(Worker(queue)):
        wait_until(lambda: bool(queue.schedules()))
    for text in ("row: checksum", "the disk is full"):
        assert f"no job can be taken, trying again: {text}" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 10,000, not 0"),
        ({"concurrency": "4"}, "concurrency must be a whole number .* not '4'"),
        ({"max_memory": "500M"}, "max_memory must be a whole number of at least 0, not '500M'"),
        ({"concurrency": True}, "not True"),
        ({"mode": "fast"}, "mode must be one of threads, asyncio, not 'fast'"),
        ({"grace": "soon"}, "soon"),
        ({"queues": "mails"}, "a worker needs queues, not 'mails'"),
    ],
)
def test_options_are_checked(queue: Queue, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        Worker(**{"queues": queue, **options})


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_queues_of_several_stores_are_refused(queue: Queue, tmp_path: Path, mode: Any) -> None:
    with Queue(tmp_path / "other") as other, pytest.raises(QueueError, match="of one store"):
        Worker([queue, other], mode=mode).run()


# --- the log ------------------------------------------------------------------------------------


def test_a_line_per_job(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task(retries=0)
    def fails() -> None:
        raise ValueError("out of paper")

    job = fails.delay()
    caplog.set_level(logging.INFO, "streamkeep.worker")
    with working(Worker(queue)):
        wait_until(lambda: job.state() == "failed")
    (record,) = (one for one in caplog.records if getattr(one, "streamkeep", {}).get("job"))
    assert not [one for one in caplog.records if one.name == "streamkeep.jobs"]  # no second line
    text = TextFormatter().format(record)
    assert f" error failed fails {job.id} of default in " in text
    assert text.endswith(" ms: ValueError: out of paper")
    line = JsonFormatter().format(record)
    parts = ('"event": "failed"', f'"job": "{job.id}"', '"error": "ValueError"', '"attempt": 1')
    assert all(part in line for part in parts)


def test_a_coroutine_whose_job_was_lost_is_cancelled_when_the_worker_stops(queue: Queue) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    @queue.task
    async def sleeps() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    job = sleeps.delay()
    worker = Worker(queue, mode="asyncio", grace=0)
    with working(worker):
        assert begun.wait(PATIENCE_S)
        queue.store.xack("default", "jobs", job.id)  # as if it had ended elsewhere
        worker.stop()
    assert cancelled.wait(PATIENCE_S)


def test_a_handler_that_stops_its_worker_leaves_the_next_job(queue: Queue) -> None:
    @queue.task
    def stops() -> None:
        worker.stop()

    jobs = [stops.delay() for _ in range(2)]
    worker = Worker(queue)
    worker.run()
    assert [job.state() for job in jobs] == ["done", "waiting"]
    assert queue.stats()[:5] == (1, 0, 0, 0, 1)


# --- how a worker ends jobs: without a wait for the disk, which gets the end soon -----------------


@contextmanager
def stuck_disk() -> Iterator[threading.Event]:
    """Let each sync wait until the end of the block; yield what is set when one does."""
    stuck, free = threading.Event(), threading.Event()

    def stick() -> None:
        stuck.set()
        free.wait(PATIENCE_S)

    failpoints.arm("journal:sync", stick)
    try:
        yield stuck
    finally:
        free.set()


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_worker_ends_jobs_without_a_wait_for_the_disk(tmp_path: Path, mode: Any) -> None:
    """The disk gets the last end though nothing follows."""
    with Queue(tmp_path / "store") as queue:

        @queue.task
        def plain() -> None: ...

        @queue.task
        async def coroutine() -> None: ...

        for _ in range(2):
            plain.delay()
            coroutine.delay()

        def is_on_disk() -> bool:
            state = queue.store.durability()
            return state.durable_commit == state.last_commit

        worker = Worker(queue, mode=mode)
        with beside(worker.run):
            try:
                with stuck_disk():
                    wait_until(lambda: queue.stats().done == 4)
                wait_until(is_on_disk)
            finally:
                worker.stop()


def test_other_ends_wait_for_the_disk(tmp_path: Path) -> None:
    """A control: `done` and a failed attempt return when they are on disk."""
    with Queue(tmp_path / "store", retries=0) as queue:
        queue.put_many(["a", "b"])
        first, second = queue.get_many(2)
        for end in (first.done, lambda: second.fail("no paper")):
            with stuck_disk() as stuck:
                thread = thread_of(end)
                assert stuck.wait(PATIENCE_S)
                assert thread.is_alive()
            thread.join()
        assert (queue.stats().done, queue.stats().failed) == (1, 1)


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


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
@pytest.mark.parametrize("trouble", ["moved", "needs recovery"])
def test_a_worker_ends_when_only_another_opening_of_the_store_helps(
    tmp_path: Path, mode: Any, trouble: str
) -> None:
    queue = Queue(tmp_path / "store", sync="none")

    @queue.task
    def task() -> None:
        if trouble == "moved":
            (tmp_path / "store").rename(tmp_path / "elsewhere")
        else:
            journal_of(queue.store).control.poison()  # what a failed sync does

    task.delay()
    ended: list[str] = []

    def run() -> None:
        try:
            Worker(queue, mode=mode).run()
        except QueueError as error:
            ended.append(str(error))

    thread_of(run).join(PATIENCE_S)
    told = "streamkeep.NotAStoreError" if trouble == "moved" else "streamkeep.RecoveryNeededError"
    assert [told in one for one in ended] == [True]
    with suppress(StoreError):
        queue.close()


@pytest.mark.parametrize("error", [NotAStoreError("gone"), RuntimeError("threads are gone")])
def test_tasks_that_run_have_their_time_when_none_can_be_taken(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ended: list[str] = []
    gone = threading.Event()

    @queue.task
    async def task() -> str:
        while not gone.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        ended.append("it has")
        return "done"

    job = task.delay()
    real = take_call.take

    def take(queues: Any, consumer: Any, count: int, **options: Any) -> Any:
        if count == 1:  # room for one more
            gone.set()
            raise error
        return real(queues, consumer, count, **options)

    monkeypatch.setattr(worker_module, "take", take)
    with pytest.raises(QueueError, match="gone"):
        Worker(queue, mode="asyncio", concurrency=2).run()
    assert ended == ["it has"]
    assert job.result(timeout=PATIENCE_S) == "done"
