"""The manifest inside transactions: rows of `segments` and `erasures`.

The manifest changes in write transactions, one after the other. `put_segment` gives each row the
next sequence, so a reader that has seen the rows up to some sequence has missed none below it.
Files are written long before their rows. Their numbers come from transactions of their own and may
have gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from streamkeep.engine.tables.scan import neighbours, rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.segment import manifest as rows
from streamkeep.format.segment.remote import META_REMOTE, RemoteSetting, Removed, decode_setting

NEXT_SEQUENCE: Final = b"next_manifest_sequence"
_AFTER: Final = b"\0"  # makes a key the next possible one

NEXT_FILE: Final = b"next_segment_file"


def take_file_number(txn: WriteTxn) -> int:
    """Return the number of the next segment file; no number is returned twice."""
    return txn.take_number(NEXT_FILE)


def put_segment(txn: WriteTxn, record: rows.SegmentRecord) -> rows.SegmentRecord:
    """Write a row with the next sequence; return it as it was written.

    Raises:
        CorruptionError: the segment overlaps another one of its stream, or a row with its first
            ID exists. To replace a row, delete it first.
    """
    other = find_segment(txn, record.stream_number, *record.last_id)
    if other is not None and other.last_id >= record.first_id:
        problem = f"it overlaps {other.where}"
        raise CorruptionError(record.where, problem)
    record = record._replace(sequence=txn.take_number(NEXT_SEQUENCE))
    txn.put_row(keys.SEGMENTS, record.db_key(), record.encode())
    return record


def delete_segment(txn: WriteTxn, record: rows.SegmentRecord) -> None:
    """Remove a row from the manifest. The caller removes the file, see `garbage`."""
    txn.delete(keys.SEGMENTS, record.db_key())
    txn.take_number(NEXT_SEQUENCE)


def iter_segments(txn: Txn, number: int | None = None) -> Iterator[rows.SegmentRecord]:
    """Yield the rows of one stream, ascending by ID; of all streams by number without one."""
    return segments_from(txn, number, 0, 0)


def list_segments(
    txn: Txn, number: int | None, start: Id = (0, 0), end: Id = (MAX, MAX)
) -> list[rows.SegmentRecord]:
    """Return the rows of one stream, or of all, whose ranges touch `start` to `end`."""
    return [
        one for one in iter_segments(txn, number) if one.last_id >= start and one.first_id <= end
    ]


def segments_from(txn: Txn, number: int | None, ms: int, seq: int) -> Iterator[rows.SegmentRecord]:
    """Yield the rows of a stream whose first ID is not below `ms-seq`, ascending."""
    _, record = _neighbours(txn, keys.node_key(number or 0, ms, seq))
    while record is not None and number in (None, record.stream_number):
        yield record
        _, record = _neighbours(txn, record.db_key() + _AFTER)


def find_segment(txn: Txn, number: int, ms: int, seq: int) -> rows.SegmentRecord | None:
    """Return the last segment of a stream whose first ID is not above `ms-seq`.

    If a segment of the stream holds the ID, it is this one.
    """
    record, _ = _neighbours(txn, keys.node_key(number, ms, seq) + _AFTER)
    return None if record is None or record.stream_number != number else record


def overlapping(txn: Txn, number: int, first: Id, last: Id) -> Iterator[rows.SegmentRecord]:
    """Yield the segments of a stream with a range that touches `first` to `last`, ascending."""
    start = find_segment(txn, number, *first)
    if start is not None and start.last_id >= first:
        yield start
    after = first if start is None or start.first_id < first else next_id(*first)
    for record in segments_from(txn, number, *after):
        if record.first_id > last:
            return
        yield record


def is_named(txn: Txn, record: rows.SegmentRecord) -> bool:
    """Return whether the manifest still names the file of a row that was read from it."""
    value = txn.get(keys.SEGMENTS, record.db_key())
    return value is not None and decode_row(record.db_key(), value).path == record.path


def _neighbours(
    txn: Txn, db_key: bytes
) -> tuple[rows.SegmentRecord | None, rows.SegmentRecord | None]:
    """Return the last row of the manifest below a key, and the first one from it on."""
    before, after = neighbours(txn, keys.SEGMENTS, db_key)
    return before and decode_row(*before), after and decode_row(*after)


def decode_row(db_key: bytes, value: bytes) -> rows.SegmentRecord:
    """Parse a row of `segments` as it is stored; raise CorruptionError."""
    where = f"manifest row {db_key.hex()}"
    return rows.decode_segment_record(db_key, row_body(keys.SEGMENTS, db_key, value, where), where)


# --- where the archive is also kept ----------------------------------------------------------


def remote_setting(txn: Txn) -> RemoteSetting | None:
    """Return where the archive of the store is also kept; None for nowhere."""
    body = txn.get_row(keys.META, META_REMOTE, "meta")
    return None if body is None else decode_setting(body, "meta archive_remote")


def put_remote_setting(txn: WriteTxn, setting: RemoteSetting) -> None:
    """Write where the archive of the store is kept, and the version of its head."""
    txn.put_row(keys.META, META_REMOTE, setting.encode())


def note_removed(txn: WriteTxn, ranges: Iterable[tuple[int, Id, Id]]) -> None:
    """Have the next publication take IDs out of sealed segments, which may have copies.

    Args:
        ranges: stream number, first and last ID.
    """
    setting = remote_setting(txn)
    if setting is not None:
        more = [
            Removed(setting.version, number, StreamId(*first), StreamId(*last))
            for number, first, last in ranges
        ]
        put_remote_setting(txn, setting._replace(removed=(*setting.removed, *more)))


def put_published(txn: WriteTxn, setting: RemoteSetting, done: Collection[Removed]) -> None:
    """Write the version of a new head, whose manifest lacks the ranges `done`.

    These stay noted until that head was seen: it may never be written. Others may have been noted
    since `setting` was read.
    """
    now = remote_setting(txn)
    since = () if now is None else now.removed[len(setting.removed) :]
    left = [one._replace(version=setting.version - 1) for one in done]
    left += [one._replace(version=setting.version) for one in since]
    put_remote_setting(txn, setting._replace(removed=tuple(left)))


# --- erasures -----------------------------------------------------------------------------------


def put_erasure(txn: WriteTxn, number: int, ms: int, seq: int) -> None:
    """Note that an entry was erased now; an earlier note is kept."""
    db_key = rows.erasure_key(number, ms, seq)
    if txn.get(keys.ERASURES, db_key) is None:
        txn.put_row(keys.ERASURES, db_key, rows.encode_erasure(txn.now_ms()))


def iter_erasures(txn: Txn, number: int, first: Id, last: Id) -> Iterator[tuple[Id, int]]:
    """Yield (ID, Unix milliseconds) of each erased entry of a stream in a range, ascending."""
    start = rows.erasure_key(number, *first)
    for db_key, value in rows_with(txn, keys.ERASURES, keys.pack_number(number), start):
        _, ms, seq = keys.unpack_node_key(db_key)
        if (ms, seq) > last:
            return
        where = f"erasure of {ms}-{seq} of stream {number}"
        yield (ms, seq), rows.decode_erasure(row_body(keys.ERASURES, db_key, value, where), where)


def erased_ids(txn: Txn, number: int, first: Id, last: Id) -> set[Id]:
    return {one for one, _ in iter_erasures(txn, number, first, last)}
