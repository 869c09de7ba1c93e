"""Single rows of a store, read from the pages of its data file without LMDB.

LMDB cannot read a torn file safely, but the pages of the checkpoint are complete in it. So rows are
found by walking the pages of the checkpoint, or those of LMDB's own meta pages.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from typing import Final

from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, decode_position
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.format.lmdb_file.meta_page import MetaPage
from streamkeep.format.rows.records import decode_epoch, decode_uuid

META_UUID: Final = b"store_uuid"
META_EPOCH: Final = b"epoch"
_KEPT_PAGES: Final = 256  # the branches of all tables, since rows are read in order
_SMALLEST_PAGE: Final = 256  # of LMDB; a damaged meta page may claim any size


class KeyMissing(CorruptionError):
    """A tree that can be read does not have a key."""


class StoredRows:
    """The rows of a commit, from the pages of an open data file; those read last are kept.

    Args:
        handle: the file.
        meta: LMDB's meta page of the commit.
    """

    def __init__(self, handle: int, meta: MetaPage) -> None:
        self._handle = handle
        self._meta = meta
        self._roots: dict[int, int | None] = {}
        self._pages: dict[int, lmdb_pages.TreePage] = {}

    def position(self) -> LogPosition:
        """Return the log position that `data.mdb` holds; raise CorruptionError without one."""
        page, index = self._find(self._meta.main_root, POSITION_KEY)
        return decode_position(page.inline(index))

    def meta(self, name: bytes) -> bytes:
        """Return the body of a row of the table `meta`; raise CorruptionError."""
        page, index = self.find(META, name)
        where = f"meta of commit {self._meta.commit_number}"
        return row_body(META, name, page.inline(index), where)

    def identity(self) -> tuple[int, bytes]:
        """Return the epoch and the UUID of a store; raise CorruptionError."""
        epoch = decode_epoch(self.meta(META_EPOCH), "meta")
        return epoch, decode_uuid(self.meta(META_UUID), "meta")

    def value(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value of a row; None if there is none."""
        self.root(table)
        try:
            page, index = self.find(table, db_key)
        except KeyMissing:
            return None
        if page.flags[index] != lmdb_pages.BIG:
            return page.inline(index)
        start = page.places[index] * self._meta.page_size + lmdb_pages.HEADER_SIZE
        return os.pread(self._handle, page.sizes[index], start)

    def root(self, table: int) -> int | None:
        """Return the root page of a table, None if it is empty; raise CorruptionError."""
        if table not in self._roots:
            name = TABLES[table].name
            page, index = self._find(self._meta.main_root, name.encode())
            if page.flags[index] != lmdb_pages.TABLE:
                raise CorruptionError(name, "its entry in the main database is not a table")
            self._roots[table] = lmdb_pages.decode_database(page.inline(index), name).root
        return self._roots[table]

    def find(self, table: int, db_key: bytes) -> tuple[lmdb_pages.TreePage, int]:
        """Return the leaf of a table that has a key, and the place of the row in it.

        Raises:
            KeyMissing: the table does not have the key.
            CorruptionError: a page on the way to it is damaged.
        """
        return self._find(self.root(table), db_key)

    def _find(self, root: int | None, db_key: bytes) -> tuple[lmdb_pages.TreePage, int]:
        number = root
        size = self._meta.page_size
        pages = os.fstat(self._handle).st_size // max(size, _SMALLEST_PAGE)
        missing = KeyMissing(f"the tree of page {root}", f"the key {db_key!r} is missing")
        for _ in range(lmdb_pages.MAX_DEPTH):
            if number is None:
                raise missing
            if number >= pages:
                break
            page = self._pages.get(number)
            if page is None:
                data = os.pread(self._handle, size, number * size)
                page = lmdb_pages.decode_tree_page(data, number)
                if len(self._pages) >= _KEPT_PAGES:
                    del self._pages[next(iter(self._pages))]
                self._pages[number] = page
            if page.leaf:
                index = bisect_left(page.keys, db_key)
                if page.keys[index : index + 1] != [db_key]:
                    raise missing
                return page, index
            number = page.children[bisect_right(page.keys, db_key, 1) - 1]
        raise CorruptionError(f"the tree of page {root}", f"the key {db_key!r} cannot be found")
