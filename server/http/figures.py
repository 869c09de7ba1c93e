"""Entries over time, without reading them: counted where they are few, estimated where not.

1. Where a window has few macro nodes, their IDs are counted: the figures are exact.
2. Otherwise only keys of nodes are read. Between the keys of two nodes are about as many entries as
   a node of the stream has. Each bucket has `_PARTS` parts. In each of them at most `_KEYS` keys
   are read, and the rest of the part is taken to be as dense as its beginning.

So a window costs the same for ten thousand and for ten million entries. Archived entries are spread
over the time of their segment.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.segments import iter_retired
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.node.node import live_ids

_LEAST_MS: Final = 60_000  # of a window that is not given
_MOST_RETIRED: Final = 2000  # nodes that wait to be archived, and are looked at
_EXACT: Final = 64  # nodes that are read
_EXACT_BYTES: Final = 1 << 20
_PARTS: Final = 4  # of a bucket
_KEYS: Final = 8  # keys of nodes that are read for one part


class Counted(NamedTuple):
    """How many entries there are in each bucket, and whether that was counted."""

    entries: list[int]
    exact: bool


def figures(
    store: Store[bytes], key: bytes, start_ms: int | None, end_ms: int | None, buckets: int
) -> dict[str, Any]:
    """Return the entries of a stream over time: live, trimmed and to be archived, archived.

    Args:
        start_ms, end_ms: the window, in Unix ms; None for the oldest entry, and for just after the
            newest one.

    Raises:
        NoSuchKeyError: the stream does not exist.
    """
    with store.snapshot() as snapshot, translated():
        stream = existing_stream(snapshot.txn, key)
        segments = store.archived_segments(key)
        waiting = list(islice(iter_retired(snapshot.txn, stream.number), _MOST_RETIRED))
        record = stream.record
        firsts = [one.first_ms for one in segments] + [node.first_id.ms for node in waiting]
        lasts = [one.last_ms for one in segments] + [node.last_id.ms for node in waiting]
        if record.length:
            firsts.append(record.first_ms)
            lasts.append(record.last_live_ms)
        start = min(firsts, default=0) if start_ms is None else start_ms
        end = max(lasts, default=0) + 1 if end_ms is None else end_ms
        if start_ms is None:
            start = max(0, min(start, end - _LEAST_MS))
        edges = bucket_edges(start, end, buckets)
        live = count_live(snapshot.txn, stream, edges)
    archived = [0.0] * (len(edges) - 1)
    retired = archived.copy()
    erased = archived.copy()
    for node in waiting:
        _spread(retired, edges, node.first_id.ms, node.last_id.ms, node.entries)
    for one in segments:
        _spread(erased, edges, one.first_ms, one.last_ms, one.erased)
        _spread(archived, edges, one.first_ms, one.last_ms, one.entries)
    return {
        "key": json_bytes(key),
        "edges_ms": edges,
        "live": live.entries,
        "trimmed": [round(count) for count in retired],
        "archived": [round(count) for count in archived],
        "erased": [round(count) for count in erased],
        "exact": live.exact and not segments and not waiting,
        "first_live_ms": record.first_ms if record.length else None,
        "last_live_ms": record.last_live_ms if record.length else None,
        "archived_entries": sum(one.entries for one in segments),
        "trimmed_entries": sum(node.entries for node in waiting),
        "erased_entries": sum(one.erased for one in segments),
    }


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
        walk.seek(edges[0], 0)
        _count_ids(walk, edges, empty)
        return Counted(empty, True)
    return Counted(_estimate(walk, stream, edges), False)


def _few_nodes(walk: NodeWalk, edges: list[int]) -> bool:
    """Say whether the nodes of a window are so few that they can be read."""
    stream = walk.stream
    if stream.node_bytes() // max(1, stream.nodes()) * _EXACT > _EXACT_BYTES * 8:
        return stream.nodes() <= 1 and stream.node_bytes() <= _EXACT_BYTES
    more = walk.seek(edges[0], 0)
    for _ in range(_EXACT):
        if not more or walk.ms >= edges[-1]:
            return True
        more = walk.next()
    return False


def _count_ids(walk: NodeWalk, edges: list[int], counts: list[int]) -> None:
    while walk.ms < edges[-1]:
        for ms, _ in live_ids(walk.load(), walk.ms, walk.seq):
            if edges[0] <= ms < edges[-1]:
                counts[bisect_right(edges, ms) - 1] += 1
        if not walk.next():
            return


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
    """Return the edges of the parts of buckets."""
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


def _spread(counts: list[float], edges: list[int], first: int, last: int, entries: int) -> None:
    """Add the entries of a segment to the buckets, as if they came evenly."""
    length = last - first + 1
    at = max(0, bisect_right(edges, first) - 1)
    while at < len(counts) and edges[at] <= last:
        shared = min(edges[at + 1], last + 1) - max(edges[at], first)
        if shared > 0:
            counts[at] += entries * shared / length
        at += 1
