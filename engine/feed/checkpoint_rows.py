"""Rows as the newest checkpoint has them, from the pages of `data.mdb`.

LMDB shows the newest image only. The pages of the newest checkpoint are there, too: no flush may
use them, until the next checkpoint is on disk. They are read with pread, without LMDB and without a
lock; afterwards the file of checkpoints says whether all that was read was still theirs.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import meta_of
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.checkpoint import CheckpointSlot
from streamkeep.format.lmdb_file.lmdb_pages import (
    BIG,
    HEADER_SIZE,
    MAX_DEPTH,
    TreePage,
    decode_database,
    decode_tree_page,
)

_KEPT_PAGES: Final = 256  # the branches of all tables, since rows are read in order

RowKey = tuple[int, bytes]  # table, LMDB key


def read_rows(
    folder: Folder, slot: CheckpointSlot, wanted: Collection[RowKey]
) -> dict[RowKey, bytes | None]:
    """Return rows of a checkpoint by table and key; None for those that it does not have.

    Raises:
        CorruptionError: pages are damaged, or were used again.
    """
    handle = folder.open(DATA_FILE)
    try:
        pages = _Pages(handle, meta_of(slot).page_size)
        main = meta_of(slot).main_root
        roots: dict[int, int | None] = {}
        for table, _ in wanted:
            if table not in roots:
                name = TABLES[table].name.encode()
                record = pages.find(main, name)
                roots[table] = (
                    None if record is None else decode_database(record, name.decode()).root
                )
        return {(table, key): pages.find(roots[table], key) for table, key in sorted(wanted)}
    finally:
        os.close(handle)


class _Pages:
    """The pages of a data file; those that were read last are kept."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._size = size
        self._pages: dict[int, TreePage] = {}

    def find(self, root: int | None, db_key: bytes) -> bytes | None:
        """Return the value of a key in a tree; None if it is not there."""
        number = root
        for _ in range(MAX_DEPTH):
            if number is None:
                return None
            page = self._page(number)
            if page.leaf:
                at = bisect_left(page.keys, db_key)
                if at == len(page.keys) or page.keys[at] != db_key:
                    return None
                if page.flags[at] != BIG:
                    return page.inline(at)
                start = page.places[at] * self._size + HEADER_SIZE
                return os.pread(self._handle, page.sizes[at], start)
            number = page.children[max(0, bisect_right(page.keys, db_key, 1) - 1)]
        raise CorruptionError(f"LMDB page {root}", "the tree has too many levels")

    def _page(self, number: int) -> TreePage:
        page = self._pages.get(number)
        if page is None:
            if len(self._pages) >= _KEPT_PAGES:
                del self._pages[next(iter(self._pages))]
            data = os.pread(self._handle, self._size, number * self._size)
            page = self._pages[number] = decode_tree_page(data, number)
        return page
