"""Nodes, their entries and damages to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from librt.strings import BytesWriter

from streamkeep.format.node import ranges
from streamkeep.format.node.builder import NodeBuilder, assemble
from streamkeep.format.node.listpack import (
    HEADER_SIZE,
    open_elements,
    put_header,
    put_integer,
    put_string,
    stated_count,
)
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.node.node import read_header

TOP = (1 << 64) - 1
Bounds = tuple[int, int, int, int, int, bool]  # of `ranges.Range`, without its shape
ALL: Bounds = (0, 0, TOP, TOP, 1 << 40, False)
Slot = tuple[tuple[int, int], list[bytes]]
# The macro node of the annotated DUMP of Redis 8.6: Sara (live), Bob (deleted), msg hi (live).
REDIS_NODE = bytes.fromhex(
    "4c000000 1900 0201 0101 0201 846e616d6505 816e02 0001"
    "0201 0001 0001 845361726105 0701 0501"
    "0301 0001 0101 83426f6204 c12c02 0501"
    "0001 1a01 dfc902 0101 836d736704 82686903 0601 ff"
)
REDIS_KEY = (1526919030474, 55)
small_ids = st.tuples(st.integers(0, 5), st.integers(0, 5))
wide_ids = st.tuples(
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, TOP - 1, TOP]) | st.integers(0, TOP),
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, TOP - 1, TOP]) | st.integers(0, TOP),
)
names = st.sampled_from([b"", b"a", b"b", b"temperature"])
values = st.binary(max_size=12) | st.integers(-(1 << 63), 1 << 63).map(lambda n: b"%d" % n)
pairs = st.lists(st.tuples(names, values), min_size=1, max_size=4).map(
    lambda items: [part for item in items for part in item]
)
slots = st.lists(
    st.tuples(small_ids | wide_ids, pairs), min_size=1, max_size=12, unique_by=lambda slot: slot[0]
).map(sorted)


def wrapped(elements: bytes, count: int) -> bytes:
    """Return the listpack of so many encoded elements."""
    writer = BytesWriter()
    put_header(writer, HEADER_SIZE + len(elements) + 1, count)
    writer.write(elements)
    writer.append(0xFF)
    return writer.getvalue()


def listpack_of(elements: list[bytes]) -> bytes:
    writer = BytesWriter()
    for one in elements:
        put_string(writer, one)
    return wrapped(writer.getvalue(), len(elements))


def elements_of(data: bytes) -> list[bytes]:
    """Check every byte of the elements of a listpack, and return them."""
    reader = open_elements(data)
    position = reader.position
    while position < reader.end:
        position = checked_step(data, position, reader.end)
    found: list[bytes] = []
    while reader.position < reader.end:
        found.append(reader.string())
    return found


def build(entries: list[Slot]) -> tuple[bytes, int, int]:
    """Return the listpack of these entries, and its key."""
    (ms, seq), first = entries[0]
    builder = NodeBuilder(ms, seq, first[0::2])
    for entry_id, fields in entries:
        builder.append(*entry_id, fields)
    return builder.listpack(), ms, seq


def with_counts(data: bytes, live: int, deleted: int) -> bytes:
    """Return a node whose master entry counts this many slots."""
    node = read_header(data, 0, 0)
    body = BytesWriter()
    put_integer(body, deleted)
    body.write(data[node.after_deleted : node.end])
    return assemble(live, body.getvalue(), stated_count(data))


def read(data: bytes, ms: int, seq: int, wanted: Bounds = ALL, shape: int = 0) -> Any:
    """Return what `read_range` gives for one node."""
    out: list[object] = []
    ranges.read_range(data, ms, seq, ranges.Range(*wanted, shape), out)
    return out


def as_pairs(entries: list[Slot]) -> list[tuple[int, int, list[bytes]]]:
    return [(*entry_id, fields) for entry_id, fields in entries]
