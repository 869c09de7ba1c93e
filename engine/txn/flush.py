"""Flushing: putting the memtable into LMDB, in one transaction.

A flush that fails leaves the memtable and LMDB as they were, and every commit in the journal. If
the map is full, it is tried again; while the memtable is too big, commands that write raise the
error. After any other error, LMDB makes the next commit itself, with all that the memtable has.
Compiled by mypyc.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import lmdb

from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext
from streamkeep.engine.txn.page_memory import note_commit
from streamkeep.format.journal.position import POSITION_KEY

_PAGES_BYTES: Final = 65_536  # of the pages that a flush writes, estimated, beside those of rows
_RETRY_S: Final = 1.0
# The checkpointer repairs these (the map grows, LMDB is opened again), and flushes then.
_REPAIRED: Final = (lmdb.MapFullError, lmdb.MapResizedError, lmdb.PanicError)

log = logging.getLogger("streamkeep")


def flush(context: EngineContext) -> None:
    """Put the memtable into LMDB; the caller holds the write lock, and the memtable is up to date.

    Raises:
        lmdb.Error: LMDB cannot take it. Nothing has changed.
    """
    memtable = context.memtable
    if not memtable.commits:
        return
    try:
        image = _commit_image(context)
    except lmdb.Error as error:
        context.flush_error = error
        context.flush_at = time.monotonic() + _RETRY_S
        context.direct = not isinstance(error, _REPAIRED)
        raise
    failpoints.hit("flush:ended")
    context.flush_error = None
    context.direct = False
    context.bytes_since_checkpoint += _PAGES_BYTES + memtable.bytes
    if context.size() > context.most_size:
        context.bytes_since_checkpoint = max(context.bytes_since_checkpoint, BUDGET_BYTES)
    with context.apply_lock:
        memtable.clear()
        context.image = image


def _commit_image(context: EngineContext) -> int:
    """Commit the memtable in LMDB; return the number of the transaction."""
    raw = context.raw.begin(None, None, True, False)
    try:
        note_commit(context, raw, context.memtable.write(raw, context.tables))
        raw.put(POSITION_KEY, context.journal_or_raise().row())
        image = int(raw.id())
        failpoints.hit("flush:ending")
        raw.commit()
    except BaseException:
        abort_raw(raw)
        raise
    return image


def flush_if_due(context: EngineContext) -> None:
    """Flush after a commit, which is made whatever happens here."""
    if not context.memtable.is_big():
        return
    if context.flush_error is not None and time.monotonic() < context.flush_at:
        return
    known = context.flush_error
    try:
        flush(context)
    except lmdb.Error as error:
        if isinstance(error, _REPAIRED) and not context.limited:
            context.bytes_since_checkpoint = BUDGET_BYTES
        elif known is None or str(known) != str(error):
            log.warning(
                "%s: the commits since the last flush stay in memory and in the journal, "
                "because data.mdb cannot take them: %s",
                context.raw.path(),
                error,
            )


def has_room(context: EngineContext, size: int) -> bool:
    """Return whether a flush will take a record of `size` bytes, and what the memtable has."""
    memtable, room = context.memtable, context.room
    needed = memtable.bytes + size
    if context.direct or room is None:
        return False
    if needed > memtable.room:
        memtable.room = room.reserve(context.raw, needed)
    return needed <= memtable.room


def check_memory(context: EngineContext) -> None:
    """Make room in the memtable before a command writes.

    Raises:
        lmdb.Error: it is too big, and LMDB cannot take it.
    """
    if context.flush_error is not None and context.memtable.bytes >= context.memtable.most_bytes:
        flush(context)


def abort_raw(raw: lmdb.Transaction[bytes]) -> None:
    """End a write transaction of LMDB without its changes."""
    raw.abort()
