"""Running the handler of a job, and ending the job by what the handler did."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

from streamkeep.jobs.errors import JobLostError, PayloadError, UnknownTaskError
from streamkeep.jobs.handler_errors import (
    DONE,
    FOR_GOOD,
    LOST,
    STORE_FAILS,
    end_with_error,
    return_job,
)
from streamkeep.jobs.job import Job, current

if TYPE_CHECKING:
    from streamkeep.jobs.task import Task

Result = TypeVar("Result")

log = logging.getLogger("streamkeep.jobs")


class Outcome(NamedTuple):
    """What became of a job that a worker ran.

    Attributes:
        state: done, retrying, failed, lost (another worker has it, and nothing of this run counts),
            or returned (it waits again, and this was no attempt).
        seconds: how long the handler ran.
        error: what it raised.
    """

    state: str
    seconds: float
    error: BaseException | None = None


Done = Callable[[Any], object]
Again = Callable[[Exception], float]
Pause = Callable[[float], Awaitable[object]]


async def run_job(
    job: Job, done: Done | None = None, again: Again | None = None, pause: Pause = asyncio.sleep
) -> Outcome:
    """Run the handler of a job and end the job; what the handler raises does not leave this call.

    An interrupt (Ctrl-C, or SystemExit of a handler of signals) gives the job back to the queue,
    and is raised; so does an asyncio task that is cancelled.

    Args:
        done: ends the job with its result, in place of `Job.done`.
        again: called with an error of the store because of which the job cannot be ended yet;
            returns after how many seconds this is tried again. Without it, the error is raised, and
            the job stays with this process.
        pause: waits for so long.
    """
    begun, process = time.monotonic(), os.getpid()
    token = current.set(job)
    try:
        task, args, kwargs = _prepare(job)
        result = task.call(*args, **kwargs)
        end = partial(_succeeded, job, await result if task.is_async else result, done)
        if os.getpid() != process:
            end_fork(None)
    except BaseException as error:
        if os.getpid() != process:
            end_fork(error)
        if is_interrupt(error, again):
            return_job(job)
            raise
        if isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # a handler that has cancelled itself, not this
                await pause(0)
        end = partial(failed, job, error)
    finally:
        current.reset(token)
    return await end_when_possible(partial(end, time.monotonic() - begun), again, pause)


def end_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler has forked: as a worker, it would end its parent's job.

    Args:
        error: what it raised, as `sys.exit` does.
    """
    status: object = 0
    if isinstance(error, SystemExit):
        status = error.code
    elif error is not None:
        status = "".join(traceback.format_exception(error))
    with suppress(OSError, ValueError):
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF if isinstance(status, int) else int(status is not None))


async def block(seconds: float) -> None:
    """Wait as `time.sleep` does, for `at_once`."""
    time.sleep(seconds)


def at_once(running: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine returns that never waits for an event loop: of a plain handler."""
    try:
        running.send(None)
    except StopIteration as end:
        return cast(Result, end.value)
    raise RuntimeError("a plain handler cannot wait for an event loop")


def in_loop(running: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in an event loop; in a thread if this one has a loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(running)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, running).result()


def execute(job: Job, done: Done | None = None, again: Again | None = None) -> Outcome:
    """Run a job whose handler is no coroutine function; see `run_job`."""
    return at_once(job.queue.core.run_job(job, done, again, block))


def is_interrupt(error: BaseException, again: Again | None) -> bool:
    """Return whether something outside of the handler has raised this.

    Python runs handlers of signals in the main thread. In any other, a handler has called
    `sys.exit` itself: it would do so in each worker that it is given back to. A handler that waits
    for something which was cancelled raises the same exception as one that is itself cancelled; so
    does one that cancels itself. A worker, which gives `again`, ends a job before it cancels it.
    """
    if isinstance(error, asyncio.CancelledError):
        with suppress(RuntimeError):  # there is no event loop
            task = asyncio.current_task()
            return again is None and task is not None and task.cancelling() > 0
    if not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return False
    return threading.current_thread() is threading.main_thread()


async def end_when_possible(end: Callable[[], Result], again: Again | None, pause: Pause) -> Result:
    """End a job; wait until the store can, as `again` says."""
    while True:
        try:
            return end()
        except STORE_FAILS as error:
            if again is None or isinstance(error, FOR_GOOD):
                raise
            pause_s = again(error)
        await pause(pause_s)


def _prepare(job: Job) -> tuple[Task[Any, Any], list[Any], dict[str, Any]]:
    core = job.queue.core
    task = core.task_of(job)
    if task is None:
        raise UnknownTaskError(f"the queue {core.name!r} has no task {job.task!r} in this program")
    return task, *arguments_of(job)


def arguments_of(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """Return what a task is called with; raise PayloadError for another payload."""
    match job.payload:
        case [[*args], dict(kwargs)]:
            return args, kwargs
    raise PayloadError(f"the payload of job {job.id} is not the arguments of a task")


def _succeeded(job: Job, result: Any, done: Done | None, seconds: float) -> Outcome:
    if job.ended:  # the handler did it
        return Outcome(DONE, seconds)
    try:
        if done is None:
            job.done(result)
        else:
            done(result)
    except JobLostError as error:
        log.warning("%s; its result is dropped", error)
        return Outcome(LOST, seconds, error)
    except STORE_FAILS:  # a full disk, for example: the work was done, and this is no failure
        raise
    except Exception as error:
        return failed(job, error, seconds)
    return Outcome(DONE, seconds)


def failed(job: Job, error: BaseException, seconds: float) -> Outcome:
    """End a job whose handler raised, unless it has ended or is another worker's."""
    if job.ended:
        if not isinstance(error, asyncio.CancelledError):  # as by a worker that has ended it
            log.warning("job %s ended, and its handler raised then", job.id, exc_info=error)
        return Outcome(DONE, seconds, error)
    try:
        return Outcome(end_with_error(job, error), seconds, error)
    except JobLostError as lost:
        log.warning("%s", lost)
        return Outcome(LOST, seconds, lost)
