"""Beginning transactions, and running one command in a transaction of its own.

A process commits only while it has a pin (`checkpoint`), so that the pages of the newest checkpoint
are not reused. `begin_write` raises `CheckpointNeeded` when there is no pin, before anything has
happened. Compiled by mypyc.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.txn import ReadTxn, WriteTxn
from streamkeep.format.core.errors import StreamkeepError

_get_ident: Final = threading.get_ident


class CheckpointNeeded(StreamkeepError):
    """A checkpoint must be made first, or the memory cleared after an erasure.

    The process has no pin, or the journal has no log position, or a sync has failed.
    """


def begin_read(context: EngineContext) -> ReadTxn:
    """Begin a read transaction at the newest commit."""
    with context.gate:
        context.check_open()
        raw = context.raw.begin(None, None, False, False)
        context.entered += 1
    return ReadTxn(context, raw)


def begin_write(context: EngineContext) -> WriteTxn:
    """Wait for the write lock, of this process and of all others, and begin a transaction."""
    context.check_not_writing()
    context.write_lock.acquire()
    try:
        context.check_open()
        raw = context.raw.begin(None, None, True, False)
        journal = context.journal
        if (
            journal is None
            or context.pin is None
            or not journal.control.may_write(context.erasures)
            or not journal.locate(raw.id() - 1)
        ):
            raw.commit()  # nothing was written; an abort would wait for readers
            raise CheckpointNeeded
        context.writer = _get_ident()
        return WriteTxn(context, raw)
    except BaseException:
        context.writer = 0
        context.write_lock.release()
        raise


def run_write(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...], wait: bool
) -> object:
    """Run `command(txn, *args)` in a write transaction of its own, and commit.

    Args:
        wait: return when the commit is on disk.
    """
    txn = begin_write(context)
    txn.durable = wait
    try:
        result = command(txn, *args)
        txn.commit()
    finally:
        txn.abort()
    if wait:
        txn.wait()
    return result


def run_read(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Run `command(txn, *args)` on a snapshot of its own."""
    txn = begin_read(context)
    try:
        return command(txn, *args)
    finally:
        txn.close()
