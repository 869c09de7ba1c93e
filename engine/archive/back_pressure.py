"""Back pressure: what is retired is bounded, whether anybody archives or not.

What was trimmed waits in `retired` for the archiver, and takes as much room there as before. When
it takes more than `retired_max_bytes`, or half of what the disk has left, the writers make segments
of it on the spot: they pay for the archive themselves, instead of filling the disk. They do so
after their own command, when they hold no lock (`Environment.settle`). While another archiver is
at work they leave it to that one, unless twice as much is retired; then they wait for it.

When that fails, for want of room or rights, the log says so, and trimming goes on: it moves entries
and needs no more room. But appends to streams that archive raise StoreFullError from twice the
limit on, since they would only add to what nobody can put away.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

import lmdb

from streamkeep.engine.archive.archiver import archive, clean, retired_bytes
from streamkeep.engine.archive.lock import archive_lock
from streamkeep.engine.model.segment_files import ARCHIVE_FOLDER
from streamkeep.engine.store.environment import RETIRED_LEAST, Environment
from streamkeep.format.core.errors import StoreLockedError, StreamkeepError

RETIRED_MAX_BYTES: Final = 1 << 30
_RETRY_S: Final = 1.0

log = logging.getLogger("streamkeep")


class BackPressure:
    """Called after commits that left much retired; see the module."""

    def __init__(self, environment: Environment, most: int | None = None) -> None:
        self._environment = environment
        self.most = RETIRED_MAX_BYTES if most is None else most
        self._lock = threading.Lock()  # one thread of this process archives, the others may wait
        self._not_before = 0.0  # by the clock that only goes forward; after a failure

    def __call__(self) -> None:
        """Archive when too much is retired.

        The caller holds no lock of the store; or it was called back by the archiver, which it then
        leaves this to: a thread that waits for the archiver may have the lock of this object.
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
                context.refuse_above = 0
            finally:
                context.retired_bytes = environment.read(retired_bytes)
        except StoreLockedError:
            pass  # another archiver is at work
        except (StreamkeepError, lmdb.Error, OSError) as error:
            context.refuse_above = 2 * most
            self._not_before = context.clock.monotonic() + _RETRY_S
            log.error(
                "%s bytes of trimmed entries cannot be archived: %s", context.retired_bytes, error
            )

    def _limit(self) -> int:
        try:
            free = os.statvfs(self._environment.path)
        except OSError:
            return self.most
        return max(RETIRED_LEAST, min(self.most, free.f_bavail * free.f_frsize // 2))


def clean_after_crash(environment: Environment) -> None:
    """When the store is opened: remove what a killed archiver has left, if there may be any."""
    if not environment.read(retired_bytes) or not environment.folder.has_folder(ARCHIVE_FOLDER):
        return
    try:
        with archive_lock(environment, wait=False):
            clean(environment)
    except StoreLockedError:
        return  # it is alive
