"""A store that is opened at its first use, and again in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translated

Result = TypeVar("Result")

INTERVAL_MS: Final = 10  # of `sync="interval"`, which workers use for the ends of their jobs


class LazyStore:
    """The store of a queue or an adapter."""

    def __init__(self, path_or_store: str | Path | Store[Any], sync: Sync) -> None:
        """Take a path, which is opened with a sync mode; or a store, which is used as it is."""
        given = path_or_store
        self._given = given if isinstance(given, Store) else path_of(given, "the path of a store")
        self._sync = sync
        self._opened: Store[Any] | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def leave_to_parent(self) -> None:
        """In a forked child: leave the store, and a lock that another thread may have held."""
        self._lock = threading.Lock()
        self._opened = None

    @property
    def opened(self) -> Store[Any] | None:
        """The store if this process has opened it."""
        return self._opened

    @property
    def store(self) -> Store[Any]:
        """The store, which is opened if need be."""
        opened = self._opened
        return self._open() if opened is None else opened

    def _open(self) -> Store[Any]:
        with self._lock:
            opened = self._opened
            if opened is None:
                given = self._given
                opened = given if isinstance(given, Store) else self._open_path(given)
                self._note_opened()
                self._opened = opened
            return opened

    def _open_path(self, path: Path) -> Store[Any]:
        from streamkeep.facade import open as open_store

        if self._sync == "commit":
            return open_store(path, sync=self._sync, interval=INTERVAL_MS / 1000)
        return open_store(path, sync=self._sync)

    def _note_opened(self) -> None:
        """Do what has to be done when the store was opened, before another thread gets it."""

    def close(self) -> None:
        """Close the store, if it was opened here. A later call opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and not isinstance(self._given, Store):
            opened.close()

    def read(self, look: Callable[[Snapshot[Any]], Result]) -> Result:
        """Run a function of a snapshot."""
        with self.store.snapshot() as snapshot, translated():
            return look(snapshot.as_bytes())


_all: Final[weakref.WeakSet[LazyStore]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for one in list(_all):
        one.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
