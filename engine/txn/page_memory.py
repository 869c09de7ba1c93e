"""What LMDB keeps in memory of pages that were written, and how an erasure clears it.

LMDB uses the memory of changed pages again and again, and does not clear it: what one commit wrote
would stand in the unused parts of pages of a later one. As many pages of zeros as may be in memory
are put into a transaction, which is undone. How many that are is known only as a bound, from the
number of operations of the biggest transaction so far. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

import lmdb

from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.keys import GARBAGE, pack_number
from streamkeep.format.node.envelope import PAGE_VALUE

SMALL_COMMIT: Final = 64  # operations; who makes no more of them need not tell
_PAGES_PER_OPERATION: Final = 24  # that LMDB touches at most: ways to leaves, splits, merges
_NEW_PAGES_PER_OPERATION: Final = 3  # the value's own, and splits
_PAGES_PER_COMMIT: Final = 256  # besides: roots, free list
_MOST_PAGES: Final = 131_072  # that LMDB holds changed in memory
_CLEARING: Final = b"\xff" * 8  # above every other key of the table
_ZERO_PAGE: Final = bytes(PAGE_VALUE)


def note_commit(
    context: EngineContext, raw: lmdb.Transaction[bytes], operations: int, *, aborted: bool
) -> None:
    """Remember how many pages a transaction of so many operations may have changed."""
    pages = operations * _PAGES_PER_OPERATION
    if not aborted:
        all_pages = operations * _NEW_PAGES_PER_OPERATION
        for table in context.tables.values():
            stat = raw.stat(table)
            all_pages += int(stat["branch_pages"]) + int(stat["leaf_pages"])
        pages = min(pages, all_pages)
    context.most_pages = max(context.most_pages, pages)


def kept_pages(context: EngineContext) -> int:
    """Return how many pages LMDB may keep in memory, at most."""
    most = max(context.most_pages, SMALL_COMMIT * _PAGES_PER_OPERATION)
    return min(most + _PAGES_PER_COMMIT, _MOST_PAGES)


def clear_memory(context: EngineContext) -> bool:
    """Overwrite what LMDB keeps in memory; an erasure calls for it.

    Returns:
        False when the map is too small for so many pages.
    """
    journal = context.journal
    assert journal is not None
    context.check_not_writing()
    with context.write_lock:
        context.check_open()
        raw = context.raw.begin(None, None, True, False)
        erasures = journal.control.erasures()
        table = context.tables[GARBAGE]
        full = False
        try:
            for number in range(kept_pages(context)):
                raw.put(_CLEARING + pack_number(number), _ZERO_PAGE, True, True, True, table)
        except lmdb.MapFullError:
            full = True
        del raw  # an abort by name would wait for readers; see `WriteTxn._abort_raw`
        if not full:
            context.erasures = erasures
            journal.forget()
        return not full
