"""LMDB's lock file, which LMDB writes through a map whenever a transaction begins or ends.

A block that the file lacks, or that `cp --reflink` or a snapshot of the file system has shared,
needs a new one then, and on a full disk that is a SIGBUS and not an error. So the file gets all its
blocks while no process has the store open. What shares them later is out of reach: see
docs/decisions/0018-blocks-that-move.md.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from functools import partial
from typing import Final

from streamkeep.engine.system import files
from streamkeep.engine.system.long_wait import WRITE_LOCK, LongWait
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place, moves_blocks

LOCK_FILE: Final = "lock.mdb"  # the name is LMDB's
_POLL_S: Final = 0.005
_READER_SIZE: Final = 64  # bytes per reader; the header takes as many as three readers
_flock: Final = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, process
_FIRST_BYTE: Final = _flock.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)


def reserve_lock_file(folder: Folder, max_readers: int) -> None:
    """Give LMDB's lock file all its blocks on disk; no process has the store open.

    Where blocks move, an old file may share its blocks with a copy, so it is replaced.
    """
    handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(handle).st_size
        if size and moves_blocks(handle):
            folder.remove(LOCK_FILE)
            old, handle = handle, folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.close(old)
            size = 0
        if not size:
            keep_in_place(handle)
        files.reserve(handle, _READER_SIZE * (max_readers + 2))
    finally:
        os.close(handle)


def wait_for_others(folder: Folder) -> None:
    """Wait while another process is the first one that opens LMDB, or the last one that closes it.

    LMDB waits for that without a limit.

    Raises:
        StoreLockedError: the other process is stopped.
    """
    if folder.status(LOCK_FILE) is None:
        return
    # Closing it ends such locks of this process, which has LMDB not open. /proc/locks would show
    # them as well, but to read it stops all file locks of the system for up to 15 ms.
    handle = folder.open(LOCK_FILE)
    try:
        others = partial(_first_byte_writers, handle)
        wait = LongWait(WRITE_LOCK, others)
        with wait:
            while others():
                wait.check()
                time.sleep(_POLL_S)
    finally:
        os.close(handle)


def _first_byte_writers(handle: int) -> list[int]:
    """Return who has the exclusive lock of fcntl(2) on the first byte of a file."""
    found = fcntl.fcntl(handle, fcntl.F_GETLK, _FIRST_BYTE)
    kind, _, _, _, process = _flock.unpack(found)
    return [process] if kind == fcntl.F_WRLCK else []
