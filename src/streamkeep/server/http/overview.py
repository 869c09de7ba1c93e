"""What a store holds, and what is stuck: lists of streams and groups, and entries over time.

All of it is read from records and keys: no entry is read but the first pending ones, and the few of
a window that has few.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from itertools import pairwise
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.commands.xread import has_above
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.id_codec import parse_id
from streamkeep.format.core.json_form import JsonBytes, json_bytes, pending_json
from streamkeep.format.node.node import live_ids
from streamkeep.jobs.layout import Names
from streamkeep.jobs.listing import stats_of, unknown_tasks
from streamkeep.server.access import User

# --- entries over time ----------------------------------------------------------------------------
#
# 1. Where a window has few macro nodes, their IDs are counted: the figures are exact.
# 2. Otherwise only keys of nodes are read. Between the keys of two nodes are about as many entries
#    as a node of the stream has. Each bucket has `_PARTS` parts. In each of them at most `_KEYS`
#    keys are read, and the rest of the part is taken to be as dense as its beginning.
#
# So a window costs the same for ten thousand and for ten million entries. Archived entries are
# spread over the time of their segment.


_EXACT: Final = 64  # nodes that are read
_EXACT_BYTES: Final = 1 << 20
_PARTS: Final = 4  # of a bucket
_KEYS: Final = 8  # keys of nodes that are read for one part


class Counted(NamedTuple):
    """How many entries there are in each bucket, and whether that was counted."""

    entries: list[int]
    exact: bool


def bucket_edges(start: int, end: int, buckets: int) -> list[int]:
    """Return the edges of buckets of equal length, each at least a millisecond."""
    end = max(end, start + 1)
    buckets = min(buckets, end - start)
    return [start + (end - start) * at // buckets for at in range(buckets + 1)]


def count_live(txn: Txn, stream: Stream, edges: list[int]) -> Counted:
    """Return how many live entries a stream has in each bucket."""
    empty = [0] * (len(edges) - 1)
    record = stream.record
    if not record.length or record.last_live_ms < edges[0] or record.first_ms >= edges[-1]:
        return Counted(empty, True)
    walk = NodeWalk(txn, stream)
    if _few_nodes(walk, edges):
        more = walk.seek(edges[0], 0)
        while more and walk.ms < edges[-1]:
            for ms, _ in live_ids(walk.load(), walk.ms, walk.seq):
                if edges[0] <= ms < edges[-1]:
                    empty[bisect_right(edges, ms) - 1] += 1
            more = walk.next()
        return Counted(empty, True)
    return Counted(_estimate(walk, stream, edges), False)


def _few_nodes(walk: NodeWalk, edges: list[int]) -> bool:
    stream = walk.stream
    if stream.node_bytes() // max(1, stream.nodes()) * _EXACT > _EXACT_BYTES * 8:
        return stream.nodes() <= 1 and stream.node_bytes() <= _EXACT_BYTES
    more = walk.seek(edges[0], 0)
    for _ in range(_EXACT):
        if not more or walk.ms >= edges[-1]:
            return True
        more = walk.next()
    return False


def _estimate(walk: NodeWalk, stream: Stream, edges: list[int]) -> list[int]:
    """Return estimates from the keys of nodes.

    `points` are (time, nodes that begin before it); between two points nodes are spread evenly.
    """
    record = stream.record
    per_node = record.length / max(1, stream.nodes())
    points: list[tuple[int, float]] = []
    nodes = 0.0
    more = walk.seek(edges[0], 0)
    if more:
        points.append((min(walk.ms, edges[0]), 0.0))
    for low, high in pairwise(_finer(edges)):
        keys = 0
        while more and walk.ms < high and keys < _KEYS:
            points.append((walk.ms, nodes))
            nodes += 1
            keys += 1
            more = walk.next()
        if more and walk.ms < high:  # as dense as its beginning
            seen = walk.ms - max(low, points[-keys][0])
            dense = keys * (high - max(low, walk.ms)) / max(1, seen)
            nodes += dense
            more = walk.above(high - 1, (1 << 64) - 1)
            points.append((high, nodes))
    points.append((max(points[-1][0] + 1, walk.ms if more else record.last_live_ms + 1), nodes))
    at = [_nodes_at(points, edge) for edge in edges]
    return [round(per_node * (high - low)) for low, high in pairwise(at)]


def _finer(edges: list[int]) -> list[int]:
    found = [edges[0]]
    for low, high in pairwise(edges):
        parts = [low + (high - low) * part // _PARTS for part in range(1, _PARTS + 1)]
        found += dict.fromkeys(at for at in parts if at > low)
    return found


def _nodes_at(points: list[tuple[int, float]], ms: int) -> float:
    place = bisect_right(points, (ms, float("inf")))
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (before_ms, before), (after_ms, after) = points[place - 1], points[place]
    return before + (after - before) * (ms - before_ms) / max(1, after_ms - before_ms)


def spread(counts: list[float], edges: list[int], first: int, last: int, entries: int) -> None:
    """Add the entries of a segment to the buckets, as if they came evenly."""
    length = last - first + 1
    at = max(0, bisect_right(edges, first) - 1)
    while at < len(counts) and edges[at] <= last:
        shared = min(edges[at + 1], last + 1) - max(edges[at], first)
        if shared > 0:
            counts[at] += entries * shared / length
        at += 1


# --- streams and groups ---------------------------------------------------------------------------


STUCK_MS: Final = 5 * 60_000  # without progress, a group that has work to do is stuck


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def row(snapshot: Snapshot[bytes], name: bytes, edges: list[int] | None) -> dict[str, Any]:
    stream = existing_stream(snapshot.txn, name)
    record = stream.record
    groups = [group_facts(snapshot, name, one) for one in snapshot.xinfo_groups(name)]
    retention = stream.retention()
    row: dict[str, Any] = {
        "key": json_bytes(name),
        "length": record.length,
        "entries_added": record.entries_added,
        "size_bytes": stream.node_bytes(),
        "first_ms": record.first_ms if record.length else None,
        "last_ms": record.last_live_ms if record.length else None,
        "archives": retention is not None and retention.archive,
        "groups": len(groups),
        "pending": sum(one["pending"] for one in groups),
        "waiting": max((one["waiting"] for one in groups), default=0),
        "exact_waiting": all(one["lag"] is not None for one in groups),
        "oldest_pending_id": min(
            (one["oldest_pending"]["id"] for one in groups if one["oldest_pending"] is not None),
            key=id_ms,
            default=None,
        ),
    }
    if edges is not None:
        counted = count_live(snapshot.txn, stream, edges)
        row["spark"], row["exact"] = counted.entries, counted.exact
    return row


def group_facts(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> dict[str, Any]:
    """Return one group of XINFO GROUPS in JSON, with its oldest pending entry.

    `waiting` is the lag, or an estimate of it where Redis's rules make it unknown: after a
    deletion, or in a group that began in the middle of the stream.
    """
    oldest = None
    if info["pending"]:
        rows = snapshot.xpending_range(key, info["name"], "-", "+", 1)
        oldest = pending_json(rows[0]) if rows else None
    return {
        "name": json_bytes(info["name"]),
        "consumers": info["consumers"],
        "pending": info["pending"],
        "last_delivered_id": info["last-delivered-id"].decode(),
        "entries_read": info["entries-read"],
        "lag": info["lag"],
        "waiting": _count_after(snapshot, key, info) if info["lag"] is None else info["lag"],
        "oldest_pending": oldest,
    }


def _count_after(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> int:
    """Return about how many entries a group has not been given; 0 only if there are none."""
    stream = existing_stream(snapshot.txn, key)
    after = parse_id(info["last-delivered-id"], 0)
    if not has_above(stream, after):
        return 0
    edges = [after[0], stream.record.last_live_ms + 1]
    return max(1, count_live(snapshot.txn, stream, edges).entries[0])


def id_ms(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


# --- what is stuck --------------------------------------------------------------------------------


def keys_of(queue: str) -> tuple[bytes, ...]:
    """Return the streams of a queue, of which each route may use any."""
    names = Names(queue)
    return (*names.streams, names.dead)


def sees_queue(user: User, name: str) -> bool:
    return all(map(user.sees, keys_of(name)))


def stuck_in_queue(snapshot: Snapshot[bytes], name: str) -> list[dict[str, Any]]:
    """Return what is stuck in a queue: dead letters, a pause, jobs for which there is no worker."""
    names = Names(name)
    stats = stats_of(snapshot, names)
    waits = {"queue": name, "since_ms": stats.oldest_ms, "waiting": stats.waiting}
    found: list[dict[str, Any]] = []
    if stats.failed:
        first = snapshot.xrange(names.dead, count=1)[0]
        since = now_ms() - id_ms(first.id.decode())
        found.append({"kind": "dead", "queue": name, "since_ms": since, "letters": stats.failed})
    if stats.parked:
        parked = {"queue": name, "since_ms": 0, "waiting": stats.parked}  # since when is not kept
        found.append({"kind": "parked", **parked, "tasks": unknown_tasks(snapshot, names)})
    if stats.waiting and stats.paused:
        found.append({"kind": "paused", **waits})
    elif stats.waiting > stats.parked and not stats.workers and stats.oldest_ms >= STUCK_MS:
        found.append({"kind": "idle", **waits})
    return found


def troubles(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is stuck in one group: pending entries, and entries that no consumer reads."""
    found: list[dict[str, Any]] = []
    place: dict[str, JsonBytes] = {"key": json_bytes(key), "group": json_bytes(info["name"])}
    facts = group_facts(snapshot, key, info)
    oldest = facts["oldest_pending"]
    if oldest is not None:
        idle = oldest["idle_ms"]
        if idle is None or idle >= STUCK_MS:
            entry = {name: oldest[name] for name in ("id", "consumer", "times_delivered")}
            more = {"kind": "pending", "since_ms": idle, "pending": facts["pending"]}
            found.append({**place, **more, **entry})
    if facts["waiting"]:
        consumers = snapshot.xinfo_consumers(key, info["name"])
        idle = min((one["idle"] for one in consumers), default=None)
        if idle is None or idle >= STUCK_MS:
            found.append(
                {
                    **place,
                    "kind": "unread",
                    "since_ms": idle,
                    "waiting": facts["waiting"],
                    "exact": facts["lag"] is not None,
                    "consumers": len(consumers),
                }
            )
    return found
