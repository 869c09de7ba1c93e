"""LMDB's pages: what the B+trees of `data.mdb` consist of, byte by byte.

Checking a store must survive any bytes. LMDB trusts its file: a wrong pointer in a page can end
the process. So fsck and repair never hand a damaged file to LMDB; they read its pages here, where
every offset is checked before it is used, and damage gives `CorruptionError`.

    page      number u64, pad u16, flags u16, then lower u16, upper u16: where the free space
              between pointers and nodes begins and ends; of an overflow page instead u32, the
              number of pages that it and its followers make up
    branch    pointers u16, each to a node: child (48 bits), key size u16, key
    leaf      pointers u16, each to a node: size of the value u32, flags u16, key size u16, key,
              value; with flag 1 the value is the number of the overflow page where it stands, with
              flag 2 the record of a sub-database
    overflow  the value, across as many pages as it takes; only the first has a header
    meta      pages 0 and 1; see `steady`

The first key of a branch page stands for "all below"; its bytes say nothing. Numbers have the
order of the machine; this module reads little-endian ones, as all machines that we support write.
LMDB keeps the nodes of a page without gaps, each at an even offset, so that their sizes must add
up to the space between `upper` and the end of the page.

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
BIG: Final = 1  # flag of a leaf node: the value stands in overflow pages
TABLE: Final = 2  # flag of a leaf node: the value is the record of a sub-database
MAX_DEPTH: Final = 32
META_PAGES: Final = 2
NO_PAGE: Final = (1 << 64) - 1
MAX_KEY: Final = 511

_DATABASE: Final = struct.Struct("<IHHQQQQQ")
DATABASE_SIZE: Final = 48
FREE_AT: Final = 40  # of the free list's record in a meta page
MAIN_AT: Final = 88


class Database(NamedTuple):
    """The record of one B+tree: its counters, and its root page; None when it is empty."""

    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int | None


def decode_database(data: bytes, where: str) -> Database:
    """Parse the record of a B+tree; raise CorruptionError."""
    if len(data) != DATABASE_SIZE:
        raise CorruptionError(where, f"the record of a sub-database has {len(data)} bytes, not 48")
    _, flags, depth, branches, leaves, overflows, entries, root = _DATABASE.unpack(data)
    return Database(
        flags, depth, branches, leaves, overflows, entries, None if root == NO_PAGE else root
    )


def overflow_pages(size: int, page_size: int) -> int:
    """Return how many pages a value of `size` bytes takes that stands outside of its leaf."""
    return (HEADER_SIZE - 1 + size) // page_size + 1


class OverflowHeader(NamedTuple):
    """The header of the first page of an overflow value."""

    number: int
    flags: int
    pages: int


_OVERFLOW: Final = struct.Struct("<QHHI")


def overflow_header(number: int, pages: int) -> bytes:
    """Return the header that the first page of an overflow value has."""
    return _OVERFLOW.pack(number, 0, OVERFLOW, pages)


def decode_overflow_header(data: bytes) -> OverflowHeader:
    """Parse the header of an overflow page, of which at least 16 bytes are given."""
    number, _, flags, pages = _OVERFLOW.unpack_from(data)
    return OverflowHeader(number, flags, pages)


class TreePage:
    """A branch or leaf page whose pointers and sizes have been checked.

    Attributes:
        keys: of its nodes. That they rise is not checked here: see `falling_key`.
        children: of a branch, the page numbers behind the keys.
        flags, sizes, places: of a leaf, of each value: its flags, its size, and where it begins in
            `data`, or the overflow page where it stands.
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
        """Return a value that stands in the page."""
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
        raise _damaged(number, f"the file ends after {int(size)} bytes of it")
    stored = int.from_bytes(data[:8], "little")
    if stored != number:
        raise _damaged(number, f"it says that it is page {stored}")
    flags: i64 = _u16(data, 10)
    if flags != BRANCH and flags != LEAF:
        raise _damaged(number, f"flags 0x{int(flags):x}, neither those of a branch nor of a leaf")
    lower: i64 = _u16(data, 12)
    upper: i64 = _u16(data, 14)
    if lower < PAGE_HEADER or lower & 1 or lower > upper or upper > size:
        raise _damaged(number, f"free space from {int(lower)} to {int(upper)} of {int(size)} bytes")
    count: i64 = (lower - PAGE_HEADER) // 2
    if count == 0:
        raise _damaged(number, "it has no nodes")
    leaf = flags == LEAF
    page = TreePage(number, data, leaf)
    used: i64 = 0
    index: i64 = 0
    while index < count:
        at: i64 = _u16(data, PAGE_HEADER + 2 * index)
        if at < upper or at & 1 or at + NODE_HEADER > size:
            raise _damaged(number, f"node {int(index)} at {int(at)}")
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
                    raise _damaged(number, f"node {int(index)} is cut off")
                place = read_i64_le(data, end)
                end += 8
            else:
                if node_flags != 0 and node_flags != TABLE:
                    raise _damaged(number, f"node {int(index)} has flags {int(node_flags)}")
                end += value_size
                if end > size:
                    raise _damaged(number, f"node {int(index)} is cut off")
            page.flags.append(int(node_flags))
            page.sizes.append(int(value_size))
            page.places.append(int(place))
        used += (end - at + 1) & ~1
        index += 1
    if used != size - upper:
        raise _damaged(number, f"its nodes take {int(used)} bytes, not {int(size - upper)}")
    return page


def free_space(data: bytes) -> tuple[int, int]:
    """Return the bounds of the free space of a branch or leaf page, which was checked."""
    return int(_u16(data, 12)), int(_u16(data, 14))


def free_pages(value: bytes, where: str) -> Iterator[int]:
    """Yield the page numbers of a record of the free list; raise CorruptionError."""
    size = len(value)
    count = int.from_bytes(value[:8], "little")
    if size < 8 or size % 8 or count > size // 8 - 1:
        raise CorruptionError(where, f"a record of {size} bytes names {count} pages")
    yield from struct.unpack_from(f"<{count}Q", value, 8)


def falling_key(keys: list[bytes], first: int, previous: bytes | None) -> int:
    """Return the place of the first key, from `first` on, that is not above the one before; or -1.

    Args:
        previous: the key before, in an earlier page; None when there is none.
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
    """What may be a node of a leaf, found without the page's own pointers."""

    db_key: bytes
    value: bytes
    big_size: int  # of a value in overflow pages; 0 for one that stands here
    big_page: int


def loose_nodes(data: bytes) -> list[LooseNode]:
    """Return everything in a damaged page that could be a node of a leaf; most of it is none.

    Whoever asks must be able to tell by a checksum.
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


# --- meta pages ---------------------------------------------------------------------------------

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
_META: Final = struct.Struct("<QHHI IIQQ IHHQQQQQ IHHQQQQQ QQ")
META_SIZE: Final = 152


def meta_problem(data: bytes, place: int, page_size: int) -> str:
    """Return what is wrong with meta page 0 or 1, or nothing.

    Args:
        data: its first 152 bytes at least.
        page_size: what it must be; 0 for any.
    """
    if len(data) < META_SIZE:
        return f"the file ends after {len(data)} bytes of it"
    fields = _META.unpack_from(data)
    number, flags, magic, version, size = fields[0], fields[2], fields[4], fields[5], fields[8]
    if magic != MAGIC or version != DATA_VERSION:
        return f"magic 0x{magic:x} version {version}, expected 0x{MAGIC:x} {DATA_VERSION}"
    if number != place or flags != META:
        return f"it says page {number} with flags {flags}, expected {place} and {META}"
    if not 512 <= size <= 32768 or size & (size - 1) or (page_size and size != page_size):
        return f"a page size of {size}"
    commit_number, last = fields[25], fields[24]
    if commit_number and commit_number & 1 != place:
        return f"commit {commit_number}, which belongs into the other meta page"
    if last < META_PAGES - 1:
        return f"the last page is {last}"
    for name, root, depth in (("free list", fields[15], fields[10]), ("main", fields[23], 0)):
        if root != NO_PAGE and not META_PAGES <= root <= last:
            return f"the root of the {name} is page {root} of {last + 1}"
        if depth > MAX_DEPTH:
            return f"the {name} has {depth} levels"
    return ""
