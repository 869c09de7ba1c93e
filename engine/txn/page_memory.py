"""The memory in which LMDB keeps written pages, and how an erasure clears it.

LMDB reuses the memory of changed pages and does not clear it. The bytes of one commit could
therefore end up in the unused parts of pages of a later commit. To clear the memory, as many pages
of zeros as it may hold are put into a transaction, which is then undone. Only an upper bound of
their number is known, from the number of operations of the biggest transaction so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import lmdb

from streamkeep.engine.system.pages import PAGE, PAGE_HEADER
from streamkeep.format.core.keys import GARBAGE, pack_number

if TYPE_CHECKING:
    from streamkeep.engine.txn.context import EngineContext

_SMALL_COMMIT: Final = 64  # operations; transactions with fewer are not noted
_PAGES_PER_OPERATION: Final = 24  # touched by LMDB at most: paths to leaves, splits, merges
_NEW_PAGES_PER_OPERATION: Final = 3  # those of the value, and splits
_PAGES_PER_COMMIT: Final = 256  # in addition: roots, free list
_MOST_PAGES: Final = 131_072  # changed pages that LMDB keeps in memory
_CLEARING: Final = b"\xff" * 8  # above every other key of the table
_ZERO_PAGE: Final = bytes(PAGE - PAGE_HEADER)


def note_commit(context: EngineContext, raw: lmdb.Transaction[bytes], operations: int) -> None:
    """Remember how many pages a transaction with this number of operations may have changed."""
    if operations <= _SMALL_COMMIT:
        return
    pages = operations * _PAGES_PER_OPERATION
    all_pages = operations * _NEW_PAGES_PER_OPERATION
    for table in context.tables.values():
        stat = raw.stat(table)
        all_pages += int(stat["branch_pages"]) + int(stat["leaf_pages"])
    context.most_pages = max(context.most_pages, min(pages, all_pages))


def kept_pages(context: EngineContext) -> int:
    """Return how many pages LMDB may keep in memory, at most."""
    most = max(context.most_pages, _SMALL_COMMIT * _PAGES_PER_OPERATION)
    return min(most + _PAGES_PER_COMMIT, _MOST_PAGES)


def clear_memory(context: EngineContext) -> bool:
    """Overwrite the pages that LMDB keeps in memory, for an erasure, under the write lock.

    Returns:
        False when the map is too small for these pages.
    """
    journal = context.journal_or_raise()
    erasures = journal.control.erasures()
    table = context.tables[GARBAGE]
    full = False
    with journal.control.lmdb_lock():
        raw = context.raw.begin(None, None, True, False)
        try:
            for number in range(kept_pages(context)):
                raw.put(_CLEARING + pack_number(number), _ZERO_PAGE, True, True, True, table)
        except lmdb.MapFullError:
            full = True
        raw.abort()
    if not full:
        context.erasures = erasures
        journal.reopen()
    return not full
