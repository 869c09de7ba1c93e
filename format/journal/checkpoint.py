"""Checkpoints: the state of `data.mdb` to which recovery returns after a power loss.

The file `steady` has two slots that are written in turn, so that a torn write leaves the other one
intact. A slot holds a copy of the LMDB meta page of one commit. All pages of that commit are on
disk, and none is overwritten while the slot is the newest; the checksums of the two root pages
prove it. Recovery writes the meta page back and replays the journal from the slot's log position.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.journal.position import LogPosition
from streamkeep.format.lmdb_file.meta_page import META_SIZE, MetaPage, decode_meta_page

MAGIC: Final = b"SKP"
FORMAT: Final = 1
SLOT_SIZE: Final = 4096
SLOTS: Final = 2
NO_BOOT: Final = bytes(16)


class CheckpointSlot(NamedTuple):
    """One checkpoint."""

    epoch: Annotated[int, "I", "epoch of the commit"]
    commit_number: Annotated[int, "Q", "the commit, all pages of which are on disk"]
    store_uuid: Annotated[bytes, "16s", "the store that the file belongs to"]
    boot_id: Annotated[bytes, "16s", "boot ID of the machine; zeros: recover in any case"]
    journal_file: Annotated[int, "Q", "log position after the commit: number of the file, or 0"]
    journal_offset: Annotated[int, "Q", "log position: offset in the file"]
    journal_chain: Annotated[int, "Q", "log position: checksum of the record before"]
    main_root_checksum: Annotated[
        int, "Q", "XXH3-64 of the root page of LMDB's main database, its free space read as zeros"
    ]
    free_root_checksum: Annotated[int, "Q", "the same of its free list; 0 if that is empty"]
    meta_page: Annotated[bytes, f"{META_SIZE}s", "start of LMDB's meta page of that commit"]

    def position(self) -> LogPosition:
        """Return the log position after the commit."""
        return LogPosition(
            self.journal_file, self.journal_offset, self.journal_chain, self.commit_number
        )

    def meta(self) -> MetaPage:
        """Return LMDB's meta page of the commit; raise CorruptionError if the slot has none."""
        meta = decode_meta_page(self.meta_page)
        if meta is None:
            raise CorruptionError("steady", "the slot does not hold a meta page")
        return meta

    def encode(self) -> bytes:
        checked = SLOT.struct.pack(MAGIC, FORMAT, *self, 0)[:_CHECKED]
        return checked + xxh3_64_intdigest(checked).to_bytes(8, "big")


SLOT: Final = Layout.of(
    "checkpoint slot",
    CheckpointSlot,
    before=(Field("magic", "3s", '`"SKP"`'), Field("format", "B", "1")),
    after=(Field("checksum", "Q", "XXH3-64 of the fields above"),),
)
_CHECKED: Final = SLOT.size - 8


def decode_slot(data: bytes) -> CheckpointSlot | None:
    """Return the slot at the start of `data`; None if it is truncated or damaged."""
    if len(data) < SLOT.size:
        return None
    fields = SLOT.struct.unpack_from(data)
    if fields[:2] != (MAGIC, FORMAT) or fields[-1] != xxh3_64_intdigest(data[:_CHECKED]):
        return None
    return CheckpointSlot(*fields[2:-1])


_BOUNDS: Final = struct.Struct("<HH")  # of a page's free space
_BOUNDS_OFFSET: Final = 12


def root_checksum(page: bytes | None) -> int:
    """Return the checksum of a root page; 0 for None.

    The free space in the middle of the page is read as zeros, because an erasure may overwrite it
    at any time (`engine/whole_store/scrub.py`).
    """
    if page is None:
        return 0
    lower, upper = _BOUNDS.unpack_from(page, _BOUNDS_OFFSET)
    if _BOUNDS_OFFSET < lower <= upper <= len(page):
        page = page[:lower] + bytes(upper - lower) + page[upper:]
    return int(xxh3_64_intdigest(page))
