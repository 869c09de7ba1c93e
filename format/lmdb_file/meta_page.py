"""LMDB's meta page: pages 0 and 1 of `data.mdb`, one of which describes the newest commit.

Numbers are little-endian, as on every machine that Streamkeep supports:

    page header   page number u64, pad u16, flags u16, bounds of the free space 2 x u16
    meta          magic u32, version u32, address u64, map size u64
    free list     page size u32, flags u16, depth u16, four counts u64, root u64
    main database pad u32, flags u16, depth u16, four counts u64, root u64
    end           last page u64, transaction number u64
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamkeep.format.lmdb_file.lmdb_pages import MAX_DEPTH, META, META_PAGES, NO_PAGE

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
_META: Final = struct.Struct("<QHHI IIQQ IHHQQQQQ IHHQQQQQ QQ")
META_SIZE: Final = 152
_TXN_OFFSET: Final = _META.size - 8


class MetaPage(NamedTuple):
    """The fields of an LMDB meta page that Streamkeep uses."""

    page_size: int
    free_root: int | None
    main_root: int | None
    last_page: int
    commit_number: int  # LMDB's transaction number
    data: bytes


def decode_meta_page(data: bytes) -> MetaPage | None:
    """Return LMDB's meta page at the start of `data`; None if there is none."""
    if len(data) < META_SIZE:
        return None
    fields = _META.unpack_from(data)
    if fields[4] != MAGIC:
        return None
    free_root, main_root = fields[15], fields[23]
    return MetaPage(
        fields[8],
        None if free_root == NO_PAGE else free_root,
        None if main_root == NO_PAGE else main_root,
        fields[24],
        fields[25],
        data[:META_SIZE],
    )


def meta_page_for(meta: bytes, number: int, commit_number: int) -> bytes:
    """Return a meta page changed to be page 0 or 1 and to have another commit number."""
    page = bytearray(meta)
    struct.pack_into("<Q", page, 0, number)
    struct.pack_into("<Q", page, _TXN_OFFSET, commit_number)
    return bytes(page)


def meta_problem(data: bytes, number: int, page_size: int) -> str:
    """Return the first problem of meta page 0 or 1 as text; "" if there is none.

    Args:
        data: at least the first 152 bytes of the page.
        page_size: the expected page size; 0 for any.
    """
    if len(data) < META_SIZE:
        return f"truncated: {len(data)} bytes, expected {META_SIZE}"
    fields = _META.unpack_from(data)
    found, flags, magic, version, size = fields[0], fields[2], fields[4], fields[5], fields[8]
    if magic != MAGIC or version != DATA_VERSION:
        return f"magic 0x{magic:x} version {version}, expected 0x{MAGIC:x} {DATA_VERSION}"
    if found != number or flags != META:
        return f"page number {found} with flags {flags}, expected {number} and {META}"
    if not 512 <= size <= 32768 or size & (size - 1) or (page_size and size != page_size):
        expected = page_size or "a power of two from 512 to 32768"
        return f"page size {size}, expected {expected}"
    commit_number, last = fields[25], fields[24]
    if commit_number and commit_number & 1 != number:
        return f"commit {commit_number} belongs in the other meta page"
    if last < META_PAGES - 1:
        return f"the last page is {last}, expected at least {META_PAGES - 1}"
    main = "main database"
    for name, root, depth in (("free list", fields[15], fields[10]), (main, fields[23], 0)):
        if root != NO_PAGE and not META_PAGES <= root <= last:
            return f"the root of the {name}, page {root}, is out of range ({last + 1} pages)"
        if depth > MAX_DEPTH:
            return f"the {name} has {depth} levels, expected at most {MAX_DEPTH}"
    return ""
