"""Whose turn it is to sync the journal: waves, of which one at a time is at the disk.

While a process syncs, others commit. One sync should then serve all of them, begin as soon as the
running one ends, and wake everybody once. So syncs come in *waves*, which are numbered. Who needs
one looks which wave was begun last and tries to lead the next, by the lock of its number:

- who gets the lock waits until the wave before is over, begins, and syncs all that was committed
  by then;
- who does not waits for that lock shared, so that all who do so wake at once when the wave is over,
  and mostly finds its commit on disk. Else it came when the wave had begun, and tries again.

Two numbers are shared: the wave that was begun last, written by its leader, and the one that was
over last. They only save a leader from waiting for nobody; what counts are the locks, which the
system takes back from a process that is killed. A leader that died before it began leaves its
number to the next, since a lock counts for a wave only if the one before is still the newest.

A lock serves every fourth wave: whoever has just been woken, and holds it shared for a moment more,
is in nobody's way.

A process that has the store for itself takes no locks. Another that opens it in the middle of such
a sync may begin one beside it: two at a time are slow, not wrong. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.safe_files import Folder

TURN_FILE: Final = "turn"
LONE: Final = -1  # the wave of a process that has the store for itself
_LOCKS: Final = 4
_ANY: Final = (1 << 62) - 1  # above every commit number
_flock: Final = fcntl.flock
_TRY_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARED: Final = fcntl.LOCK_SH
_UNLOCK: Final = fcntl.LOCK_UN


class SyncLeader:
    """The locks of a store's waves; one thread at a time may use them."""

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        """Open the files, or create them: they are locked, never written."""
        self.control = control
        self._handles: list[int] = []
        try:
            for number in range(_LOCKS):
                name = f"{TURN_FILE}.{number}"
                self._handles.append(folder.open(name, os.O_RDWR | os.O_CREAT))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def take(self, commit_number: int = _ANY) -> int:
        """Wait until a commit is on disk, or it is the turn of the caller to sync.

        Returns:
            The wave that the caller leads, until `give_back`, or LONE; 0 where others have synced.
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
                    if control.over() + 1 != wave:
                        _await_unlock(self._handles[(wave - 1) % _LOCKS])
                    if control.durable() < commit_number:
                        control.begin_wave(wave)
                        leads = True
                        return wave
            finally:
                if not leads:
                    _unlock(handle)
        return 0

    def give_back(self, wave: int) -> None:
        """End a wave: whoever waits for it goes on."""
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
    """Return when nobody has the lock alone; all who wait return at once."""
    try:
        _flock(handle, _SHARED)
    finally:
        _unlock(handle)
