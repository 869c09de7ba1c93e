"""The stores that this process has open, and what a fork does to them.

LMDB allows an environment to be open only once in a process. So all `Store` objects on the same
files share one `Environment`, which is found by the identity of `data.mdb` and counts its users.
The last user closes it. Closing may wait for calls of other threads; until it is done, the
environment is listed here without users, and a thread that opens the same store waits. Opening may
take as long as a recovery; it is also listed here, and only threads that open the same store wait.
They wait for a lock that the thread at work has in a `with` block (`life`), so they go on also if
an interrupt ends its work, and finish it then.

A forked child must not use or close what its parent has opened. There, every environment is marked
closed and kept alive.

What the program has not closed when the interpreter ends, is ended here. The newest commit is then
a checkpoint, so that the next opening recovers nothing. The store is closed as well, unless a
thread of the program still uses it: such a thread runs until the interpreter ends it. `atexit`
calls last what was registered first. So a function that the program has registered before it
imported the package finds its stores closed. There is no later moment: threads can no longer be
started then, and the interpreter ends those that run.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmdb import _envid

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system.locks import is_mine, make_reentrant_lock
from streamkeep.engine.system.long_wait import IN_HANDLER, OwnedLock
from streamkeep.format.core.errors import StoreError

if TYPE_CHECKING:
    from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
    from streamkeep.engine.store.ending import Ending
    from streamkeep.engine.store.environment import Environment

_PATIENCE_S: Final = 1.0

log = logging.getLogger("streamkeep")

Identity = tuple[int, int]  # device, inode


def identity_of(path: Path) -> Identity:
    """Return the identity of the store at a path; raise OSError if there is none."""
    status = (path / DATA_FILE).lstat()  # no link is followed: see `safe_files`
    return status.st_dev, status.st_ino


class Opening:
    """A store that a thread is opening.

    Attributes:
        names: what identifies the store before it has a data file: its path and its folder.
        life: held by the thread.
        lock: the lock of the store, which a forked child must not hold.
        environment: what the thread has opened.
        counted: the thread is one of its users.
    """

    def __init__(self, path: Path) -> None:
        self.names = _names_of(path)
        self.life = make_reentrant_lock("life", str(path))
        self.lock: CheckpointFile | None = None
        self.environment: Environment | None = None
        self.counted = False

    def count(self, environment: Environment, users: int) -> None:
        """Make the thread one of so many users; no interrupt comes between these steps."""
        self.environment = environment
        environment.users = users
        self.counted = True

    def undo(self) -> None:
        """Release what the thread has opened, if an interrupt has kept its caller from that."""
        if self.counted and self.environment is not None:
            self.environment.release(self)

    def finish(self) -> None:
        """End what the thread has begun, if an interrupt has kept it from that."""
        with self.life:
            registry.end(self, close=True)


def _names_of(path: Path) -> set[object]:
    names: set[object] = {os.path.realpath(path)}
    with suppress(OSError):
        status = path.stat()
        names.add((status.st_dev, status.st_ino))
    return names


class Registry:
    """The environments that this process has open.

    A caller holds `lock` while it finds an environment and becomes its user, and while it lists
    or removes one.
    """

    def __init__(self) -> None:
        # Not a `Condition`: an interrupt may come inside of its `__enter__`, with the lock held.
        self.lock = make_reentrant_lock("registry")
        self.environments: dict[Identity, Environment] = {}
        self.openings: list[Opening] = []  # of stores that are being opened

    def find(self, path: Path) -> Environment | None:
        """Return the environment of an open store; wait while another thread opens or closes it.

        Raises:
            StoreError: another thread is closing it and waits for a transaction of this thread.
        """
        while True:
            with self.lock:
                known, busy = self.look(path)
            if busy is None:
                return known
            busy.finish()

    def look(self, path: Path) -> tuple[Environment | None, Environment | Opening | None]:
        """Return the environment of an open store, or what a thread opens or closes at the path.

        The caller holds `lock`. It must release that before it waits (`finish`).

        Raises:
            StoreError: another thread is closing it and waits for a transaction of this thread; or
                this thread is opening or closing it.
        """
        known = None
        with suppress(OSError):
            known = self.environments.get(identity_of(path))
        if known is None:
            names = _names_of(path)
            opened = next((one for one in self.openings if names & one.names), None)
            if opened is not None:
                _check_not_mine(opened.life, path, "opening")
            return None, opened
        if known.users:
            return known, None
        _check_not_mine(known.life, path, "closing")
        known.context.check_not_writing()
        return None, known

    def end(self, opening: Opening, *, close: bool = False) -> None:
        """End an opening; list its environment, if it succeeded, with one user.

        Args:
            close: close the environment instead, which the thread that opened it cannot use.
        """
        environment = opening.environment
        with self.lock:
            if opening not in self.openings:
                return
            if environment is not None and not close:
                opening.count(environment, 1)
                self.environments[environment.identity] = environment
                process = sys.modules.get("multiprocessing.process")
                if process is not None and process.parent_process() is not None:
                    from multiprocessing import util

                    # A child of `multiprocessing` runs no `atexit` when it ends.
                    util.Finalize(None, self.end_all, exitpriority=0)
            self.openings.remove(opening)
        if environment is not None and close:
            environment.close_files()

    def remove(self, environment: Ending) -> None:
        with self.lock:
            if self.environments.get(environment.identity) is environment:
                del self.environments[environment.identity]

    def end_all(self) -> None:
        """Before the interpreter ends its threads, end what the program has not closed."""
        for environment in list(self.environments.values()):
            try:
                _end(environment)
            except Exception as error:  # the next opening recovers the store
                log.warning("%s: not closed by the program: %s", environment.path, error)
            environment.waiters.remove_recycled()  # also if the store had to stay open

    def leave_to_parent(self) -> None:
        """Mark every environment closed in a forked child; LMDB's locks belong to the parent."""
        self.lock = make_reentrant_lock("registry")
        for opening in self.openings:
            if opening.lock is not None:
                opening.lock.close()
        for environment in self.environments.values():
            environment.context.closed = (
                "the store was opened before this process was forked; next: open it again in the "
                "child"
            )
            context = environment.context
            context.make_locks()
            context.writer = 0
            context.forked = True
            context.start_over()
            for raw in (environment.raw, context.pin):
                if raw is not None:
                    context.leave_to_parent(raw)
            environment.leases.abandon()
            environment.waiters.abandon()
            environment.renew_queue()
            environment.archive_work = OwnedLock("archive", context.path)
            # The child must not hold the parent's file locks: they would outlive the parent.
            if environment.checkpoint_file is not None:
                environment.checkpoint_file.close()
            environment.folder.close()
            if environment.checkpoints is not None:
                environment.checkpoints.close_files()
                journal = environment.checkpoints.journal
                journal.syncs.abandon()
                journal.close()
            if context.write_lock is not None:
                context.write_lock.close()
            if context.control is not None:
                context.control.close()
        if self.environments or self.openings:
            _let_child_open()
        self.environments.clear()
        self.openings.clear()


def _check_not_mine(life: threading.RLock, path: Path, work: str) -> None:
    """Raise StoreError if this thread opens or closes a store, for which it would wait."""
    if is_mine(life):
        raise StoreError(
            f"{path}: this thread is {work} the store, which a signal has interrupted; "
            f"next: {IN_HANDLER}"
        )


def _end(environment: Environment) -> None:
    """Make a checkpoint of an open store, and close it if no thread uses it."""
    context = environment.context
    lock = environment.checkpoint_file
    if lock is not None and lock.is_removed():
        return  # a temporary folder that the program has removed: nothing is left to save
    if not environment.readonly:
        if not context.thread_lock.acquire(timeout=_PATIENCE_S):
            return  # a thread is in a transaction
        context.thread_lock.release()
        if context.pin is not None:
            environment.make_checkpoint()
    others = [one for one in threading.enumerate() if not one.name.startswith("streamkeep")]
    if others != [threading.current_thread()] or context.entered != context.left:
        return  # a thread of the program may use the store
    if environment.archive_work.acquire(wait=False):
        environment.archive_work.release()
        environment.users = 1
        environment.release()


def _let_child_open() -> None:
    """Make py-lmdb forget, in a forked child, which files the parent has open.

    py-lmdb refuses to open a file twice in a process, and counts inherited environments. The child
    never uses or closes those, so a new environment shares nothing with them. py-lmdb has no public
    way to allow this; without this hook, opening would only raise an error.
    """
    child = os.getpid()
    parents_keys: Callable[[object, object], tuple[tuple[object, ...], ...]] = _envid.env_keys

    def keys_of_child(path: object, subdir: object) -> tuple[object, ...]:
        return tuple((child, *key) for key in parents_keys(path, subdir))

    _envid.env_keys = keys_of_child


registry: Final = Registry()
atexit.register(registry.end_all)
os.register_at_fork(after_in_child=registry.leave_to_parent)
