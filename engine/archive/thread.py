"""The archiver as a thread of a store: `streamkeep.open(path, archive_every="1m")`.

Each round enforces retention and archives; if the archive is kept in an object store, it also
brings that up to date. Entries that are too few for a file remain retired, where history shows
them, until they are enough or have waited for some rounds. A round never waits for another archiver
of any process: where it would have to, it ends. No error ends the thread: a failed round is logged,
reported by `Store.durability`, and tried again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from streamkeep.engine.archive.archiver import DEFAULT_OPTIONS, archive
from streamkeep.engine.archive.publish import publish
from streamkeep.engine.archive.upkeep import maintain
from streamkeep.engine.store.environment import Environment
from streamkeep.format.core.errors import StoreClosedError, StoreLockedError

WORTH_A_FILE: Final = 4 << 20  # bytes of nodes
PATIENCE: Final = 20  # each 20th round also archives streams below that size
_WORK: Final = "archiving"


class ArchiveThread:
    """Maintains and archives a store at regular intervals."""

    def __init__(self, environment: Environment, every_s: float) -> None:
        self._environment = environment
        self._every_s = every_s
        self._stopping = threading.Event()
        self._rounds = 0
        self._thread = threading.Thread(target=self._run, name="streamkeep-archive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            error = self._environment.failures.attempt(_WORK, self._round)
            if isinstance(error, StoreClosedError):
                return

    def _round(self) -> None:
        self._rounds += 1
        least = 0 if self._rounds % PATIENCE == 0 else WORTH_A_FILE
        options = DEFAULT_OPTIONS._replace(least_bytes=least)
        with suppress(StoreLockedError):  # another archiver is at work
            maintain(self._environment, wait=False)
            archive(self._environment, options, wait=False)
            publish(self._environment, wait=False)
