"""The manifest: a row of `segments` for each archive file, and one of `erasures` for each erasure.

The key of a row of `segments` is stream number and first ID. Its body is the layout below, the
path of the file below `archive/`, and the stream's whole key at the time when the segment was
written, because segments outlive the renaming and the deletion of their stream.

Always true: the segments of one stream do not overlap; no two rows have the same `sequence`, which
increases with every change of the manifest, so that a follower finds new rows; a file belongs to a
row only if its checksum matches.

The key of a row of `erasures` is stream number and ID of an erased entry. The row is kept, so that
restoring or adopting an older copy of a segment leaves out the entry.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_NUMBER, check_number, node_key, unpack_node_key
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment.segment import Segment

# Origins of a segment. Permanent.
ARCHIVED: Final = 0
ADOPTED: Final = 1
REWRITTEN: Final = 2
ORIGINS: Final = ("archived", "adopted", "rewritten")

ERASURE: Final = Layout("erasure", (Field("time_ms", "Q", "Unix time of the erasure"),))

erasure_key = node_key
segment_key = node_key


class SegmentRecord(NamedTuple):
    """One row of the manifest, key included; see `SEGMENT_RECORD`."""

    stream_number: int
    first_ms: int
    first_seq: int
    last_ms: Annotated[int, "Q", "ID of the last entry"]
    last_seq: Annotated[int, "Q"]
    entries: Annotated[int, "Q", "entries in the file"]
    nodes: Annotated[int, "Q", "macro nodes"]
    size_bytes: Annotated[int, "Q", "bytes of the file"]
    raw_bytes: Annotated[int, "Q", "bytes of its envelopes, uncompressed"]
    checksum: Annotated[int, "Q", "checksum of the file's trailer; covers the whole file"]
    sequence: Annotated[int, "Q", "number of this change of the manifest"]
    created_ms: Annotated[int, "Q", "Unix time at which the row was written"]
    erased: Annotated[int, "Q", "entries that erasures have removed from it"]
    epoch: Annotated[int, "I", "epoch of the store when the row was written"]
    origin: Annotated[int, "B", "0: archived here, 1: adopted, 2: rewritten by an erasure"]
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
        """The name of the segment in errors."""
        return f"segment {self.path}"

    def db_key(self) -> bytes:
        return segment_key(self.stream_number, self.first_ms, self.first_seq)

    def encode(self) -> bytes:
        path = self.path.encode()
        fixed = SEGMENT_RECORD.struct.pack(*self[3:15], len(path))
        return fixed + path + self.key


SEGMENT_RECORD: Final = Layout.of(
    "segment record",
    SegmentRecord,
    after=(Field("path_size", "H", "bytes of the path below `archive/` that follows"),),
)


def record_of(segment: Segment, path: str, origin: int) -> SegmentRecord:
    """Return the manifest row of a file that has just been written or found: all from the file."""
    index, trailer = segment.index, segment.trailer
    return SegmentRecord(
        index.stream_number,
        *trailer.first_id,
        *trailer.last_id,
        trailer.entries,
        trailer.nodes,
        segment.size,
        trailer.raw_size,
        trailer.checksum,
        0,
        trailer.created_ms,
        0,
        trailer.epoch,
        origin,
        path,
        index.key,
    )


def as_in_file(record: SegmentRecord, segment: Segment) -> SegmentRecord:
    """Return a row with all values that only the file decides replaced by those of the file.

    The others are the store's: a file that was adopted belongs to another stream than it names.
    """
    return record_of(segment, record.path, record.origin)._replace(
        stream_number=record.stream_number,
        sequence=record.sequence,
        created_ms=record.created_ms,
        erased=record.erased,
        epoch=record.epoch,
        key=record.key,
    )


def decode_segment_record(db_key: bytes, body: bytes, where: str) -> SegmentRecord:
    """Parse a row of `segments`; raise CorruptionError.

    A path that leads out of `archive/` counts as damage.
    """
    place = unpack_node_key(db_key)
    *values, path_size = SEGMENT_RECORD.unpack(body, where, more=True)
    key_at = SEGMENT_RECORD.size + path_size
    if key_at > len(body):
        raise CorruptionError(where, f"the path of {path_size} bytes is truncated")
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
        raise CorruptionError(where, "the last ID is below the first, or there are no entries")
    if record.origin >= len(ORIGINS):
        raise CorruptionError(where, f"origin {record.origin}, expected at most {len(ORIGINS) - 1}")
    return record


# --- erasures -----------------------------------------------------------------------------------


def encode_erasure(time_ms: int) -> bytes:
    return ERASURE.struct.pack(time_ms)


def decode_erasure(body: bytes, where: str) -> int:
    return int(ERASURE.unpack(body, where)[0])
