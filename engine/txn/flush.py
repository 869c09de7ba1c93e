"""Flushing: putting the memtable into LMDB, in one transaction; and the room that this takes.

A flush that fails leaves the memtable and LMDB as they were, and every commit in the journal. It is
tried again before each command that writes. While it fails, only commands that make room may
commit, until the memtable is too big.

What the memtable has is acknowledged. If LMDB could not take it, no command could make room either:
what it frees can be used after the next flush only. So before a commit, room for the next flush is
reserved at the end of `data.mdb`, where LMDB adds pages. Where there is none, only a commit for
which free pages suffice is made, and whatever makes room. Compiled by mypyc.
"""

from __future__ import annotations

import os
from typing import Final

import lmdb

from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext
from streamkeep.engine.txn.overlay import encoded
from streamkeep.engine.txn.page_memory import note_commit
from streamkeep.format.core.errors import StoreFullError, StoreLockedError
from streamkeep.format.journal.position import POSITION_KEY, encode_position

_PAGES_BYTES: Final = 65_536  # of the pages that a flush writes, estimated, beside those of rows
_MOST_MEMORY: Final = 64 << 20  # of records in the memtable, while no flush is possible
_LEAST: Final = 65_536  # bytes of records for which room is reserved
_FACTOR: Final = 16  # a flush writes so many times the bytes of small records, in whole pages
_PAGES: Final = 16 << 20  # and at most so much beside twice the bytes of records
_MORE: Final = 4 << 20  # reserved at once, at most
_META_PAGES: Final = 2
_PAGES_PER_ROW: Final = 3
_SPARE: Final = 1 << 20  # of the map, for LMDB's list of free pages


def flush(context: EngineContext, *, patient: bool = True) -> None:
    """Put the memtable into LMDB; the caller holds the write lock.

    Args:
        patient: wait for a process that opens the store.

    Raises:
        lmdb.Error: LMDB cannot take it. Nothing has changed.
        StoreLockedError: a process that opens the store is stopped. Nothing has changed.
        BlockingIOError: a process opens the store, and `patient` is False. Nothing has changed.
    """
    memtable = context.memtable
    if memtable.commits:  # another process may have put all of it into LMDB: see `begin_view`
        context.catch_up()
    if not memtable.commits:
        return
    journal = context.journal_or_raise()
    with journal.control.lmdb_lock(patient):
        try:
            image = _write_image(context)
        except lmdb.Error as error:
            full = not isinstance(error, lmdb.MapFullError)
            if not (full and isinstance(translate(error), StoreFullError)):
                raise
            # Where blocks move, pages that were written in vain need new blocks the next time. And
            # without a flush, what the journal keeps for deletions frees nothing.
            cut_room(context)
            journal.drop_recycled()
            image = _write_image(context)
    failpoints.hit("flush:ended")
    context.bytes_since_checkpoint += _PAGES_BYTES + memtable.bytes
    if context.size() > context.most_size:
        context.bytes_since_checkpoint = max(context.bytes_since_checkpoint, BUDGET_BYTES)
    with context.apply_lock:
        memtable.clear()
        context.image = image


def cut_room(context: EngineContext) -> None:
    """Cut the data file after its last page."""
    end = context.size()
    if os.fstat(context.data_handle).st_size > end:
        try:  # noqa: SIM105  # `suppress` is interpreted
            os.ftruncate(context.data_handle, end)
        except OSError:
            pass  # a disk that is read-only after an error, for example: the room stays


def _write_image(context: EngineContext) -> int:
    """Put the memtable into LMDB in one transaction; return its number."""
    raw = context.raw.begin(None, None, True, False)
    try:
        note_commit(context, raw, context.memtable.write(raw, context.tables))
        position = context.journal_or_raise().log.position
        raw.put(POSITION_KEY, encode_position(*position))
        image = int(raw.id())
        failpoints.hit("flush:ending")
        raw.commit()
    except BaseException:
        raw.abort()
        raise
    return image


def flush_before(context: EngineContext) -> None:
    """Flush before a command if that is due, unless the disk is full: the command may make room.

    Raises:
        lmdb.Error: it can be repaired, or the memtable is too big.
        StoreLockedError: as in `flush`, and the memtable is too big.
    """
    if context.memtable.is_big():
        try:
            _flush_big(context)
        except (lmdb.MapResizedError, lmdb.PanicError):
            raise
        except (lmdb.Error, StoreLockedError) as error:
            repairs = isinstance(error, lmdb.MapFullError) and (
                not context.max_bytes
                or is_pinned_late(context)
                or map_needed(context) > int(context.raw.info()["map_size"])
            )
            if repairs or context.memtable.bytes >= _MOST_MEMORY:
                raise


def flush_after(context: EngineContext) -> None:
    if context.memtable.is_big():
        try:  # noqa: SIM105  # `suppress` is interpreted
            _flush_big(context)
        except (lmdb.Error, StoreLockedError):
            pass  # the commit is made; the next command that writes meets the error


def _flush_big(context: EngineContext) -> None:
    """Flush, unless a process opens the store: then the next commit does so, while there is room.

    The caller may be the loop of a server, and that process may be stopped.
    """
    try:  # noqa: SIM105  # `suppress` is interpreted
        flush(context, patient=context.memtable.bytes >= _MOST_MEMORY)
    except BlockingIOError:
        pass


def make_room(context: EngineContext, size: int) -> bool:
    """Have room for a flush of a record of `size` bytes, and of what the memtable has.

    Returns:
        False if there is no such room.

    Raises:
        lmdb.Error: LMDB cannot even take what the memtable has.
        StoreLockedError: as in `flush`.
    """
    memtable = context.memtable
    if memtable.is_big():
        _flush_big(context)
    needed = memtable.bytes + size
    if needed > memtable.room:
        memtable.room = _reserve(context, needed)
        if needed > memtable.room and memtable.commits:
            flush(context)
            needed = size
            memtable.room = _reserve(context, needed)
    return needed <= memtable.room


def is_pinned_late(context: EngineContext) -> bool:
    """Return whether a checkpoint lets pages be reused, since flushes have followed the last one.

    A transaction of several commands cannot make one: where it may have to, it has not begun.
    """
    return context.pin is not None and int(context.pin.id()) < context.image


def map_needed(context: EngineContext) -> int:
    """Return the size of a map in which a flush succeeds once all free pages can be reused.

    A small row takes a page that it shares, one of its own, and one of a branch. But no more pages
    are written anew than there are. 0 while this process has a snapshot open: its map cannot grow.
    """
    if context.entered != context.left:
        return 0
    txn = context.raw.begin(None, None, False, False)
    used = used_bytes(context, txn)
    txn.abort()
    rows = size = 0  # not that of the records: these may have a row again and again
    with context.apply_lock:
        for table in context.memtable.tables.values():
            rows += len(table.rows)
            for value in table.rows.values():
                size += 0 if value is None else len(encoded(value))
    needed = used + min(_PAGES_PER_ROW * PAGE * rows, used) + 2 * size + _SPARE
    return needed // PAGE * PAGE


def _reserve(context: EngineContext, size: int) -> int:
    """Have room for a flush of records of `size` bytes; return for how many bytes there is room."""
    raw, handle = context.raw, context.data_handle
    end = context.size()
    room = max(2 * size, _LEAST)
    needed = min(_FACTOR * room, 2 * room + _PAGES)
    reserved = True
    most = int(raw.info()["map_size"])  # beyond it, a flush finds the map full, and that grows
    if end + needed <= most:
        there = os.fstat(handle).st_size
        if there < end + needed:
            try:
                files.reserve(handle, end + needed + min(needed, _MORE), there)
            except OSError:
                reserved = False
    if not reserved or context.max_bytes:
        txn = raw.begin(None, None, False, False)
        used = used_bytes(context, txn)
        txn.abort()
        if not reserved:
            room = (end - used) // 2
        if context.max_bytes:
            room = min(room, (context.max_bytes - used) * 4 // 5)
    return room


def used_bytes(context: EngineContext, raw: lmdb.Transaction[bytes]) -> int:
    """Return the bytes of the pages in use, as seen by a transaction."""
    pages = _META_PAGES
    for stat in [raw.stat(), *[raw.stat(table) for table in context.tables.values()]]:
        pages += int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])
    return pages * PAGE


def no_room(context: EngineContext) -> StoreFullError:
    if context.max_bytes:
        return StoreFullError(
            f"the store has reached max_store_bytes={context.max_bytes}; next: delete or trim "
            "entries, close old snapshots, or raise the limit"
        )
    return StoreFullError(
        "the disk is full; reading and deleting still work; next: make room on it, or delete or "
        "trim entries"
    )
