"""Logs: which job a line is about, for standard logging and for structlog.

    logging.getHandlerByName("console").addFilter(JobFilter())      # %(job)s %(task)s %(attempt)s
    structlog.configure(processors=[add_job, ...])

Lines that a handler or a task writes get the ID of its job, its task and its attempt; other lines
get nothing. The worker's own lines have these, and more, in `record.streamkeep`.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from streamkeep.jobs.job import Job, current


class JobFilter(logging.Filter):
    """Gives each record `queue`, `job`, `task` and `attempt`; empty outside of a job."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the members; keep the record."""
        job = current.get()
        empty = dict.fromkeys(("queue", "job", "task", "attempt"), "")
        for name, value in (empty if job is None else _members(job)).items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def add_job(
    logger: Any, method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add `queue`, `job`, `task` and `attempt` to an event of structlog, inside of a job."""
    job = current.get()
    if job is not None:
        for name, value in _members(job).items():
            event_dict.setdefault(name, value)
    return event_dict


def _members(job: Job) -> dict[str, Any]:
    return {"queue": job.queue.name, "job": job.id, "task": job.task, "attempt": job.attempt}
