"""The stores and queues of this process, which all its connections share."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from streamkeep.integrations.address import Address
from streamkeep.integrations.values import OpenedStore
from streamkeep.jobs import Queue

CODEC: Final = "bytes"


class Shared:
    """One store: opened at its first use, and again in a forked child."""

    def __init__(self, address: Address) -> None:
        self.opened = OpenedStore(address)
        self.queues: dict[tuple[str, int], Queue] = {}

    def queue(self, name: str, max_deaths: int) -> Queue:
        found = self.queues.get((name, max_deaths))
        if found is None:
            address = self.opened.address
            options: dict[str, Any] = {"codec": CODEC, "max_deaths": max_deaths}
            made = Queue(address.path, name, sync=address.sync, **options)
            found = self.queues.setdefault((name, max_deaths), made)
        return found

    def close(self) -> None:
        """Close the store; a later use opens it again."""
        for queue in self.queues.values():
            queue.close()
        self.opened.close()


_shared: dict[Address, Shared] = {}
_lock = threading.Lock()


def shared(address: Address) -> Shared:
    with _lock:
        return _shared.setdefault(address, Shared(address))


def close_all() -> None:
    """Close the stores of this process; for programs that end their use of Celery, and tests."""
    with _lock:
        found = list(_shared.values())
        _shared.clear()
    for one in found:
        one.close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
