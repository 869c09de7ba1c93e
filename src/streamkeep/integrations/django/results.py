"""Records as the results that Django's interface defines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from streamkeep.integrations.django import interface
from streamkeep.integrations.django.records import Record

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ms: int) -> datetime | None:
    """Return Unix milliseconds as Django's settings want times; None for 0."""
    if not ms:
        return None
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def aware(moment: datetime) -> datetime:
    """Return a time with its zone; one without is in the zone of the project."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def task_at(record: Record) -> Any:
    """Return the task of a record, with the options that it was enqueued with.

    Raises:
        ImportError: this program has no such task.
    """
    if record.run_after:
        moment = datetime.fromisoformat(record.run_after)
        return _task(record.task, record.priority, record.queue, record.backend, moment)
    return _plain_task(record.task, record.priority, record.queue, record.backend)


@lru_cache(1000)
def _plain_task(path: str, priority: int, queue: str, backend: str) -> Any:
    return _task(path, priority, queue, backend, None)


def _task(path: str, priority: int, queue: str, backend: str, moment: datetime | None) -> Any:
    task = import_string(path)
    if not isinstance(task, interface.Task):
        raise ImportError(f"{path} is a {type(task).__name__}, and not a task")
    return task.using(priority=priority, queue_name=queue, backend=backend, run_after=moment)


def result_of(result_id: str, record: Record, status: Any = None) -> Any:
    """Return a record, whose status is known, as a `TaskResult`."""
    result = interface.TaskResult(
        task=task_at(record),
        id=result_id,
        status=status or interface.TaskResultStatus[record.status],
        enqueued_at=time_of(record.enqueued),
        started_at=time_of(record.started),
        last_attempted_at=time_of(record.attempted),
        finished_at=time_of(record.finished),
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend,
        errors=[
            interface.TaskError(exception_class_path=kind, traceback=lines)
            for kind, lines in record.errors
        ],
        worker_ids=list(record.workers),
    )
    object.__setattr__(result, "_return_value", record.value)
    return result
