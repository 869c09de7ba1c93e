"""Finding where a job is, in a transaction or a snapshot.

`find` tells more states than callers see (`JobState`): those that this package tells apart.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.jobs import ending, layout
from streamkeep.jobs.state import (
    Reader,
    delivered_up_to,
    fields_at,
    number_in,
    numbered_fields,
    pending_row,
    place_in,
    place_key,
)

# What callers see of each; the others have the same name.
STATES: Final[dict[str, Any]] = {"held": "waiting", "parked": "waiting", "retrying": "delayed"}
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


def find(reader: Reader, names: layout.Names, job_id: str) -> Found:
    where = reader.row_get(names.space, place_key(job_id)) or b""
    if where[:1] == b"h":
        held = reader.row_get(names.space, where[1:]) or b""
        return Found("held", numbered_fields(reader, names, held[:8]))
    if where[:1] == b"s":
        number, due_ms = layout.pack_time(number_in(job_id)), layout.unpack_time(where[1:])
        return Found("delayed", numbered_fields(reader, names, number), due_ms=due_ms)
    place = layout.unpack_place(where) if where else place_in(job_id)
    fields = None if place is None else fields_at(reader, names, place)
    if place is not None and fields is not None:
        row = pending_row(reader, names, place)
        if row is not None:
            consumer = row["consumer"].decode()
            state = "running"
            if not consumer:
                parked = reader.row_get(names.space, layout.parked_key(fields, place))
                state = "retrying" if parked is None else "parked"
            return Found(state, fields, place, 0, consumer, int(row["times_delivered"]))
        last = delivered_up_to(reader, names.streams[place.priority])
        if place > layout.place_of(place.priority, last):
            return Found("waiting", fields, place)
    ended = ending.load_result(reader, names.space, job_id)
    if ended is not None and ended.expires_ms > reader.txn.now_ms():
        return Found(ending.ENDS[ended.state], {})
    return Found("unknown" if fields is None else "done", {})  # see `ended_entries`
