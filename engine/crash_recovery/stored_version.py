"""The format version of a store, read from the pages of its data file without LMDB.

Recovery writes to a store, so its version must be known before. LMDB cannot read a torn file
safely, but the pages of the checkpoint are complete in it. So the row of the version is found by
walking the pages of the checkpoint, and those of LMDB's own meta pages.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.system.pages import check_page_size
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError, FormatVersionError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.core.versions import STORE_VERSION
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, decode_position
from streamkeep.format.lmdb_file.lmdb_pages import (
    MAX_DEPTH,
    TABLE,
    decode_database,
    decode_tree_page,
)
from streamkeep.format.lmdb_file.meta_page import MetaPage, decode_meta_page
from streamkeep.format.rows.records import decode_number

META_FORMAT: Final = b"format_version"
_SMALLEST_PAGE: Final = 256  # of LMDB; a damaged meta page may claim any size


class KeyMissing(CorruptionError):
    """A tree that can be read does not have a key."""


def refuse_newer(path: object, version: int) -> None:
    """Raise FormatVersionError for a store of a newer format version."""
    if version > STORE_VERSION:
        raise FormatVersionError(
            f"{path}: store format {version}, but this version of Streamkeep reads up to format "
            f"{STORE_VERSION}; next: upgrade Streamkeep"
        )


def check_version(store: Folder, checkpoint_file: CheckpointFile) -> None:
    """Raise FormatVersionError for a store of a newer format version, if that can be read.

    The files may be damaged anywhere. The check then passes, and the opening reports the damage.

    Raises:
        StoreError: the store was made on a system with pages of another size.
    """
    try:
        handle = store.open(DATA_FILE)
    except FileNotFoundError:
        return  # the store is being created
    try:
        pages = read_meta_pages(handle)
        with suppress(CorruptionError):
            slot = checkpoint_file.newest()
            meta = None if slot is None else decode_meta_page(slot.meta_page)
            pages += [] if meta is None else [meta]
        for page in pages:
            version = 0
            with suppress(CorruptionError):
                version = _version_at(handle, page)
            refuse_newer(store.path, version)
        if pages:
            check_page_size(store.path, pages[0].page_size)
    finally:
        os.close(handle)


def stored_position(store: Folder, meta: MetaPage) -> LogPosition:
    """Return the log position that `data.mdb` holds at the commit of a meta page.

    Without such a row, the journal does not go on after that commit, which counts as LMDB does.

    Raises:
        CorruptionError: the pages cannot be read.
    """
    handle = store.open(DATA_FILE)
    try:
        row, _ = _find(handle, meta, meta.main_root, POSITION_KEY)
    except KeyMissing:
        return LogPosition(0, 0, 0, meta.commit_number)
    finally:
        os.close(handle)
    return decode_position(row)


def _version_at(handle: int, meta: MetaPage) -> int:
    """Return the version at the commit of a meta page; raise CorruptionError."""
    where = f"the tables of commit {meta.commit_number}"
    record, flags = _find(handle, meta, meta.main_root, TABLES[META].name.encode())
    if flags != TABLE:
        raise CorruptionError(where, "the entry of `meta` is not a table")
    value, _ = _find(handle, meta, decode_database(record, where).root, META_FORMAT)
    return decode_number(open_row(META, META_FORMAT, value, where), where)


def _find(handle: int, meta: MetaPage, root: int | None, db_key: bytes) -> tuple[bytes, int]:
    """Return the value of a key in a tree, and its flags; raise CorruptionError."""
    number = root
    pages = os.fstat(handle).st_size // max(meta.page_size, _SMALLEST_PAGE)
    for _ in range(MAX_DEPTH):
        if number is None or number >= pages:
            break
        data = os.pread(handle, meta.page_size, number * meta.page_size)
        page = decode_tree_page(data, number)
        if page.leaf:
            if db_key not in page.keys:
                raise KeyMissing(f"the tree of page {root}", f"the key {db_key!r} is missing")
            index = page.keys.index(db_key)
            return page.inline(index), page.flags[index]
        number = page.children[bisect_right(page.keys, db_key, 1) - 1]
    raise CorruptionError(f"the tree of page {root}", f"the key {db_key!r} cannot be found")
