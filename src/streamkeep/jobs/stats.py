"""The figures of a queue, read on one snapshot."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.jobs.layout import GROUP, PARKED, PLACE_SIZE, Names
from streamkeep.jobs.limits import oldest_waiting
from streamkeep.jobs.state import Step, rows_below


class QueueStats(NamedTuple):
    """The figures of a queue at one moment.

    Attributes:
        waiting: jobs that could start: in the streams, held for their key or their task, or left
            for a worker that knows their task.
        running: jobs that a worker has.
        delayed: jobs that wait for their time, retries included.
        dead: dead letters that are there.
        done: jobs that ended well, ever.
        oldest_ms: how long the oldest job of the streams has been waiting; 0 if none waits.
        workers: processes that live and have taken a job.
        held, retrying, parked: parts of `waiting`, `delayed` and `waiting`.
        failed: attempts that failed, ever.
        buried: dead letters that were made, ever.
        cancelled: jobs that were cancelled, ever.
        paused, draining: whether it is.
        done_per_minute, failed_per_minute: of `done` and `failed`, in the last minute, estimated.
    """

    waiting: int
    running: int
    delayed: int
    dead: int
    done: int
    oldest_ms: int
    workers: int
    held: int
    retrying: int
    parked: int
    failed: int
    buried: int
    cancelled: int
    paused: bool
    draining: bool
    done_per_minute: float
    failed_per_minute: float


def stats_of(snapshot: Snapshot[Any], names: Names) -> QueueStats:
    """Return the figures of a queue; all are 0 if it has never been used."""
    step = Step(snapshot, names)
    settings, counters = step.settings, step.counters
    waiting, running = step.count_waiting(), step.count_running()
    oldest = oldest_waiting(step)
    alive = {
        one for priority in settings.streams for one in _alive(snapshot, step.stream(priority))
    }
    done_rate, failed_rate = counters.rates.per_minute(step.now_ms)
    return QueueStats(
        waiting=waiting + counters.held + counters.parked,
        running=running,
        delayed=counters.delayed + counters.retrying,
        dead=snapshot.xlen(names.dead),
        done=counters.done,
        oldest_ms=0 if oldest is None else max(0, step.now_ms - oldest[0].ms),
        workers=len(alive),
        held=counters.held,
        retrying=counters.retrying,
        parked=counters.parked,
        failed=counters.failed,
        buried=counters.dead,
        cancelled=counters.cancelled,
        paused=settings.paused,
        draining=settings.draining,
        done_per_minute=done_rate,
        failed_per_minute=failed_rate,
    )


def unknown_tasks(snapshot: Snapshot[Any], names: Names) -> dict[str, int]:
    """Return the tasks that no worker knew which took a job of theirs, and how many jobs wait.

    A name of more than 100 bytes is cut.
    """
    found: dict[str, int] = {}
    for key, _ in rows_below(snapshot, names.space, PARKED):
        task = key[2:-PLACE_SIZE].decode(errors="replace")
        found[task] = found.get(task, 0) + 1
    return found


def _alive(snapshot: Snapshot[Any], name: bytes) -> set[bytes]:
    """Return the consumers whose processes live."""
    try:
        found = snapshot.xinfo_consumers(name, GROUP, leases=True)
    except NoSuchKeyError:
        return set()
    return {one["name"] for one in found if one["lease"] == "alive"}
