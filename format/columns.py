"""Macro nodes to columns: flat buffers that Arrow takes without a copy per value.

    buffer         content
    -------------  -----------------------------------------------------------------------------
    ms, seq        8 bytes little-endian per entry: the unsigned number's 64 bits
    pair_offsets   i32 little-endian, entries + 1 of them: where each entry's pairs begin
    name_offsets   i32 little-endian, pairs + 1 of them: where each field name begins in `names`
    value_offsets  the same for `values`
    names, values  the bytes

These are Arrow's own layouts: `list<struct<field: binary, value: binary>>` for the pairs. A field
that was asked for by name has a column of its own: i32 offsets, values, and a byte per entry that
says whether the entry has the field. What nobody asked for is stepped over, not copied.

Offsets are 32-bit, and memory is not for the bytes of a node to choose: a small one can repeat a
long name in thousands of entries. So a writer has limits, and stops inside a node when it is full;
`ColumnWriter.add` then goes on, in the next batch, from the ID where it stopped.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from streamkeep.format.errors import CorruptionError
from streamkeep.format.id_codec import below, bits, unsigned
from streamkeep.format.listpack import Reader, corrupt, put_decimal
from streamkeep.format.node import DELETED, SAME_FIELDS, NodeHeader, SlotCursor, read_header

MAX_BUFFER: Final[i64] = (1 << 31) - 1
DEFAULT_MAX_BYTES: Final = 1 << 30

# What `ColumnWriter.add` says of a node.
PAST_END: Final[i64] = 0  # it has an ID beyond the range: no later node holds anything wanted
TAKEN: Final[i64] = 1  # all of it that is wanted was added
FULL: Final[i64] = 2  # the batch is full; `next_ms`, `next_seq` is where to go on


class FieldColumn:
    """The values of one field, one per entry."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.offsets = BytesWriter()
        self.values = BytesWriter()
        self.present = BytesWriter()
        self.missing: i64 = 0
        self.found_at: i64 = -1  # in an entry that names its own fields
        write_i32_le(self.offsets, 0)

    def close_entry(self, present: bool) -> None:
        """End the value of one entry."""
        _put_end(self.offsets, self.values)
        if present:
            self.present.append(1)
        else:
            self.present.append(0)
            self.missing += 1

    def buffers(self) -> tuple[bytes, bytes, bytes, int]:
        """Return offsets, values, a byte per entry, and how many entries lack the field."""
        return (
            self.offsets.getvalue(),
            self.values.getvalue(),
            self.present.getvalue(),
            int(self.missing),
        )


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
        fields: list[tuple[bytes, bytes, bytes, int]],
        beyond_i64: tuple[int, int] | None,
        repeated: bool,
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
        self.fields = fields  # of each wanted field what `FieldColumn.buffers` says
        self.beyond_i64 = beyond_i64  # the first ID with a half that no signed number holds
        self.repeated = repeated  # an entry may have a field more than once


class ColumnWriter:
    """Collects entries of nodes; `finish` gives the buffers.

    Args:
        wanted: fields that get columns of their own.
        pairs: collect all fields of each entry, too.
        max_entries, max_bytes: when the batch is full. One entry always fits.
    """

    def __init__(
        self,
        wanted: list[bytes] | None = None,
        pairs: bool = True,
        max_entries: int = 1 << 30,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.wanted: list[FieldColumn] = [FieldColumn(name) for name in wanted or []]
        self.index_of: dict[bytes, int] = {
            column.name: index for index, column in enumerate(self.wanted)
        }
        self.with_pairs = pairs
        self.max_entries: i64 = i64(max_entries)
        self.max_bytes: i64 = i64(max_bytes)
        self.entries: i64 = 0
        self.pairs: i64 = 0
        self.size: i64 = 0  # of all names and values so far
        self.ms = BytesWriter()
        self.seq = BytesWriter()
        self.pair_offsets = BytesWriter()
        self.name_offsets = BytesWriter()
        self.names = BytesWriter()
        self.value_offsets = BytesWriter()
        self.values = BytesWriter()
        self.beyond_i64: tuple[int, int] | None = None
        self.repeated = False
        self.next_ms = 0
        self.next_seq = 0
        write_i32_le(self.pair_offsets, 0)
        write_i32_le(self.name_offsets, 0)
        write_i32_le(self.value_offsets, 0)

    def add(
        self,
        data: bytes,
        ms: int,
        seq: int,
        start_ms: int,
        start_seq: int,
        end_ms: int,
        end_seq: int,
        trimmed: bytes = b"",
    ) -> int:
        """Add the entries of a node from `start` to `end`, both included.

        Args:
            trimmed: bitmap of slots that were trimmed, not deleted; they are added, too. Empty for
                live entries only.

        Returns:
            PAST_END, TAKEN or FULL.
        """
        node = read_header(data, ms, seq)
        cursor = SlotCursor(node)
        low_ms = bits(start_ms)
        low_seq = bits(start_seq)
        high_ms = bits(end_ms)
        high_seq = bits(end_seq)
        blob = b"".join(node.fields)
        sizes: list[int] = [len(name) for name in node.fields]
        targets = self._targets(node)
        if self.with_pairs and len(set(node.fields)) != len(node.fields):
            self.repeated = True
        while cursor.next():
            if below(high_ms, high_seq, cursor.ms, cursor.seq):
                return int(PAST_END)
            if below(cursor.ms, cursor.seq, low_ms, low_seq) or (
                cursor.flags & DELETED and not _has_bit(trimmed, cursor.index)
            ):
                cursor.skip_fields()
                continue
            if self.entries and (self.entries >= self.max_entries or self.size >= self.max_bytes):
                self.next_ms = unsigned(cursor.ms)
                self.next_seq = unsigned(cursor.seq)
                return int(FULL)
            if (cursor.ms < 0 or cursor.seq < 0) and self.beyond_i64 is None:
                self.beyond_i64 = cursor.id()
            write_i64_le(self.ms, cursor.ms)
            write_i64_le(self.seq, cursor.seq)
            start = cursor.position
            if self.with_pairs:
                self._add_pairs(cursor, blob, sizes)
            if self.wanted:
                cursor.position = start
                self._add_wanted(cursor, targets)
            elif not self.with_pairs:
                cursor.skip_fields()
            self.entries += 1
        return int(TAKEN)

    def _targets(self, node: NodeHeader) -> list[int]:
        """Return for each field of the master entry which wanted column it fills; -1 for none.

        Of a field that stands there twice the last one counts, as in redis-py.
        """
        targets: list[int] = []
        if self.wanted:
            seen: set[int] = set()
            for name in reversed(node.fields):
                index = self.index_of.get(name, -1)
                targets.append(-1 if index in seen else index)
                seen.add(index)
            targets.reverse()
        return targets

    def _add_pairs(self, cursor: SlotCursor, blob: bytes, sizes: list[int]) -> None:
        """Copy all fields of this slot, and step to its end."""
        names = self.names
        name_offsets = self.name_offsets
        values = self.values
        value_offsets = self.value_offsets
        before: i64 = len(names) + len(values)
        if cursor.flags & SAME_FIELDS:
            at: i64 = len(names)
            if at + len(blob) > MAX_BUFFER:
                raise _too_big(at + len(blob))
            for size in sizes:
                at += i64(size)
                write_i32_le(name_offsets, i32(at))
                _copy_string(cursor, values)
                _put_end(value_offsets, values)
            names.write(blob)
        else:
            count: i64 = cursor.width
            first: i64 = len(name_offsets)
            while count > 0:
                _copy_string(cursor, names)
                _put_end(name_offsets, names)
                _copy_string(cursor, values)
                _put_end(value_offsets, values)
                count -= 1
            if not self.repeated and len(name_offsets) - first > 4:
                self._look_for_repeats(cursor)
        cursor.skip()
        self.size += len(names) + len(values) - before
        self.pairs += cursor.width
        write_i32_le(self.pair_offsets, i32(self.pairs))

    def _look_for_repeats(self, cursor: SlotCursor) -> None:
        """Note whether the slot, whose own names were just read, has one of them twice."""
        after = cursor.position
        cursor.position = cursor.start
        cursor.index -= 1
        cursor.next()
        seen: set[bytes] = set()
        count: i64 = cursor.width
        while count > 0:
            seen.add(cursor.string())
            cursor.skip()
            count -= 1
        if len(seen) != cursor.width:
            self.repeated = True
        cursor.position = after

    def _add_wanted(self, cursor: SlotCursor, targets: list[int]) -> None:
        """Copy the wanted fields of this slot, and step to its end."""
        columns = self.wanted
        if cursor.flags & SAME_FIELDS:
            for target in targets:
                if target < 0:
                    cursor.skip()
                else:
                    column = columns[target]
                    before: i64 = len(column.values)
                    _copy_string(cursor, column.values)
                    self.size += len(column.values) - before
                    column.found_at = 0
            cursor.skip()
        else:
            self._add_named(cursor)
        for column in columns:
            column.close_entry(column.found_at >= 0)
            column.found_at = -1

    def _add_named(self, cursor: SlotCursor) -> None:
        """Copy the wanted fields of a slot that names its own, the last of each."""
        columns = self.wanted
        count: i64 = cursor.width
        while count > 0:
            index = self.index_of.get(cursor.string(), -1)
            if index >= 0:
                columns[index].found_at = cursor.position
            cursor.skip()
            count -= 1
        cursor.skip()
        after = cursor.position
        for column in columns:
            if column.found_at >= 0:
                cursor.position = column.found_at
                before: i64 = len(column.values)
                _copy_string(cursor, column.values)
                self.size += len(column.values) - before
        cursor.position = after

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
            [column.buffers() for column in self.wanted],
            self.beyond_i64,
            self.repeated,
        )


def _put_end(offsets: BytesWriter, buffer: BytesWriter) -> None:
    """Append the length of `buffer`, where its newest element ends."""
    size: i64 = len(buffer)
    if size > MAX_BUFFER:
        raise _too_big(size)
    write_i32_le(offsets, i32(size))


def _too_big(size: i64) -> CorruptionError:
    return CorruptionError("column", f"an entry makes it {int(size)} bytes long, beyond 2 GiB")


def _has_bit(bitmap: bytes, index: i64) -> bool:
    """Say whether bit `index` of a bitmap is set; it may be shorter."""
    at: i64 = index >> 3
    return at < len(bitmap) and (i64(bitmap[at]) >> (index & 7)) & 1 != 0


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
