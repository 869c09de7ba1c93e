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
_SMALLEST_PAGE: Final = 256  # of LMDB; a damaged meta page may claim any size


class KeyMissing(CorruptionError):
    """A tree that can be read does not have a key."""


def stored_position(handle: int, meta: MetaPage) -> LogPosition:
    """Return the log position that `data.mdb` holds at the commit of a meta page.

    Raises:
        CorruptionError: there is none, or the pages cannot be read.
    """
    page, index = find_row(handle, meta, meta.main_root, POSITION_KEY)
    return decode_position(page.inline(index))


def stored_meta(handle: int, meta: MetaPage, name: bytes) -> bytes:
    """Return the body of a row of the table `meta`; raise CorruptionError."""
    where = f"meta of commit {meta.commit_number}"
    page, index = find_row(handle, meta, table_root(handle, meta, META), name)
    return row_body(META, name, page.inline(index), where)


def stored_identity(handle: int, meta: MetaPage) -> tuple[int, bytes]:
    """Return the epoch and the UUID of a store; raise CorruptionError."""
    epoch = decode_epoch(stored_meta(handle, meta, META_EPOCH), "meta")
    return epoch, decode_uuid(stored_meta(handle, meta, META_UUID), "meta")


def table_root(handle: int, meta: MetaPage, table: int) -> int | None:
    """Return the root page of a table, None if it is empty; raise CorruptionError."""
    name = TABLES[table].name
    page, index = find_row(handle, meta, meta.main_root, name.encode())
    if page.flags[index] != lmdb_pages.TABLE:
        raise CorruptionError(name, "its entry in the main database is not a table")
    return lmdb_pages.decode_database(page.inline(index), name).root


def find_row(
    handle: int, meta: MetaPage, root: int | None, db_key: bytes
) -> tuple[lmdb_pages.TreePage, int]:
    """Return the leaf of a tree that has a key, and the place of the row in it.

    Raises:
        KeyMissing: the tree does not have the key.
        CorruptionError: a page on the way to it is damaged.
    """
    number = root
    pages = os.fstat(handle).st_size // max(meta.page_size, _SMALLEST_PAGE)
    missing = KeyMissing(f"the tree of page {root}", f"the key {db_key!r} is missing")
    for _ in range(lmdb_pages.MAX_DEPTH):
        if number is None:
            raise missing
        if number >= pages:
            break
        data = os.pread(handle, meta.page_size, number * meta.page_size)
        page = lmdb_pages.decode_tree_page(data, number)
        if page.leaf:
            index = bisect_left(page.keys, db_key)
            if page.keys[index : index + 1] != [db_key]:
                raise missing
            return page, index
        number = page.children[bisect_right(page.keys, db_key, 1) - 1]
    raise CorruptionError(f"the tree of page {root}", f"the key {db_key!r} cannot be found")
