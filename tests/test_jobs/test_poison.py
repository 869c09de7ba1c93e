"""Jobs whose failure cannot be told, or whose end the store refuses: no job stops a worker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import CorruptionError, StoreFullError
from streamkeep.jobs import Queue, QueueError, Retry, current_job, worker_runs
from streamkeep.jobs.core import Core
from streamkeep.jobs.handler_errors import MOST_TEXT
from streamkeep.jobs.layout import Fields
from streamkeep.jobs.take_call import Take
from streamkeep.jobs.worker import Worker
from streamkeep.jobs.worker_log import Report
from streamkeep.jobs.worker_runs import Run
from test_jobs.test_worker import working


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BareRetry(Retry):
    def __init__(self) -> None: ...


def cancel_itself() -> None:
    with suppress(RuntimeError):  # a plain handler has no event loop
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    raise asyncio.CancelledError


FAILED = "it failed"

# What is raised, or done; the error, what is in its message, and in the reason.
POISON: dict[str, tuple[Callable[[], BaseException | None], str, str, str]] = {
    "text": (lambda: ValueError("caf\udce9"), "builtins.ValueError", "caf\\udce9", FAILED),
    "mute": (Mute, f"{__name__}.Mute", "its text cannot be made: RuntimeError", FAILED),
    "long": (
        *(lambda: ValueError("x" * 3 * MOST_TEXT), "builtins.ValueError"),
        *("xxx... (60,000 characters)", FAILED),
    ),
    "soon": (lambda: Retry(after="in 5 minutes"), "streamkeep.ArgumentError", "'in 5 ", FAILED),
    "past": (lambda: Retry(after=-5), "streamkeep.ArgumentError", "not -5", FAILED),
    "bare": (BareRetry, f"{__name__}.BareRetry", "", "it cannot be retried: "),
    "why": (lambda: Retry(reason="caf\udce9"), "streamkeep.jobs.Retry", "caf\\udce9", FAILED),
    "leave": (lambda: SystemExit(3), "builtins.SystemExit", "3", FAILED),
    "interrupt": (KeyboardInterrupt, "builtins.KeyboardInterrupt", "", FAILED),
    "cancelled": (asyncio.CancelledError, "asyncio.exceptions.CancelledError", "", FAILED),
    "cancels": (cancel_itself, "asyncio.exceptions.CancelledError", "", FAILED),
    "fails": (lambda: current_job().fail("caf\udce9"), "", "", "caf\\udce9"),
}


def poison(name: str) -> None:
    if error := POISON[name][0]():
        raise error


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "store", backoff="1ms..2ms", sync="none") as queue:
        yield queue


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_each_failure_is_booked_and_the_worker_goes_on(
    queue: Queue, mode: Any, is_async: bool
) -> None:
    async def afail(name: str) -> None:
        poison(name)

    bad = queue.task(name="bad", retries=0)(afail if is_async else poison)

    @queue.task
    def good(number: int) -> int:
        return number

    jobs = []
    for number, name in enumerate(POISON):
        bad.delay(name)
        jobs.append(good.delay(number))
    with working(Worker(queue, mode=mode)):
        assert [job.result(PATIENCE_S) for job in jobs] == list(range(len(jobs)))
        wait_until(lambda: queue.stats().failed == len(POISON))
    for letter, (_, kind, message, reason) in zip(
        queue.dead_letters(), POISON.values(), strict=True
    ):
        assert (letter.error, letter.attempts) == (kind, 1)
        assert message in letter.message
        assert letter.reason.startswith(reason)
        assert len(letter.message) + len(letter.traceback) < 3 * MOST_TEXT


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_each_failure_is_retried(queue: Queue, mode: Any) -> None:
    attempts: list[str] = []

    @queue.task(retries=1)
    def bad(name: str) -> int:
        attempts.append(name)
        if attempts.count(name) == 1:
            poison(name)
        return attempts.count(name)

    once = {"bare", "fails"}  # of these, no retry was asked for
    jobs = [bad.delay(name) for name in POISON if name not in once]
    with working(Worker(queue, mode=mode)):
        assert [job.result(PATIENCE_S) for job in jobs] == [2] * len(jobs)


def test_a_program_without_a_worker_books_them_too(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task(retries=0)
    def bad() -> None:
        poison("mute")

    bad.delay()
    caplog.set_level(logging.WARNING, "streamkeep.jobs")
    assert queue.run_until_idle() == 1
    assert queue.stats().failed == 1
    assert "Mute: its text cannot be made: RuntimeError" in caplog.text


@pytest.mark.parametrize("field", ["id", "task", "key", "unique", "headers", "codec", "payload"])
def test_an_entry_of_another_program_with_any_bytes_stops_no_worker(
    queue: Queue, field: str
) -> None:
    @queue.task(retries=0)
    def good(number: int) -> int:
        return number

    queue.core.set_up()
    for value in (b"\xff\xfe", b'{"traceparent": 5}', b"[" * 100_000):
        fields = {b"task": b"good", b"payload": b"[[7], {}]", field.encode(): value}
        queue.store.xadd("default", fields)
    job = good.delay(1)
    with working(Worker(queue)):
        assert job.result(PATIENCE_S) == 1
        wait_until(lambda: queue.stats().running == 0)
    stats = queue.stats()
    assert stats.waiting == stats.parked
    assert stats.done + stats.failed + stats.parked == 4
    if field == "task":
        assert queue.get(0).task == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("threads", StoreFullError("no room")),
        ("threads", CorruptionError("row", "no room")),
        ("asyncio", OSError(5, "no room")),
    ],
)
def test_the_end_of_a_job_waits_for_a_store_that_is_full(
    queue: Queue,
    mode: Any,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("streamkeep.jobs.worker_runs.FAILED_PAUSE_S", 0.01)
    refused: list[int] = []
    apply = Core.apply
    full = threading.Event()

    def refuse(core: Core, *args: Any, **options: Any) -> Any:
        if full.is_set():
            refused.append(1)
            raise error
        return apply(core, *args, **options)

    monkeypatch.setattr(Core, "apply", refuse)

    @queue.task(retries=0)
    def work(number: int) -> int:
        full.set()
        return number

    @queue.task(retries=0)
    async def awork(number: int) -> int:
        full.set()
        return number

    @queue.task(retries=0)
    def fail() -> None:
        full.set()
        raise ValueError("with a full disk")

    def room_again(count: int) -> None:
        wait_until(lambda: len(refused) >= count)
        refused.clear()
        full.clear()

    with working(Worker(queue, mode=mode)):
        for task in (work, awork):
            job = task.delay(3)
            room_again(5)
            assert job.result(PATIENCE_S) == 3
        fail.delay()
        room_again(5)
        wait_until(lambda: queue.stats().failed == 1)
    stats = queue.stats()
    assert (stats.done, stats.failed, stats.running) == (2, 1, 0)  # nothing ran twice
    assert caplog.text.count("is ended as soon as the store can: ") == 3


@pytest.mark.parametrize("exits", [False, True])
def test_a_job_that_waits_for_a_store_is_not_ended_by_its_max_runtime(
    queue: Queue, exits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkeep.jobs.worker_runs.FAILED_PAUSE_S", 0.01)
    apply = Core.apply
    ran: list[int] = []
    refused: list[int] = []
    room = threading.Event()

    def refuse(core: Core, *args: Any, **options: Any) -> Any:
        if ran and not room.is_set():
            refused.append(1)
            raise StoreFullError("the disk is full")
        return apply(core, *args, **options)

    monkeypatch.setattr(Core, "apply", refuse)

    @queue.task(max_runtime="1h")
    def work() -> str:
        ran.append(1)
        return "done"

    hours_later = SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic)
    worker = Worker(queue, exits=exits)
    with working(worker):
        job = work.delay()
        # Other steps of a worker are refused too, and before this the limit ends the process.
        wait_until(lambda: [run.waits for run in tuple(worker._runs)] == [True])
        monkeypatch.setattr(worker_runs, "time", hours_later)
        worker._alarm.ring()
        before = len(refused)
        wait_until(lambda: len(refused) > before + 3)
        room.set()
        assert job.result(PATIENCE_S) == "done"
    assert (queue.stats().failed, len(ran)) == (0, 1)


def test_a_program_without_a_worker_gets_the_error_of_the_store(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Core.apply

    @queue.task(retries=0)
    def work() -> None:
        monkeypatch.setattr(Core, "apply", Mock(side_effect=StoreFullError("the disk is full")))

    work.delay()
    with pytest.raises(StoreFullError):
        queue.run_until_idle()
    monkeypatch.setattr(Core, "apply", apply)
    assert (queue.stats().running, queue.stats().failed) == (1, 0)


def test_work_that_was_done_is_booked_though_the_next_job_cannot_be_taken(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.task(retries=0)
    def work() -> None: ...

    job = work.delay()
    [taken] = queue.get_many(1)
    work.options(headers={"of": "the next"}).delay()
    policy_of = queue.core.policy_of

    def refuse(fields: Fields) -> Any:
        if b"headers" in fields:
            raise RuntimeError("of the take")
        return policy_of(fields)

    monkeypatch.setattr(queue.core, "policy_of", refuse)
    assert Take([queue], queue.consumer, 1, None).after(taken, None) == []
    assert job.state() == "done"


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_worker_that_ends_because_of_an_error_says_so(queue: Queue, mode: Any) -> None:
    class Broken(Report):
        def ran(self, run: Run, outcome: Any) -> None:
            raise RuntimeError("of the report")

    @queue.task
    def work() -> None: ...

    work.delay()
    with pytest.raises(
        QueueError, match=r"because of an error: builtins\.RuntimeError: of the rep"
    ):
        Worker(queue, mode=mode, report=Broken()).run()
    assert queue.stats().running == 0
