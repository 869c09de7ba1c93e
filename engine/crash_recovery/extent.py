"""The check that a data file is long enough for its commit.

LMDB maps the file, and reading a page beyond its end would kill the process (SIGBUS). A sound file
may still end before its last page number, because LMDB does not write pages that a commit took
and freed again. So a short file is sound if no tree of it leads to a missing page. Only for a short
file, which is rare, are the trees walked. Other damage is not searched for; a damaged page is taken
to have no children.
"""

from __future__ import annotations

import os
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.format.lmdb_file.meta_page import MetaPage

_BIT: Final = 8


def check_extent(store: Folder, meta: MetaPage | None = None) -> None:
    """Raise CorruptionError if the data file of a store is truncated. No process may be writing.

    Args:
        meta: the meta page of the commit that must be complete; None for LMDB's newest.
    """
    try:
        handle = store.open(DATA_FILE)
    except FileNotFoundError:
        return  # the store is being created
    try:
        if meta is None:
            pages = read_meta_pages(handle)
            if not pages:
                return  # LMDB will report the problem
            meta = pages[-1]
        size = os.fstat(handle).st_size
        expected = (meta.last_page + 1) * meta.page_size
        if size < expected and _leads_beyond(handle, meta, size // meta.page_size):
            raise CorruptionError(
                f"{store.path}: {DATA_FILE}",
                f"truncated: {size:,} bytes, expected {expected:,}; next: run `streamkeep repair`, "
                "which saves what is readable",
            )
    finally:
        os.close(handle)


def _leads_beyond(handle: int, meta: MetaPage, pages: int) -> bool:
    """Return whether a tree leads to a page that is not among the first `pages`."""
    seen = bytearray(pages // _BIT + 1)
    left = [root for root in (meta.free_root, meta.main_root) if root is not None]
    while left:
        number = left.pop()
        if number >= pages:
            return True
        at, bit = divmod(number, _BIT)
        if number < lmdb_pages.META_PAGES or seen[at] >> bit & 1:
            continue
        seen[at] |= 1 << bit
        data = os.pread(handle, meta.page_size, number * meta.page_size)
        try:
            page = lmdb_pages.decode_tree_page(data, number)
        except CorruptionError:
            continue
        left += page.children
        for index, flags in enumerate(page.flags):
            if flags == lmdb_pages.BIG:
                end = page.places[index] + lmdb_pages.overflow_pages(
                    page.sizes[index], meta.page_size
                )
                if end > pages:
                    return True
            elif flags == lmdb_pages.TABLE:
                try:
                    root = lmdb_pages.decode_database(page.inline(index), "a table").root
                except CorruptionError:
                    continue
                if root is not None:
                    left.append(root)
    return False
