"""One at a time: a thread that writes segment files or changes the manifest holds this lock.

It is a lock of the file `archive/lock`, which the system gives back when a process dies, and a
lock among the threads of this process, since the former does not hold between those. Its holder
may remove temporary files: no other thread is writing one.

Order of locks: this one, that of the checkpoints (`Checkpoints.exclusive`), the write lock. A
thread that holds one takes none that comes before it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamkeep.engine.model.segment_files import ARCHIVE_FOLDER, ARCHIVE_LOCK
from streamkeep.engine.store.environment import Environment
from streamkeep.format.core.errors import StoreLockedError


class _Threads:
    """The lock among the threads of this process, for one store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0  # the thread that holds it


_threads: dict[tuple[int, int], _Threads] = {}
_guard = threading.Lock()


@contextmanager
def archive_lock(environment: Environment, *, wait: bool = True) -> Iterator[None]:
    """Hold the archive's lock in a `with` block.

    Args:
        wait: until its holder lets it go.

    Raises:
        StoreLockedError: another one has it, and `wait` is False; or this thread itself has it,
            whose function was called back by what it holds the lock for.
    """
    folder = environment.folder.make_folder(ARCHIVE_FOLDER)
    with _guard:
        mine = _threads.setdefault(environment.identity, _Threads())
    me = threading.get_ident()
    if mine.owner == me:
        raise StoreLockedError(
            f"{environment.path}: this thread is working on the archive already; call the method "
            "when the other one has returned"
        )
    if not mine.lock.acquire(blocking=wait):
        raise _locked(environment)
    try:
        mine.owner = me
        handle = folder.open(ARCHIVE_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise _locked(environment) from None
            yield
        finally:
            os.close(handle)
    finally:
        mine.owner = 0
        mine.lock.release()


def works_on_archive(environment: Environment) -> bool:
    """Say whether this thread holds the archive's lock."""
    known = _threads.get(environment.identity)
    return known is not None and known.owner == threading.get_ident()


def _locked(environment: Environment) -> StoreLockedError:
    return StoreLockedError(f"{environment.path}: another thread or process works on the archive")


def _after_fork_in_child() -> None:
    """Threads of the parent hold nothing here."""
    global _guard
    _guard = threading.Lock()
    _threads.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
