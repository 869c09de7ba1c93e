"""XDEL: entries become tombstones; a node goes with its last live entry.

Where the stream archives what is deleted, they are marked as trimmed. Compiled by mypyc.
"""

from __future__ import annotations

from streamkeep.engine.commands.arguments import parse_ids
from streamkeep.engine.commands.xtrim import store_marked
from streamkeep.engine.tables.node_walk import NodeWalk, refresh_ends
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.node.envelope import set_trimmed
from streamkeep.format.node.tombstones import mark


def xdel(txn: WriteTxn, name: bytes, ids: list[bytes]) -> int:
    """Delete entries of the stream `name`; return how many there were.

    As in Redis, IDs are not checked if the stream is missing.
    """
    stream = txn.find_stream(name)
    return 0 if stream is None else len(delete_entries(txn, stream, parse_ids(ids)))


def delete_entries(
    txn: WriteTxn, stream: Stream, ids: list[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Delete entries by ID, each node only once; return the IDs that were live."""
    record = stream.record
    low = record.first_id()
    high = record.last_live_id()
    wanted = sorted({one for one in ids if low <= one <= high} if record.length else [])
    gone: set[tuple[int, int]] = set()
    start = 0
    archiving = stream.archiving_deleted()
    walk = NodeWalk(txn, stream)
    while start < len(wanted) and walk.seek(wanted[start][0], wanted[start][1]):
        marked = mark(walk.load(), walk.ms, walk.seq, wanted, start)
        start += marked.consumed
        if not marked.ids:
            continue
        gone.update(marked.ids)
        if marked.live == 0:
            if archiving:
                walk.retire()
            else:
                walk.bury(marked.data)
        else:
            bitmap = set_trimmed(walk.trimmed, marked.slots) if archiving else walk.trimmed
            store_marked(walk, marked.data, marked.live, marked.deleted, bitmap)
    if gone:
        stream.deleted_up_to(max(gone))
        refresh_ends(txn, stream, first=low in gone, last=high in gone)
    return gone
