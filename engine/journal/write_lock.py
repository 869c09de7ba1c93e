"""The write lock of a store, among processes: who holds it may append to the journal.

It is a file lock, which the system releases when a process dies. One that has to wait sleeps in
the kernel, and is woken in line when the lock is released (`ControlFile.pass_on`). Who comes before
it is awake takes the lock all the same: to wake a process takes 100 us and more, a commit 15, and
where each waited for its turn, ten consumers of 2,000 entries a second had them after 4 ms instead
of 0.25. But after a slice, or once a process has waited for as long as one, who waits comes first.

A process whose commits follow each other closely keeps the lock between them: to take and release
it costs 2 us, of 7 for a small commit. With others it does so for a slice of SLICE_NS, because the
next one first applies what it has committed. Alone, it does so until another one opens the store.
A thread releases what is kept and not used any more. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system.locks import Wakeup
from streamkeep.engine.system.long_wait import LongWait, StillTaken, holders_of
from streamkeep.engine.system.safe_files import Folder

LOCK_FILE: Final = "write"
# Four processes make 1.1 to 1.2 times the commits of slices of 2 ms, since whoever comes next first
# applies what the others have committed. Beside three that commit all the time, one that does so
# now and then waits for 21 ms at the 99th percentile; with 2 ms for 13.
SLICE_NS: Final = 4_000_000
_LOOK_S: Final = 0.002  # how often a thread looks whether a lock is kept and not used
_LOOK_ALONE_S: Final = 0.05
_PATIENCE: Final = 10  # looks, after which it waits until the lock is kept again
# Between commits that follow each other closely; a longer pause ends the slice. With 300 us, a
# producer of 5,000 entries a second kept the lock between them, and they were read after 4 ms.
_CLOSE_NS: Final = 50_000
_BURST: Final = 8  # of these, before the lock is kept: a worker that waits for jobs keeps nothing
# After which one that waits looks by itself: the holder was killed, or woke one that was killed.
# It also applies what was committed meanwhile: with 5 ms, two processes make 0.8 of the commits,
# and with 0.5 ms four take half as much processor time again.
_LOOK_AGAIN_NS: Final = 1_000_000
_LOOK_AGAIN_MOST_NS: Final = 40_000_000  # each look doubles the time to the next one
_flock: Final = fcntl.flock
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


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
        follow: Callable[[], None],
    ) -> None:
        """Open or create the file, which is never written.

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

    def close(self) -> None:
        self._closed = True
        self._wakeup.notify()
        thread = self._releaser
        if thread is not None and thread.is_alive():  # not so in a forked child
            thread.join()
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def acquire(self, durable: bool = False, most_s: float = math.inf) -> None:
        """Take the lock. After any error the caller must `release` it.

        Args:
            durable: the caller then waits for the disk, while another process can use the lock.
            most_s: about how long to wait.

        Raises:
            StillTaken: it was not free within `most_s`.
            StoreLockedError: the process that has it is stopped.
        """
        control = self._control
        if not control.futex.prepared and control.is_shared():
            control.futex.prepare()  # not when the lock is released: the commit is made by then
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
        seen = control.passed_on()
        in_line = control.waits_first()
        if in_line or not self._try():
            with self.wait:
                self._wait(seen, in_line, time.monotonic() + most_s)
            now = time.monotonic_ns()
        if self._following >= _BURST and since < _CLOSE_NS:
            self.keep(now)

    def release(self) -> None:
        """Release the lock, whether it is taken or not, unless this process keeps it."""
        if self.kept:
            if not self._control.is_shared():
                return
            self._used = time.monotonic_ns()
            if self._used < self._slice_end:
                return
        self.release_idle()
        # Only now: the process that was just woken may have kept this one from running until here,
        # and such commits would not count as close: four make 0.8 of the commits then.
        self._used = time.monotonic_ns()

    def note_woken(self) -> None:
        """Have the next commit count as close, although readers were woken after this one.

        It takes tens of us, and they may be given this processor. Without this, one producer and
        four workers make a half of the entries: the lock changes hands for each of them.
        """
        self._used = time.monotonic_ns()

    def release_idle(self) -> None:
        """Release the lock between commits; the caller holds that of the threads."""
        first = self.kept and time.monotonic_ns() >= self._slice_end  # after a slice, who waits
        self.kept = False
        if self._handle >= 0:
            _flock(self._handle, _UNLOCK)
            self._control.pass_on(first)

    def release_unused(self) -> None:
        """Release the lock if it is only kept, as the calling thread now waits for entries.

        Otherwise others wait for up to 2 ms: of two consumers, each has an entry after 0.9 ms
        instead of 0.5.
        """
        if self.kept and self._threads.acquire(False):
            try:
                if self.kept and not self._closed:
                    self.release_idle()
            finally:
                self._threads.release()

    # --- keeping it -------------------------------------------------------------------------

    def keep(self, now: int) -> None:
        """Keep the lock for a slice, or until another process opens the store."""
        if self._releaser is None:
            thread = threading.Thread(target=self._run, name="streamkeep-lock", daemon=True)
            with suppress(RuntimeError):  # the process has too many threads
                thread.start()
                self._releaser = thread
            if self._releaser is None:
                return
        self._slice_end = now + SLICE_NS
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
                if not self.kept:  # since then, `keep` wakes it
                    self._wakeup.wait()
                self._awake = True
                unkept = 0
                continue
            self._wakeup.wait(_LOOK_S if self._control.is_shared() else _LOOK_ALONE_S)
            now = time.monotonic_ns()
            unused = self._control.is_shared() and now - self._used > _CLOSE_NS
            if unused or now >= self._slice_end:
                self.release_unused()

    # --- waiting for it ---------------------------------------------------------------------

    def _holders(self) -> list[int]:
        return holders_of([self._handle])

    def _wait(self, seen: int, in_line: bool, until: float) -> None:
        """Wait for the lock, and apply what its holders have committed.

        Args:
            in_line: another process waits, and comes first.
        """
        control = self._control
        most_ns = _LOOK_AGAIN_NS
        long = time.monotonic_ns() + SLICE_NS
        while True:
            control.say_awaited(first=time.monotonic_ns() >= long)
            if not in_line and self._try():
                control.say_taken()
                return
            in_line = False
            self._follow()
            control.futex.wait(seen, most_ns)
            self.wait.check()
            if time.monotonic() >= until:
                raise StillTaken
            if control.futex.can_wake():  # who looks gives up its place in the line
                most_ns = min(2 * most_ns, _LOOK_AGAIN_MOST_NS)
            seen = control.passed_on()

    def _try(self) -> bool:
        """Take the lock if it is free: flock(2) would wait without a limit."""
        try:
            _flock(self._handle, _TRY)
        except BlockingIOError:
            return False
        return True
