"""The archive's lock: held by the thread that writes segment files or changes the manifest.

It consists of `Environment.archive_work`, a lock among the threads of this process, and of a lock
on the file `archive/lock`, which the system releases if the process dies. Its holder may remove
temporary files, because no other thread is writing one. Closing the store waits for the first of
the two, so that no thread loses its files in the middle of a segment.

Order of locks: this one, that of the checkpoints (`Checkpoints.exclusive`), the write lock. A
thread that holds one of them takes none of those before it.
"""

from __future__ import annotations

import os
from functools import partial

from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.long_wait import holders_of, lock_file
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, ARCHIVE_LOCK
from streamkeep.format.core.errors import StoreLockedError


class ArchiveLock:
    """The archive's lock, for a `with` block. Compiled, so that an interrupt leaves it free."""

    def __init__(self, environment: Environment, *, wait: bool = True) -> None:
        """Make the lock, which a `with` block takes.

        Args:
            wait: wait until its holder releases it.

        Raises:
            StoreLockedError: another thread or process holds it, and `wait` is False; or this
                thread holds it, and was called back by the method that took it; or its holder is
                stopped.
            StoreError: this thread has a transaction open, for which its holder may wait.
            StoreClosedError: the store was closed.
        """
        self._environment = environment
        self._threads = environment.archive_work
        self._wait = wait
        self._handle = -1

    def __enter__(self) -> None:
        environment = self._environment
        environment.context.check_open()
        environment.context.check_not_writing()
        if self._threads.is_mine():
            raise StoreLockedError(
                f"{environment.path}: this thread is already working on the archive; next: call "
                "the method again when the other one has returned"
            )
        if not self._threads.acquire(wait=self._wait):
            raise _locked(environment)
        try:
            environment.context.check_open()  # again: closing holds the lock while it waits
            folder = environment.folder.make_folder(ARCHIVE_FOLDER)
            self._handle = folder.open(ARCHIVE_LOCK, os.O_RDWR | os.O_CREAT)
            environment.archive_wait.users = partial(holders_of, [self._handle])
            lock_file(self._handle, environment.archive_wait, self._wait)
        except BlockingIOError:
            self._release()
            raise _locked(environment) from None
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise translate_os(error) from error
            raise

    def __exit__(self, *error: object) -> None:
        self._release()

    def __del__(self) -> None:
        if self._handle >= 0:  # an interrupt on Python 3.14, for which see `locks`
            self._release()

    def _release(self) -> None:
        handle, self._handle = self._handle, -1
        try:
            if handle >= 0:
                os.close(handle)
        finally:
            self._threads.release()


def _locked(environment: Environment) -> StoreLockedError:
    return StoreLockedError(
        f"{environment.path}: another thread or process is working on the archive; next: try "
        "again later"
    )
