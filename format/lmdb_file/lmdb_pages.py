"""LMDB's pages: the B+trees of `data.mdb`, read without LMDB.

LMDB trusts its file: a wrong pointer in a page can crash the process. So fsck and repair never give
a damaged file to LMDB. They read the pages with this module, which checks every offset before it
uses it and raises `CorruptionError` for damage.

    page      number u64, pad u16, flags u16, then lower u16, upper u16: start and end of the free
              space between pointers and nodes; in an overflow page instead u32, the number of
              pages of the value
    branch    pointers u16, each to a node: child (48 bits), key size u16, key
    leaf      pointers u16, each to a node: size of the value u32, flags u16, key size u16, key,
              value; with flag 1 the value is the number of its first overflow page, with flag 2
              the record of a sub-database
    overflow  the value, on consecutive pages; only the first has a header
    meta      pages 0 and 1; see `meta_page`

The first key of a branch page is ignored: it stands for all keys below the second. LMDB writes
numbers in the byte order of the machine; this module expects little-endian, as on all supported
machines. The nodes of a page have no gaps, and each begins at an even offset, so their sizes must
add up to the space between `upper` and the end of the page.

Compiled by mypyc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from librt.strings import read_i16_le, read_i32_le, read_i64_le
from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError

PAGE_HEADER: Final[i64] = 16
HEADER_SIZE: Final = 16
NODE_HEADER: Final[i64] = 8
BRANCH: Final = 1
LEAF: Final = 2
OVERFLOW: Final = 4
META: Final = 8
BIG: Final = 1  # flag of a leaf node: the value is in overflow pages
TABLE: Final = 2  # flag of a leaf node: the value is the record of a sub-database
MAX_DEPTH: Final = 32
META_PAGES: Final = 2
NO_PAGE: Final = (1 << 64) - 1
MAX_KEY: Final = 511

_DATABASE: Final = struct.Struct("<IHHQQQQQ")
DATABASE_SIZE: Final = 48
FREE_AT: Final = 40  # offset of the free list's record in a meta page
MAIN_AT: Final = 88  # offset of the main database's record
INTEGER_KEY: Final = 8  # the only flag of a record, and only of the free list's


class Database(NamedTuple):
    """The record of one B+tree: its counters and its root page, which is None if it is empty."""

    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int | None


def decode_database(data: bytes, where: str) -> Database:
    if len(data) != DATABASE_SIZE:
        problem = f"a sub-database record of {len(data)} bytes, expected {DATABASE_SIZE}"
        raise CorruptionError(where, problem)
    _, flags, depth, branches, leaves, overflows, entries, root = _DATABASE.unpack(data)
    return Database(
        flags, depth, branches, leaves, overflows, entries, None if root == NO_PAGE else root
    )


def overflow_pages(size: int, page_size: int) -> int:
    """Return the number of overflow pages for a value of `size` bytes."""
    return (HEADER_SIZE - 1 + size) // page_size + 1


class OverflowHeader(NamedTuple):
    """The header of the first page of an overflow value."""

    number: int
    flags: int
    pages: int


_OVERFLOW: Final = struct.Struct("<QHHI")


def decode_overflow_header(data: bytes, number: int) -> OverflowHeader:
    """Parse the header of an overflow page, which should be page `number`."""
    if len(data) < HEADER_SIZE:
        raise CorruptionError(f"LMDB page {number}", "the page is after the end of the file")
    number, _, flags, pages = _OVERFLOW.unpack_from(data)
    return OverflowHeader(number, flags, pages)


class TreePage:
    """A branch or leaf page whose pointers and sizes have been checked.

    Attributes:
        keys: the keys of its nodes; their order is not checked here, see `find_unsorted`.
        children: for a branch, the child page of each key.
        flags, sizes, places: for a leaf, of each value: its flags, its size in bytes, and its
            offset in `data`, or the number of its first overflow page.
    """

    def __init__(self, number: int, data: bytes, leaf: bool) -> None:
        self.number = number
        self.data = data
        self.leaf = leaf
        self.keys: list[bytes] = []
        self.children: list[int] = []
        self.flags: list[int] = []
        self.sizes: list[int] = []
        self.places: list[int] = []

    def inline(self, index: int) -> bytes:
        place = self.places[index]
        return self.data[place : place + self.sizes[index]]


def _damaged(number: int, problem: str) -> CorruptionError:
    return CorruptionError(f"LMDB page {number}", problem)


def _u16(data: bytes, at: i64) -> i64:
    value: i64 = i64(read_i16_le(data, at))
    return value & 0xFFFF


def decode_tree_page(data: bytes, number: int) -> TreePage:
    """Check and parse a branch or leaf page; raise CorruptionError.

    Args:
        data: the whole page.
    """
    size: i64 = len(data)
    if size < PAGE_HEADER:
        raise _damaged(number, f"truncated: the file ends after {int(size)} bytes of the page")
    stored = int.from_bytes(data[:8], "little")
    if stored != number:
        raise _damaged(number, f"the header says page {stored}")
    flags: i64 = _u16(data, 10)
    if flags != BRANCH and flags != LEAF:
        raise _damaged(
            number, f"flags 0x{int(flags):x}, expected {BRANCH} (branch) or {LEAF} (leaf)"
        )
    lower: i64 = _u16(data, 12)
    upper: i64 = _u16(data, 14)
    if lower < PAGE_HEADER or lower & 1 or lower > upper or upper > size:
        bounds = f"free space from {int(lower)} to {int(upper)}"
        raise _damaged(number, f"{bounds} is not possible in a page of {int(size)} bytes")
    count: i64 = (lower - PAGE_HEADER) // 2
    if count == 0:
        raise _damaged(number, "the page has no nodes")
    leaf = flags == LEAF
    page = TreePage(number, data, leaf)
    used: i64 = 0
    index: i64 = 0
    while index < count:
        at: i64 = _u16(data, PAGE_HEADER + 2 * index)
        if at < upper or at & 1 or at + NODE_HEADER > size:
            raise _damaged(number, f"the pointer of node {int(index)} is {int(at)}, out of range")
        key_size: i64 = _u16(data, at + 6)
        start: i64 = at + NODE_HEADER
        end: i64 = start + key_size
        if key_size > MAX_KEY or end > size:
            raise _damaged(number, f"node {int(index)} has a key of {int(key_size)} bytes")
        page.keys.append(data[start:end])
        low: i64 = i64(read_i32_le(data, at)) & 0xFFFFFFFF
        node_flags: i64 = _u16(data, at + 4)
        if not leaf:
            page.children.append(int(low | (node_flags << 32)))
        else:
            value_size: i64 = low
            place: i64 = end
            if node_flags == BIG:
                if end + 8 > size:
                    raise _damaged(number, f"node {int(index)} is truncated")
                place = read_i64_le(data, end)
                end += 8
            else:
                if node_flags != 0 and node_flags != TABLE:
                    raise _damaged(number, f"node {int(index)} has flags {int(node_flags)}")
                end += value_size
                if end > size:
                    raise _damaged(number, f"node {int(index)} is truncated")
            page.flags.append(int(node_flags))
            page.sizes.append(int(value_size))
            page.places.append(int(place))
        used += (end - at + 1) & ~1
        index += 1
    if used != size - upper:
        problem = f"the nodes take {int(used)} bytes, expected {int(size - upper)}"
        raise _damaged(number, problem)
    return page


def free_space(data: bytes) -> tuple[int, int]:
    """Return the bounds of the free space of a branch or leaf page that has been checked."""
    return int(_u16(data, 12)), int(_u16(data, 14))


def free_pages(value: bytes, where: str) -> Iterator[int]:
    """Yield the page numbers of a record of the free list; raise CorruptionError."""
    size = len(value)
    count = int.from_bytes(value[:8], "little")
    if size < 8 or size % 8 or count > size // 8 - 1:
        raise CorruptionError(where, f"a record of {size} bytes names {count} pages")
    yield from struct.unpack_from(f"<{count}Q", value, 8)


def find_unsorted(keys: list[bytes], first: int, previous: bytes | None) -> int:
    """Return the index of the first key, from `first` on, that is not above the one before; or -1.

    Args:
        previous: the last key of the page before; None if there is none.
    """
    index: i64 = i64(first)
    count: i64 = len(keys)
    before = previous
    while index < count:
        key = keys[index]
        if before is not None and key <= before:
            return int(index)
        before = key
        index += 1
    return -1


class LooseNode(NamedTuple):
    """A possible node of a leaf, found without the page's pointers."""

    db_key: bytes
    value: bytes  # empty if it is in overflow pages
    big_size: int  # size of a value in overflow pages, else 0
    big_page: int  # the first of these pages


def loose_nodes(data: bytes) -> list[LooseNode]:
    """Return everything in a damaged page that could be a node of a leaf.

    Most results are not nodes: the caller must check them, for example by a checksum.
    """
    size: i64 = len(data)
    found: list[LooseNode] = []
    at: i64 = PAGE_HEADER
    while at + NODE_HEADER < size:
        key_size: i64 = _u16(data, at + 6)
        node_flags: i64 = _u16(data, at + 4)
        value_size: i64 = i64(read_i32_le(data, at)) & 0xFFFFFFFF
        end: i64 = at + NODE_HEADER + key_size
        if 0 < key_size <= MAX_KEY and node_flags <= BIG:
            db_key = data[at + NODE_HEADER : end]
            if node_flags == BIG and end + 8 <= size:
                place: i64 = read_i64_le(data, end)
                found.append(LooseNode(db_key, b"", int(value_size), int(place)))
            elif node_flags == 0 and value_size > 0 and end + value_size <= size:
                found.append(LooseNode(db_key, data[end : end + value_size], 0, 0))
        at += 2
    return found
