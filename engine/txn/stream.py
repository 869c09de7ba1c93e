"""One stream as a transaction sees it: its record and its tail node.

The tail node is the one that entries are appended to. It is stored with the stream record, in the
row of `streams`, because an append changes both; all older nodes are *sealed* and stand in
`nodes`. The tail may be absent: in an empty stream, after its last entry went, and when the
newest node holds a single entry that is too big to be written again with each append.

Between appends the tail lives as a `NodeBuilder`; `data` is brought up to date when it is asked
for. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import pack_number
from streamkeep.format.node.envelope import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    close_envelope,
    decode_envelope,
    put_header,
)
from streamkeep.format.node.node import NodeBuilder, builder_from
from streamkeep.format.rows.records import StreamRecord, decode_stream_record
from streamkeep.format.rows.retention import Retention, retention_of, with_retention

ABSENT: Final = b""
_LISTPACK_HEAD: Final = 6 + 2 * 6  # header, and the counts of live entries and tombstones


class Stream:
    """Record and tail node of one stream.

    The record may be changed at any time: `differs` compares it with what is stored.
    """

    def __init__(self, number: int, name: bytes, record: StreamRecord) -> None:
        self.number = number
        self.name = name
        self.db_key: bytes = pack_number(number)
        self.record = record
        self.tail_ms = 0
        self.tail_seq = 0
        self.trimmed = b""  # bitmap of the tail's trimmed slots
        self.changed = False  # its nodes were, since the row was written; see `differs`
        self.stored = b""  # the value of the row in `streams`, as the transaction has it
        self.key_row = b""  # the value of the row in `keys`, likewise
        self.generation = 0  # of the cache, when both were last compared with what is stored
        self.sealed_changes = 0  # how often a sealed node was changed or removed
        self._data = ABSENT
        self._builder: NodeBuilder | None = None
        self._behind = False  # `_data` lacks what was appended to `_builder`
        self._retention: Retention | None = None  # once it is known
        self._retention_known = False
        self._begins_of = (-1, -1)  # the first entry for which `_begins_ms` was noted
        self._begins_ms = 0

    def retention(self) -> Retention | None:
        """Return the stream's retention; None, as for most streams, when it has none."""
        if not self.record.extension:
            return None
        if not self._retention_known:
            self._retention = retention_of(self.record.extension, f"stream {self.number}")
            self._retention_known = True
        return self._retention

    def set_retention(self, retention: Retention) -> None:
        """Give the stream another retention."""
        self.record.extension = with_retention(self.record.extension, retention)
        self._retention_known = False

    def archiving(self) -> bool:
        """Say whether what is trimmed goes to the archive."""
        retention = self.retention()
        return retention is not None and retention.archive

    def begins(self, ms: int) -> bool:
        """Say whether the first node is known to reach to the millisecond `ms` or beyond."""
        first = self.record.first_ms, self.record.first_seq
        return self._begins_of == first and self._begins_ms >= ms

    def note_begins(self, ms: int) -> None:
        """Remember the millisecond of the last slot of the first node, a sealed one."""
        self._begins_of = self.record.first_ms, self.record.first_seq
        self._begins_ms = ms

    def has_tail(self) -> bool:
        """Say whether there is a tail node."""
        return self._behind or self._data != ABSENT

    def tail_data(self) -> bytes:
        """Return the tail's listpack; empty when there is none."""
        if self._behind and self._builder is not None:
            self._data = self._builder.listpack()
            self._behind = False
        return self._data

    def tail_builder(self) -> NodeBuilder | None:
        """Return the tail to append to, or None; call `appended` afterwards."""
        if self._builder is None and self._data != ABSENT:
            self._builder = builder_from(self._data, self.tail_ms, self.tail_seq)
        return self._builder

    def appended(self) -> None:
        """Note that the tail's builder has a new entry."""
        self._behind = True
        self.changed = True

    def start_tail(self, builder: NodeBuilder) -> None:
        """Make `builder` the tail; the former one has been stored elsewhere."""
        self.tail_ms = builder.ms
        self.tail_seq = builder.seq
        self.trimmed = b""
        self._builder = builder
        self.appended()

    def replace_tail(self, ms: int, seq: int, data: bytes, trimmed: bytes) -> None:
        """Set the tail to stored bytes; `ABSENT` for none."""
        self.tail_ms = ms
        self.tail_seq = seq
        self.trimmed = trimmed
        self._data = data
        self._builder = None
        self._behind = False
        self.changed = True

    def drop_tail(self) -> None:
        """Leave the stream without a tail node."""
        self.replace_tail(0, 0, ABSENT, b"")

    def tail_size(self) -> int:
        """Return the size of the tail's listpack."""
        if self._behind and self._builder is not None:
            return int(self._builder.size())
        return len(self._data)

    def differs(self) -> bool:
        """Say whether the row must be written."""
        if self.changed:
            return True
        record, stored = self.record.encode(), self.stored
        # The tail is as it was, so the rest of the row is what the record takes. A record that has
        # lost its last section is the beginning of the one that had it.
        rest = HEADER_SIZE + self.tail_size() + len(self.trimmed) + CHECKSUM_SIZE
        return len(stored) - rest != len(record) or not stored.startswith(record, HEADER_SIZE)

    def nodes(self) -> int:
        """Return the number of macro nodes (radix-tree-keys)."""
        return self.record.sealed_nodes + (1 if self.has_tail() else 0)

    def node_bytes(self) -> int:
        """Return the size of all listpacks."""
        return self.record.sealed_bytes + self.tail_size()

    def head_size(self) -> int:
        """Return how many bytes at the start of the row an append changes."""
        return HEADER_SIZE + self.record.size() + _LISTPACK_HEAD

    def encode(self, epoch: int, commit_number: int) -> bytes:
        """Return the value of the row in `streams`."""
        writer = BytesWriter()
        record = self.record
        record_size = record.size()
        tail_size = self.tail_size()
        put_header(
            writer,
            HEADER_SIZE + record_size + tail_size + len(self.trimmed) + CHECKSUM_SIZE,
            self.number,
            self.tail_ms,
            self.tail_seq,
            epoch,
            commit_number,
            record_size,
            tail_size,
        )
        record.put(writer)
        if self._behind and self._builder is not None:
            self._builder.put(writer)
        else:
            writer.write(self._data)
        writer.write(self.trimmed)
        return close_envelope(writer)


def decode_stream(number: int, name: bytes, value: bytes) -> Stream:
    """Parse a row of `streams`; raise CorruptionError."""
    where = f"stream {number}"
    envelope = decode_envelope(value, where)
    if envelope.number != number:
        raise CorruptionError(where, f"the row holds stream {envelope.number}")
    stream = Stream(number, name, decode_stream_record(envelope.record, where))
    stream.replace_tail(envelope.ms, envelope.seq, envelope.listpack, envelope.trimmed)
    stream.changed = False
    stream.stored = value
    return stream
