"""The manifest: one row of `segments` for each archive file, and the IDs that were erased.

A row of `segments` stands under stream number and first ID. Its body is the layout below, then
the path of the file below `archive/`, then the stream's whole key as it was when the segment was
written: streams are renamed and deleted, and segments outlive them.

Always true: the segments of one stream do not overlap; no two rows have the same `sequence`,
which rises with every change of the manifest, so that whoever follows it sees what is new; a
file whose checksum is not that of its row is not the segment that the row means.

A row of `erasures` stands under stream number and ID of an entry that was erased, and says when.
It outlives the entry in every copy: what restores or adopts segments leaves these IDs out.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_NUMBER, check_number, node_key, unpack_node_key
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment.segment import Segment

# Where a segment came from. Permanent.
ARCHIVED: Final = 0
ADOPTED: Final = 1
REWRITTEN: Final = 2
ORIGINS: Final = ("archived", "adopted", "rewritten")

SEGMENT_RECORD: Final = Layout(
    "segment record",
    (
        Field("last_ms", "Q", "ID of the last entry"),
        Field("last_seq", "Q", ""),
        Field("entries", "Q", "entries in the file"),
        Field("nodes", "Q", "macro nodes"),
        Field("size_bytes", "Q", "bytes of the file"),
        Field("raw_bytes", "Q", "bytes of its envelopes, uncompressed"),
        Field("checksum", "Q", "of the file's trailer; stands for the whole file"),
        Field("sequence", "Q", "number of this change of the manifest"),
        Field("created_ms", "Q", "Unix time at which the row was written"),
        Field("erased", "Q", "entries that erasures have taken out of it"),
        Field("epoch", "I", "epoch of the store when the row was written"),
        Field("origin", "B", "0: archived here, 1: adopted, 2: rewritten by an erasure"),
        Field("path_size", "H", "bytes of the path below `archive/` that follows"),
    ),
)
ERASURE: Final = Layout("erasure", (Field("time_ms", "Q", "Unix time of the erasure"),))

erasure_key = node_key
segment_key = node_key


class SegmentRecord(NamedTuple):
    """One row of the manifest, key included; see `SEGMENT_RECORD`."""

    stream_number: int
    first_ms: int
    first_seq: int
    last_ms: int
    last_seq: int
    entries: int
    nodes: int
    size_bytes: int
    raw_bytes: int
    checksum: int
    sequence: int
    created_ms: int
    erased: int
    epoch: int
    origin: int
    path: str
    key: bytes

    @property
    def first_id(self) -> StreamId:
        """ID of the first entry."""
        return StreamId(self.first_ms, self.first_seq)

    @property
    def last_id(self) -> StreamId:
        """ID of the last entry."""
        return StreamId(self.last_ms, self.last_seq)

    @property
    def where(self) -> str:
        """The place for errors."""
        return f"segment {self.path}"

    def db_key(self) -> bytes:
        """Return the key of the row."""
        return segment_key(self.stream_number, self.first_ms, self.first_seq)

    def encode(self) -> bytes:
        """Return the body of the row."""
        path = self.path.encode()
        fixed = SEGMENT_RECORD.struct.pack(*self[3:15], len(path))
        return fixed + path + self.key


def record_of(
    segment: Segment,
    *,
    stream_number: int,
    path: str,
    key: bytes,
    sequence: int,
    created_ms: int,
    epoch: int,
    origin: int,
    erased: int = 0,
) -> SegmentRecord:
    """Return the manifest row for an opened segment."""
    trailer = segment.trailer
    return SegmentRecord(
        stream_number,
        *trailer.first_id,
        *trailer.last_id,
        trailer.entries,
        trailer.nodes,
        segment.size,
        trailer.raw_size,
        trailer.checksum,
        sequence,
        created_ms,
        erased,
        epoch,
        origin,
        path,
        key,
    )


def decode_segment_record(db_key: bytes, body: bytes, where: str) -> SegmentRecord:
    """Parse a row of `segments`; raise CorruptionError.

    The path is one that stays below `archive/`, whoever wrote it.
    """
    place = unpack_node_key(db_key)
    if len(body) < SEGMENT_RECORD.size:
        problem = f"a row of {len(body)} bytes, at least {SEGMENT_RECORD.size} expected"
        raise CorruptionError(where, problem)
    *values, path_size = SEGMENT_RECORD.struct.unpack_from(body)
    key_at = SEGMENT_RECORD.size + path_size
    if key_at > len(body):
        raise CorruptionError(where, f"the path of {path_size} bytes is cut off")
    try:
        path = body[SEGMENT_RECORD.size : key_at].decode()
    except UnicodeDecodeError:
        raise CorruptionError(where, "the path is not UTF-8") from None
    if not is_safe_path(path):
        raise CorruptionError(where, f"the path {path!r} leads out of the archive")
    record = SegmentRecord._make((*place, *values, path, body[key_at:]))
    for count in (record.entries, record.nodes, record.size_bytes, record.raw_bytes):
        check_number(count, LAST_NUMBER, where)
    for number in (record.sequence, record.created_ms, record.erased):
        check_number(number, LAST_NUMBER, where)
    if record.first_id > record.last_id or record.entries == 0:
        raise CorruptionError(where, "its last ID is below its first, or it has no entries")
    if record.origin >= len(ORIGINS):
        raise CorruptionError(where, f"origin {record.origin}, at most {len(ORIGINS) - 1} expected")
    return record


# --- erasures -----------------------------------------------------------------------------------

_ERASURE: Final[struct.Struct] = ERASURE.struct


def encode_erasure(time_ms: int) -> bytes:
    """Return the body of a row of `erasures`."""
    return _ERASURE.pack(time_ms)


def decode_erasure(body: bytes, where: str) -> int:
    """Return when the entry was erased, in Unix milliseconds."""
    if len(body) != _ERASURE.size:
        raise CorruptionError(where, f"a row of {len(body)} bytes, not {_ERASURE.size}")
    time_ms: int = _ERASURE.unpack(body)[0]
    return time_ms
