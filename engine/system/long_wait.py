"""Waiting for a lock that another process has, which may be stopped.

LMDB's lock and flock(2) have no limit of time. So a thread that waits for one notes since when. The
other threads of the process, which wait for that thread, give up with an error that names the
process that is stopped, and a thread of the store logs it. Compiled by mypyc.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import lmdb

from streamkeep.format.core.errors import StoreLockedError

LMDB_LOCK: Final = "the lock of the store"
_LIMIT_S: Final = 10.0
LOOK_S: Final = 1.0

log = logging.getLogger("streamkeep")


class LongWait:
    """The wait for one lock; one thread of a process waits for it at a time.

    Attributes:
        limit_s: after how many seconds the wait is reported.
        users: returns the numbers of the processes that may have the lock.
    """

    def __init__(self, lock: str) -> None:
        """Name the lock, for messages."""
        self.limit_s = _LIMIT_S
        self.users: Callable[[], list[int]] = list
        self._lock = lock
        self._since = 0.0
        self._reported = 0.0

    def begin(self) -> None:
        """Note that this thread begins to wait."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has the lock, or does not wait any more."""
        self._since = 0.0

    def take(self, lock: threading.Lock) -> None:
        """Take a lock of this process, whose holder may be the thread that waits.

        Raises:
            StoreLockedError: that thread has waited for too long.
        """
        while not lock.acquire(True, LOOK_S):
            self.check()

    def check(self) -> None:
        """Raise if a thread has waited for too long.

        Raises:
            StoreLockedError: the process that has the lock is probably stopped.
        """
        since = self._since
        if since and time.monotonic() - since > self.limit_s:
            raise StoreLockedError(self._problem())

    def report(self) -> None:
        """Log it, once, if a thread has waited for too long."""
        since = self._since
        if since and since != self._reported and time.monotonic() - since > self.limit_s:
            self._reported = since
            log.warning("%s", self._problem())

    def _problem(self) -> str:
        stopped = [process for process in self.users() if _is_stopped(process)]
        if stopped:
            which = " and ".join(f"process {process}" for process in stopped)
            numbers = " ".join(map(str, stopped))
            next_step = f"{which}, which is stopped; next: let it go on (kill -CONT {numbers})"
        else:
            next_step = "another process; next: end it if it does not go on"
        return f"for {self.limit_s:g} seconds {self._lock} has been taken by {next_step}"


class Taking:
    """A lock of this process for a `with` block, taken as `LongWait.take` does.

    Compiled, no interrupt can come between the lock and the block that releases it. It could come
    between a call of `take` and the `try` after it, in code that is interpreted.
    """

    def __init__(self, wait: LongWait, lock: threading.Lock) -> None:
        """Name the lock, and the wait of its holder."""
        self._wait = wait
        self._lock = lock

    def __enter__(self) -> None:
        self._wait.take(self._lock)

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def users_of(raw: lmdb.Environment) -> list[int]:
    """Return the processes in LMDB's table of readers: each that commits has a pin there."""
    return [int(line.split()[0]) for line in raw.readers().splitlines()[1:]]


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped; False if the system does not show it."""
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False
