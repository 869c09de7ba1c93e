"""Back pressure: the retired entries are bounded, even if no archiver runs.

Trimmed entries wait in `retired` for the archiver, and take as much room there as before. If they
exceed `retired_max_bytes`, or half of the free disk space, writers archive them at once, so that
they slow down instead of filling the disk. A writer does so after its own command, when it holds no
lock (`Environment.settle`). If another archiver is at work, the writer leaves the work to it; above
twice the limit it waits for it.

If archiving fails, for lack of space or permission, the error is logged. Trimming goes on, because
it only moves entries. Above twice the limit, appends to streams that archive raise StoreFullError.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import lmdb

from streamkeep.engine.archive.archiver import archive, clean, retired_bytes
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.store.environment import RETIRED_LEAST as RETIRED_LEAST
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER
from streamkeep.format.core.errors import StoreLockedError, StreamkeepError

RETIRED_MAX_BYTES: Final = 1 << 30
_RETRY_S: Final = 1.0

log = logging.getLogger("streamkeep")


class BackPressure:
    """Archives after commits that left much retired; see the top of this module."""

    def __init__(self, environment: Environment, most: int | None = None) -> None:
        self._environment = environment
        self.most = RETIRED_MAX_BYTES if most is None else most
        self._lock = make_lock("back pressure", environment.context.path)
        self._not_before = 0.0  # monotonic time of the next try after a failure

    def __call__(self) -> None:
        """Archive if too much is retired; the caller holds no lock of the store.

        If the caller was called back by the archiver, nothing is done: another thread may hold the
        lock of this object and wait for the archiver.
        """
        context = self._environment.context
        most = self._limit()
        if not self._is_due(most) or self._environment.archive_work.is_mine():
            return
        if not self._lock.acquire(context.retired_bytes > 2 * most):
            return
        try:
            if self._is_due(most):
                self._archive(most)
        finally:
            self._lock.release()

    def _is_due(self, most: int) -> bool:
        context = self._environment.context
        return context.retired_bytes > most and context.clock.monotonic() >= self._not_before

    def _archive(self, most: int) -> None:
        environment = self._environment
        context = environment.context
        try:
            try:
                archive(environment, wait=context.retired_bytes > 2 * most)
            finally:
                context.retired_bytes = environment.read(retired_bytes)
        except StoreLockedError:
            pass  # another archiver is at work
        except (StreamkeepError, lmdb.Error, OSError) as error:
            context.refuse_above = 2 * most
            self._not_before = context.clock.monotonic() + _RETRY_S
            log.error(
                "%s: %s bytes of trimmed entries cannot be archived: %s",
                environment.path,
                f"{context.retired_bytes:,}",
                error,
            )

    def _limit(self) -> int:
        try:
            free = os.statvfs(self._environment.path)
        except OSError:
            return self.most
        return max(RETIRED_LEAST, min(self.most, free.f_bavail * free.f_frsize // 2))


def clean_after_crash(environment: Environment) -> None:
    """Remove the files that a killed archiver has left; called when the store is opened."""
    if not environment.read(retired_bytes) or not environment.folder.has_folder(ARCHIVE_FOLDER):
        return
    try:
        with ArchiveLock(environment, wait=False):
            clean(environment)
    except StoreLockedError:
        return  # an archiver is at work
    except (StreamkeepError, OSError) as error:  # the store can be used, as on a full disk
        log.warning("%s: what an archiver left will be removed later: %s", environment.path, error)
