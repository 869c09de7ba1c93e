"""The write lock of a store, among processes: who holds it may append to the journal.

It is two file locks, which the system releases when a process dies. A process that wants to write
takes its *turn* first, and gives it back as soon as it has the lock itself. So at most one process
waits for the lock, and the one that has just used it comes after those that wait. During a slice of
SLICE_NS from then on, a process takes the lock for its next commits without its turn, so that the
lock changes hands 1,000 times a second at most: each time, a process first applies what the others
have committed.

A process that has the store open alone keeps the lock after commits that follow each other closely:
two calls of the system would take a quarter of the time of a small one. It releases the lock at its
next commit after another process has opened the store, and at the latest in `release_idle`, which
the checkpointer calls twice a second. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.long_wait import LongWait, holders_of
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE: Final = "write"
TURN_FILE: Final = "turn"
SLICE_NS: Final = 1_000_000
_CLOSE_NS: Final = 5_000_000  # between commits that follow each other closely
_QUIET_NS: Final = 20_000  # without a commit, after which a slice counts as not used any more
_POLL_S: Final = 0.0001
_STILL_NS: Final = 10_000_000  # without a commit, after which a waiting process looks less often
_STILL_POLL_S: Final = 0.001
_SLACK_NS: Final = 100_000  # sleeping takes up to 60 us longer than asked for
_flock: Final = fcntl.flock
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


def _nothing() -> None:
    """Follow no other process."""


class WriteLock:
    """The lock of one store; one thread of a process may use it at a time.

    Attributes:
        wait: the wait of a thread of this process for the lock.
    """

    def __init__(
        self,
        folder: Folder,
        control: ControlFile,
        wait: LongWait,
        follow: Callable[[], None] = _nothing,
    ) -> None:
        """Open or create the files, which are never written.

        Args:
            follow: applies what other processes have committed.
        """
        self.wait = wait
        wait.users = self._holders
        self._follow = follow
        self.kept = False  # it is taken between commits, too
        self._control = control
        self._used = 0  # when it was taken last, in ns of CLOCK_MONOTONIC
        self._slice_end = 0
        self._newest = -1  # when this process waited last
        self._moved = 0  # when it saw that commit first
        self._shown = False  # whether the control file has it
        self._several = False  # the slice was used for more than one commit
        self._handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)
        self._turn = -1
        try:
            self._turn = folder.open(TURN_FILE, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        handles = self._handle, self._turn
        self._handle = self._turn = -1
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def acquire(self) -> None:
        """Take the lock. After any error the caller must `release` it.

        Raises:
            StoreLockedError: the process that has it is stopped.
        """
        if self.kept:
            return
        now = time.monotonic_ns()
        closely = now - self._used < _CLOSE_NS
        self._used = now
        if now < self._slice_end and self._try(self._handle):
            self.kept = closely and not self._control.is_shared()
            self._several = True
            if not self._shown:
                self._shown = True
                self._control.set_slice_end(self._slice_end)
            return
        with self.wait:
            try:
                self._take_turn()
                self._take_lock()
            finally:
                _flock(self._turn, _UNLOCK)
        self._slice_end = time.monotonic_ns() + SLICE_NS
        # Shown at once by whoever used its last slice for several commits: until the second of them
        # the one that has just waited would take the lock back, as 40 of 100 slices showed.
        self._shown, self._several = self._several, False
        if self._shown:
            self._control.set_slice_end(self._slice_end)

    def release(self) -> None:
        """Release the lock, whether it is taken or not, unless this process keeps it."""
        if self.kept and self._control.is_shared():
            self.kept = False
        if self._handle >= 0 and not self.kept:
            _flock(self._handle, _UNLOCK)

    def release_idle(self) -> None:
        """Release the lock between commits; the caller holds that of the threads."""
        self.kept = False
        self.release()

    def _holders(self) -> list[int]:
        """Return the processes that have the lock, or the turn."""
        return holders_of([self._handle, self._turn])

    def _take_turn(self) -> None:
        began = time.monotonic_ns()
        while not self._try(self._turn):
            self._pause(time.monotonic_ns() - began < _SLACK_NS)

    def _take_lock(self) -> None:
        """Wait for the end of the slice of another process, or until it does not use it."""
        control = self._control
        began = quiet_since = time.monotonic_ns()
        newest = control.newest()
        while True:
            now = time.monotonic_ns()
            if control.newest() != newest:
                newest = control.newest()
                quiet_since = now
            left = control.slice_end() - now
            if (left <= 0 or now - quiet_since >= _QUIET_NS) and self._try(self._handle):
                return
            self._pause(now - began < _SLACK_NS or -_SLACK_NS < left < 2 * _SLACK_NS)

    def _pause(self, brief: bool) -> None:
        """Wait for a moment. What others commit meanwhile is applied now, and not with the lock."""
        self._follow()
        if brief:
            time.sleep(0)
        else:
            newest, now = self._control.newest(), time.monotonic_ns()
            if newest != self._newest:
                self._newest, self._moved = newest, now
            time.sleep(_POLL_S if now - self._moved < _STILL_NS else _STILL_POLL_S)
            self.wait.check()

    def _try(self, handle: int) -> bool:
        """Take a file lock if it is free: flock(2) would wait without a limit."""
        try:
            _flock(handle, _TRY)
        except BlockingIOError:
            return False
        return True
