"""Writing macro nodes: appending entries to a node, and encoding entries into new nodes.

`node` describes the bytes. Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Iterable

from librt.strings import BytesWriter
from mypy_extensions import i64

from streamkeep.format.core.id_codec import bits, subtract
from streamkeep.format.node.listpack import (
    HEADER_SIZE,
    put_header,
    put_integer,
    put_string,
    stated_count,
)
from streamkeep.format.node.node import Pairs, read_header


class NodeBuilder:
    """A macro node to which entries are appended; `listpack()` returns its bytes at any time."""

    def __init__(self, ms: int, seq: int, fields: list[bytes]) -> None:
        """Start an empty node with the key `ms-seq`, whose master entry names `fields`."""
        self.ms = ms
        self.seq = seq
        self.base_ms = bits(ms)
        self.base_seq = bits(seq)
        self.fields = fields
        self.count: i64 = 0
        self.deleted: i64 = 0
        self.elements: i64 = 4 + len(fields)
        self.body = BytesWriter()  # everything after `count`, without the closing FF
        self.body.append(0)
        self.body.append(1)
        put_integer(self.body, len(fields))
        for name in fields:
            put_string(self.body, name)
        self.body.append(0)
        self.body.append(1)

    def size(self) -> i64:
        return HEADER_SIZE + _integer_size(self.count) + len(self.body) + 1

    def slots(self) -> i64:
        """Return the number of slots, tombstones included."""
        return self.count + self.deleted

    def append(self, ms: int, seq: int, pairs: list[bytes]) -> None:
        """Append the entry `ms-seq`; the caller must have checked that its ID is above all others.

        Args:
            pairs: field, value, field, value, ...
        """
        body = self.body
        names = self.fields
        size: i64 = len(pairs)
        same = size == 2 * i64(len(names))
        index: i64 = 0
        if same:
            for name in names:
                other = pairs[2 * index]
                if other is not name and other != name:
                    same = False
                    break
                index += 1
        body.append(2 if same else 0)
        body.append(1)
        put_integer(body, subtract(bits(ms), self.base_ms))
        put_integer(body, subtract(bits(seq), self.base_seq))
        lp_count: i64
        if same:
            index = 1
            while index < size:
                put_string(body, pairs[index])
                index += 2
            lp_count = 3 + size // 2
        else:
            put_integer(body, size // 2)
            index = 0
            while index < size:
                put_string(body, pairs[index])
                index += 1
            lp_count = 4 + size
        put_integer(body, lp_count)
        self.elements += lp_count + 1
        self.count += 1

    def append_within(self, ms: int, seq: int, pairs: list[bytes], max_size: i64) -> bool:
        """Append the entry if the listpack stays within `max_size` bytes; return whether it did."""
        mark: i64 = len(self.body)
        elements: i64 = self.elements
        self.append(ms, seq, pairs)
        if self.size() <= max_size:
            return True
        self.body.truncate(mark)
        self.elements = elements
        self.count -= 1
        return False

    def head_size(self) -> i64:
        """Return how many bytes of the listpack precede what `body` holds."""
        return HEADER_SIZE + _integer_size(self.count)

    def put_head(self, writer: BytesWriter) -> None:
        """Append to `writer` the bytes of the listpack that precede what `body` holds."""
        put_header(writer, self.size(), self.elements)
        put_integer(writer, self.count)

    def part(self, start: i64, size: i64) -> bytes:
        """Return the rest of the listpack from byte `start` on, when `body` had `size` bytes."""
        return self.body.getvalue()[start:size] + b"\xff"

    def put(self, writer: BytesWriter) -> None:
        _put_listpack(writer, self.count, self.body.getvalue(), self.elements)

    def listpack(self) -> bytes:
        return assemble(self.count, self.body.getvalue(), self.elements)


def builder_from(data: bytes, ms: int, seq: int) -> NodeBuilder:
    """Return a builder that appends to the node `data`."""
    node = read_header(data, ms, seq)
    builder = NodeBuilder(ms, seq, node.fields)
    builder.count = node.count
    builder.deleted = node.deleted
    builder.elements = stated_count(data)
    builder.body.truncate(0)
    builder.body.write(data[node.after_count : node.end])
    return builder


def encode_nodes(entries: Iterable[Pairs], max_size: int) -> list[tuple[int, int, bytes]]:
    """Encode entries with ascending IDs into nodes of at most `max_size` bytes each.

    An entry that does not fit gets a larger node to itself. A repeated ID begins a node: the IDs of
    a node ascend, and the store that gets the entries refuses the second one by its ID.

    Returns:
        (ms, seq, listpack) of each node, in order.
    """
    nodes: list[tuple[int, int, bytes]] = []
    limit = i64(max_size)
    builder: NodeBuilder | None = None
    last_ms = last_seq = -1
    for ms, seq, pairs in entries:
        repeated = seq == last_seq and ms == last_ms
        if builder is None or repeated or not builder.append_within(ms, seq, pairs, limit):
            if builder is not None:
                nodes.append((builder.ms, builder.seq, builder.listpack()))
            builder = NodeBuilder(ms, seq, pairs[0::2])
            builder.append(ms, seq, pairs)
        last_ms, last_seq = ms, seq
    if builder is not None:
        nodes.append((builder.ms, builder.seq, builder.listpack()))
    return nodes


def _integer_size(value: i64) -> i64:
    """Return the size of a non-negative integer element with its backlen."""
    if value <= 127:
        return 2
    if value <= 4095:
        return 3
    if value <= 32767:
        return 4
    if value <= 8388607:
        return 5
    if value <= 2147483647:
        return 6
    return 10


def assemble(count: i64, body: bytes, elements: i64) -> bytes:
    """Return the listpack whose first element is `count` and whose other elements are `body`."""
    writer = BytesWriter()
    _put_listpack(writer, count, body, elements)
    return writer.getvalue()


def _put_listpack(writer: BytesWriter, count: i64, body: bytes, elements: i64) -> None:
    put_header(writer, HEADER_SIZE + _integer_size(count) + len(body) + 1, elements)
    put_integer(writer, count)
    writer.write(body)
    writer.append(0xFF)
