"""Records as the results that Django's interface defines; what becomes of a task, with its job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from streamkeep.engine.api.views import Snapshot
from streamkeep.integrations.django import interface
from streamkeep.integrations.django.records import FAILED, SUCCESSFUL, Record
from streamkeep.jobs import codecs, ending, finding, listing
from streamkeep.jobs.dead_letters import letter_of_job
from streamkeep.jobs.errors import PayloadError
from streamkeep.jobs.layout import (
    CODEC,
    DIED,
    PAST,
    PAYLOAD,
    Attempt,
    Fields,
    Names,
    parse_history,
    parse_past,
)
from streamkeep.jobs.state import pending_row

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


def task_at(path: str) -> Any:
    """Import a task; raise ImportError for anything else."""
    task = import_string(path)
    if not isinstance(task, interface.Task):
        raise ImportError(f"{path} is a {type(task).__name__}, and not a task")
    return task


@lru_cache(1000)
def _task(path: str, priority: int, queue: str, backend: str, run_after: str) -> Any:
    moment = datetime.fromisoformat(run_after) if run_after else None
    return task_at(path).using(
        priority=priority, queue_name=queue, backend=backend, run_after=moment
    )


def result_of(result_id: str, record: Record, status: Any = None) -> Any:
    """Return a record, whose status is known, as a `TaskResult`.

    Raises:
        ImportError: this program does not have its task.
    """
    made = record.task, record.priority, record.queue, record.backend, record.run_after
    result = interface.TaskResult(
        task=_task(*made),
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


# --- a record together with its job, on one snapshot ----------------------------------------------

READY: Final = "READY"
RUNNING: Final = "RUNNING"


def resolve(snapshot: Snapshot[Any], record: Record, *, search: bool = True) -> Record:
    """Return a record with a status, with what its job says if the task has not ended.

    A task that failed has not ended if its dead letter was put again.

    Args:
        search: look through the dead letters for the arguments of a job that ended without its
            worker. That reads them all.
    """
    if record.status == SUCCESSFUL:
        return record
    snapshot = snapshot.as_bytes()
    names = Names(record.queue)
    found = finding.find(snapshot, names, record.job)
    if found.state in finding.HAS_ENDED:
        return _ended(snapshot, names, record, search)
    args, kwargs = arguments_in(found.fields)
    live = replace(record, status=READY, finished=0, args=args, kwargs=kwargs)
    if found.place is not None:
        past = parse_past(snapshot.row_get(names.space, PAST + found.place.pack()))
        add_attempts(live, parse_history(past.history))
    if found.state == "running" and found.place is not None:
        row = pending_row(snapshot, names, found.place)
        assert row is not None
        live.status = RUNNING
        live.attempted = snapshot.txn.now_ms() - int(row["time_since_delivered"])
        live.started = live.started or live.attempted
        live.workers = [*live.workers, found.consumer]
    return live


def _ended(snapshot: Snapshot[Any], names: Names, record: Record, search: bool) -> Record:
    """Return the record of a task whose job may have been ended by other than its handler."""
    ended = replace(record, status=FAILED, finished=record.attempted or record.enqueued)
    stored = ending.load_result(snapshot, names.space, record.job)
    has_failed = stored is not None and stored.state == ending.FAILED
    job = listing.job_in(snapshot, names, record.job) if has_failed else None
    if record.status and (job is None or job.begun_ms <= record.attempted):
        return record  # its handler has ended it, and it was not put again since
    if stored is not None and stored.state == ending.DONE:
        ended.status = SUCCESSFUL
    elif stored is not None and stored.state == ending.FAILED:
        if job is not None:
            add_attempts(ended, job.history)
            if job.begun_ms > ended.attempted:
                ended.started, ended.attempted = ended.started or job.begun_ms, job.begun_ms
                ended.workers = [*ended.workers, job.worker]
            ended.finished = job.ended_ms or ended.finished
        kind, text, lines = json.loads(stored.data)
        ended.errors = [*ended.errors, [kind, lines or f"{kind}: {text}\n"]]
    elif stored is not None:
        kind = "streamkeep.jobs.JobCancelledError"
        ended.errors = [*record.errors, [kind, f"{kind}: cancelled before it started\n"]]
    if search and ended.status == FAILED:
        letter = letter_of_job(snapshot, names, record.job)
        if letter is not None:
            ended.args, ended.kwargs = arguments_in(letter.fields)
            ended.finished = letter.failed_ms
    return ended


def add_attempts(record: Record, history: Iterable[Attempt]) -> None:
    """Add the attempts that a worker ended without the handler, such as after `max_runtime`."""
    for run in history:
        if run.begun_ms > record.attempted and run.error != DIED:
            record.started, record.attempted = record.started or run.begun_ms, run.begun_ms
            record.errors = [*record.errors, [run.error.partition(": ")[0], f"{run.error}\n"]]
            record.workers = [*record.workers, run.worker]


def arguments_in(fields: Fields) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in the fields of a job; none if they cannot be read."""
    try:
        codec = fields.get(CODEC, b"json").decode(errors="replace")
        args, kwargs = codecs.decode(codec, fields.get(PAYLOAD, b""), "the payload", codecs.JSON)
        return list(args), dict(kwargs)
    except (PayloadError, TypeError, ValueError):
        return [], {}
