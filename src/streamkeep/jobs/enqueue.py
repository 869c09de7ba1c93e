"""Putting jobs into the queue: unique names, and the queue's limits.

`putting` prepares what comes here, `admission` has the rest of the way. All functions here run in a
transaction, and see `Step`.
"""

from __future__ import annotations

from streamkeep.jobs import layout
from streamkeep.jobs.admission import admit, delay
from streamkeep.jobs.errors import QueueDrainingError, QueueFullError
from streamkeep.jobs.finding import HAS_ENDED, find
from streamkeep.jobs.layout import Fields, Past, Place, number_of, place_of, short
from streamkeep.jobs.state import Step, delivered_up_to


def put(
    step: Step, fields: Fields, priority: int, due_ms: int, *, always: bool
) -> tuple[str, bool]:
    """Put a job into the queue; return its ID, and whether it is a new one.

    Args:
        due_ms: when it may start, in Unix milliseconds; 0 for at once.
        always: also if the queue is draining or full: a follow-up of one of its own jobs.

    Raises:
        QueueDrainingError, QueueFullError: nothing was put.
    """
    unique = fields.get(layout.UNIQUE_NAME)
    if unique is not None:
        holder = step.row(layout.UNIQUE + short(unique))
        if holder is not None and not _is_over(step, holder.decode()):
            return holder.decode(), False
    if not always:
        check_room(step)
    if due_ms > step.now_ms:
        job_id = delay(step, fields, priority, due_ms)
    else:
        job_id = admit(step, fields, priority)
    if unique is not None:
        step.put_row(layout.UNIQUE + short(unique), job_id.encode())
    return job_id, True


def _is_over(step: Step, job_id: str) -> bool:
    """Return whether a job that has a unique name never runs.

    A tool has deleted it, or it has expired: it is a dead letter as soon as a worker takes it.
    """
    found = find(step.txn, step.names, job_id)
    if found.state in HAS_ENDED:
        return True
    past = Past() if found.place is None else step.past(found.place)
    if past.deaths or found.deliveries > past.lost:
        return False  # it has begun
    return 0 < number_of(found.fields, layout.EXPIRES) < step.now_ms


# --- limits -------------------------------------------------------------------------------------


def check_open(step: Step) -> None:
    if step.settings.draining:
        raise QueueDrainingError(
            f"the queue {step.names.text!r} is draining and takes no jobs; next: resume it, with "
            "`Queue.resume` or `streamkeep queue resume`"
        )


def check_room(step: Step) -> None:
    """Raise unless the queue takes another job."""
    check_open(step)
    most = step.settings.max_length
    if not most:
        return
    waiting = step.count_waiting()
    if waiting >= most:
        wait = "1 job waits" if waiting == 1 else f"{waiting:,} jobs wait"
        raise QueueFullError(
            f"the queue {step.names.text!r} is full: {wait}, the limit is {most:,}; next: put "
            "again later, or raise its limit"
        )


def oldest_waiting(step: Step) -> tuple[Place, Fields] | None:
    """Return the job of the streams that has been waiting longest; None if none waits."""
    oldest: tuple[Place, Fields] | None = None
    for priority in step.settings.streams:
        entry = next_waiting(step, priority)
        if entry is not None and (oldest is None or entry[0].ms < oldest[0].ms):
            oldest = entry
    return oldest


def next_waiting(step: Step, priority: int) -> tuple[Place, Fields] | None:
    """Return the next entry of a stream that the group has not read; None if it has read all."""
    name = step.stream(priority)
    found = step.txn.xrange(name, b"(" + delivered_up_to(step.txn, name), "+", 1)
    return (place_of(priority, bytes(found[0].id)), found[0].fields) if found else None
