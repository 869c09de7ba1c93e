"""LMDB's exceptions as ours: nothing above the engine sees an `lmdb.Error`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from streamkeep.format.core.errors import (
    CorruptionError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StreamkeepError,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.CursorFullError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,  # an earlier call of the same transaction met damage
    lmdb.IncompatibleError,
    lmdb.InvalidError,
)


def translate(error: lmdb.Error) -> StreamkeepError:
    """Return our error for one of LMDB's."""
    code = getattr(error, "code", 0)
    if code == errno.EAGAIN:
        return StoreError(
            f"another process with the process number {os.getpid()} has the store open: two "
            "containers, each with process numbers of its own; give them different ones, or one "
            "process namespace"
        )
    if code == errno.EIO:
        return StoreFullError(
            f"the disk took only a part of what was written ({error}): it is full, or failing; "
            "nothing was changed, and reading still works"
        )
    if isinstance(error, lmdb.PanicError):
        return StoreError(
            "an earlier commit of this process could not be finished; close the store and open it "
            "again"
        )
    if code in _FULL or isinstance(error, lmdb.DiskError):
        return StoreFullError(f"the disk is full ({error}); reading and deleting still work")
    if isinstance(error, lmdb.MapFullError):
        return StoreFullError(
            "the store's map is full; delete or trim entries, or make the transaction smaller"
        )
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(
            "too many readers: every reader slot of the store is taken; close snapshots and "
            "iterators, or close the store everywhere and open it with a higher max_readers"
        )
    if isinstance(error, _DAMAGED):
        return CorruptionError("LMDB", str(error))
    text = str(error)
    if "closed" in text or "deleted/dropped" in text:
        return StoreClosedError("the store, transaction or iterator is closed")
    return StoreError(f"LMDB: {text}")


def translate_os(error: OSError) -> StoreError:
    """Return our error for one of the system's, met while writing."""
    if error.errno in _FULL:
        return StoreFullError(f"the disk is full ({error}); reading and deleting still work")
    return StoreError(f"writing failed: {error}")


@contextmanager
def translated() -> Iterator[None]:
    """Turn LMDB's errors inside the block into ours."""
    try:
        yield
    except lmdb.Error as error:
        raise translate(error) from error
