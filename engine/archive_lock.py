"""One at a time: whoever writes segment files or changes the manifest holds this lock.

It is a lock of the file `archive/lock`, which the system gives back when a process dies, and a
lock among the threads of this process, since the former does not hold between those. Who has it
may remove temporary files: nobody else is writing one.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streamkeep.engine import files
from streamkeep.engine.environment import Environment
from streamkeep.engine.segment_files import ARCHIVE_FOLDER
from streamkeep.format.errors import StoreLockedError

LOCK_FILE: Final = "lock"

_threads: dict[tuple[int, int], threading.Lock] = {}
_guard = threading.Lock()


@contextmanager
def archive_lock(environment: Environment, *, wait: bool = True) -> Iterator[None]:
    """Hold the archive's lock in a `with` block.

    Args:
        wait: until whoever has it lets it go.

    Raises:
        StoreLockedError: another one has it, and `wait` is False.
    """
    folder = environment.path / ARCHIVE_FOLDER
    files.create_folder(folder)
    with _guard:
        mine = _threads.setdefault(environment.identity, threading.Lock())
    if not mine.acquire(blocking=wait):
        raise _locked(environment)
    try:
        handle = files.open_file(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise _locked(environment) from None
            yield
        finally:
            os.close(handle)
    finally:
        mine.release()


def _locked(environment: Environment) -> StoreLockedError:
    return StoreLockedError(f"{environment.path}: somebody else is working on the archive")


def _after_fork_in_child() -> None:
    """Threads of the parent hold nothing here."""
    global _guard
    _guard = threading.Lock()
    _threads.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
