"""Workers in this process: threads, an event loop, limits of time, and how they stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import waiting, worker_runs
from streamkeep.jobs import worker as worker_module
from streamkeep.jobs.job import current_job
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.worker import Worker
from streamkeep.jobs.worker_log import JsonFormatter, Report, TextFormatter


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "store", backoff="1ms..2ms", sync="none") as queue:
        yield queue


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """A worker that runs in a thread, and has ended after the block."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop_once()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


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


def test_a_worker_takes_no_more_than_it_runs(queue: Queue) -> None:
    go = threading.Event()

    @queue.task
    def held() -> None:
        assert go.wait(PATIENCE_S)

    jobs = [held.delay() for _ in range(5)]
    worker = Worker(queue, concurrency=2)
    with working(worker):
        wait_until(lambda: len(worker.running) == 2)
        stats = queue.stats()
        assert (stats.running, stats.waiting) == (2, 3)
        go.set()
        for job in jobs:
            job.result(timeout=PATIENCE_S)


def test_stopping_lets_jobs_end_and_takes_no_more(queue: Queue) -> None:
    begun, go = threading.Event(), threading.Event()

    @queue.task
    def held(number: int) -> int:
        begun.set()
        assert go.wait(PATIENCE_S)
        return number

    first, second = held.delay(1), held.delay(2)
    worker = Worker(queue, grace="1h")
    with working(worker):
        assert begun.wait(PATIENCE_S)
        worker.stop()
        go.set()
    assert first.result(timeout=0) == 1
    assert second.state() == "waiting"


def test_what_does_not_end_in_time_is_given_back_as_no_attempt(queue: Queue) -> None:
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
    with working(Worker(queue, grace="10ms", report=seen)):
        assert begun.wait(PATIENCE_S)
    assert seen.events == ["stopping", "given_back", "ended"]
    go.set()  # the abandoned thread ends; its outcome counts no more
    assert queue.stats().running == 0
    assert Worker(queue).run_until_idle() == 1
    assert attempts == [1, 1]
    assert queue.stats().done == 1


def test_the_second_stop_does_not_wait(queue: Queue) -> None:
    begun, go = threading.Event(), threading.Event()

    @queue.task
    def held() -> None:
        begun.set()
        go.wait(PATIENCE_S)

    held.delay()
    worker = Worker(queue, grace="1h")
    with working(worker):
        assert begun.wait(PATIENCE_S)
        worker.stop()
        worker.stop()
    assert queue.stats().running == 0
    go.set()


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


def test_an_error_of_the_store_ends_no_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.task
    def task() -> str:
        return "ran"

    job = task.delay()
    real, failures = waiting.take, [ArgumentError("not now")]

    def take(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **options)

    monkeypatch.setattr(worker_module, "take", take)
    monkeypatch.setattr(worker_module, "_FAILED_PAUSE_S", 0)
    with working(Worker(queue)):
        assert job.result(timeout=PATIENCE_S) == "ran"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be between 1 and 10000, not 0"),
        ({"concurrency": True}, "not True"),
        ({"mode": "fast"}, "mode must be one of threads, asyncio, not 'fast'"),
        ({"grace": "soon"}, "soon"),
    ],
)
def test_options_are_checked(queue: Queue, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        Worker(queue, **options)


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
