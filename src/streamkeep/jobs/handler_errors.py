"""How a job ends whose handler raised, and what its exception says, as texts to store and log.

An exception of a handler can do anything: its text may have half of a surrogate pair, as names of
files have, or any length, and its `__str__` may itself raise. A job whose failure cannot be booked
would come back to every worker.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Final

from streamkeep.format.core.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    RecoveryNeededError,
    StoreClosedError,
    StoreError,
    StreamkeepError,
)
from streamkeep.jobs.errors import JobLostError, PayloadError, Retry, UnknownTaskError

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job

log = logging.getLogger("streamkeep.jobs")

DONE: Final = "done"
RETRYING: Final = "retrying"
GIVEN_UP: Final = "failed"
LOST: Final = "lost"
RETURNED: Final = "returned"
STORE_FAILS: Final = (StoreError, CorruptionError, OSError)  # now, for any job
# No call succeeds again before the store is opened again: another attempt would go on for ever.
FOR_GOOD: Final = (StoreClosedError, NotAStoreError, RecoveryNeededError, FormatVersionError)

MOST_TEXT: Final = 20_000  # characters


def texts_of(error: BaseException) -> tuple[str, str, str]:
    """Return what an exception says: its class, its text, its traceback as Python prints it.

    Of a long traceback it is the end.
    """
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as problem:  # a class with its own idea of `__cause__` or `__notes__`
        lines = f"the traceback cannot be printed: {type(problem).__name__}"
    return kind_of(error), text_of(error), plain(lines[-MOST_TEXT:])


def kind_of(error: BaseException) -> str:
    kind = type(error)
    return plain(f"{kind.__module__}.{kind.__qualname__}")


def text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as problem:
        return f"its text cannot be made: {type(problem).__name__}"
    return plain(text)


def plain(text: str) -> str:
    r"""Return a text that can be encoded, a surrogate as `\udc80`, and cut if it is long."""
    found = str(text)[: MOST_TEXT + 1].encode(errors="backslashreplace").decode()
    if len(found) <= MOST_TEXT:
        return found
    note = f"... ({len(text):,} characters)"
    return found[: MOST_TEXT - len(note)] + note


def end_with_error(job: Job, error: BaseException) -> str:
    """End an attempt that raised: retry it, or make the job a dead letter; return which.

    Raises:
        JobLostError: the job is not this worker's any more.
        StoreError, CorruptionError, OSError: the store cannot; nothing was changed.
    """
    texts = texts_of(error)
    try:
        return _end_as_asked(job, error, texts)
    except (JobLostError, *STORE_FAILS):
        raise
    except Exception as problem:
        # It would come back to each worker in turn, and end in none.
        log.exception("job %s failed, and cannot be retried; it becomes a dead letter", job.id)
        job.end_attempt(texts, final=f"it cannot be retried: {text_of(problem)}")
        return GIVEN_UP


def _end_as_asked(job: Job, error: BaseException, texts: tuple[str, str, str]) -> str:
    task = job.queue.core.task_of(job)
    kind, text, lines = texts
    if isinstance(error, UnknownTaskError):
        log.error("%s; the job %s stays in the queue for a program that has it", text, job.id)
        job.park()
        return RETURNED
    if isinstance(error, Retry):
        if not error.counts:
            job.postpone(0 if error.after_ms is None else error.after_ms / 1000)
            return RETURNED
        retried = job.end_attempt((kind, error.reason, lines), after_ms=error.after_ms)
    else:
        final = ""
        if isinstance(error, PayloadError):
            final = "its payload or result cannot be used"
        elif task is not None and not task.may_retry(error):
            final = f"{kind} is not retried"
        retried = job.end_attempt(texts, final=final)
    return RETRYING if retried else GIVEN_UP


def return_job(job: Job, *, delivered: bool = False) -> None:
    """Give a job that has not ended back to the queue; say in the log if that is not possible.

    It is another worker's then, or it stays with this process until that ends.

    Args:
        delivered: see `Job.give_back`.
    """
    if not job.ended:
        try:
            job.give_back(delivered=delivered)
        except (StreamkeepError, OSError) as error:
            log.warning("job %s was not given back: %s", job.id, error)


def log_failure(job: Job, error: BaseException | None, state: str) -> None:
    """Log an attempt that failed, where no worker does."""
    if error is None or state not in (RETRYING, GIVEN_UP):
        return
    retried = state == RETRYING
    level = logging.WARNING if retried else logging.ERROR
    what = "will be retried" if retried else f"is a dead letter in {job.queue.name}:dead"
    kind, text = kind_of(error), text_of(error)
    log.log(level, "job %s (%s) failed and %s: %s: %s", job.id, job.task, what, kind, text)
