"""Macro nodes to columns: flat buffers that Arrow takes without a copy per value.

    buffer         content
    -------------  -----------------------------------------------------------------------------
    ms, seq        8 bytes little-endian per entry: the unsigned number's 64 bits
    pair_offsets   i32 little-endian, entries + 1 of them: where each entry's pairs begin
    name_offsets   i32 little-endian, pairs + 1 of them: where each field name begins in `names`
    value_offsets  the same for `values`
    names, values  the bytes

These are Arrow's own layouts: `list<struct<field: binary, value: binary>>` for the pairs. Offsets
are 32-bit, so a batch must stay below 2 GiB; `room` says when to begin a new one.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from streamkeep.format.id_codec import below, bits
from streamkeep.format.listpack import Reader, corrupt, put_decimal
from streamkeep.format.node import DELETED, SAME_FIELDS, SlotCursor, read_header

MAX_BUFFER: Final[i64] = (1 << 31) - 1


class Columns:
    """The finished buffers of some entries."""

    def __init__(
        self,
        entries: int,
        pairs: int,
        ms: bytes,
        seq: bytes,
        pair_offsets: bytes,
        name_offsets: bytes,
        names: bytes,
        value_offsets: bytes,
        values: bytes,
        beyond_i64: tuple[int, int] | None,
    ) -> None:
        self.entries = entries
        self.pairs = pairs
        self.ms = ms
        self.seq = seq
        self.pair_offsets = pair_offsets
        self.name_offsets = name_offsets
        self.names = names
        self.value_offsets = value_offsets
        self.values = values
        self.beyond_i64 = beyond_i64  # the first ID with a half that no signed number holds


class ColumnWriter:
    """Collects the live entries of nodes; `finish` gives the buffers."""

    def __init__(self) -> None:
        self.entries: i64 = 0
        self.pairs: i64 = 0
        self.ms = BytesWriter()
        self.seq = BytesWriter()
        self.pair_offsets = BytesWriter()
        self.name_offsets = BytesWriter()
        self.names = BytesWriter()
        self.value_offsets = BytesWriter()
        self.values = BytesWriter()
        self.beyond_i64: tuple[int, int] | None = None
        write_i32_le(self.pair_offsets, 0)
        write_i32_le(self.name_offsets, 0)
        write_i32_le(self.value_offsets, 0)

    def room(self, size: int) -> bool:
        """Say whether a node of `size` bytes surely fits into this batch.

        The text of a stored integer is at most ten times as long as its encoding, and each slot
        may repeat the names of the master.
        """
        most = i64(size) * i64(size) if size < 8192 else i64(size) * 4096
        return (
            len(self.names) + most < MAX_BUFFER and len(self.values) + 20 * i64(size) < MAX_BUFFER
        )

    def add(
        self,
        data: bytes,
        ms: int,
        seq: int,
        start_ms: int,
        start_seq: int,
        end_ms: int,
        end_seq: int,
    ) -> bool:
        """Add the live entries of a node from `start` to `end`, both included.

        Returns:
            False when the node has an ID beyond `end`: no later node holds anything wanted.
        """
        node = read_header(data, ms, seq)
        cursor = SlotCursor(node)
        low_ms = bits(start_ms)
        low_seq = bits(start_seq)
        high_ms = bits(end_ms)
        high_seq = bits(end_seq)
        blob = b"".join(node.fields)
        sizes: list[int] = [len(name) for name in node.fields]
        names = self.names
        name_offsets = self.name_offsets
        values = self.values
        value_offsets = self.value_offsets
        while cursor.next():
            if below(high_ms, high_seq, cursor.ms, cursor.seq):
                return False
            if cursor.flags & DELETED or below(cursor.ms, cursor.seq, low_ms, low_seq):
                cursor.skip_fields()
                continue
            if (cursor.ms < 0 or cursor.seq < 0) and self.beyond_i64 is None:
                self.beyond_i64 = cursor.id()
            write_i64_le(self.ms, cursor.ms)
            write_i64_le(self.seq, cursor.seq)
            if cursor.flags & SAME_FIELDS:
                at: i64 = len(names)
                for size in sizes:
                    at += i64(size)
                    write_i32_le(name_offsets, i32(at))
                    _copy_string(cursor, values)
                    write_i32_le(value_offsets, i32(len(values)))
                names.write(blob)
            else:
                count: i64 = cursor.width
                while count > 0:
                    _copy_string(cursor, names)
                    write_i32_le(name_offsets, i32(len(names)))
                    _copy_string(cursor, values)
                    write_i32_le(value_offsets, i32(len(values)))
                    count -= 1
            cursor.skip()
            self.pairs += cursor.width
            self.entries += 1
            write_i32_le(self.pair_offsets, i32(self.pairs))
        return True

    def finish(self) -> Columns:
        """Return the buffers; the writer must not be used afterwards."""
        return Columns(
            int(self.entries),
            int(self.pairs),
            self.ms.getvalue(),
            self.seq.getvalue(),
            self.pair_offsets.getvalue(),
            self.name_offsets.getvalue(),
            self.names.getvalue(),
            self.value_offsets.getvalue(),
            self.values.getvalue(),
            self.beyond_i64,
        )


def _copy_string(reader: Reader, out: BytesWriter) -> None:
    """Append the next element to `out`; short strings without a detour."""
    data = reader.data
    position = reader.position
    if position < reader.end:
        first: i64 = i64(data[position])
        if 0x80 <= first < 0xC0:
            stop: i64 = position + 1 + (first & 63)
            if stop >= reader.end:
                raise corrupt("an element is cut off", position)
            out.write(data[position + 1 : stop])
            reader.position = stop + 1
            return
        if first < 0xE0 or first > 0xF0:
            put_decimal(out, reader.integer())
            return
    out.write(reader.string())
