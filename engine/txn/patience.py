"""How long a process waits for LMDB's lock, which another one has while it defers commits.

Such a process gives the lock away within milliseconds, unless it is stopped. Compiled by mypyc.
"""

from __future__ import annotations

import time

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.format.core.errors import StoreLockedError


class Patience:
    """Waits for LMDB's lock while the process that has it does anything."""

    def __init__(self, control: ControlFile, limit_s: float) -> None:
        self._control = control
        self._limit_s = limit_s
        self._since = time.monotonic()
        self._process = control.deferring()
        self._journaled = control.journaled()

    def check(self) -> None:
        """Raise if one process has deferred commits, and made none, for the whole time.

        Raises:
            StoreLockedError: the process is probably stopped.
        """
        control = self._control
        process, journaled = control.deferring(), control.journaled()
        now = time.monotonic()
        if not process or process != self._process or journaled != self._journaled:
            self._since, self._process, self._journaled = now, process, journaled
        elif now - self._since > self._limit_s:
            raise StoreLockedError(
                f"process {process} has the lock of the store, and for {self._limit_s:g} seconds "
                "it has neither written nor let other processes write; next: let it go on if it is "
                f"stopped (kill -CONT {process}), or end it: its commits stay"
            )
