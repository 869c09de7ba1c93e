"""Waiting for a lock that another process has, which may be stopped.

A thread that waits for one notes since when. The other threads of the process, which wait for that
thread, give up with an error that names the process that is stopped, and a thread of the store logs
it. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamkeep.engine.system.locks import make_lock
from streamkeep.format.core.errors import StoreLockedError

WRITE_LOCK: Final = "the lock of the store"
IN_HANDLER: Final = (
    "in a signal handler, set a flag or raise, as sys.exit does, and call the method afterwards"
)
_LIMIT_S: Final = 10.0
LOOK_S: Final = 1.0
_POLL_S: Final = 0.005

log = logging.getLogger("streamkeep")


class StillTaken(BaseException):
    """The write lock was not free soon, and nothing has happened.

    It ends the whole command, which runs again later: no `except Exception` takes it for a failure.
    """


class LongWait:
    """The wait for one lock, in a `with` block; one thread of a process waits for it at a time.

    Attributes:
        limit_s: after how many seconds without progress the wait is reported.
        until: when to give up, in monotonic seconds: the store is being closed.
        users: returns the numbers of the processes that may have the lock.
        progress: returns what changes while another process uses the lock.
    """

    def __init__(self, lock: str, users: Callable[[], list[int]] = list) -> None:
        self.limit_s = _LIMIT_S
        self.until = math.inf
        self.users = users
        self.progress: Callable[[], int] = int
        self._lock = lock
        self._since = 0.0
        self._reported = 0.0
        self._seen = 0
        self._moved = 0.0  # when the newest progress was seen
        # At which progress a wait ended with an error, and which processes were stopped.
        self._given_up: tuple[int, list[int]] = (-1, [])

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *raised: object) -> None:
        self._since = 0.0
        if not any(raised):
            self._given_up = (-1, [])

    def stopped(self) -> list[int]:
        """Return the processes that may have the lock and are stopped."""
        stopped = []
        for process in self.users():
            with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:  # if it shows that
                if file.read().rpartition(b")")[2].split()[0] in (b"T", b"t"):
                    stopped.append(process)
        return stopped

    def is_long(self) -> bool:
        since = self._since
        if not since:
            return False
        now = time.monotonic()
        seen = self.progress()
        if seen != self._seen:
            self._seen, self._moved = seen, now
        return now - max(since, self._moved) > self.limit_s

    def check(self) -> None:
        """Raise if a thread has waited for too long, and not for a process that is at work.

        A transaction of a user or a slow disk may take any time. After a wait that ended so, those
        for the same holder end at once: the clients of a server would wait one after the other.

        Raises:
            StoreLockedError: the process that has the lock is stopped, or hangs; or the store is
                being closed.
        """
        # Runs what handlers are due. A loop that is compiled does not, and an interrupt that comes
        # just before a sleep ends none: Ctrl-C took ten seconds.
        signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if self._since and time.monotonic() > self.until:
            raise StoreLockedError(f"{self._lock} is taken by another process; the store is closed")
        is_long = self.is_long()
        if is_long or self._given_up[0] == self.progress():
            found = (self.progress(), self.stopped())
            if found[1] and (is_long or found == self._given_up):
                self._given_up = found
                raise StoreLockedError(self._problem())
            self._given_up = (-1, [])

    def report(self) -> None:
        """Log it, once, if a thread has waited for too long."""
        since = self._since
        if since != self._reported and self.is_long():
            self._reported = since
            log.warning("%s", self._problem())

    def _problem(self) -> str:
        stopped = self.stopped()
        known = [f"process {process}" for process in stopped or self.users()]
        next_step = "; next: end it if it does not go on"
        if stopped:
            numbers = " ".join(map(str, stopped))
            next_step = f", which is stopped; next: let it go on (kill -CONT {numbers})"
        which = " and ".join(known) or "another process"
        return f"for {self.limit_s:g} seconds {self._lock} has been taken by {which}{next_step}"


class PatientLock:
    """A lock among threads, whose holder may wait for another process.

    Taking it fails when that is a `LongWait`. Compiled, no interrupt can come between the lock and
    the `with` block that releases it; it could come between `acquire` and a `try` after it, in code
    that is interpreted.
    """

    def __init__(self, lock: threading.Lock, wait: LongWait) -> None:
        self._lock = lock
        self._wait = wait

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return whether it was taken.

        Raises:
            StoreLockedError: its holder waits for a process that is stopped, or hangs.
        """
        if not blocking or timeout >= 0:
            return self._lock.acquire(blocking, timeout)
        while not self._lock.acquire(True, LOOK_S):
            self._wait.check()
        return True

    def unlimited(self) -> threading.Lock:
        """Return the lock for a `with` block that must be entered, however long it waits."""
        return self._lock

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


class OwnedLock:
    """A lock among the threads of a process that knows which one holds it; it is not reentrant.

    Compiled, so that no interrupt comes between taking the lock and noting its owner.
    """

    def __init__(self, name: str, store: str) -> None:
        """Make the lock that has this name in `tests/lock_order.py`."""
        self._lock = make_lock(name, store)
        self._owner = 0

    def is_mine(self) -> bool:
        owner = self._owner
        return owner != 0 and owner == threading.get_ident()

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; return False if another thread holds it and `wait` is False."""
        taken = self._lock.acquire(blocking=wait)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def release(self) -> None:
        self._owner = 0
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


def lock_file(handle: int, wait: LongWait, patient: bool = True) -> None:
    """Take the lock of a file, as flock(2), which would wait without a limit.

    Raises:
        StoreLockedError: the process that has it is stopped.
        BlockingIOError: a process has it, and `patient` is False.
    """
    with wait:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not patient:
                    raise
            wait.check()
            time.sleep(_POLL_S)


def holders_of(handles: list[int]) -> list[int]:
    """Return the processes that have locks of flock(2), as far as the system shows it.

    Args:
        handles: the open files.
    """
    found = set()
    with suppress(OSError):
        numbers = {os.fstat(handle).st_ino for handle in handles}
        with open("/proc/locks") as locks:
            for line in locks:  # number, kind, how, what, process, device:file, start, end
                words = line.split()  # "->" before the kind if it waits
                if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) in numbers:
                    found.add(int(words[4]))
    return sorted(found - {0})  # 0 stands for one of another namespace
