"""Checkpoints: what brings LMDB's file back after a power loss.

The file `steady` has two slots, written in turn, so that a torn write leaves the other. A slot
holds a copy of the LMDB meta page of one commit, all of whose pages are on disk and are not
overwritten while the slot is the newest; checksums of the two root pages show that they are
those. Recovery puts the meta page back and replays the journal from the place that the slot names.

LMDB's own meta page is parsed here, as far as it is needed; numbers in it are little-endian, as on
every machine that this runs on.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from streamkeep.format.core.layout import Field, Layout

MAGIC: Final = b"SKP"
FORMAT: Final = 1
SLOT_SIZE: Final = 4096
SLOTS: Final = 2
NO_BOOT: Final = bytes(16)

META_SIZE: Final = 152  # of LMDB's meta page: header and what LMDB stores in it

SLOT: Final = Layout(
    "steady slot",
    (
        Field("magic", "3s", '`"SKP"`'),
        Field("format", "B", "1"),
        Field("epoch", "I", "of the commit"),
        Field("commit_number", "Q", "the commit that is on disk whole"),
        Field("store_uuid", "16s", "the store it belongs to"),
        Field("boot_id", "16s", "the boot it was made in; zeros: recover in any case"),
        Field("journal_file", "Q", "where the journal goes on: file,"),
        Field("journal_offset", "Q", "offset,"),
        Field("journal_chain", "Q", "and checksum of the record before"),
        Field(
            "main_root_checksum",
            "Q",
            "XXH3-64 of the root page of LMDB's main database, its free space taken as zeros",
        ),
        Field("free_root_checksum", "Q", "and of its free list; 0 for an empty one"),
        Field("meta_page", f"{META_SIZE}s", "start of LMDB's meta page of that commit"),
        Field("checksum", "Q", "XXH3-64 of the fields above"),
    ),
)
_CHECKED: Final = SLOT.size - 8


class CheckpointSlot(NamedTuple):
    """One checkpoint."""

    epoch: int
    commit_number: int
    store_uuid: bytes
    boot_id: bytes
    journal_file: int
    journal_offset: int
    journal_chain: int
    main_root_checksum: int
    free_root_checksum: int
    meta_page: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        checked = SLOT.struct.pack(MAGIC, FORMAT, *self, 0)[:_CHECKED]
        return checked + xxh3_64_intdigest(checked).to_bytes(8, "big")


def decode_slot(data: bytes) -> CheckpointSlot | None:
    """Return the slot at the start of `data`; None when there is no whole one."""
    if len(data) < SLOT.size:
        return None
    fields = SLOT.struct.unpack_from(data)
    if fields[:2] != (MAGIC, FORMAT) or fields[-1] != xxh3_64_intdigest(data[:_CHECKED]):
        return None
    return CheckpointSlot(*fields[2:-1])


# --- LMDB's meta page ---------------------------------------------------------------------------

_LMDB_MAGIC: Final = 0xBEEFC0DE
_NO_PAGE: Final = (1 << 64) - 1
# Page header: page number, pad, flags, free space. Then magic, version, address, map size; of the
# free list and of the main database: page size or pad, flags, depth, four counts, root; then the
# last page and the transaction number.
_META: Final = struct.Struct("<QHHI IIQQ IHHQQQQQ IHHQQQQQ QQ")
_TXN_OFFSET: Final = _META.size - 8


class MetaPage(NamedTuple):
    """What we need of an LMDB meta page."""

    page_size: int
    free_root: int | None
    main_root: int | None
    last_page: int
    commit_number: int  # LMDB's transaction number
    data: bytes


def decode_meta_page(data: bytes) -> MetaPage | None:
    """Return LMDB's meta page at the start of `data`; None when there is none."""
    if len(data) < META_SIZE:
        return None
    fields = _META.unpack_from(data)
    if fields[4] != _LMDB_MAGIC:
        return None
    free_root, main_root = fields[15], fields[23]
    return MetaPage(
        fields[8],
        None if free_root == _NO_PAGE else free_root,
        None if main_root == _NO_PAGE else main_root,
        fields[24],
        fields[25],
        data[:META_SIZE],
    )


def meta_page_for(meta: bytes, place: int, commit_number: int) -> bytes:
    """Return a meta page as it must stand in meta page 0 or 1, with another commit number."""
    page = bytearray(meta)
    struct.pack_into("<Q", page, 0, place)
    struct.pack_into("<Q", page, _TXN_OFFSET, commit_number)
    return bytes(page)


_BOUNDS: Final = struct.Struct("<HH")  # of a page's free space
_BOUNDS_OFFSET: Final = 12


def root_checksum(page: bytes | None) -> int:
    """Return the checksum of a root page; 0 where there is none.

    The free space in the middle of the page says nothing, and an erasure may clear it at any time
    (`engine/admin/scrub.py`): it counts as zeros.
    """
    if page is None:
        return 0
    lower, upper = _BOUNDS.unpack_from(page, _BOUNDS_OFFSET)
    if _BOUNDS_OFFSET < lower <= upper <= len(page):
        page = page[:lower] + bytes(upper - lower) + page[upper:]
    return int(xxh3_64_intdigest(page))
