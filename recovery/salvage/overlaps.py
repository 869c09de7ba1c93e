"""Finding entries that are in two places: in segments, retired nodes or live nodes of a stream.

These must not overlap (SK304, SK305). If they do, repair keeps the live node, because commands
return its entries; of a segment and a retired node it keeps the segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import (
    NODES,
    RETIRED,
    SEGMENTS,
    STREAMS,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.manifest import SegmentRecord, decode_segment_record
from streamkeep.recovery.salvage.new_store import BulkStore

_SEGMENT: Final = 0
_RETIRED: Final = 1
_LIVE: Final = 2


class Place(NamedTuple):
    """A segment or a node, with the first and the last ID of its entries."""

    first: Id
    kind: int
    last: Id
    db_key: bytes  # key of its row
    segment: SegmentRecord | None = None


def overlapping(out: BulkStore, number: int) -> Iterator[Place]:
    """Yield the segments and retired nodes of a stream that overlap what repair keeps."""
    archived: Place | None = None
    live: Place | None = None
    for place in heapq.merge(
        _segments(out, number),
        _nodes(out, RETIRED, number),
        _nodes(out, NODES, number),
        _tail(out, number),
    ):
        if place.kind == _LIVE:
            if archived is not None and place.first <= archived.last:
                yield archived
                archived = None
            live = place
        elif live is not None and place.first <= live.last:
            yield place
        elif archived is None or place.first > archived.last:
            archived = place
        elif archived.kind == _SEGMENT:
            yield place
        else:
            yield archived
            archived = place


def streams_with_archive(out: BulkStore) -> list[int]:
    """Return the numbers of the streams that have segments or retired nodes."""
    numbers: set[int] = set()
    for table in (SEGMENTS, RETIRED):
        numbers.update(unpack_node_key(db_key)[0] for db_key, _ in out.rows(table))
    return sorted(numbers)


def _segments(out: BulkStore, number: int) -> Iterator[Place]:
    for db_key, value in out.rows(SEGMENTS, pack_number(number)):
        body = open_row(SEGMENTS, db_key, value, "segment")
        record = decode_segment_record(db_key, body, "segment")
        yield Place(record.first_id, _SEGMENT, record.last_id, db_key, record)


def _nodes(out: BulkStore, table: int, number: int) -> Iterator[Place]:
    kind = _RETIRED if table == RETIRED else _LIVE
    for db_key, value in out.rows(table, pack_number(number)):
        _, ms, seq = unpack_node_key(db_key)
        if table == NODES or not is_former_name(ms, seq):
            yield _place(decode_envelope(value, "node"), kind, db_key)


def _tail(out: BulkStore, number: int) -> Iterator[Place]:
    value = out.get(STREAMS, pack_number(number))
    envelope = None if value is None else decode_envelope(value, "stream")
    if envelope is not None and envelope.listpack:
        yield _place(envelope, _LIVE, pack_number(number))


def _place(envelope: Envelope, kind: int, db_key: bytes) -> Place:
    first = (envelope.ms, envelope.seq)
    try:
        last = end_ids(envelope.listpack, *first).last_slot
    except CorruptionError:
        last = first  # `StreamRebuilder` repairs the node
    return Place(first, kind, last, db_key)
