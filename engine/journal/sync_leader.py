"""The sync leader: of all callers that wait for a sync, one at a time syncs for the others.

While a process syncs, others commit. One sync should then serve all of them, begin as soon as the
running one ends, and wake each of them once. So syncs come in numbered *waves*. A caller that needs
a sync takes the number after the wave that was begun last, and tries to lock the file of that
number:

1. The caller that gets the lock is the leader of the wave. It waits until the wave before has
   ended, begins, and syncs everything that is committed by then.
2. A caller that does not get the lock waits for it as a shared lock. So all these callers wake
   together when the wave ends. Most of them find their commit on disk. The others came after the
   wave had begun, and try again.

The control file holds the wave that was begun last and the wave that ended last. They only save
needless waits; correctness rests on the locks, which the system releases when a process is
killed. A leader that died before it began leaves its number to the next one, because a lock counts
for a wave only if the wave before is still the newest. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE_PREFIX: Final = "turn"
# The wave of a process that has the store to itself; it takes no locks. If another process opens
# the store during such a sync, both may sync at once, which is slow but correct.
LONE: Final = -1
# Four locks take turns, so that a process that has just been woken and still holds a shared lock
# does not block the next leader.
_LOCKS: Final = 4
_ANY: Final = (1 << 62) - 1  # above every commit number
_flock: Final = fcntl.flock
_TRY_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARED: Final = fcntl.LOCK_SH
_UNLOCK: Final = fcntl.LOCK_UN


class SyncLeader:
    """The locks of a store's waves; one thread of a process may use them at a time."""

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        """Open or create the lock files, which are never written."""
        self.control = control
        self._handles: list[int] = []
        try:
            for number in range(_LOCKS):
                name = f"{LOCK_FILE_PREFIX}.{number}"
                self._handles.append(folder.open(name, os.O_RDWR | os.O_CREAT))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def lead(self, commit_number: int = _ANY) -> int:
        """Wait until a commit is on disk or the caller leads a wave.

        Returns:
            The wave that the caller leads until `end`, or LONE; 0 if the commit is on disk.
        """
        control = self.control
        if not control.is_shared():
            return LONE if control.durable() < commit_number else 0
        while control.durable() < commit_number:
            wave = control.begun() + 1
            handle = self._handles[wave % _LOCKS]
            leads = False
            try:
                if not _try_lock(handle):
                    _await_unlock(handle)
                elif control.begun() + 1 == wave:
                    if control.ended() + 1 != wave:
                        _await_unlock(self._handles[(wave - 1) % _LOCKS])
                    if control.durable() < commit_number:
                        control.begin_wave(wave)
                        leads = True
                        return wave
            finally:
                if not leads:
                    _unlock(handle)
        return 0

    def end(self, wave: int) -> None:
        """End a wave, which wakes the callers that wait for it."""
        if wave == LONE:
            return
        self.control.end_wave(wave)
        _unlock(self._handles[wave % _LOCKS])


def _try_lock(handle: int) -> bool:
    try:
        _flock(handle, _TRY_EXCLUSIVE)
    except BlockingIOError:
        return False
    return True


def _unlock(handle: int) -> None:
    _flock(handle, _UNLOCK)


def _await_unlock(handle: int) -> None:
    """Return when no process holds the lock exclusively; all waiting processes return together."""
    try:
        _flock(handle, _SHARED)
    finally:
        _unlock(handle)
