"""Cancelling jobs, and finding where a job is. Functions of a transaction or a snapshot.

`find` tells more states than callers see (`JobState`): those that this package tells apart.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.jobs import ending, layout
from streamkeep.jobs.admission import cancel_held
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.ended_entries import is_delivered
from streamkeep.jobs.options import DEFAULT_RESULT_TTL_MS
from streamkeep.jobs.state import Step, find_place, number_in, place_key

# What callers see of each; the others have the same name.
STATES: Final[dict[str, layout.JobState]] = {
    "held": "waiting", "parked": "waiting", "retrying": "delayed",
    "waiting": "waiting", "delayed": "delayed", "running": "running",
    "done": "done", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip
HAS_ENDED: Final = frozenset(("done", "failed", "cancelled", "unknown"))


class Found(NamedTuple):
    """Where a job is.

    Attributes:
        state: waiting, held (for its key or its task), delayed, running, retrying, parked (the
            worker that took it does not know its task), done, failed, cancelled, or unknown.
        due_ms: when a delayed job is due.
        consumer: the worker that runs it.
        deliveries: how often it was delivered.
    """

    state: str
    fields: layout.Fields
    place: layout.Place | None = None
    due_ms: int = 0
    consumer: str = ""
    deliveries: int = 0


def find(reader: Transaction[Any] | Snapshot[Any], names: layout.Names, job_id: str) -> Found:
    number = number_in(job_id)
    if number:
        where = reader.row_get(names.space, place_key(job_id))
        if where is not None and where[:1] in b"sh":
            data = reader.row_get(names.space, layout.NUMBERED + layout.pack_time(number))
            fields = {} if data is None else layout.unpack_fields(data)
            if where[:1] == b"h":
                return Found("held", fields)
            return Found("delayed", fields, due_ms=layout.unpack_time(where[1:]))
    found = find_place(reader, names, job_id)
    if found is not None:
        place, fields = found
        name = names.streams[place.priority]
        rows = reader.xpending_range(name, layout.GROUP, place.entry_id, place.entry_id, 1)
        if rows:
            consumer = rows[0]["consumer"]
            text = consumer.decode() if isinstance(consumer, bytes) else str(consumer)
            state = "running"
            if not text:
                parked = reader.row_get(names.space, layout.parked_key(fields, place))
                state = "retrying" if parked is None else "parked"
            return Found(state, fields, place, 0, text, int(rows[0]["times_delivered"]))
        if not is_delivered(reader, name, place):
            return Found("waiting", fields, place)
    ended = ending.load_result(reader, names.space, job_id)
    if ended is not None and ended.expires_ms > reader.txn.now_ms():
        return Found(ending.ENDS[ended.state], {})
    return Found("unknown" if found is None else "done", {})  # see `ended_entries`


def cancel(step: Step, job_id: str) -> bool:
    """Remove a job that has not started; return False if it has, or if there is none."""
    found = find(step.txn, step.names, job_id)
    if found.state == "delayed":
        number = number_in(job_id)
        step.delete_row(layout.due_key(found.due_ms, layout.DELAYED, layout.pack_time(number)))
        step.take_numbered(number)
        step.counters.delayed -= 1
        ending.give_up_names(step, found.fields)
    elif found.state == "held":
        where = step.row(place_key(job_id))
        assert where is not None
        cancel_held(step, where[1:])
        ending.give_up_names(step, found.fields)
    elif found.state == "waiting" and found.place is not None:
        step.txn.xdel(step.stream(found.place.priority), found.place.entry_id)
        ending.forget(step, found.place, found.fields, 1)
    elif found.state == "parked" and found.place is not None and not found.deliveries:
        step.delete_row(layout.parked_key(found.fields, found.place))
        step.counters.parked -= 1
        step.remove(found.place)
        ending.forget(step, found.place, found.fields, 1)
    else:
        return False
    note_cancelled(step, job_id, found.fields)
    return True


def note_cancelled(step: Step, job_id: str, fields: layout.Fields) -> None:
    """Count a job that was removed before it started, and tell who waits for it."""
    step.counters.cancelled += 1
    facts = {name: fields[name] for name in fields if name in (layout.TASK, layout.QUEUED)}
    stored = ending.Stored(step.now_ms + DEFAULT_RESULT_TTL_MS, ending.CANCELLED, JSON, b"null")
    ending.put_result(step, job_id, stored, facts)
    step.txn.wake(step.names.result_bell(job_id))
