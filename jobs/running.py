"""Running the handler of a job, and ending the job by what the handler did."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamkeep.jobs.errors import JobLostError, PayloadError, Retry, UnknownTaskError
from streamkeep.jobs.job import Job, running, stop_running
from streamkeep.jobs.times import milliseconds

if TYPE_CHECKING:
    from streamkeep.jobs.core import Core
    from streamkeep.jobs.task import Task

log = logging.getLogger("streamkeep.jobs")

DONE: Final = "done"
RETRYING: Final = "retrying"
DEAD: Final = "dead"
LOST: Final = "lost"
RETURNED: Final = "returned"
_MOST_TRACEBACK: Final = 20_000


class Outcome(NamedTuple):
    """What became of a job that a worker ran.

    Attributes:
        state: done, retrying, dead, lost (another worker has it, and nothing of this run counts),
            or returned (it waits again, and this was no attempt).
        seconds: how long the handler ran.
        error: what it raised.
    """

    state: str
    seconds: float
    error: BaseException | None = None


Done = Callable[[Any], object]


def execute(core: Core, job: Job, done: Done | None = None) -> Outcome:
    """Run the handler of a job and end the job; errors of the handler do not leave this call.

    An interrupt (Ctrl-C, SystemExit) gives the job back to the queue, and is raised.

    Args:
        done: ends the job with its result, in place of `Job.done`.
    """
    begun = time.monotonic()
    token = running(job)
    try:
        task, args, kwargs = _prepare(core, job)
        result = task.call(*args, **kwargs)
    except Exception as error:
        return _failed(job, error, time.monotonic() - begun)
    except BaseException:
        _return(job)
        raise
    finally:
        stop_running(token)
    return _succeeded(job, result, time.monotonic() - begun, done)


async def aexecute(core: Core, job: Job, done: Done | None = None) -> Outcome:
    """Do as `execute`, for a handler that is a coroutine function.

    A task that is cancelled gives its job back to the queue.
    """
    begun = time.monotonic()
    token = running(job)
    try:
        task, args, kwargs = _prepare(core, job)
        result = await task.call(*args, **kwargs)
    except Exception as error:
        return _failed(job, error, time.monotonic() - begun)
    except BaseException:
        _return(job)
        raise
    finally:
        stop_running(token)
    return _succeeded(job, result, time.monotonic() - begun, done)


def _prepare(core: Core, job: Job) -> tuple[Task[Any, Any], list[Any], dict[str, Any]]:
    task = core.task_of(job)
    if task is None:
        raise UnknownTaskError(f"the queue {core.name!r} has no task {job.task!r} in this program")
    payload = job.payload
    if (
        not isinstance(payload, (list, tuple))
        or len(payload) != 2
        or not isinstance(payload[0], (list, tuple))
        or not isinstance(payload[1], dict)
    ):
        raise PayloadError(f"the payload of job {job.id} is not the arguments of a task")
    return task, list(payload[0]), payload[1]


def _return(job: Job) -> None:
    if not job.ended:
        try:
            job.give_back()
        except JobLostError as error:
            log.warning("%s", error)


def _succeeded(job: Job, result: Any, seconds: float, done: Done | None) -> Outcome:
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
    except Exception as error:
        return _failed(job, error, seconds)
    return Outcome(DONE, seconds)


def _failed(job: Job, error: Exception, seconds: float) -> Outcome:
    if job.ended:
        log.warning("job %s ended, and its handler raised then", job.id, exc_info=error)
        return Outcome(DONE, seconds, error)
    try:
        return Outcome(end_with_error(job, error), seconds, error)
    except JobLostError as lost:
        log.warning("%s", lost)
        return Outcome(LOST, seconds, lost)


def end_with_error(job: Job, error: Exception) -> str:
    """End an attempt that raised: retry it, or make the job a dead letter; return which."""
    task = job.queue.core.task_of(job)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = str(error)
    lines = "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:]
    if isinstance(error, UnknownTaskError):
        log.error("%s; the job %s stays in the queue for a program that has it", error, job.id)
        job.park()
        return RETURNED
    if isinstance(error, Retry):
        after_ms = None if error.after is None else milliseconds(error.after, "after")
        if not error.counts:
            job.postpone(0 if after_ms is None else after_ms / 1000)
            return RETURNED
        retried = job.end_attempt(kind, error.reason, lines, after_ms=after_ms)
    else:
        final = ""
        if isinstance(error, PayloadError):
            final = "its payload or result cannot be used"
        elif task is not None and not task.may_retry(error):
            final = f"{kind} is not retried"
        retried = job.end_attempt(kind, text, lines, final=final)
    return RETRYING if retried else DEAD


def log_failure(job: Job, error: BaseException, state: str) -> None:
    """Log an attempt that failed, where no worker does."""
    if state == RETURNED:
        return
    retried = state == RETRYING
    level = logging.WARNING if retried else logging.ERROR
    what = "will be retried" if retried else f"is a dead letter in {job.queue.name}:dead"
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    log.log(level, "job %s (%s) failed and %s: %s: %s", job.id, job.task, what, kind, error)
