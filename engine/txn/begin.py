"""Beginning transactions, and running one command in a transaction of its own.

A process commits only while it has a pin (`checkpoint`), so that no flush reuses the pages of the
newest checkpoint. `begin_write` raises `CheckpointNeeded` when there is no pin, before anything has
happened. Compiled by mypyc.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.engine.txn.context import EngineContext, position_in
from streamkeep.engine.txn.flush import cut_room, flush_before, lacks_pages
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StreamkeepError

_get_ident: Final = threading.get_ident


class CheckpointNeeded(StreamkeepError):
    """This process must make a checkpoint, or clear its memory, before it can commit."""


def begin_read(context: EngineContext) -> ReadTxn:
    """Begin a read transaction at the newest commit.

    Raises:
        RecoveryNeededError: the journal lacks commits that were made.
    """
    with context.gate:
        context.check_open()
        with context.apply_lock:
            raw = context.begin_view()
            log = context.log
            commit_number = position_in(raw).commit_number if log is None else log.commit_number
            over = context.memtable.freeze()
            context.entered += 1
            return ReadTxn(context, raw, over, commit_number)


def begin_stored(context: EngineContext) -> ReadTxn:
    """Begin a read transaction of what `data.mdb` has now, whatever the journal has."""
    with context.gate:
        context.check_open()
        raw = context.raw.begin(None, None, False, False)
        commit_number = position_in(raw).commit_number
        context.entered += 1
        txn = ReadTxn(context, raw, {}, commit_number)
        txn.group_counts = {}  # the memtable may have others
        return txn


def begin_write(
    context: EngineContext, *, durable: bool = False, frees: bool = False, most_s: float = -1.0
) -> WriteTxn:
    """Wait for the write lock, of this process and of all others, and begin a transaction.

    Args:
        durable: the caller waits until the commit is on disk.
        frees: it makes room, so that it may go past the limit of a full store.
        most_s: about how long to wait; -1 for no limit.

    Raises:
        CheckpointNeeded, StillTaken: nothing has happened.
        StoreLockedError: another process that has the lock is stopped.
        lmdb.Error: LMDB cannot take what the memtable has, and that is too big.
    """
    context.check_not_writing()
    take_write(context, durable, most_s)
    try:
        journal = context.journal
        if (
            journal is None
            or context.pin is None
            or not journal.control.may_write(context.erasures)
            or lacks_pages(context)
        ):
            raise CheckpointNeeded
        context.follow()
        flush_before(context)
        txn = WriteTxn(context, None)
        txn.durable = durable
        txn.frees = frees
        return txn
    except BaseException:
        context.release_write()
        raise


def take_write(context: EngineContext, durable: bool = False, most_s: float = -1.0) -> None:
    """Wait for the write lock, of this process and of all others; `release_write` releases it."""
    if not context.thread_lock.acquire(timeout=most_s):
        raise StillTaken
    context.writer = _get_ident()
    try:
        context.check_open()
        if context.write_lock is not None:
            context.write_lock.acquire(durable, most_s if most_s >= 0 else math.inf)
    except BaseException:
        context.release_write()
        raise


def await_write(context: EngineContext) -> None:
    """Wait until a transaction can begin, and keep the write lock for the thread that begins it.

    Otherwise a process with one long transaction after the other would have it again by then.
    """
    txn = begin_write(context)
    if context.write_lock is not None:
        context.write_lock.keep(time.monotonic_ns())
    txn.abort()


def run_write(
    context: EngineContext,
    command: Callable[..., object],
    args: tuple[object, ...],
    wait: bool,
    durable: bool = False,
    frees: bool = False,
    most_s: float = -1.0,
) -> object:
    """Run `command(txn, *args)` in a write transaction of its own, and commit.

    Args:
        wait: return when the commit is on disk.
        durable: the caller waits for that itself, later.
        frees: it makes room, so that it may go past the limit of a full store.
    """
    txn = begin_write(context, durable=durable or wait, frees=frees, most_s=most_s)
    try:
        result = command(txn, *args)
        txn.commit()
    finally:
        txn.abort()
    if wait:
        txn.wait()
    return result


def run_locked(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Run `command(*args)` under the write lock, with the memtable up to date.

    For interpreted callers: since Python 3.14 an interrupt may come between the lock's `__enter__`
    and the block of an interpreted `with`, and the lock would stay held.
    """
    context.check_not_writing()
    take_write(context)
    try:
        context.catch_up()
        return command(*args)
    finally:
        context.release_write()


def release_room(context: EngineContext) -> None:
    """Cut the data file after its last page, unless another process may have reserved room."""
    take_write(context)  # and begin no transaction: another process may have made the map bigger
    try:
        if not context.journal_or_raise().control.is_shared():
            cut_room(context)
            context.memtable.room = 0  # a commit that failed may have left some
    finally:
        context.release_write()


def run_read(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    txn = begin_read(context)
    try:
        # Of each thread its own: others may be looking into theirs.
        known: dict[bytes, Stream] | None = getattr(context.of_thread, "streams", None)
        if known is None:
            known = context.of_thread.streams = {}
        txn.known = known
        return command(txn, *args)
    finally:
        txn.close()
