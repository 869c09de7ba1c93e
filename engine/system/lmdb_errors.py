"""Errors of LMDB and of the system as ours: no caller of the engine sees an `lmdb.Error`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from streamkeep.engine.system.owners import user_name
from streamkeep.format.core import errors

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.CursorFullError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,  # an earlier call of the same transaction met damage
    lmdb.IncompatibleError,
    lmdb.InvalidError,
)


def translate(error: lmdb.Error) -> errors.StreamkeepError:
    code = getattr(error, "code", 0)
    if code == errno.EAGAIN:
        return errors.StoreError(
            f"another process with process number {os.getpid()} has the store open, probably in "
            "another container; next: run both containers in one process namespace"
        )
    if code == errno.EIO:
        return errors.StoreFullError(
            f"the disk accepted only a part of a write ({error}): it is full or failing; nothing "
            "was changed, and reading still works; next: free disk space and check the disk"
        )
    if isinstance(error, lmdb.PanicError):
        return errors.StoreError(
            "an earlier commit of this process could not be finished; next: close the store and "
            "open it again"
        )
    if code in FULL or isinstance(error, lmdb.DiskError):
        return errors.StoreFullError(_disk_full(error))
    if isinstance(error, lmdb.MapFullError):
        return errors.StoreFullError(
            "the store's map is full; next: call again, delete or trim entries, close old "
            "snapshots, or raise max_store_bytes"
        )
    if isinstance(error, lmdb.ReadersFullError):
        return errors.StoreError(
            "too many readers: every reader slot of the store is taken; next: close snapshots and "
            "iterators, or close the store everywhere and open it with a higher max_readers"
        )
    if isinstance(error, _DAMAGED):
        return errors.CorruptionError("LMDB", str(error))
    text = str(error)
    if "closed" in text or "deleted/dropped" in text:
        return errors.StoreClosedError(
            "the store, transaction or iterator is closed; next: open it, or begin it, again"
        )
    return errors.StoreError(f"LMDB: {text}")


def translate_os(error: OSError) -> errors.StoreError:
    """Return our error for an error of the system, met by a call on the files of a store."""
    if error.errno in FULL:
        return errors.StoreFullError(_disk_full(error))
    if error.errno in NO_DESCRIPTORS:
        return errors.StoreError(
            f"this process or the system has as many files open as it may ({error}); next: "
            "close files, or raise the limit (ulimit -n), then call again"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return errors.StoreError(
            f"{error.filename or 'a file of the store'}: no permission for user "
            f"{user_name(os.geteuid())}; next: give this file the mode and the group of data.mdb, "
            "or work as its owner"
        )
    return errors.StoreError(f"the system refuses a call on a file of the store: {error}")


def _disk_full(error: Exception) -> str:
    return (
        f"the disk is full ({error}); reading still works, and deleting in a store that is open; "
        "next: make room on it, or delete or trim entries"
    )


@contextmanager
def translated(*, system: bool = False) -> Iterator[None]:
    """Translate LMDB's errors inside the block, and those of a process without descriptors.

    With `system`, also all others, which else may be about a file of the caller: a copy's target.
    """
    try:
        yield
    except lmdb.Error as error:
        raise translate(error) from error
    except OSError as error:
        if not system and error.errno not in NO_DESCRIPTORS:
            raise
        raise translate_os(error) from error
