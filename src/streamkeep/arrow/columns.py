"""Decoding macro nodes to columns: flat buffers that Arrow uses without copying each value.

    buffer         content
    -------------  -----------------------------------------------------------------------------
    ms, seq        8 bytes little-endian per entry: the unsigned number's 64 bits
    pair_offsets   i32 little-endian, entries + 1 of them: where each entry's pairs begin
    names, values  text columns with an element per pair

These are Arrow's layouts: `list<struct<field: binary, value: binary>>` for the pairs. A field that
the caller requests by name has its own column, of text or of numbers (`column_buffers`). Other
fields are skipped, not copied.

One walk over a node, slot by slot, only notes the *places* of the requested elements, which are
offsets in the listpack. Then each column takes its elements from their places. These two plain
loops over machine numbers are several times faster than one loop that switches between columns.

Offsets are 32-bit, and a small node can need much memory: it may repeat a long name in thousands of
entries. So a writer has limits and stops inside a node when it is full. The caller continues with
the next writer, from the ID at which this one stopped.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from streamkeep.arrow.column_buffers import ABSENT, NumberColumn, TextColumn, with_room
from streamkeep.format.core.id_codec import below, bits, unsigned
from streamkeep.format.node.listpack import Reader, corrupt, step
from streamkeep.format.node.node import (
    DELETED,
    SAME_FIELDS,
    NodeHeader,
    SlotCursor,
    peek_counts,
    read_header,
)

DEFAULT_MAX_BYTES: Final = 1 << 30
_COUNTS: Final = 32  # bytes of a listpack that always hold both counts

# Results of `ColumnWriter.add`.
PAST_END: Final[i64] = 0  # the node has an ID after the range: later nodes need not be added
TAKEN: Final[i64] = 1  # all entries of the node that are in the range were added
FULL: Final[i64] = 2  # the batch is full; continue at `next_ms`, `next_seq`


CopiedNode = tuple[int, int, bytes]  # ms, seq, listpack


def count_entries(nodes: list[CopiedNode]) -> tuple[int, int]:
    """Return how many live entries nodes have, by their headers, and how many nodes have some.

    The listpack of a node that shows nothing is b"".
    """
    entries: i64 = 0
    filled: i64 = 0
    for _, _, data in nodes:
        if data:
            live: i64 = i64(peek_counts(data[:_COUNTS])[0])
            entries += live
            if live > 0:
                filled += 1
    return int(entries), int(filled)


class Columns:
    """The finished columns of some entries."""

    def __init__(
        self,
        entries: int,
        ms: bytes,
        seq: bytes,
        pair_offsets: bytes,
        names: TextColumn,
        values: TextColumn,
        texts: list[TextColumn],
        numbers: list[NumberColumn],
        beyond_i64: tuple[int, int] | None,
        repeated: bool,
        twice: tuple[int, int, bytes] | None,
    ) -> None:
        self.entries = entries
        self.ms = ms
        self.seq = seq
        self.pair_offsets = pair_offsets
        self.names = names
        self.values = values
        self.texts = texts  # in the order in which they were requested
        self.numbers = numbers
        self.beyond_i64 = beyond_i64  # the first ID with ms or seq above 2^63-1; None: no such ID
        self.repeated = repeated  # whether an entry may contain a field more than once
        # The first entry that has a requested field more than once, and that field; None: there is
        # no such entry. Its columns have the last value.
        self.twice = twice


class ColumnWriter:
    """Collects the entries of nodes; `finish` returns the columns.

    Args:
        texts, numbers: fields that get their own column, of text or of numbers; may overlap.
        pairs: whether to collect all fields of each entry as well.
        max_entries, max_bytes: limits of the batch; one entry always fits. Bytes are counted as
            names and values take in a listpack.
    """

    def __init__(
        self,
        texts: list[bytes] | None = None,
        numbers: list[bytes] | None = None,
        pairs: bool = True,
        max_entries: int = 1 << 30,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.text_names: list[bytes] = list(texts or [])
        self.number_names: list[bytes] = list(numbers or [])
        self.texts: list[TextColumn] = [TextColumn() for _ in self.text_names]
        self.numbers: list[NumberColumn] = [NumberColumn() for _ in self.number_names]
        self.index_of: dict[bytes, int] = {}  # requested field -> its index; each field once
        for name in self.text_names + self.number_names:
            self.index_of.setdefault(name, len(self.index_of))
        self.wanted: i64 = len(self.index_of)
        self.with_pairs = pairs
        self.max_entries: i64 = i64(max_entries)
        self.max_bytes: i64 = i64(max_bytes)
        self.entries: i64 = 0
        self.pairs: i64 = 0
        self.size: i64 = 0
        self.ms = BytesWriter()
        self.seq = BytesWriter()
        self.pair_offsets = BytesWriter()
        self.pair_names = TextColumn()
        self.pair_values = TextColumn()
        self.beyond_i64: tuple[int, int] | None = None
        self.repeated = False
        self.twice: tuple[int, int, bytes] | None = None  # see `Columns`
        self.next_node = 0
        self.next_ms = 0
        self.next_seq = 0
        # Of the current node: places of the requested fields, entry by entry, and of the names and
        # values of all pairs.
        self.places: vec[i64] = vec[i64]([])
        self.pair_places: vec[i64] = vec[i64]([])
        # Of its master entry. Most nodes have the same field names as the node before, so these
        # are kept from node to node.
        self.fields: list[bytes] | None = None
        self.targets: vec[i64] = vec[i64]([])  # for each name its index in `index_of`, or ABSENT
        self.complete = False  # whether it names all requested fields
        self.names_twice: bytes | None = None  # the requested field that it names more than once
        self.name_places: vec[i64] = vec[i64]([])
        self.names_size: i64 = 0
        write_i32_le(self.pair_offsets, 0)

    def add(
        self,
        data: bytes,
        ms: int,
        seq: int,
        start_ms: int,
        start_seq: int,
        end_ms: int,
        end_seq: int,
    ) -> int:
        """Add the live entries of a node from `start` to `end`, both included.

        Returns:
            PAST_END, TAKEN or FULL.

        Raises:
            CorruptionError: the node is damaged. The writer must not be used afterwards.
        """
        node = read_header(data, ms, seq)
        if self.fields is None or node.fields != self.fields:
            self._set_master(node.fields)
        if self.with_pairs:
            self.name_places = _name_places(node)
            self.names_size = node.first_slot - node.after_deleted
        cursor = SlotCursor(node)
        low_ms = bits(start_ms)
        low_seq = bits(start_seq)
        high_ms = bits(end_ms)
        high_seq = bits(end_seq)
        first: i64 = self.entries
        first_pair: i64 = self.pairs
        state: i64 = TAKEN
        while cursor.next():
            if below(high_ms, high_seq, cursor.ms, cursor.seq):
                state = PAST_END
                break
            if cursor.flags & DELETED or below(cursor.ms, cursor.seq, low_ms, low_seq):
                cursor.skip_fields()
                continue
            if self.entries and (self.entries >= self.max_entries or self.size >= self.max_bytes):
                self.next_ms = unsigned(cursor.ms)
                self.next_seq = unsigned(cursor.seq)
                state = FULL
                break
            if (cursor.ms < 0 or cursor.seq < 0) and self.beyond_i64 is None:
                self.beyond_i64 = cursor.id()
            write_i64_le(self.ms, cursor.ms)
            write_i64_le(self.seq, cursor.seq)
            start = cursor.position
            if self.with_pairs:
                self._walk_pairs(cursor, 2 * (self.pairs - first_pair))
            if self.wanted:
                cursor.position = start
                self._walk_wanted(cursor, self.wanted * (self.entries - first))
            elif not self.with_pairs:
                cursor.skip_fields()
            self.entries += 1
        self._gather(data, self.entries - first, self.pairs - first_pair)
        return int(state)

    def add_nodes(
        self,
        nodes: list[CopiedNode],
        first: int,
        start_ms: int,
        start_seq: int,
        end_ms: int,
        end_seq: int,
    ) -> int:
        """Add the ascending nodes `nodes[first:]` until `add` returns another state than TAKEN.

        Returns:
            The state of the last `add`. If it is FULL, the next writer must continue with the node
            at index `next_node`, from the ID `next_ms`, `next_seq`.
        """
        state: int = TAKEN
        for at in range(first, len(nodes)):
            ms, seq, data = nodes[at]
            state = self.add(data, ms, seq, start_ms, start_seq, end_ms, end_seq)
            if state != TAKEN:
                self.next_node = at
                break
        return state

    def _set_master(self, fields: list[bytes]) -> None:
        """Find the requested fields among the names of a master entry.

        Of a repeated field the last one counts, as in redis-py.
        """
        self.fields = fields
        self.names_twice = None
        targets: list[i64] = []
        seen: set[int] = set()
        for name in reversed(fields):
            index = self.index_of.get(name, -1)
            if index in seen and index >= 0:
                self.names_twice = name
            targets.append(ABSENT if index in seen else i64(index))
            seen.add(index)
        targets.reverse()
        seen.discard(-1)
        self.targets = vec[i64](targets)
        self.complete = len(seen) == self.wanted
        if self.with_pairs and len(set(fields)) != len(fields):
            self.repeated = True

    def _walk_pairs(self, cursor: SlotCursor, at: i64) -> None:
        """Store the places of all pairs of this slot from index `at` on; step to its end."""
        data = cursor.data
        end: i64 = cursor.end
        position: i64 = cursor.position
        width: i64 = cursor.width
        start: i64 = position
        if width > end - position:
            left = int(end - position)
            raise corrupt(f"an entry of {int(width)} fields in {left} bytes", position)
        if at + 2 * width > len(self.pair_places):
            self.pair_places = with_room(self.pair_places, at + 2 * width)
        places = self.pair_places
        stop: i64 = at + 2 * width
        if cursor.flags & SAME_FIELDS:
            names = self.name_places
            field: i64 = 0
            while at < stop:
                places[at] = names[field]
                places[at + 1] = position
                position = step(data, position, end)
                field += 1
                at += 2
            self.size += self.names_size
        else:
            while at < stop:
                places[at] = position
                position = step(data, position, end)
                at += 1
            if not self.repeated and width > 1:
                self._find_repeats(cursor)  # its position is still before the fields
        cursor.position = step(data, position, end)  # over lp-count
        self.size += position - start
        self.pairs += width
        write_i32_le(self.pair_offsets, i32(self.pairs))

    def _find_repeats(self, cursor: SlotCursor) -> None:
        """Set `repeated` if the slot, which contains its field names, repeats one of them."""
        after = cursor.position
        seen: set[bytes] = set()
        count: i64 = cursor.width
        while count > 0:
            seen.add(cursor.string())
            cursor.skip()
            count -= 1
        if len(seen) != cursor.width:
            self.repeated = True
        cursor.position = after

    def _walk_wanted(self, cursor: SlotCursor, row: i64) -> None:
        """Store the places of the requested fields of this slot from index `row` on; step over it.

        A slot with the field names of the master is walked here, others in `_walk_named`.
        """
        if row + self.wanted > len(self.places):
            self.places = with_room(self.places, row + self.wanted)
        places = self.places
        same = cursor.flags & SAME_FIELDS
        if not same or not self.complete:
            at: i64 = row
            while at < row + self.wanted:
                places[at] = ABSENT
                at += 1
        if not same:
            self._walk_named(cursor, places, row)
            return
        if self.names_twice is not None and self.twice is None:
            self.twice = (unsigned(cursor.ms), unsigned(cursor.seq), self.names_twice)
        data = cursor.data
        end: i64 = cursor.end
        position: i64 = cursor.position
        targets = self.targets
        width: i64 = len(targets)
        size: i64 = 0
        field: i64 = 0
        while field < width:
            after = step(data, position, end)
            target = targets[field]
            if target >= 0:
                places[row + target] = position
                size += after - position
            position = after
            field += 1
        cursor.position = step(data, position, end)  # over lp-count
        self.size += size

    def _walk_named(self, cursor: SlotCursor, places: vec[i64], row: i64) -> None:
        """As `_walk_wanted`, for a slot that contains its field names; of each the last counts."""
        count: i64 = cursor.width
        while count > 0:
            name = cursor.string()
            target = self.index_of.get(name, -1)
            start = cursor.position
            cursor.skip()
            if target >= 0:
                if places[row + i64(target)] != ABSENT and self.twice is None:
                    self.twice = (unsigned(cursor.ms), unsigned(cursor.seq), name)
                places[row + i64(target)] = start
                self.size += cursor.position - start
            count -= 1
        cursor.skip()

    def _gather(self, data: bytes, entries: i64, pairs: i64) -> None:
        """Let each column take its elements of the current node."""
        if self.with_pairs:
            self.pair_names.take(data, self.pair_places, 0, 2, pairs)
            self.pair_values.take(data, self.pair_places, 1, 2, pairs)
        for index, name in enumerate(self.text_names):
            field = i64(self.index_of[name])
            self.texts[index].take(data, self.places, field, self.wanted, entries)
        for index, name in enumerate(self.number_names):
            field = i64(self.index_of[name])
            self.numbers[index].take(data, self.places, field, self.wanted, entries)

    def finish(self) -> Columns:
        """Return the columns; the writer must not be used afterwards."""
        return Columns(
            int(self.entries),
            self.ms.getvalue(),
            self.seq.getvalue(),
            self.pair_offsets.getvalue(),
            self.pair_names,
            self.pair_values,
            self.texts,
            self.numbers,
            self.beyond_i64,
            self.repeated,
            self.twice,
        )


class FieldNames:
    def __init__(self) -> None:
        self.names: dict[bytes, None] = {}
        self.fields: list[bytes] | None = None  # of the last master entry that was used

    def add_nodes(
        self, nodes: list[CopiedNode], start_ms: int, start_seq: int, end_ms: int, end_seq: int
    ) -> None:
        """Add the names of the live entries from `start` to `end` in ascending nodes."""
        low_ms = bits(start_ms)
        low_seq = bits(start_seq)
        high_ms = bits(end_ms)
        high_seq = bits(end_seq)
        for ms, seq, data in nodes:
            if not data:
                continue
            cursor = SlotCursor(read_header(data, ms, seq))
            while cursor.next():
                if below(high_ms, high_seq, cursor.ms, cursor.seq):
                    return
                if cursor.flags & DELETED or below(cursor.ms, cursor.seq, low_ms, low_seq):
                    cursor.skip_fields()
                elif cursor.flags & SAME_FIELDS:
                    self._add_master(cursor.names)
                    cursor.skip_fields()
                else:
                    count: i64 = cursor.width
                    while count > 0:
                        self.names[cursor.string()] = None
                        cursor.skip()
                        count -= 1
                    cursor.skip()

    def _add_master(self, fields: list[bytes]) -> None:
        """Add the names of a master entry; those of the last one are known."""
        known = self.fields
        if known is fields:
            return
        self.fields = fields
        if known is None or known != fields:
            for name in fields:
                self.names[name] = None


def _name_places(node: NodeHeader) -> vec[i64]:
    reader = Reader(node.data, node.after_deleted, node.end)
    reader.skip()
    places = vec[i64]([])
    for _ in node.fields:
        places = append(places, reader.position)
        reader.skip()
    return places
