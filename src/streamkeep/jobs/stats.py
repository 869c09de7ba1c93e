"""The figures of a queue, read on one snapshot."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.jobs.layout import PARKED, PLACE_SIZE, Names
from streamkeep.jobs.limits import oldest_waiting
from streamkeep.jobs.listing import workers_of
from streamkeep.jobs.state import Step, rows_below

_MOST_PARKED: Final = 10_000


class QueueStats(NamedTuple):
    """The figures of a queue at one moment.

    Attributes:
        waiting: jobs that could start: in the streams, held for their key or their task, or left
            for a worker that knows their task.
        running: jobs that a worker has.
        delayed: jobs that wait for their time, retries included.
        failed: dead letters that are there.
        done: jobs that ended well, ever.
        oldest_ms: how long the oldest job of the streams has been waiting; 0 if none waits.
        workers: processes that live and have taken a job.
        held, retrying, parked: parts of `waiting`, `delayed` and `waiting`.
        failed_attempts: ever, also of jobs that ended well.
        buried: dead letters that were made, ever.
        cancelled: jobs that were cancelled, ever.
        paused, draining: whether it is.
        done_per_minute, failed_attempts_per_minute: in the last minute, estimated.
    """

    waiting: int
    running: int
    delayed: int
    failed: int
    done: int
    oldest_ms: int
    workers: int
    held: int
    retrying: int
    parked: int
    failed_attempts: int
    buried: int
    cancelled: int
    paused: bool
    draining: bool
    done_per_minute: float
    failed_attempts_per_minute: float


def stats_of(snapshot: Snapshot[Any], names: Names) -> QueueStats:
    """Return the figures of a queue; all are 0 if it has never been used."""
    step = Step(snapshot, names)
    settings, counters = step.settings, step.counters
    waiting, running = step.count_waiting(), step.count_running()
    oldest = oldest_waiting(step)
    done_rate, failed_rate = counters.rates.per_minute(step.now_ms)
    return QueueStats(
        waiting=waiting + counters.held + counters.parked,
        running=running,
        delayed=counters.delayed + counters.retrying,
        failed=snapshot.xlen(names.dead),
        done=counters.done,
        oldest_ms=0 if oldest is None else max(0, step.now_ms - oldest[0].ms),
        workers=len(workers_of(snapshot, names)),
        held=counters.held,
        retrying=counters.retrying,
        parked=counters.parked,
        failed_attempts=counters.failed,
        buried=counters.dead,
        cancelled=counters.cancelled,
        paused=settings.paused,
        draining=settings.draining,
        done_per_minute=done_rate,
        failed_attempts_per_minute=failed_rate,
    )


def unknown_tasks(snapshot: Snapshot[Any], names: Names) -> dict[str, int]:
    """Return the tasks that no worker knew which took a job of theirs, and how many jobs wait.

    Of the first ten thousand jobs. A name of more than 100 bytes is cut.
    """
    found: dict[str, int] = {}
    for key, _ in islice(rows_below(snapshot, names.space, PARKED), _MOST_PARKED):
        task = key[2:-PLACE_SIZE].decode(errors="replace")
        found[task] = found.get(task, 0) + 1
    return found
