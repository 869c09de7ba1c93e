"""A warning: an old snapshot keeps pages from being used again, and the file grows.

LMDB uses a page again when no reader needs the state that it belonged to. One snapshot that stays
open, in whatever process, keeps all pages that are freed after it. The checkpointer thread looks
every few seconds while the store is written to. It warns once of each snapshot, once a minute at
most.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from streamkeep.engine.checkpoint.durability import Reader, open_readers

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment

GROWN_BYTES: Final = 256 << 20  # since the snapshot was seen for the first time
LOOK_EVERY_S: Final = 5.0
WARN_EVERY_S: Final = 60.0

log = logging.getLogger("streamkeep")


class OldReaders:
    """What the checkpointer thread calls about once a second."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._looked = -LOOK_EVERY_S
        self._warned = -WARN_EVERY_S
        self._reader: Reader | None = None  # the oldest
        self._since = 0.0  # when it was seen first
        self._size = 0  # of the file by then
        self._told = False

    def __call__(self) -> None:
        """Look at the oldest snapshot; warn when the file grows because of it."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        oldest = self._oldest()
        size = self._environment.used_size()
        if oldest is None or oldest != self._reader:
            self._reader, self._since, self._size, self._told = oldest, now, size, False
            return
        grown = size - self._size
        if not self._told and grown >= GROWN_BYTES and now - self._warned >= WARN_EVERY_S:
            self._told, self._warned = True, now
            mine = oldest.process == os.getpid()
            log.warning(
                "%s: the file has grown by %s bytes in %d s, since process %d%s (thread %s) has a "
                "snapshot or iterator open that is at least as old: pages that were freed since "
                "cannot be used again; close it, or end the process",
                self._environment.path,
                f"{grown:,}",
                now - self._since,
                oldest.process,
                ", this one," if mine else "",
                oldest.thread,
            )

    def _oldest(self) -> Reader | None:
        """Return the oldest snapshot of all processes but our pin, which moves on by itself."""
        environment = self._environment
        checkpoints = environment.checkpoints
        if checkpoints is None:
            return None
        with checkpoints.lock:
            pin = environment.context.pin
            pinned = -1 if pin is None else pin.id()
            readers = open_readers(environment.raw)
        own = os.getpid()
        for reader in readers:
            if (reader.process, reader.commit_number) == (own, pinned):
                readers.remove(reader)
                break
        return min(readers, key=lambda reader: reader.commit_number, default=None)
