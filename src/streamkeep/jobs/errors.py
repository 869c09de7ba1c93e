"""What the queue raises, and what a handler raises to be tried again."""

from __future__ import annotations

from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import StreamkeepError


class QueueError(StreamkeepError):
    """Base of the errors of the queue.

    Attributes:
        partly: it was raised after a part of the call had changed something, so that the
            transaction around it cannot go on.
    """

    partly = False


class QueueFullError(QueueError):
    """The queue has reached its limit of length; nothing was put."""


class QueueDrainingError(QueueError):
    """The queue takes no new jobs until `resume`; nothing was put."""


class PayloadError(QueueError):
    """A payload or a result cannot be encoded or decoded, or is too large."""


class UnknownTaskError(QueueError):
    """This program has no task of that name; the job stays in the queue."""


class JobLostError(QueueError):
    """The job is no longer this worker's: it ended, or another worker has it. Nothing changed."""


class NoSuchJobError(QueueError):
    """The queue has no job of that ID, and no result of one."""


class NoResultError(QueueError):
    """The job has ended, and its result was not kept or has expired; or there is no such job."""


class JobCancelledError(QueueError):
    """The job was cancelled before it started."""


class JobFailedError(QueueError):
    """The job failed for good, and is a dead letter.

    Attributes:
        error_type: the class of the handler's exception, such as `builtins.ValueError`.
        text: its text.
        traceback_text: its traceback, as Python prints it.
    """

    def __init__(self, error_type: str, text: str, traceback_text: str) -> None:
        super().__init__(": ".join(filter(None, (error_type, text))))
        self.error_type = error_type
        self.text = text
        self.traceback_text = traceback_text


class Retry(Exception):  # as in other queues
    """Raised by a handler: the job is to run again.

    Args:
        after: seconds, or a text such as "5m", until it is due; by default the backoff of the task.
        reason: what logs and a dead letter say.
        counts: whether this is an attempt. False for a job that only waits for something.

    Attributes:
        after_ms: `after` in milliseconds, or None.

    Raises:
        ArgumentError: `after` is no duration. In a handler, that is a failure as any other.
    """

    def __init__(
        self, after: Duration | None = None, reason: str = "the handler asked", counts: bool = True
    ) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else milliseconds(after, "after")
        self.reason = reason
        self.counts = counts


for _one in [*vars().values()]:  # tracebacks and logs name what programs import
    if isinstance(_one, type) and (_one is Retry or issubclass(_one, QueueError)):
        _one.__module__ = "streamkeep.jobs"
