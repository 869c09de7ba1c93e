"""Iterating over the archive of a stream: its segments and retired nodes, in ID order.

The iteration holds no snapshot while it reads files or while the caller works, so it may take hours
and pins no pages. Each step asks the newest manifest for the next ID. So it yields each entry once,
even if retired nodes become segments and segments are rewritten at the same time. It does not see
segments that are dropped before it reaches them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkeep.engine.commands.history import Retired
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.tables.manifest import erased_ids, find_segment, is_named, segments_from
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import PAGE_LISTPACK, encode_envelope
from streamkeep.format.node.node import PAIRS, end_ids
from streamkeep.format.node.ranges import Range, has_live, read_range
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import Segment

# (UUID of the writing store, stream number there, first ID, last ID) -> IDs that must not be shown
Erased = Callable[[bytes, int, Id, Id], set[Id]]

_RETIRED_AT_ONCE: Final = 64  # nodes read with one snapshot


class ArchivedNode(NamedTuple):
    """A macro node as history shows it, without tombstones, and fully validated."""

    ms: int
    seq: int
    data: bytes
    first_id: Id
    last_id: Id
    live: int


class _RetiredRow(NamedTuple):
    """A row of `retired`."""

    ms: int
    seq: int
    data: bytes  # the listpack as history shows it
    last_slot: Id


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

    def hidden(origin: tuple[bytes, int], first: Id, last: Id) -> set[Id]:
        found = environment.read(erased_ids, number, first, last)
        return found if erased is None else found | erased(*origin, first, last)

    here = (environment.uuid.bytes, number)
    at = start
    while at <= end:
        record, retired = environment.read(_next_part, number, at)
        if record is not None:
            try:
                segment = environment.segments.open(record)
                origin = (segment.index.store_uuid, segment.index.stream_number)
                for block in range(segment.seek(*at), len(segment.index.blocks)):
                    if segment.index.blocks[block].first_id > end:
                        return
                    for one in segment.block(block):
                        for node in _cut(hidden, origin, one.ms, one.seq, one.listpack, at, end):
                            yield node
                            at = next_id(*node.last_id)
            except CorruptionError:
                if environment.read(is_named, record):
                    raise
                environment.segments.forget(record.path)
                continue  # the segment was replaced or dropped while it was read
            last: Id = record.last_id
        elif retired:
            for each in retired:
                yield from _cut(hidden, here, each.ms, each.seq, each.data, at, end)
            last = retired[-1].last_slot
        else:
            return
        if last == (MAX, MAX):
            return
        at = next_id(*last)


def count_archived(environment: Environment, number: int, start: Id, end: Id) -> int:
    """Return the number of entries in the segments that overlap a range; for progress bars."""

    def count(txn: Txn) -> int:
        total = 0
        record = find_segment(txn, number, *start)
        if record is not None and start <= record.last_id:
            total += record.entries
        for following in segments_from(txn, number, *next_id(*start)):
            if following.first_id > end:
                break
            total += following.entries
        return total

    return environment.read(count)


def _next_part(txn: Txn, number: int, at: Id) -> tuple[SegmentRecord | None, list[_RetiredRow]]:
    """Return the segment or the retired nodes that hold the first archived ID from `at` on."""
    record = find_segment(txn, number, *at)
    if record is not None and record.last_id >= at:
        return record, []
    record = next(segments_from(txn, number, *at), None)
    retired = retired_from(txn, number, at, None if record is None else record.first_id)
    return (None, retired) if retired else (record, [])


def retired_from(
    txn: Txn, number: int, at: Id, before: Id | None, most: int = _RETIRED_AT_ONCE
) -> list[_RetiredRow]:
    """Return the first retired nodes with entries from `at` on and keys below `before`."""
    source = Retired(txn, number)
    found = source.seek(*at)  # the node before may contain `at`
    out: list[_RetiredRow] = []
    while found and len(out) < most and (before is None or (source.ms, source.seq) < before):
        node = source.envelope()
        last_slot = end_ids(node.listpack, node.ms, node.seq).last_slot
        if last_slot >= at:
            data = history_form(node.listpack, node.ms, node.seq, node.trimmed)
            out.append(_RetiredRow(node.ms, node.seq, data, last_slot))
        found = source.next()
    return out


def _cut(
    hidden: Callable[[tuple[bytes, int], Id, Id], set[Id]],
    origin: tuple[bytes, int],
    ms: int,
    seq: int,
    data: bytes,
    start: Id,
    end: Id,
) -> Iterator[ArchivedNode]:
    """Yield a node, or its part from `start` to `end` without the hidden entries."""
    if not data:
        return
    ids = validate(data, ms, seq)
    first, last = ids.first_live, ids.last_live
    if last < start or first > end:
        return
    gone = hidden(origin, first, last)
    if start <= first == (ms, seq) and last <= end and not gone:
        yield ArchivedNode(ms, seq, data, first, last, int(ids.live))
        return
    for key_ms, key_seq, listpack in cut_node(ms, seq, data, start, end, gone):
        ids = end_ids(listpack, key_ms, key_seq)
        yield ArchivedNode(key_ms, key_seq, listpack, ids.first_live, ids.last_live, int(ids.live))


def cut_node(
    ms: int, seq: int, data: bytes, start: Id, end: Id, gone: set[Id]
) -> list[tuple[int, int, bytes]]:
    """Encode the entries of a node from `start` to `end` again, without the entries `gone`.

    Nothing of those remains, not even in the master entry.

    Returns:
        (ms, seq, listpack) of the new nodes: mostly one, none if no entry is left.
    """
    found: Entries = []
    read_range(data, ms, seq, Range(*start, *end, NO_LIMIT, False, PAIRS), found)
    kept = [entry for entry in found if entry[:2] not in gone]
    return encode_nodes(kept, PAGE_LISTPACK)


def has_slot_of(ms: int, seq: int, data: bytes, ids: list[Id]) -> bool:
    """Return whether a node has one of the entries, or its field names may come from one."""
    start = bisect_left(ids, (ms, seq))
    end = bisect_right(ids, end_ids(data, ms, seq).last_slot)
    return any(one == (ms, seq) or has_live(data, ms, seq, *one) for one in ids[start:end])


def nodes_without(segment: Segment, ids: list[Id]) -> Iterator[bytes]:
    """Yield the nodes of a segment as envelopes, without the entries `ids`, which ascend."""
    gone = set(ids)
    for block in range(len(segment.index.blocks)):
        for one in segment.block(block):
            parts = [(one.ms, one.seq, one.listpack)]
            if has_slot_of(one.ms, one.seq, one.listpack, ids):
                parts = cut_node(one.ms, one.seq, one.listpack, (0, 0), (MAX, MAX), gone)
            for ms, seq, data in parts:
                yield encode_envelope(
                    one.number, ms, seq, one.epoch, one.commit_number, b"", data, b""
                )
