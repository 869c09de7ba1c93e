"""Which stores this process has open, and what a fork does to them.

LMDB allows an environment to be open once in a process, so every `Store` on the same files shares
one `Environment`, found by the identity of `data.mdb` and counted. The last user closes it, which
may wait for calls of other threads; meanwhile it stands here without users, and a thread that wants
to open the store waits. Opening takes as long as a recovery, or as another process needs for one:
it is noted here, and only threads that want the same store wait for it.

A forked child must not touch what its parent opened: there every environment is marked closed, and
kept alive, since closing it would disturb the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmdb import _envid

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE

if TYPE_CHECKING:
    from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
    from streamkeep.engine.store.environment import Environment

Identity = tuple[int, int]  # device, inode


def identity_of(path: Path) -> Identity:
    """Return what tells the store at a path from all others; raise OSError where there is none."""
    status = (path / DATA_FILE).lstat()  # a link is no file of a store: see `safe_files`
    return status.st_dev, status.st_ino


class Opening:
    """A store that a thread wants to open.

    Attributes:
        names: what the store is known by before it has a data file: its path, and its folder.
        lock: the lock of the store, which a forked child must not hold.
    """

    def __init__(self, path: Path) -> None:
        self.names = _names_of(path)
        self.lock: CheckpointFile | None = None


def _names_of(path: Path) -> set[object]:
    names: set[object] = {os.path.realpath(path)}
    with suppress(OSError):
        status = path.stat()
        names.add((status.st_dev, status.st_ino))
    return names


class Registry:
    """The environments that this process has open.

    Hold `lock` to look one up and become its user, and to note that one is opened or closed.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.environments: dict[Identity, Environment] = {}
        self.openings: list[Opening] = []  # of stores that are being opened

    def find(self, path: Path) -> Environment | None:
        """Return the environment of a store that is open already; wait while it is being opened.

        Raises:
            StoreError: another thread waits to close it, for a transaction of this one.
        """
        with self.lock:
            while True:
                known = None
                with suppress(OSError):
                    known = self.environments.get(identity_of(path))
                if known is None:
                    names = _names_of(path)
                    if not any(names & one.names for one in self.openings):
                        return None
                elif known.users:
                    return known
                else:
                    known.context.check_not_writing()
                self.lock.wait()

    def end(self, opening: Opening, environment: Environment | None) -> None:
        """Note that an opening is over; its environment, if it has led to one, has one user."""
        with self.lock:
            if opening in self.openings:
                self.openings.remove(opening)
            if environment is not None:
                environment.users = 1
                self.environments[environment.identity] = environment
            self.lock.notify_all()

    def remove(self, environment: Environment) -> None:
        """Forget an environment that was closed."""
        with self.lock:
            self.environments.pop(environment.identity, None)
            self.lock.notify_all()

    def leave_to_parent(self) -> None:
        """Mark every environment unusable in a forked child; LMDB's locks belong to the parent."""
        self.lock = threading.Condition(threading.RLock())
        for opening in self.openings:
            if opening.lock is not None:
                opening.lock.close()
        for environment in self.environments.values():
            environment.context.closed = (
                "the store was opened before this process was forked; open it again in the child"
            )
            context = environment.context
            context.write_lock = threading.Lock()
            context.gate = threading.Lock()
            context.exit_gate = threading.Lock()
            context.writer = 0
            context.forked = True
            for raw in (environment.raw, context.pin):
                if raw is not None:
                    context.leave_to_parent(raw)
            environment.waiters.abandon()
            environment.renew_queue()
            # The child must not hold the parent's file locks, which would outlive the parent.
            if environment.lock is not None:
                environment.lock.close()
            environment.folder.close()
            if environment.checkpoints is not None:
                environment.checkpoints.close_files()
                environment.checkpoints.journal.abandon()
        if self.environments or self.openings:
            _let_child_open()
        self.environments.clear()
        self.openings.clear()


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
