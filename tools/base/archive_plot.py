"""Where the entries of a stream are over time: archived, retired, live.

Live entries are counted one by one. Of the archive the indexes are read and not the entries: those
of a block, or of a retired node, are spread evenly over its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamkeep.engine.archive.segments import iter_retired
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.time_buckets import Plan, plan_buckets
from streamkeep.tools.base import timeline

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot


class Part(NamedTuple):
    """Some entries, and the milliseconds between which they lie, both included."""

    first_ms: int
    last_ms: int
    entries: int


class Places(NamedTuple):
    """The parts of a picture: entries by where they are."""

    archived: list[Part]
    retired: list[Part]
    live: Part | None


def find_places(
    store: Store[bytes],
    snapshot: Snapshot[bytes],
    records: Sequence[SegmentRecord],
    numbers: dict[int, bytes],
) -> Places:
    """Return where the entries of streams are.

    Args:
        records: their segments.
        numbers: the streams that exist, by number.
    """
    archived = []
    for record in records:
        segment = store.open_segment(record)
        archived += [
            Part(block.first_ms, block.last_ms, block.entries) for block in segment.index.blocks
        ]
    retired = [
        Part(node.first_id.ms, node.last_id.ms, node.entries)
        for node in iter_retired(snapshot.txn)
        if node.stream_number in numbers
    ]
    stats = [snapshot.stat(name) for name in numbers.values()]
    spans = [(one.first_ms, one.last_ms) for one in stats]
    firsts = [first for first, _ in spans if first is not None]
    lasts = [last for _, last in spans if last is not None]
    total = sum(one.length for one in stats)
    return Places(archived, retired, Part(min(firsts), max(lasts), total) if firsts else None)


def plan_of(places: Places) -> Plan | None:
    """Choose the buckets; None when there are no entries."""
    parts = [*places.archived, *places.retired, *([places.live] if places.live else [])]
    if not parts:
        return None
    first = min(part.first_ms for part in parts)
    return plan_buckets(first, max(part.last_ms for part in parts))


def spread(parts: Sequence[Part], plan: Plan) -> list[int]:
    """Return how many entries of the parts fall into each bucket, to the entry in sum."""
    counts = [0] * (len(plan.edges) - 1)
    for part in parts:
        for bucket, share in _shares(part, plan.edges):
            counts[bucket] += share
    return counts


def _shares(part: Part, edges: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (bucket, entries) of a part; each entry once."""
    span = part.last_ms - part.first_ms + 1
    given = 0
    for bucket in range(len(edges) - 1):
        if edges[bucket + 1] <= part.first_ms:
            continue
        passed = min(edges[bucket + 1], part.last_ms + 1) - part.first_ms
        due = part.entries if passed >= span else part.entries * passed // span
        if due > given:
            yield bucket, due - given
            given = due
        if passed >= span:
            return


Advance = Callable[[int, int], None]


def count_places(
    snapshot: Snapshot[bytes],
    places: Places,
    keys: Sequence[bytes],
    plan: Plan,
    advance: Advance,
) -> dict[str, list[int]]:
    """Return the entries in each bucket, by where they are."""
    return {
        "archived": spread(places.archived, plan),
        "retired": spread(places.retired, plan),
        "live": timeline.count_entries(snapshot, keys, plan, advance),
    }
