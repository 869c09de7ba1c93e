"""Sizes of a store: the pages in use, its limit, and the map of a store with a limit."""

from __future__ import annotations

from typing import Final

import lmdb

from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.errors import StoreFullError

_META_PAGES: Final = 2
SMALLEST_STORE: Final = 1 << 20


def used_bytes(context: EngineContext, raw: lmdb.Transaction[bytes]) -> int:
    """Return the bytes of the pages in use, as seen by a transaction."""
    pages = _META_PAGES
    for stat in (raw.stat(), *(raw.stat(table) for table in context.tables.values())):
        pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages * PAGE


def limit_reached(max_store_bytes: int | None) -> StoreFullError:
    """Return the error of a store that has reached its limit."""
    return StoreFullError(
        f"the store has reached max_store_bytes={max_store_bytes}; next: delete or trim entries, "
        "close old snapshots, or raise the limit"
    )


def limited_map(max_store_bytes: int) -> int:
    """Return the size of the map of a store with a limit, which includes a reserve."""
    reserve = max(SMALLEST_STORE, max_store_bytes // 8)
    return (max_store_bytes + reserve) // PAGE * PAGE
