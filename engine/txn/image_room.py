"""Room for the pages of a deferred transaction, so that its end does not find the disk full.

The room is at the end of `data.mdb`, where LMDB adds pages. Only the process that has LMDB's lock
reserves or releases it. Compiled by mypyc.
"""

from __future__ import annotations

import os
from typing import Final

import lmdb

from streamkeep.engine.system import files
from streamkeep.engine.system.pages import PAGE

_RESERVE: Final = 16 << 20  # bytes
_LEAST: Final = 12 << 20


class ImageRoom:
    """The room of one environment; nothing is reserved before `allow`."""

    def __init__(self, raw: lmdb.Environment) -> None:
        self.raw = raw
        self._data = -1  # a descriptor of the data file
        self._reserved = False  # whether this process has reserved room

    def allow(self, data: int) -> None:
        """Reserve room from now on, in the data file with this descriptor, which is kept."""
        self._data = data

    def forbid(self) -> None:
        """Reserve no room any more."""
        data, self._data = self._data, -1
        if data >= 0:
            os.close(data)

    def reserve(self) -> bool:
        """Have room for a transaction on the disk and in the map; return whether there is."""
        info = self.raw.info()
        needed = (info["last_pgno"] + 1) * PAGE + _LEAST
        if self._data < 0 or info["map_size"] < needed:
            return False  # a transaction of its own may find the map full; then it grows
        if os.fstat(self._data).st_size >= needed:
            return True
        try:
            files.reserve(self._data, needed - _LEAST + _RESERVE)
        except OSError:
            return False
        self._reserved = True
        return True

    def is_reserved(self) -> bool:
        """Return whether there is room to release."""
        return self._reserved and self._data >= 0

    def release(self) -> None:
        """Cut the data file after its last page."""
        os.ftruncate(self._data, (self.raw.info()["last_pgno"] + 1) * PAGE)
