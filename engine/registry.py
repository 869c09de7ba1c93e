"""Which stores this process has open, and what a fork does to them.

LMDB allows an environment to be open once in a process, so every `Store` on the same files shares
one `Environment`, found by the identity of `data.mdb` and counted. The last user closes it, which
may wait for calls of other threads; meanwhile it stands here without users, and who wants to open
the store waits.

A forked child must not touch what its parent opened: there every environment is marked closed, and
kept alive, since closing it would disturb the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmdb import _envid

from streamkeep.engine.steady import DATA_FILE

if TYPE_CHECKING:
    from streamkeep.engine.environment import Environment
    from streamkeep.engine.steady_file import SteadyFile

Identity = tuple[int, int]  # device, inode


def identity_of(path: Path) -> Identity:
    """Return what tells the store at a path from all others; raise OSError where there is none."""
    status = (path / DATA_FILE).stat()
    return status.st_dev, status.st_ino


class Registry:
    """The environments that this process has open.

    Hold `lock` to look one up and become its user, and to open one.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.environments: dict[Identity, Environment] = {}
        self.opening: SteadyFile | None = None  # the lock of a store that is being opened

    def find(self, path: Path) -> Environment | None:
        """Return the environment of a store that is open already.

        Raises:
            StoreError: another thread waits to close it, for a transaction of this one.
        """
        with self.lock:
            while True:
                try:
                    known = self.environments.get(identity_of(path))
                except OSError:
                    return None
                if known is None or known.users:
                    return known
                known.shared.check_not_writing()
                self.lock.wait()

    def remove(self, environment: Environment) -> None:
        """Forget an environment that was closed."""
        with self.lock:
            self.environments.pop(environment.identity, None)
            self.lock.notify_all()

    def leave_to_parent(self) -> None:
        """Mark every environment unusable in a forked child; LMDB's locks belong to the parent."""
        self.lock = threading.Condition(threading.RLock())
        if self.opening is not None:
            self.opening.close()
        for environment in self.environments.values():
            environment.shared.closed = (
                "the store was opened before this process was forked; open it again in the child"
            )
            shared = environment.shared
            shared.write_lock = threading.Lock()
            shared.gate = threading.Lock()
            shared.exit_gate = threading.Lock()
            shared.writer = 0
            shared.forked = True
            for raw in (environment.raw, shared.pin):
                if raw is not None:
                    shared.leave_to_parent(raw)
            environment.lobby.abandon()
            environment.renew_queue()
            # The child must not hold the parent's file locks, which would outlive the parent.
            if environment.lock is not None:
                environment.lock.close()
            if environment.points is not None:
                environment.points.close_files()
                environment.points.journal.abandon()
        if self.environments or self.opening is not None:
            _let_child_open()
        self.environments.clear()
        self.opening = None


def _let_child_open() -> None:
    """Make py-lmdb forget, in a forked child, which files the parent has open.

    It refuses to open a file twice in a process, and counts what was inherited. The inherited
    environments are never used or closed here, so a new one shares nothing with them. There is no
    public way to say so; without this hook, opening raises, and nothing worse happens.
    """
    child = os.getpid()
    parents_keys: Callable[[Any, Any], tuple[Any, ...]] = _envid.env_keys

    def keys_of_child(path: Any, subdir: Any) -> tuple[Any, ...]:
        return tuple((child, *key) for key in parents_keys(path, subdir))

    _envid.env_keys = keys_of_child


registry: Final = Registry()
os.register_at_fork(after_in_child=registry.leave_to_parent)
