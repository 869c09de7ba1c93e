"""Tasks: calls in the queue, what follows an exception, follow-ups, immediate queues."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from stopped import child_of, status_of
from streamkeep import ArgumentError, Store, jobs
from streamkeep.aio import Queue as AsyncQueue
from streamkeep.engine.system.clock import ManualClock
from test_jobs.test_queue import counts, letters


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("ann",), {}, "missing a required argument: 'template'"),
        (("ann", 1, "bob"), {"template": "hello"}, "too many positional arguments"),
        (("ann",), {"template": "hello", "cc": "bob"}, "an unexpected keyword argument 'cc'"),
        (("ann",), {"template": "hello", "to": "bob"}, "multiple values for argument 'to'"),
    ],
)
def test_a_call_that_cannot_run_is_refused(
    queue: jobs.Queue, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    def send(to: str, copies: int = 1, *, template: str) -> None: ...

    async def adelay() -> None:
        await AsyncQueue(queue).delay(task, *args, **kwargs)

    task = queue.task(send)
    task.delay("ann", template="hello")
    for put in (task.delay, task.options(delay=5).delay):
        with pytest.raises(TypeError, match="the task 'send' does not take these arguments") as got:
            put(*args, **kwargs)
        assert problem in str(got.value)
        assert "next: give it those of send(to: 'str', copies: 'int' = 1, *," in str(got.value)
    with pytest.raises(TypeError, match=problem):
        asyncio.run(adelay())
    with pytest.raises(TypeError, match=problem):
        queue.periodic("0 3 * * *", args=args, kwargs=kwargs)(send)
    assert (counts(queue), queue.core.rules) == ((1, 0, 0, 0, 0), {})


def test_a_wrapper_takes_what_it_says_itself(queue: jobs.Queue) -> None:
    def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function("session", *args, **kwargs)

        return wrapped

    @queue.task
    @with_session
    def save(session: str, sku: str) -> str:
        return f"{sku} in {session}"

    jobs = [save.delay("7"), queue.task(name="largest")(max).delay(1, 2)]
    assert queue.run_until_idle() == 2
    assert [job.result(0) for job in jobs] == ["7 in session", 2]


@pytest.mark.parametrize(
    ("error", "attempts", "reason"),
    [
        (OSError("down"), 3, "it failed 3 times"),
        (ConnectionError("down"), 1, "builtins.ConnectionError is not retried"),
        (ValueError("bad"), 1, "builtins.ValueError is not retried"),
        (jobs.Retry(after=7), 3, "it failed 3 times"),
    ],
)
def test_exceptions_are_retried_as_the_task_says(
    queue: jobs.Queue, clock: ManualClock, error: Exception, attempts: int, reason: str
) -> None:
    ran: list[int] = []

    @queue.task(
        retries=2, backoff=7, retry_on=(OSError, jobs.Retry), give_up_on=ConnectionError, name="run"
    )
    def fail() -> None:
        ran.append(clock.ms)
        raise error

    job = fail.delay()
    for _ in range(60):
        queue.run_until_idle()
        clock.ms += 500
    assert (len(ran), [letter["reason"] for letter in letters(queue)]) == (attempts, [reason])
    assert all(later - earlier >= 3500 for earlier, later in itertools.pairwise(ran))
    with pytest.raises(jobs.JobFailedError):
        job.result(0)


def test_what_a_handler_collects_happens_with_its_acknowledgement(
    queue: jobs.Queue, clock: ManualClock
) -> None:
    @queue.task(retries=1, backoff=0)
    def count(number: int) -> int:
        job = jobs.current_job()
        with job.transaction as txn:
            txn.xadd("log", {"number": number, "attempt": job.attempt})
            with suppress(KeyError), job.transaction:
                txn.xadd("log", {"number": "dropped", "attempt": job.attempt})
                raise KeyError
            if number:
                follow = count.delay(number - 1)
        if job.attempt == 1:
            raise OSError
        with pytest.raises(jobs.QueueError, match="no ID until"):
            print(follow.id if number else job.queue._missing)  # type: ignore[attr-defined]
        return number

    with pytest.raises(jobs.QueueError, match="for handlers"):
        count(1)
    with pytest.raises(AttributeError):
        queue._missing  # type: ignore[attr-defined]  # noqa: B018
    count.delay(1)
    queue.run_until_idle()
    log = [(e.fields[b"number"], e.fields[b"attempt"]) for e in queue.store.xrange("log")]
    assert log == [(b"1", b"2")]


def test_each_coroutine_of_a_handler_has_its_blocks(queue: jobs.Queue) -> None:
    ran: list[int] = []

    @queue.task
    def note(number: int) -> None:
        ran.append(number)

    @queue.task(retries=0)
    async def work() -> None:
        job, has_ended = jobs.current_job(), asyncio.Event()

        async def part(number: int) -> None:
            with suppress(KeyError), job.transaction as txn:
                txn.xadd("log", {"number": number})
                await asyncio.sleep(0)
                await note.adelay(number)
                if number == 1:
                    raise KeyError

        async def go_on() -> None:
            await has_ended.wait()
            await note.adelay(9)

        with job.transaction:
            later = asyncio.create_task(go_on())
        await asyncio.gather(*map(part, range(3)))
        with job.transaction as txn:
            job.done()
            with pytest.raises(jobs.JobLostError, match="already been ended"):
                txn.xadd("log", {"number": 8})
            with pytest.raises(jobs.JobLostError, match="already been ended"):
                await note.adelay(8)
        has_ended.set()
        await later

    work.delay()
    queue.run_until_idle()
    assert [entry.fields[b"number"] for entry in queue.store.xrange("log")] == [b"0", b"2"]
    assert (ran, queue.stats().failed) == ([0, 2, 9], 0)


def test_two_tasks_of_one_name_are_refused(queue: jobs.Queue) -> None:
    @queue.task(name="same")
    def one() -> None: ...

    with pytest.raises(ArgumentError, match="another task called 'same'"):

        @queue.task(name="same")
        def other() -> None: ...

    with pytest.raises(ArgumentError, match="classes of exceptions"):
        queue.task(retry_on="OSError")(one.call)  # type: ignore[call-overload]


def test_a_task_of_a_callable_without_a_name_needs_one(queue: jobs.Queue) -> None:
    multiply = functools.partial(int.__mul__, 6)
    for declare in (queue.task, queue.periodic("0 3 * * *")):
        with pytest.raises(ArgumentError, match=r"partial.*give one, as task\(name=\.\.\.\)"):
            declare(multiply)
    for _ in range(2):  # it may be declared again, as where a module is loaded twice
        task = queue.task(name="multiply")(multiply)
        assert queue.periodic("0 3 * * *", args=[7], name="multiply")(multiply) is task
    with pytest.raises(ArgumentError, match="another task called 'multiply'"):
        queue.task(name="multiply")(functools.partial(int.__mul__, 7))
    job = task.delay(7)
    queue.run_until_idle()
    assert job.result(0) == 42


def test_an_immediate_queue_runs_what_is_put(store: Store, clock: ManualClock) -> None:
    queue = jobs.Queue(store, immediate=True)

    @queue.task
    def count(number: int) -> int:
        if number:
            count.delay(number - 1)
        return number

    assert count.delay(3).result() == 3
    assert queue.stats().done == 4
    later = count.options(delay="1h").delay(0)
    with pytest.raises(TimeoutError):
        later.result(0)
    clock.ms += 3_600_000
    assert later.result() == 0
    with store.transaction():
        inside = count.delay(0)
    assert inside.result() == 0


def test_a_forked_child_opens_the_store_again(
    queue: jobs.Queue, open_store: Callable[..., Store]
) -> None:
    own = jobs.Queue(queue.store.path, "mails", sync="none")
    own.put("x")
    with own.core._lock:  # another thread has it at this moment
        child = child_of(lambda: own.put("y"))
    assert status_of(child) == 0
    assert own.stats().waiting == 2
    own.close()


@pytest.mark.parametrize(
    ("leave", "status", "told"),
    [
        (lambda: sys.exit(3), 3, ""),
        (lambda: sys.exit("no luck"), 1, "no luck"),
        (lambda: 1 // 0, 1, "ZeroDivisionError"),
        (lambda: "its result", 0, ""),
    ],
)
def test_a_process_that_a_handler_forks_ends_with_it_and_not_the_job(
    queue: jobs.Queue,
    leave: Callable[[], object],
    status: int,
    told: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It gave the job back to the queue, which ran it again and again, or ended it."""

    @queue.task
    def fork() -> object:
        child = os.fork()
        return status_of(child) if child else leave()

    job = fork.delay()
    queue.run_until_idle()
    assert (job.result(0), queue.stats().done) == (status, 1)
    assert told in capfd.readouterr().err


def test_an_option_that_does_not_exist_is_named_and_puts_nothing(queue: jobs.Queue) -> None:
    wrong: Any = {"retires": 5}

    @queue.task
    def send() -> None: ...

    calls: list[Callable[[], object]] = [
        lambda: queue.put(1, **wrong),
        lambda: queue.put_many([1], **wrong),
        lambda: send.options(**wrong),
        lambda: queue.task(**wrong),
        lambda: queue.periodic("0 3 * * *", **wrong),
        lambda: asyncio.run(AsyncQueue(queue).put(1, **wrong)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"no option 'retires'; its options: .*retries"):
            call()
    assert queue.stats().waiting == 0


def test_programs_see_the_public_names_of_modules_and_errors() -> None:
    assert dir(jobs) == sorted(jobs.__all__)
    assert (jobs.PayloadError.__module__, ArgumentError.__module__) == (
        "streamkeep.jobs",
        "streamkeep",
    )
    assert pickle.loads(pickle.dumps(ArgumentError("x"))).args == ("x",)
    assert str(jobs.JobFailedError("shop.Gone", "", "a traceback")) == "shop.Gone"
