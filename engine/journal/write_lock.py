"""The write lock of a store, among processes: who holds it may append to the journal.

It is two file locks, which the system releases when a process dies. A process that wants to write
takes its *turn* first, and gives it back as soon as it has the lock itself. So at most one process
waits for the lock. The others say since when they wait, and the turn goes to the first of them:
otherwise the process that has just used the lock would be awake, and take it again.

A process whose commits follow each other closely keeps the lock between them: to take and release
it costs 2 us, of 7 for a small commit. With others it does so for a slice of SLICE_NS, because the
next one first applies what it has committed. Alone, it does so until another one opens the store.
A thread releases what is kept and not used any more. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.locks import Wakeup
from streamkeep.engine.system.long_wait import LongWait, holders_of
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE: Final = "write"
TURN_FILE: Final = "turn"
SLICE_NS: Final = 4_000_000  # four make 1.2 to 1.4 times the cycles of 1 ms, and those of 6 ms
_LOOK_S: Final = 0.002  # how often a thread looks whether a lock is kept and not used
_LOOK_ALONE_S: Final = 0.05
_PATIENCE: Final = 10  # looks, after which it waits until the lock is kept again
_CLOSE_NS: Final = 50_000  # between commits that follow each other closely
_BURST: Final = 8  # of these, before the lock is kept: a worker that waits for jobs keeps nothing
_SPIN_NS: Final = 100_000  # sleeping takes up to 60 us longer than asked for
_STEP_NS: Final = 500_000  # of a wait for the end of a slice, to apply what was committed
_POLL_S: Final = 0.0001
_STILL_NS: Final = 100_000_000  # of a wait, after which it looks less often
_STILL_POLL_S: Final = 0.001
_DEFERS: Final = 20  # looks at a free turn, after which one that waits for longer must be dead
_flock: Final = fcntl.flock
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


def _nothing() -> None:
    """Follow no other process."""


class WriteLock:
    """The lock of one store; one thread of a process may use it at a time.

    Attributes:
        wait: the wait of a thread of this process for the lock.
        kept: it is taken between commits, too.
    """

    def __init__(
        self,
        folder: Folder,
        control: ControlFile,
        wait: LongWait,
        threads: threading.Lock,
        follow: Callable[[], None] = _nothing,
    ) -> None:
        """Open or create the files, which are never written.

        Args:
            threads: what the threads of this process hold while they use the lock.
            follow: applies what other processes have committed.
        """
        self.wait = wait
        wait.users = self._holders
        self.kept = False
        self._follow = follow
        self._control = control
        self._threads = threads
        self._used = 0  # when it was used last, in ns of CLOCK_MONOTONIC
        self._following = 0  # how many commits have followed each other closely
        self._slice_end = 0
        self._releaser: threading.Thread | None = None
        self._wakeup = Wakeup()  # of the thread, which has something to do
        self._awake = False
        self._closed = False
        self._handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)
        self._turn = -1
        try:
            self._turn = folder.open(TURN_FILE, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._closed = True
        self._wakeup.notify()
        thread = self._releaser
        if thread is not None and thread.is_alive():  # not so in a forked child
            thread.join()
        handles = self._handle, self._turn
        self._handle = self._turn = -1
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def acquire(self, durable: bool = False) -> None:
        """Take the lock. After any error the caller must `release` it.

        Args:
            durable: the caller then waits for the disk, while another process can use the lock.

        Raises:
            StoreLockedError: the process that has it is stopped.
        """
        now = time.monotonic_ns()
        since = now - self._used
        if self.kept:
            if since > _CLOSE_NS:
                self._slice_end = 0  # with others, this commit is the last one of the slice
            return
        if not durable and since < _CLOSE_NS:
            self._following = min(self._following + 1, 2 * _BURST)
        else:  # one that was only kept from running would wait for each of its next commits
            self._following = 0 if durable or since > SLICE_NS else self._following // 2
        try:
            if durable and self._control.is_shared():
                self._follow()  # before, so that the lock is held for 43 us and not for 57
            waits = self._control.waiting_since() != 0
            if waits or not (self._try(self._turn) and self._try(self._handle)):
                with self.wait:
                    self._take_turn(now)
                    self._take_lock()
                now = time.monotonic_ns()
        finally:
            _flock(self._turn, _UNLOCK)
        if self._following >= _BURST and since < _CLOSE_NS:
            self._keep(now)

    def release(self) -> None:
        """Release the lock, whether it is taken or not, unless this process keeps it."""
        if self.kept and not self._control.is_shared():
            return
        self._used = time.monotonic_ns()
        if self.kept:
            if self._used < self._slice_end:
                return
            self.kept = False
        if self._handle >= 0:
            _flock(self._handle, _UNLOCK)

    def release_idle(self) -> None:
        """Release the lock between commits; the caller holds that of the threads."""
        self.kept = False
        if self._handle >= 0:  # no commit has just used it
            _flock(self._handle, _UNLOCK)

    # --- keeping it -------------------------------------------------------------------------

    def _keep(self, now: int) -> None:
        """Keep the lock for a slice, or until another process opens the store."""
        if self._releaser is None:
            thread = threading.Thread(target=self._run, name="streamkeep-lock", daemon=True)
            with suppress(RuntimeError):  # the process has too many threads
                thread.start()
                self._releaser = thread
            if self._releaser is None:
                return
        self._slice_end = now + SLICE_NS
        self._control.set_slice_end(self._slice_end)
        self.kept = True
        if not self._awake:
            self._awake = True
            self._wakeup.notify()

    def _run(self) -> None:
        """Release the lock after its slice, where no commit comes that does so."""
        unkept = 0  # how often it was not kept: to wake this thread in each slice takes 60 us
        while not self._closed:
            unkept = 0 if self.kept else unkept + 1
            if unkept > _PATIENCE:
                self._awake = False
                if not self.kept:  # since then, `_keep` wakes it
                    self._wakeup.wait()
                self._awake = True
                unkept = 0
                continue
            self._wakeup.wait(_LOOK_S if self._control.is_shared() else _LOOK_ALONE_S)
            now = time.monotonic_ns()
            unused = self._control.is_shared() and now - self._used > _CLOSE_NS
            if (unused or now >= self._slice_end) and self._threads.acquire(False):
                try:
                    if self.kept and not self._closed:
                        self.release_idle()
                finally:
                    self._threads.release()

    # --- waiting for it ---------------------------------------------------------------------

    def _holders(self) -> list[int]:
        """Return the processes that have the lock, or the turn."""
        return holders_of([self._handle, self._turn])

    def _take_turn(self, began: int) -> None:
        """Wait for the turn; it goes to the process that has waited for longest."""
        control = self._control
        looks = 0
        while True:
            since = control.waiting_since()
            if self._try(self._turn):
                if not since or began <= since or looks > _DEFERS:
                    if since:
                        control.set_waiting_since(0)  # the others say so again
                    return
                _flock(self._turn, _UNLOCK)
                looks += 1
            elif not since or began < since:
                control.set_waiting_since(began)
            self._pause(began)

    def _take_lock(self) -> None:
        """Wait for the lock, and apply meanwhile what its holder has committed."""
        began = time.monotonic_ns()
        while not self._try(self._handle):
            self._follow()
            self._pause(began)

    def _pause(self, began: int) -> None:
        """Sleep, but not past the end of a slice, and not at once."""
        now = time.monotonic_ns()
        left = self._control.slice_end() - now
        if left > SLICE_NS:
            left = -SLICE_NS  # by another clock, as in a time namespace
        if left > 2 * _SPIN_NS:
            time.sleep(min(left - _SPIN_NS, _STEP_NS) / 1e9)
        elif left > -_SPIN_NS or now - began < _SPIN_NS:
            # Not sleep(0), which sleeps for 60 us: with ten consumers, an entry took 0.7 ms and not
            # 0.26 from one process to another.
            os.sched_yield()
            return
        else:
            time.sleep(_POLL_S if now - began < _STILL_NS else _STILL_POLL_S)
        self.wait.check()

    def _try(self, handle: int) -> bool:
        """Take a file lock if it is free: flock(2) would wait without a limit."""
        try:
            _flock(handle, _TRY)
        except BlockingIOError:
            return False
        return True
