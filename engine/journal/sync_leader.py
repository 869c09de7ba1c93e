"""The sync leader: of all callers that wait for a sync, one at a time syncs for the others.

While a process syncs, others commit. One sync should then serve all of them, begin as soon as the
running one ends, and wake each of them once. There is one lock, on a file:

1. The caller that gets the lock at once is the leader. It syncs everything that is committed by
   then, publishes that in the control file, and releases the lock.
2. A caller that does not get it waits for it as a shared lock. So all these callers wake together
   when the sync ends, and most of them find their commit on disk.
3. The others came after the sync had begun. They wait for the lock itself. The first one leads, and
   the next ones find their commits on disk.

The system releases the lock when a process dies, and the next caller leads. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE: Final = "sync"
FORMER_LOCK_FILES: Final = "turn."  # of earlier versions, with a digit
_ANY: Final = (1 << 62) - 1  # above every commit number
_flock: Final = fcntl.flock
_TRY_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_EXCLUSIVE: Final = fcntl.LOCK_EX
_SHARED: Final = fcntl.LOCK_SH
_UNLOCK: Final = fcntl.LOCK_UN


class SyncLeader:
    """The lock of a store's syncs; one thread of a process may use it at a time."""

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        """Open or create the lock file, which is never written."""
        self.control = control
        self._handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def lead(self, commit_number: int = _ANY) -> bool:
        """Wait until a commit is on disk or the caller leads.

        Returns:
            Whether the caller leads, until `end`; False if the commit is on disk.
        """
        control = self.control
        handle = self._handle
        leads = False
        try:
            if not _try_lock(handle):
                _flock(handle, _SHARED)
                if control.durable() >= commit_number:
                    return False
                _flock(handle, _EXCLUSIVE)
            leads = control.durable() < commit_number
            return leads
        finally:
            if not leads:
                _flock(handle, _UNLOCK)

    def end(self) -> None:
        """Release the lock, which wakes the callers that wait for it."""
        _flock(self._handle, _UNLOCK)


def _try_lock(handle: int) -> bool:
    try:
        _flock(handle, _TRY_EXCLUSIVE)
    except BlockingIOError:
        return False
    return True
