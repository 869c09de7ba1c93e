"""The durable local queue: tasks that survive their workers, on streams, groups and transactions.

A queue is a few streams and rows of one store; docs/internals/jobs.md says which. Everything that
happens to a job is one transaction, so a crash leaves all of a step or nothing of it.

This folder uses the public classes of the engine (`engine.api`) and, for what each job needs, its
functions of a transaction (`engine.commands`, `engine.txn`), its leases and its wait table.
"""

from __future__ import annotations

from streamkeep.jobs.errors import (
    JobCancelledError,
    JobFailedError,
    JobLostError,
    NoResultError,
    NoSuchJobError,
    PayloadError,
    QueueDrainingError,
    QueueError,
    QueueFullError,
    Retry,
    UnknownTaskError,
)
from streamkeep.jobs.job import Job, current_job
from streamkeep.jobs.job_transaction import JobTransaction
from streamkeep.jobs.layout import Attempt, JobState, ListState
from streamkeep.jobs.listing import QueueStats
from streamkeep.jobs.queue import Queue, queue_names
from streamkeep.jobs.running import Outcome
from streamkeep.jobs.take_call import known_tasks, take
from streamkeep.jobs.task import Task
from streamkeep.jobs.worker import Worker

__all__ = [
    "Attempt",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobLostError",
    "JobState",
    "JobTransaction",
    "ListState",
    "NoResultError",
    "NoSuchJobError",
    "Outcome",
    "PayloadError",
    "Queue",
    "QueueDrainingError",
    "QueueError",
    "QueueFullError",
    "QueueStats",
    "Retry",
    "Task",
    "UnknownTaskError",
    "Worker",
    "current_job",
    "known_tasks",
    "queue_names",
    "take",
]


def __dir__() -> list[str]:
    """Return what programs use, without the modules that hold it."""
    return __all__
