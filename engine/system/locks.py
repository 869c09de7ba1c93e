"""The locks among the threads of a process.

A thread that holds a lock of a store waits only for locks of that store that come later in one
order, so no two threads can wait for each other. `tests/lock_order.py` has the order, and the tests
check it whenever a lock is taken.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

reentrant_lock: Callable[[], threading.RLock] = threading.RLock  # that is in no order

if sys.version_info[:2] == (3, 14):
    # An interrupt may leave its `with` between `__enter__` and the block, without `__exit__`: issue
    # 148874 of CPython, which other versions do not have. The lock would be taken for good. In
    # compiled code there is no such moment; and a plain lock does not know if it was just taken.
    import _thread

    class _Lock(_thread.RLock):
        def __enter__(self) -> bool:
            held = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > held:
                    self.release()
                raise

    reentrant_lock = _Lock

# Makes a lock that checks the order, from its name, its store and a plain lock; the tests set it.
checked: Callable[[str, str, Any], Any] | None = None


def make_lock(name: str, store: str = "") -> threading.Lock:
    """Return the lock of the order with this name.

    Args:
        store: what distinguishes the store from others. A lock without it is compared with the
            locks of every store.
    """
    plain = threading.Lock()
    lock: threading.Lock = plain if checked is None else checked(name, store, plain)
    return lock


def make_reentrant_lock(name: str, store: str = "") -> threading.RLock:
    """As `make_lock`, for a lock that its holder may take again."""
    plain = reentrant_lock()
    lock: threading.RLock = plain if checked is None else checked(name, store, plain)
    return lock


def is_mine(lock: threading.RLock) -> bool:
    """Return whether this thread holds a reentrant lock."""
    return bool(cast(Any, lock)._is_owned())  # what `threading.Condition` asks


class Wakeup:
    """A wake-up that is safe against interrupts.

    `threading.Event` keeps its lock if an interrupt arrives in the middle of `set`.
    """

    def __init__(self) -> None:
        self._waiting = threading.Lock()  # free from `notify` to the end of the next `wait`
        self._waiting.acquire()

    def notify(self) -> None:
        """Wake the waiting thread, or the next thread that waits."""
        with suppress(RuntimeError):
            self._waiting.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait for `notify`; return False if it has not come when the time is over."""
        return self._waiting.acquire(timeout=seconds)
