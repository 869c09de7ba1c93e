"""The stores and queues of this process, which all its connections share."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from typing import Any, Final

from streamkeep.format.core.errors import RecoveryNeededError, StoreError, StreamkeepError
from streamkeep.integrations.address import Address
from streamkeep.integrations.values import OpenedStore
from streamkeep.jobs import Queue
from streamkeep.jobs.handler_errors import FOR_GOOD

CODEC: Final = "bytes"
_LOOK_S: Final = 1.0
_WATCHER: Final = "streamkeep-watch"


class Shared:
    """One store: opened at its first use, and again in a forked child."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.opened = OpenedStore(*address)
        self.queues: dict[tuple[str, int], Queue] = {}

    def queue(self, name: str, max_deaths: int) -> Queue:
        found = self.queues.get((name, max_deaths))
        if found is None:
            path, sync = self.address
            made = Queue(path, name, sync=sync, codec=CODEC, max_deaths=max_deaths)
            found = self.queues.setdefault((name, max_deaths), made)
        return found

    def connect(self) -> None:
        """Open the store; open it again if it was moved or deleted, or a sync has failed.

        Raises:
            RecoveryNeededError: a sync has failed, and another process still has the store open.
        """
        with _connecting:
            with suppress(*FOR_GOOD):
                self.opened.check()
                return
            for one in list(_shared.values()):  # a result backend has one with other options
                if one.address.path == self.address.path:
                    with suppress(StoreError):  # it cannot have a last checkpoint
                        one.close()
            try:
                self.opened.check()
            except StoreError:
                with suppress(StoreError):  # the last process that opens it again recovers it
                    self.close()
                raise

    def close(self) -> None:
        """Close the store; a later use opens it again."""
        with ExitStack() as stack:
            stack.callback(self.opened.close)
            for queue in list(self.queues.values()):  # another thread may add one
                stack.callback(queue.close)


_shared: dict[Address, Shared] = {}
# Two threads that find a store gone close it once: the second would close the one in its place.
_connecting = threading.Lock()


def _have_own_lock() -> None:
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_have_own_lock)


def shared(address: Address) -> Shared:
    found = _shared.get(address)
    return _shared.setdefault(address, Shared(address)) if found is None else found


def watch(**_: Any) -> None:
    """Have a child of a pool close a store that must be recovered, also while it runs nothing.

    A store is recovered after a failed sync when no process has it open.
    """
    if all(one.name != _WATCHER for one in threading.enumerate()):  # the pool `solo` has no child
        threading.Thread(target=_watch, name=_WATCHER, daemon=True).start()


def _watch() -> None:
    while True:
        threading.Event().wait(_LOOK_S)
        for one in list(_shared.values()):
            with suppress(StreamkeepError, OSError), _connecting:
                try:
                    if one.opened.opened is not None:
                        one.opened.check()
                except RecoveryNeededError:
                    one.close()


def close_all() -> None:
    """Close the stores of this process; for programs that end their use of Celery, and tests.

    A thread that has one of them in its hands opens it again, so they stay known.
    """
    for one in list(_shared.values()):
        one.close()
