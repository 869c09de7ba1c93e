"""Sizes of a store: its limit, and its map."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.errors import StoreError

SMALLEST_STORE: Final = 1 << 20
LARGEST_STORE: Final = 1 << 46  # its map, an eighth larger, fits into the addresses of a process
READERS_WAIT_S: Final = 10.0
_POLL_S: Final = 0.001
_GATE_S: Final = 0.1


def limited_map(max_store_bytes: int) -> int:
    """Return the size of the map of a store with a limit.

    Only pages in use count for the limit. The map has a reserve for commands that make room, and
    for pages that snapshots keep.
    """
    reserve = max(SMALLEST_STORE, max_store_bytes // 8)
    return (max_store_bytes + reserve) // PAGE * PAGE


@contextmanager
def without_transactions(
    context: EngineContext, checkpoints: Checkpoints | None, why: str
) -> Iterator[None]:
    """Run the block while this process has no transaction of LMDB open, not even a pin.

    The caller holds the lock of the checkpoints, and no write transaction.

    Raises:
        StoreError: a snapshot or iterator of this process stays open.
    """
    deadline = time.monotonic() + READERS_WAIT_S
    while True:
        with context.write_lock, context.gate:
            if _is_unread(context):
                context.forget()
                if checkpoints is not None:
                    checkpoints.unpin()
                yield
                return
        if time.monotonic() > deadline:
            raise StoreError(
                f"{why}, which open snapshots and iterators of this process prevent; close them"
            )
        time.sleep(_GATE_S)  # others may begin, and write


def _is_unread(context: EngineContext) -> bool:
    """Return whether this process has no snapshot open; wait a moment for those of commands."""
    end = time.monotonic() + _GATE_S
    while context.left < context.entered:
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
