"""The sync leader: of all callers that wait for a sync, one at a time syncs for the others.

While a process syncs, others commit, and wait for the lock of a file. The one that gets it next
syncs everything that is committed by then, and publishes that in the control file. The others get
the lock after it, find their commits on disk, and leave at once. The system releases the lock when
a process dies, and the next caller leads. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.long_wait import LongWait, holders_of
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE: Final = "sync"
_ANY: Final = (1 << 62) - 1  # above every commit number
_flock: Final = fcntl.flock
_LOCK: Final = fcntl.LOCK_EX
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


class SyncLeader:
    """The lock of a store's syncs; one thread of a process may use it at a time."""

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        """Open or create the lock file, which is never written."""
        self.control = control
        self.wait = LongWait("the lock of the journal's syncs", self._holders)
        self.wait.progress = control.durable
        self._handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)

    def _holders(self) -> list[int]:
        """Return the process that leads."""
        return holders_of([self._handle])

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
        leads = False
        try:
            with self.wait:
                _flock(self._handle, _LOCK)
            leads = self.control.durable() < commit_number
            return leads
        finally:
            if not leads:
                self.end()

    def try_lead(self) -> bool:
        """Lead if no process does; return whether the caller leads, until `end`."""
        try:
            _flock(self._handle, _TRY)
        except BlockingIOError:
            return False
        return True

    def end(self) -> None:
        """Release the lock."""
        _flock(self._handle, _UNLOCK)
