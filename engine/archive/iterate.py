"""Iterating over the archive of a stream: its segments and retired nodes, in ID order.

A step reads about a megabyte of nodes from a snapshot of its own, and the next one asks the newest
manifest for the next ID. So the iteration may take hours and pins no pages, and it yields each
entry once, even if retired nodes become segments and segments are rewritten at the same time. It
does not see segments that are dropped before it reaches them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from streamkeep.engine.commands.history import Retired, archived_of, ascending
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import PAGE_LISTPACK, encode_envelope
from streamkeep.format.node.node import PAIRS, NodeIds, end_ids
from streamkeep.format.node.ranges import Range, has_live, read_range
from streamkeep.format.segment.segment import Segment

# (UUID of the writing store, stream number there, first ID, last ID) -> IDs that must not be shown
Erased = Callable[[bytes, int, Id, Id], set[Id]]

_STEP_BYTES: Final = 1 << 20  # of nodes that are read in one snapshot


class ArchivedNode(NamedTuple):
    """A macro node as history shows it, without tombstones, and fully validated."""

    ms: int
    seq: int
    data: bytes
    ids: NodeIds


# A node as it is stored: who wrote it, its key, its listpack, the IDs in it that were erased.
_Stored = tuple[tuple[bytes, int], int, int, bytes, set[Id]]


def archived_nodes(
    environment: Environment, number: int, start: Id, end: Id, erased: Erased | None = None
) -> Iterator[ArchivedNode]:
    """Yield the archived entries of a stream from `start` to `end`, both included, as nodes.

    Nodes at the ends of the range are cut to it. Entries that were erased from the stream are left
    out, even if a file or a retired row still has them. The key of a node is its first ID.

    Args:
        erased: returns more IDs to leave out, by the store and stream that wrote a segment.

    Raises:
        CorruptionError: a segment that the manifest names is missing or damaged.
    """
    here = environment.uuid.bytes, number
    at: Id | None = start
    while at is not None:
        found, following = environment.read_history(_some_nodes, here, at, end)
        for origin, ms, seq, data, gone in found:
            ids = validate(data, ms, seq)
            first, last = ids.first_live, ids.last_live
            if erased is not None:
                gone |= erased(*origin, first, last)
            if at <= first == (ms, seq) and last <= end and not gone:
                yield ArchivedNode(ms, seq, data, ids)
                continue
            for key_ms, key_seq, part in cut_node(ms, seq, data, at, end, gone):
                yield ArchivedNode(key_ms, key_seq, part, end_ids(part, key_ms, key_seq))
        at = following


def _some_nodes(
    txn: Txn, here: tuple[bytes, int], start: Id, end: Id
) -> tuple[list[_Stored], Id | None]:
    """Return some archived nodes that may have IDs of a range, and where the next step begins."""
    number = here[1]
    found: list[_Stored] = []
    room = _STEP_BYTES
    for source in ascending([Retired(txn, number), *archived_of(txn, number)], start, end):
        if room <= 0:
            return found, (source.ms, source.seq)
        data = source.load()
        if data:
            last = end_ids(data, source.ms, source.seq).last_live
            gone = erased_ids(txn, number, (source.ms, source.seq), last)
            found.append((source.origin or here, source.ms, source.seq, data, gone))
            room -= len(data)
    return found, None


def entries_of(ms: int, seq: int, data: bytes, start: Id = (0, 0), end: Id = (MAX, MAX)) -> Entries:
    """Return the entries of a node from `start` to `end`, as (ms, seq, pairs)."""
    found: Entries = []
    read_range(data, ms, seq, Range(*start, *end, NO_LIMIT, False, int(PAIRS)), found)
    return found


def cut_node(
    ms: int, seq: int, data: bytes, start: Id, end: Id, gone: set[Id]
) -> list[tuple[int, int, bytes]]:
    """Encode the entries of a node from `start` to `end` again, without the entries `gone`.

    Nothing of those remains, not even in the master entry.

    Returns:
        (ms, seq, listpack) of the new nodes: mostly one, none if no entry is left.
    """
    kept = [one for one in entries_of(ms, seq, data, start, end) if one[:2] not in gone]
    return encode_nodes(kept, PAGE_LISTPACK)


def has_slot_of(ms: int, seq: int, data: bytes, ids: Sequence[Id]) -> bool:
    """Return whether a node has one of the entries, or its field names may come from one.

    Args:
        ids: ascending.
    """
    start = bisect_left(ids, (ms, seq))
    if start == len(ids):
        return False
    end = bisect_right(ids, end_ids(data, ms, seq).last_slot)
    return any(one == (ms, seq) or has_live(data, ms, seq, *one) for one in ids[start:end])


def has_pieces(segment: Segment, ids: Sequence[Id]) -> bool:
    """Return whether `has_slot_of` is true of a node of a segment."""
    blocks = {segment.seek(*one) for one in ids} - {len(segment.index.blocks)}
    return any(
        has_slot_of(node.ms, node.seq, node.listpack, ids)
        for number in sorted(blocks)
        for node in segment.block(number)
    )


def nodes_of(
    segment: Segment, start: Id = (0, 0), end: Id = (MAX, MAX), without: Sequence[Id] = ()
) -> Iterator[bytes]:
    """Yield the nodes of a segment as envelopes, with the entries from `start` to `end` only.

    Args:
        without: IDs of more entries to leave out, ascending.
    """
    gone = set(without)
    for block in range(segment.seek(*start), segment.seek_last(*end) + 1):
        for one in segment.block(block):
            node = one.ms, one.seq, one.listpack
            parts = [node]
            if (
                node[:2] < start
                or (end < (MAX, MAX) and end_ids(one.listpack, one.ms, one.seq).last_live > end)
                or has_slot_of(*node, without)
            ):
                parts = cut_node(*node, start, end, gone)
            for ms, seq, data in parts:
                yield encode_envelope(
                    one.number, ms, seq, one.epoch, one.commit_number, b"", data, b""
                )
