"""XRANGE, XREVRANGE, and other reads of one stream in ID order. Compiled by mypyc."""

from __future__ import annotations

from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.node.ranges import Range, find_entries, has_live, read_range


def read_entries(txn: Txn, stream: Stream, wanted: Range, out: list[object]) -> None:
    """Append to `out` the live entries of a stream that are `wanted`, in its order."""
    walk = NodeWalk(txn, stream)
    if wanted.newest_first:
        if not walk.seek(*wanted.end()) or (walk.ms, walk.seq) > wanted.end():
            return
        first = stream.record.first_id()  # below it, the cursor would pass what was removed
        while (
            read_range(walk.load(), walk.ms, walk.seq, wanted, out)
            and (walk.ms, walk.seq) > first
            and walk.previous()
        ):
            pass
    elif walk.seek(*max(wanted.start(), stream.record.first_id())):
        while read_range(walk.load(), walk.ms, walk.seq, wanted, out) and walk.next():
            pass


def xrange(txn: Txn, name: bytes, wanted: Range) -> list[object]:
    """Return the live entries of the stream `name` that are `wanted`; [] when it is missing."""
    out: list[object] = []
    stream = txn.find_stream(name)
    if stream is not None and stream.record.length:
        read_entries(txn, stream, wanted, out)
    return out


def exists(txn: Txn, stream: Stream, ms: int, seq: int) -> bool:
    record = stream.record
    if not record.length or not (record.first_id() <= (ms, seq) <= record.last_live_id()):
        return False
    walk = NodeWalk(txn, stream)
    return walk.seek(ms, seq) and has_live(walk.load(), walk.ms, walk.seq, ms, seq)


def read_ids(
    txn: Txn, stream: Stream, ids: list[tuple[int, int]], shape: int
) -> dict[tuple[int, int], object]:
    """Return the live entries among `ids`, by ID, each node loaded once.

    Args:
        shape: as in a Range; -1 for True instead of the entry.
    """
    found: dict[tuple[int, int], object] = {}
    record = stream.record
    if not record.length:
        return found
    low = record.first_id()
    high = record.last_live_id()
    wanted = sorted({one for one in ids if low <= one <= high})
    walk = NodeWalk(txn, stream)
    start = 0
    while start < len(wanted) and walk.seek(wanted[start][0], wanted[start][1]):
        start += find_entries(walk.load(), walk.ms, walk.seq, wanted, start, shape, found)
    return found
