"""A lock that knows which thread holds it.

This module is compiled, so that no interrupt comes between taking the lock and noting its owner.
"""

from __future__ import annotations

import threading

from streamkeep.engine.system.locks import make_lock


class OwnedLock:
    """A lock among the threads of a process, which is not reentrant."""

    def __init__(self, name: str, store: str) -> None:
        """Make the lock that has this name in `tests/lock_order.py`."""
        self._lock = make_lock(name, store)
        self._owner = 0

    def is_mine(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._owner == threading.get_ident()

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; return False if another thread holds it and `wait` is False."""
        taken = self._lock.acquire(blocking=wait)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def release(self) -> None:
        """Release the lock."""
        self._owner = 0
        self._lock.release()
