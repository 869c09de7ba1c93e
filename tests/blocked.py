"""Calls that block, each in its own thread, without sleeps: the wait table says which wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from inside import tickets_in, wait_table_of
from patience import PATIENCE_S, wait_until
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import StoreClosedError

BLOCKED = "blocked"


def tickets(store: Store[Any]) -> int:
    """Return how many calls of all processes are blocked."""
    return tickets_in(wait_table_of(store))


def ids(result: Any) -> list[bytes]:
    """Return the IDs of a reply of XREAD or XREADGROUP."""
    return [entry[0] for _, entries in result for entry in entries]


def bells(store: Store[Any]) -> list[str]:
    """Return the names of the pipes that wake the processes of a store."""
    return [name for name in os.listdir(store.path / "waiters") if name != "board"]


class Callers:
    """Calls in threads, in the order in which they blocked."""

    def __init__(self, store: Store[Any], *, others: int = 0) -> None:
        self.store = store
        self.others = others  # calls of other processes that are blocked
        self.finished: list[int] = []  # numbers of calls, as they returned
        self._results: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, call: Callable[[], Any]) -> None:
        """Begin a call; return when it blocks, or has ended."""
        number = len(self._threads)

        def run() -> None:
            try:
                self._results[number] = call()
            except StoreClosedError:
                self._results[number] = BLOCKED
            except Exception as error:
                self._results[number] = error
            self.finished.append(number)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        self.settle()

    def settle(self) -> None:
        """Wait until every call has ended or is blocked."""
        started = len(self._threads) + self.others
        wait_until(lambda: tickets(self.store) + len(self.finished) == started)

    def results(self) -> list[Any]:
        """Return what each call returned or raised, BLOCKED where it still waits."""
        self.settle()
        return [self._results.get(number, BLOCKED) for number in range(len(self._threads))]

    def end(self) -> list[Any]:
        """As `results`; closes the store, which ends those that wait."""
        found = self.results()
        self.store.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return found
