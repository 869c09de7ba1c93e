"""LMDB's lock file, which LMDB writes through a map whenever a transaction begins or ends.

A block that the file lacks, or that `cp --reflink` or a snapshot of the file system has shared,
needs a new one then, and on a full disk that is a SIGBUS and not an error. So the file gets all its
blocks while no process has the store open. What shares them later is out of reach: see
docs/decisions/0018-blocks-that-move.md.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Final

from streamkeep.engine.system import files
from streamkeep.engine.system.boot_id import mount_of
from streamkeep.engine.system.long_wait import WRITE_LOCK, LongWait, first_byte_writers
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place, moves_blocks

LOCK_FILE: Final = "lock.mdb"  # the name is LMDB's
_POLL_S: Final = 0.005
_READER_SIZE: Final = 64  # bytes per reader; the header takes as many as three readers


def reserve_lock_file(folder: Folder, max_readers: int) -> None:
    """Give LMDB's lock file all its blocks on disk; no process has the store open.

    Where blocks move, an old file may share its blocks with a copy, so it is replaced.
    """
    folder.make_file(LOCK_FILE)
    handle = folder.open(LOCK_FILE, os.O_RDWR)
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
    status = folder.status(LOCK_FILE)
    if status is not None:
        others = partial(first_byte_writers, f"{mount_of(folder.handle)[0]}:{status.st_ino}")
        wait = LongWait(WRITE_LOCK, others)
        with wait:
            while others():
                wait.check()
                time.sleep(_POLL_S)
