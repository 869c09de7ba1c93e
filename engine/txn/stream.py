"""One stream as a transaction sees it: its record and its tail node.

The tail node is the one that entries are appended to. It is stored with the stream record, in the
row of `streams`, because an append changes both. All older nodes are *sealed* and stored in
`nodes`. The tail may be absent: in an empty stream, after its last entry was removed, and when the
newest node holds a single entry that is too big to be written again with each append.

All counters of the record change in this class, in methods that are named after the event. Live
entries and tombstones are never counted by hand: the change is the difference between the counts
that a node states before and after.

Between appends the tail is kept as a `NodeBuilder`; its bytes are made when they are asked for.
Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter

from streamkeep.engine.txn.overlay import LazyRow
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import pack_number
from streamkeep.format.journal.journal import Operations
from streamkeep.format.node.builder import NodeBuilder, builder_from
from streamkeep.format.node.envelope import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    close_envelope,
    decode_envelope,
    put_header,
)
from streamkeep.format.node.node import peek_counts
from streamkeep.format.rows.records import REOPEN, StreamRecord, decode_stream_record
from streamkeep.format.rows.retention import Retention, retention_of, with_retention

ABSENT: Final = b""
_COUNTS: Final = 32  # bytes of a listpack that always hold both counts
_LISTPACK_HEAD: Final = 6 + 2 * 6  # header, and the counts of live entries and tombstones
MOST_ADDED: Final = (1 << 63) - 1  # where Redis stops counting


class Stream:
    """Record and tail node of one stream.

    `differs` compares the record with the stored row. A stream without a row always differs.
    """

    def __init__(self, number: int, name: bytes, record: StreamRecord) -> None:
        self.number = number
        self.name = name
        self.db_key: bytes = pack_number(number)
        self.record = record
        self.tail_ms = 0
        self.tail_seq = 0
        self.trimmed = b""  # bitmap of the tail's trimmed slots
        self.stored = b""  # the value of the row in `streams`; empty if it was not encoded
        self.cached_size = 0  # of its tail, as `EngineContext.cached_bytes` counts it
        self.key_row = b""  # the value of the row in `keys`, where a reader compares it
        self.floor = (0, 0)  # no node has a key below it
        self.sealed_changes = 0  # how often a sealed node was changed or removed
        # What the journal has of the row: what it lacks is written at commit.
        self._nodes_changed = True  # other bytes, or another node
        self._record = b""
        self._head = -1  # bytes before the body of `_builder`; -1: the row cannot be extended
        self._body = -1  # bytes of the body
        self._data = ABSENT
        self.row: TailRow | None = None  # has the tail in place of `_data`, for readers
        self._builder: NodeBuilder | None = None
        self._stale = False  # `_data` lacks what was appended to `_builder`
        self._retention: Retention | None = None  # once it is known
        self._retention_known = False
        self._begins_of = (-1, -1)  # the first entry for which `_begins_ms` was noted
        self._begins_ms = 0
        self.held_by: bytes | None = None  # the group that needed the oldest entries, when asked

    def retention(self) -> Retention | None:
        """Return the stream's retention; None, as for most streams, when it has none."""
        if not self.record.extension:
            return None
        if not self._retention_known:
            self._retention = retention_of(self.record.extension, f"stream {self.number}")
            self._retention_known = True
        return self._retention

    def set_retention(self, retention: Retention) -> None:
        self.record.extension = with_retention(self.record.extension, retention)
        self._retention_known = False

    def archiving(self) -> bool:
        retention = self.retention()
        return retention is not None and retention.archive

    def archiving_deleted(self) -> bool:
        """Return whether deleted entries go to the archive, too."""
        retention = self.retention()
        return retention is not None and retention.archive and retention.archive_deleted

    def begins(self, ms: int) -> bool:
        """Return whether the first node is known to reach to the millisecond `ms` or beyond."""
        return self._begins_of == self.record.first_id() and self._begins_ms >= ms

    def note_begins(self, ms: int) -> None:
        """Remember the millisecond of the last slot of the first node, which is sealed."""
        self._begins_of = self.record.first_id()
        self._begins_ms = ms

    def has_tail(self) -> bool:
        return self._stale or self._data != ABSENT or self.row is not None

    def tail_data(self) -> bytes:
        if self._stale and self._builder is not None:
            self._data = self._builder.listpack()
            self._stale = False
        elif self.row is not None:
            self._data = self.row.tail()
            self.row = None
        return self._data

    def tail_builder(self) -> NodeBuilder | None:
        """Return the tail to append to, or None; call `tail_grew` afterwards."""
        if self._builder is None and self._data != ABSENT:
            self._builder = builder_from(self._data, self.tail_ms, self.tail_seq)
            self._note_row()
        return self._builder

    def tail_grew(self) -> None:
        """Note that the tail's builder has a new entry."""
        self._stale = True
        self._data = ABSENT
        self._nodes_changed = True

    def start_tail(self, builder: NodeBuilder) -> None:
        """Make `builder` the tail; the former one has been stored elsewhere."""
        self.tail_ms = builder.ms
        self.tail_seq = builder.seq
        self.trimmed = b""
        self._builder = builder
        self._head = -1
        self.tail_grew()

    def replace_tail(self, ms: int, seq: int, data: bytes, trimmed: bytes) -> None:
        """Set the tail to stored bytes; `ABSENT` for no tail."""
        self.tail_ms = ms
        self.tail_seq = seq
        self.trimmed = trimmed
        self._data = data
        self._builder = None
        self._head = -1
        self._stale = False
        self._nodes_changed = True

    def drop_tail(self) -> None:
        self.replace_tail(0, 0, ABSENT, b"")

    def tail_size(self) -> int:
        if self._stale and self._builder is not None:
            return int(self._builder.size())
        row = self.row
        return len(self._data) if row is None else row.tail_size()

    def differs(self) -> bool:
        return self._nodes_changed or self.record.encode() != self._record

    def written(self, value: bytes, record: bytes) -> None:
        """Note that the row in `streams` now has this value and record, as the journal has it."""
        self.stored = value
        self._nodes_changed = False
        self._record = record
        self._note_row()

    def _note_row(self) -> None:
        """Note how the row could be extended, if it has all that the builder has."""
        builder = self._builder
        if builder is None or self._nodes_changed or self.trimmed or not self._record:
            self._head = -1
        else:
            self._head = HEADER_SIZE + len(self._record) + int(builder.head_size())
            self._body = len(builder.body)

    def extend(
        self, operations: Operations, table: int, epoch: int, commit_number: int
    ) -> TailRow | None:
        """Journal the changes of the row without encoding it; return None if they need that.

        The row can be extended if entries were appended to its node, or if nothing but the record
        changed, and if the bytes that stay keep their place.
        """
        builder = self._builder
        if builder is None or self._head < 0:
            return None
        record = self.record.encode()
        head_size = HEADER_SIZE + len(record) + int(builder.head_size())
        if head_size != self._head:
            return None
        writer = self._begin_row(record, int(builder.size()), epoch, commit_number)
        builder.put_head(writer)
        head = writer.getvalue()
        size = len(builder.body)
        operations.extend(table, self.db_key, head, self._body, builder.part(self._body, size))
        self._nodes_changed = False
        self._record = record
        self._body = size
        self.stored = b""
        return TailRow(self, record, head, builder, size)

    def rewrite(
        self, operations: Operations, table: int, epoch: int, commit_number: int, old: bytes
    ) -> bytes:
        """Journal the whole row, or where it differs from `old`; return its value."""
        record = self.record.encode()
        value = self.encode(record, epoch, commit_number)
        changing = HEADER_SIZE + len(record) + _LISTPACK_HEAD  # at most, by an append
        operations.splice(table, self.db_key, old, value, changing)
        self.written(value, record)
        return value

    # --- counters of entries ----------------------------------------------------------------

    def entry_appended(self, ms: int, seq: int) -> None:
        """Count the entry `ms-seq`, which was appended to a node."""
        record = self.record
        record.length += 1
        if record.entries_added < MOST_ADDED:
            record.entries_added += 1
        record.last_ms = ms
        record.last_seq = seq
        record.last_live_ms = ms
        record.last_live_seq = seq
        if record.length == 1:
            record.first_ms = ms
            record.first_seq = seq

    def node_replaced(self, before: bytes, after: bytes) -> None:
        """Count what a node gained and lost; `ABSENT` for a node that was not there, or is gone."""
        record = self.record
        if before != ABSENT:
            live, dead = peek_counts(before[:_COUNTS])
            record.length -= live
            record.tombstones -= dead
        if after != ABSENT:
            live, dead = peek_counts(after[:_COUNTS])
            record.length += live
            record.tombstones += dead

    def deleted_up_to(self, highest: tuple[int, int]) -> None:
        """Note that entries were deleted, the highest of them with this ID."""
        if highest > self.record.max_deleted_id():
            self.set_max_deleted(highest)

    def set_first(self, entry_id: tuple[int, int]) -> None:
        """Note which live entry is the first; 0-0 when there is none."""
        self.record.first_ms, self.record.first_seq = entry_id

    def set_last_live(self, entry_id: tuple[int, int]) -> None:
        """Note which live entry is the last; 0-0 when there is none."""
        self.record.last_live_ms, self.record.last_live_seq = entry_id

    def set_last_id(self, entry_id: tuple[int, int]) -> None:
        """Set last_generated_id: the next entry comes after it."""
        self.record.last_ms, self.record.last_seq = entry_id
        self.floor = min(self.floor, entry_id)

    def set_max_deleted(self, entry_id: tuple[int, int]) -> None:
        self.record.max_deleted_ms, self.record.max_deleted_seq = entry_id

    def set_entries_added(self, count: int) -> None:
        self.record.entries_added = count

    # --- counters of sealed nodes -----------------------------------------------------------

    def sealed_added(self, size: int) -> None:
        self.record.sealed_nodes += 1
        self.record.sealed_bytes += size

    def sealed_removed(self, size: int) -> None:
        self.record.sealed_nodes -= 1
        self.record.sealed_bytes -= size
        self.sealed_changes += 1

    def sealed_resized(self, size: int, new_size: int) -> None:
        """Note that a node in `nodes` has other bytes.

        The row is written even if no counter changes: by their row, other processes see that a
        stream has changed.
        """
        self.record.sealed_bytes += new_size - size
        self.sealed_changes += 1
        self._nodes_changed = True

    def may_reopen(self) -> bool:
        """Return whether the newest sealed node may have room for more entries."""
        return self.record.flags & REOPEN != 0 and not self.has_tail()

    def let_reopen(self) -> None:
        """Note that the newest sealed node may have room, unless there is a tail."""
        if not self.has_tail():
            self.record.flags |= REOPEN

    def keep_sealed(self) -> None:
        """Note that no sealed node will be appended to."""
        self.record.flags &= ~REOPEN

    # --- figures, and the row ---------------------------------------------------------------

    def nodes(self) -> int:
        return self.record.sealed_nodes + (1 if self.has_tail() else 0)

    def node_bytes(self) -> int:
        return self.record.sealed_bytes + self.tail_size()

    def encode(self, record: bytes, epoch: int, commit_number: int) -> bytes:
        writer = self._begin_row(record, self.tail_size(), epoch, commit_number)
        if self._stale and self._builder is not None:
            self._builder.put(writer)
        else:
            writer.write(self.tail_data())
        writer.write(self.trimmed)
        return close_envelope(writer)

    def _begin_row(
        self, record: bytes, tail_size: int, epoch: int, commit_number: int
    ) -> BytesWriter:
        """Write what comes before the tail."""
        writer = BytesWriter()
        put_header(
            writer,
            HEADER_SIZE + len(record) + tail_size + len(self.trimmed) + CHECKSUM_SIZE,
            self.number,
            self.tail_ms,
            self.tail_seq,
            epoch,
            commit_number,
            len(record),
            tail_size,
        )
        writer.write(record)
        return writer


class TailRow(LazyRow):
    """The row of a stream as a record of the journal has it, not encoded yet.

    The tail's builder goes on with the stream, but it only grows: what it got since comes after the
    bytes that belong to the row. So the row can be encoded at any time, and never changes.
    """

    def __init__(
        self, stream: Stream, record: bytes, head: bytes, builder: NodeBuilder, size: int
    ) -> None:
        self._number = stream.number
        self._ms = stream.tail_ms
        self._seq = stream.tail_seq
        self._record = record
        self._head = head
        self._builder = builder
        self._size = size  # bytes of the builder's body

    def stream(self, name: bytes) -> Stream:
        """Return the stream, for reading; its tail is put together when somebody reads that."""
        record = decode_stream_record(self._record, f"stream {self._number}")
        stream = Stream(self._number, name, record)
        stream.tail_ms = self._ms
        stream.tail_seq = self._seq
        stream.row = self
        return stream

    def tail_size(self) -> int:
        return len(self._head) - HEADER_SIZE - len(self._record) + self._size

    def tail(self) -> bytes:
        head = self._head[HEADER_SIZE + len(self._record) :]
        return head + self._builder.part(0, self._size)

    def encode(self) -> bytes:
        writer = BytesWriter()
        writer.write(self._head)
        writer.write(self._builder.part(0, self._size))
        return close_envelope(writer)


def decode_stream(number: int, name: bytes, value: bytes) -> Stream:
    """Parse a row of `streams`; raise CorruptionError."""
    where = f"stream {number}"
    envelope = decode_envelope(value, where)
    if envelope.number != number:
        raise CorruptionError(where, f"the row holds stream {envelope.number}")
    stream = Stream(number, name, decode_stream_record(envelope.record, where))
    stream.replace_tail(envelope.ms, envelope.seq, envelope.listpack, envelope.trimmed)
    stream.written(value, envelope.record)
    return stream
