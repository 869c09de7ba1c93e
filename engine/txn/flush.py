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
import sys
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate
from streamkeep.engine.system.pages import PAGE, PAGE_HEADER
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext
from streamkeep.engine.txn.page_memory import note_commit
from streamkeep.format.core.errors import StoreFullError, StoreLockedError
from streamkeep.format.journal.position import POSITION_KEY, encode_position
from streamkeep.format.lmdb_file.lmdb_pages import BIG, decode_tree_page
from streamkeep.format.lmdb_file.meta_page import decode_meta_page

_PAGES_BYTES: Final = 65_536  # of the pages that a flush writes, estimated, beside those of rows
_MOST_MEMORY: Final = 64 << 20  # of records in the memtable, while no flush is possible
_LEAST: Final = 65_536  # bytes of records for which room is reserved
_FACTOR: Final = 16  # a flush writes so many times the bytes of small records, in whole pages
_PAGES: Final = 16 << 20  # and at most so much beside twice the bytes of records
_MORE: Final = 4 << 20  # reserved at once, at most
_LEAST_MORE: Final = 1 << 20
_META_PAGES: Final = 2


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
        except (lmdb.MapFullError, lmdb.MapResizedError, lmdb.PanicError):
            raise
        except (lmdb.Error, StoreLockedError):
            if context.memtable.bytes >= _MOST_MEMORY:
                raise


def flush_after(context: EngineContext) -> None:
    if context.memtable.is_big():
        try:  # noqa: SIM105  # `suppress` is interpreted
            _flush_big(context)
        except (lmdb.Error, StoreLockedError):
            pass  # the commit is made; the next command that writes meets the error


def _flush_big(context: EngineContext) -> None:
    """Flush, unless a process opens the store: then the next commit does so, while there is room.

    Nor where a checkpoint has to come first, which the next command makes.

    The caller may be the loop of a server, and that process may be stopped.
    """
    if lacks_pages(context):
        return
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


class OpenReader(NamedTuple):
    """An open snapshot: its process, its thread as LMDB names it, and its commit."""

    process: int
    thread: str
    commit_number: int


def open_readers(raw: lmdb.Environment) -> list[OpenReader]:
    """Return the open snapshots of all processes, from LMDB's table of readers."""
    found = []
    for line in raw.readers().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 3 and fields[2].isdigit():
            found.append(OpenReader(int(fields[0]), fields[1], int(fields[2])))
    return found


def reusable_bytes(context: EngineContext) -> int:
    """Return the bytes of pages that were freed before the oldest snapshot; under the write lock.

    LMDB's list of free pages has a row for each commit, which begins with their number.
    """
    handle = context.data_handle
    newest = int(context.raw.info()["last_txnid"])
    oldest = min([newest, *[one.commit_number for one in open_readers(context.raw)]])
    left: list[int] = []
    for place in (0, PAGE):
        meta = decode_meta_page(os.pread(handle, PAGE, place))
        if meta is not None and meta.commit_number == newest and meta.free_root is not None:
            left.append(meta.free_root)
    pages = 0
    while left:
        number = left.pop()
        page = decode_tree_page(os.pread(handle, PAGE, number * PAGE), number)
        left += page.children
        for index, commit in enumerate(page.keys if page.leaf else []):
            if int.from_bytes(commit, sys.byteorder) < oldest:
                if page.flags[index] == BIG:
                    row = os.pread(handle, 8, page.places[index] * PAGE + PAGE_HEADER)
                else:
                    row = page.inline(index)[:8]
                pages += int.from_bytes(row, sys.byteorder)
    return pages * PAGE


def may_lack_pages(context: EngineContext) -> bool:
    """Return whether a checkpoint may keep a limited store from growing further than it may."""
    return (
        context.max_bytes > 0
        and context.pin is not None
        and int(context.pin.id()) < context.image
        and context.size() + _flush_size(_LEAST) > _most_size(context)
    )


def lacks_pages(context: EngineContext) -> bool:
    """Return whether it does, and a flush is due; under the write lock.

    A transaction of several commands cannot make one: where it has to, it has not begun.
    """
    memtable = context.memtable
    return (
        (memtable.is_big() or memtable.bytes >= memtable.room)
        and may_lack_pages(context)
        and reusable_bytes(context) < _flush_size(_LEAST)
    )


def _most_size(context: EngineContext) -> int:
    return context.max_bytes + max(context.max_bytes // 8, _LEAST_MORE)


def _flush_size(size: int) -> int:
    """Return how many bytes of pages a flush of records of `size` bytes writes, at most."""
    room = max(2 * size, _LEAST)
    return min(_FACTOR * room, 2 * room + _PAGES)


def _reserve(context: EngineContext, size: int) -> int:
    """Have room for a flush of records of `size` bytes; return for how many bytes there is room."""
    raw, handle = context.raw, context.data_handle
    end = context.size()
    room = max(2 * size, _LEAST)
    needed = _flush_size(size)
    reserved = True
    most = int(raw.info()["map_size"])  # beyond it, a flush finds the map full, and that grows
    if context.max_bytes:
        most = min(most, _most_size(context))
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
            if end + needed > most:
                room = min(room, (max(0, most - end) + reusable_bytes(context)) // 2)
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
