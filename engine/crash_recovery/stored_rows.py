"""Single rows of a store, read from the pages of its data file without LMDB.

LMDB cannot read a torn file safely, but the pages of the checkpoint are complete in it. So rows are
found by walking the pages of the checkpoint, or those of LMDB's own meta pages.

Here is also the check that the file is long enough for its commit: LMDB maps it, and reading a page
beyond its end would kill the process (SIGBUS).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.system.safe_files import Folder
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
        page, index = self._find(self.root(META), name)
        where = f"meta of commit {self._meta.commit_number}"
        return row_body(META, name, page.inline(index), where)

    def identity(self) -> tuple[int, bytes]:
        """Return the epoch and the UUID of a store; raise CorruptionError."""
        epoch = decode_epoch(self.meta(META_EPOCH), "meta")
        return epoch, decode_uuid(self.meta(META_UUID), "meta")

    def value(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value of a row; None if there is none."""
        found = self._row(table, db_key)
        if found is None:
            return None
        page, index = found
        if page.flags[index] != lmdb_pages.BIG:
            return page.inline(index)
        start = page.places[index] * self._meta.page_size + lmdb_pages.HEADER_SIZE
        return os.pread(self._handle, page.sizes[index], start)

    def size(self, table: int, db_key: bytes) -> int:
        """Return the size of a row; -1 if there is none."""
        found = self._row(table, db_key)
        return -1 if found is None else found[0].sizes[found[1]]

    def _row(self, table: int, db_key: bytes) -> tuple[lmdb_pages.TreePage, int] | None:
        root = self.root(table)  # raises for a table that is missing, which is damage
        try:
            return self._find(root, db_key)
        except KeyMissing:
            return None

    def root(self, table: int) -> int | None:
        """Return the root page of a table, None if it is empty; raise CorruptionError."""
        if table not in self._roots:
            name = TABLES[table].name
            page, index = self._find(self._meta.main_root, name.encode())
            if page.flags[index] != lmdb_pages.TABLE:
                raise CorruptionError(name, "its entry in the main database is not a table")
            self._roots[table] = lmdb_pages.decode_database(page.inline(index), name).root
        return self._roots[table]

    def _find(self, root: int | None, db_key: bytes) -> tuple[lmdb_pages.TreePage, int]:
        """Return the leaf of a tree that has a key, and the place of the row in it.

        Raises:
            KeyMissing: the tree does not have the key.
            CorruptionError: a page on the way to it is damaged.
        """
        number = root
        size = self._meta.page_size
        pages = os.fstat(self._handle).st_size // max(size, _SMALLEST_PAGE)
        missing = KeyMissing(f"the tree of page {root}", f"the key {db_key!r} is missing")
        for _ in range(lmdb_pages.MAX_DEPTH):
            if number is None:
                raise missing
            if number >= pages:
                break
            page = self._page(number)
            if page.leaf:
                index = bisect_left(page.keys, db_key)
                if page.keys[index : index + 1] != [db_key]:
                    raise missing
                return page, index
            number = page.children[bisect_right(page.keys, db_key, 1) - 1]
        raise CorruptionError(f"the tree of page {root}", f"the key {db_key!r} cannot be found")

    def _page(self, number: int) -> lmdb_pages.TreePage:
        page = self._pages.get(number)
        if page is None:
            size = self._meta.page_size
            page = lmdb_pages.decode_tree_page(os.pread(self._handle, size, number * size), number)
            if len(self._pages) >= _KEPT_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[number] = page
        return page

    def lead_beyond(self, pages: int) -> bool:
        """Return whether a tree leads to a page that is not among the first `pages`.

        Other damage is not searched for; a damaged page is taken to have no children.
        """
        seen = bytearray(pages)
        left = [root for root in (self._meta.free_root, self._meta.main_root) if root is not None]
        while left:
            number = left.pop()
            if number >= pages:
                return True
            if number < lmdb_pages.META_PAGES or seen[number]:
                continue
            seen[number] = 1
            try:
                page = self._page(number)
            except CorruptionError:
                continue
            left += page.children
            for index, flags in enumerate(page.flags):
                if flags == lmdb_pages.BIG:
                    count = lmdb_pages.overflow_pages(page.sizes[index], self._meta.page_size)
                    if page.places[index] + count > pages:
                        return True
                elif flags == lmdb_pages.TABLE:
                    with suppress(CorruptionError):
                        root = lmdb_pages.decode_database(page.inline(index), "a table").root
                        left += [] if root is None else [root]
        return False


def check_extent(store: Folder, meta: MetaPage | None = None) -> None:
    """Raise CorruptionError if the data file of a store is truncated. No process may be writing.

    A sound file may end before its last page number, because LMDB does not write pages that a
    commit took and freed again. Only for a short file, which is rare, are the trees walked.

    Args:
        meta: the meta page of the commit that must be complete; None for LMDB's newest.
    """
    if not store.exists(DATA_FILE):
        return  # the store is being created
    with store.opened(DATA_FILE) as handle:
        pages = [meta] if meta is not None else read_meta_pages(handle)
        if not pages:
            return  # LMDB will report the problem
        newest = pages[-1]
        size = os.fstat(handle).st_size
        expected = (newest.last_page + 1) * newest.page_size
        short = size < expected
        if short and StoredRows(handle, newest).lead_beyond(size // newest.page_size):
            raise CorruptionError(
                f"{store.path}: {DATA_FILE}",
                f"truncated: {size:,} bytes, expected {expected:,}; next: run `streamkeep repair`, "
                "which saves what is readable",
            )
