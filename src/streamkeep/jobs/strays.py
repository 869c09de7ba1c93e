"""Jobs that a tool outside of the queue gave back: pending, with no consumer and no retry.

A client that runs XNACK on a stream of the queue leaves an entry for
consumers that claim. Workers of the queue take what has no consumer only when the schedule says so.
So each process looks for such entries once, when it begins to use the queue, and schedules them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.jobs import layout
from streamkeep.jobs.state import Step, rows_below

_AT_ONCE: Final = 1000


def has_strays(step: Step) -> bool:
    """Return whether more entries have no consumer than the rows of the queue explain."""
    unowned = 0
    for priority in step.settings.streams:
        found = step.txn.xpending(step.stream(priority), layout.GROUP)
        unowned += found["pending"] - sum(int(one["pending"]) for one in found["consumers"])
    return unowned > step.counters.retrying + step.counters.parked


def schedule_strays(step: Step) -> int:
    """Make strays due now; return how many there were."""
    known = _scheduled(step.txn, step.space)
    count = 0
    for priority in step.settings.streams:
        name = step.stream(priority)
        start = "-"
        while rows := step.txn.xpending_range(name, layout.GROUP, start, "+", _AT_ONCE):
            for row in rows:
                place = layout.place_of(priority, bytes(row["message_id"]))
                if not row["consumer"] and place not in known:
                    step.schedule(step.now_ms, layout.RETRY, place.pack())
                    step.counters.retrying += 1
                    count += 1
            start = f"({rows[-1]['message_id'].decode()}"
    return count


def _scheduled(reader: Transaction[Any] | Snapshot[Any], space: bytes) -> set[layout.Place]:
    """Return the entries that rows of the queue lead to."""
    found = {place for _, place in retries(reader, space)}
    return found | {
        layout.unpack_place(key[-17:]) for key, _ in rows_below(reader, space, layout.PARKED)
    }


def retries(
    reader: Transaction[Any] | Snapshot[Any], space: bytes
) -> Iterator[tuple[bytes, layout.Place]]:
    """Yield the rows of jobs that wait for their retry: the key, and the entry."""
    for prefix in (layout.LATE, layout.SCHEDULE):
        for key, _ in rows_below(reader, space, prefix):
            if (row := layout.parse_due(key)).kind == layout.RETRY:
                yield key, layout.unpack_place(row.reference)
