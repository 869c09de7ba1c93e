"""Beginning transactions, and running one command in a transaction of its own.

A process commits only while it has a pin (`checkpoint`), so that the pages of the newest checkpoint
are not reused. `begin_write` raises `CheckpointNeeded` when there is no pin, before anything has
happened. Compiled by mypyc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import lmdb

from streamkeep.engine.journal.control_file import WANTED_TO_READ
from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.deferral import CheckpointNeeded
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, RecoveryNeededError

_PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.0002
_get_ident: Final = threading.get_ident


def begin_read(context: EngineContext) -> ReadTxn:
    """Begin a read transaction at the newest commit."""
    deferral = context.deferral
    if deferral.raw is not None or deferral.lags:
        _show_own(context)
    control = context.control
    deadline = 0.0
    deferred = -1
    while True:
        with context.gate:
            context.check_open()
            if deferred < 0:  # every commit that has returned is in one of the two
                deferred = 0 if control is None else control.newest_deferred()
            raw = context.raw.begin(None, None, False, False)
            context.entered += 1
        txn = ReadTxn(context, raw)
        if deferred <= context.shown or context.writer == _get_ident():
            return txn
        if txn.newest_commit() >= deferred:
            context.shown = deferred
            return txn
        txn.close()
        deadline = deadline or time.monotonic() + _PATIENCE_S
        _show_theirs(context, deferred, deadline)


def _show_own(context: EngineContext) -> None:
    """End the deferred transaction of this process, so that a snapshot shows its commits."""
    if context.writer == _get_ident():
        return  # this thread is in a command, whose changes no snapshot shows either
    deferral = context.deferral
    with context.write_lock:
        deferral.end(forced=True)
        if deferral.lags:
            context.check_open()
            deferral.catch_up()


def _show_theirs(context: EngineContext, commit_number: int, deadline: float) -> None:
    """Have the commits made in LMDB that another process has deferred."""
    control = context.control
    assert control is not None
    with context.gate:
        context.check_open()
        control.want(WANTED_TO_READ)
        process = control.deferring()
    if context.journal is not None and context.writer != _get_ident():
        with context.write_lock:
            context.check_open()
            context.deferral.catch_up()
        return
    if time.monotonic() > deadline:  # a process that only reads cannot replay
        raise RecoveryNeededError(
            f"data.mdb lacks commits up to {commit_number}, which process {process} "
            "has deferred and does not make; next: let that process go on if it is stopped, or "
            "open the store for writing once, which makes them"
        )
    time.sleep(_POLL_S)


def begin_write(context: EngineContext, *, own: bool = False, durable: bool = False) -> WriteTxn:
    """Wait for the write lock, of this process and of all others, and begin a transaction.

    Args:
        own: LMDB commits this transaction by itself. Otherwise the commit may be deferred.
        durable: the caller waits until the commit is on disk.
    """
    context.check_not_writing()
    context.write_lock.acquire()
    try:
        context.check_open()
        journal = context.journal
        if (
            journal is None
            or context.pin is None
            or not journal.control.may_write(context.erasures)
        ):
            raise CheckpointNeeded
        deferral = context.deferral
        if not own and (
            deferral.raw is not None or (deferral.pays(durable) and deferral.begin(journal))
        ):
            raw = deferral.raw
            assert raw is not None
            context.writer = _get_ident()
            return WriteTxn(context, raw, True)
        raw = deferral.begin_own()
        if not (
            journal.is_usable()
            and journal.control.may_write(context.erasures)  # another process was waited for
        ):
            raw.commit()  # nothing was written; an abort would wait for readers
            raise CheckpointNeeded
        context.writer = _get_ident()
        return WriteTxn(context, raw, False)
    except BaseException:
        context.writer = 0
        context.write_lock.release()
        raise


def run_write(
    context: EngineContext,
    command: Callable[..., object],
    args: tuple[object, ...],
    wait: bool,
    durable: bool = False,
) -> object:
    """Run `command(txn, *args)` in a write transaction of its own, and commit.

    Args:
        wait: return when the commit is on disk.
        durable: the caller waits for that itself, later.
    """
    durable = durable or wait
    txn = begin_write(context, durable=durable)
    txn.durable = durable
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
    """Run `command(*args)` under the write lock.

    For interpreted callers: since Python 3.14 an interrupt may come between the lock's `__enter__`
    and the block of an interpreted `with`, and the lock would stay held.
    """
    with context.write_lock:
        return command(*args)


def run_brief(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Run `command(txn, *args)`, which reads little, through the open deferred transaction.

    So a program that writes and reads in turns need not end it each time. Without such a
    transaction the command runs on a snapshot.
    """
    txn = _join(context)
    if txn is None:
        return run_read(context, command, args)
    try:
        result = command(txn, *args)
    except CommandError:  # raised before anything has happened
        txn.leave()
        raise
    except BaseException:
        txn.abort()
        raise
    txn.leave()
    return result


def _join(context: EngineContext) -> WriteTxn | None:
    """Take the write lock and return the open deferred transaction; None if there is none."""
    deferral = context.deferral
    if deferral.raw is None or context.writer == _get_ident():
        return None
    context.write_lock.acquire()
    try:
        raw = deferral.raw
        if raw is not None and not context.closed:
            context.writer = _get_ident()
            return WriteTxn(context, raw, True)
    except BaseException:
        context.writer = 0
        context.write_lock.release()
        raise
    context.write_lock.release()
    return None


def run_read(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Run `command(txn, *args)` on a snapshot of its own."""
    try:
        txn = begin_read(context)
    except lmdb.Error:
        if not context.deferral.lags or context.writer == _get_ident():
            raise
        return _run_lagging(context, command, args)
    try:
        return command(txn, *args)
    finally:
        txn.close()


def _run_lagging(
    context: EngineContext, command: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Run a reading command although LMDB cannot take the commits that it lacks.

    They are replayed into a transaction that is undone afterwards.
    """
    with context.write_lock:
        txn = ReadTxn(context, context.deferral.begin_replayed())
        with context.gate:
            context.entered += 1
        try:
            return command(txn, *args)
        finally:
            txn.close()
