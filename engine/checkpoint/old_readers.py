"""A warning about an old snapshot that keeps pages from being reused, so that the file grows.

LMDB reuses a page when no reader needs the commits that it belonged to. One snapshot that stays
open, in any process, keeps all pages that are freed after it. The checkpointer thread checks for
that while the store is written to. It warns once per snapshot, and at most once a minute.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.txn.flush import OpenReader, open_readers

GROWN_BYTES: Final = 256 << 20  # growth since the snapshot was first seen
WARN_EVERY_S: Final = 60.0

log = logging.getLogger("streamkeep")


class OldReaders:
    """What the checkpointer thread calls about once a second."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._context = checkpoints.context
        self._warned = -WARN_EVERY_S
        self._reader: OpenReader | None = None  # the oldest snapshot
        self._since = 0.0  # the time at which it was first seen
        self._size = 0  # of the file at that time
        self._reported = False

    def __call__(self) -> None:
        """Warn if the file has grown because of the oldest snapshot."""
        now = time.monotonic()
        oldest = self._oldest()
        size = self._context.size()
        if oldest is None or oldest != self._reader:
            self._reader, self._since, self._size, self._reported = oldest, now, size, False
            return
        grown = size - self._size
        if not self._reported and grown >= GROWN_BYTES and now - self._warned >= WARN_EVERY_S:
            self._reported, self._warned = True, now
            mine = oldest.process == os.getpid()
            log.warning(
                "%s: the file has grown by %s bytes in %d s, because process %d%s (thread %s) has "
                "had a snapshot or iterator open for that time, and freed pages cannot be reused; "
                "next: close it, or end the process",
                self._context.path,
                f"{grown:,}",
                now - self._since,
                oldest.process,
                ", this one," if mine else "",
                oldest.thread,
            )

    def _oldest(self) -> OpenReader | None:
        """Return the oldest snapshot of all processes, except the pin of this one."""
        with self._checkpoints.lock:
            pin = self._context.pin
            pinned = -1 if pin is None else pin.id()
            readers = open_readers(self._context.raw)
        own = os.getpid()
        for reader in readers:
            if (reader.process, reader.commit_number) == (own, pinned):
                readers.remove(reader)
                break
        return min(readers, key=lambda reader: reader.commit_number, default=None)
