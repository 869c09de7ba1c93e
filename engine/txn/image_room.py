"""Room at the end of `data.mdb`, where LMDB adds pages, so that no flush finds the disk full.

What the memtable has is acknowledged. If LMDB could not take it, no command could make room either:
what it frees can be used after the next flush only. So room is reserved before a commit. Where
there is none, LMDB makes the commit itself, and fails or does not. Only the process with the write
lock reserves or releases room. Compiled by mypyc.
"""

from __future__ import annotations

import os
from typing import Final

import lmdb

from streamkeep.engine.system import files
from streamkeep.engine.system.pages import PAGE

_LEAST: Final = 65_536  # bytes of records for which room is reserved
_FACTOR: Final = 16  # a flush writes so many times the bytes of small records, in whole pages
_PAGES: Final = 16 << 20  # and at most so much beside twice the bytes of records
_MORE: Final = 4 << 20  # reserved at once, at most


class ImageRoom:
    """The room of one environment.

    Args:
        data: a descriptor of the data file.
    """

    def __init__(self, data: int) -> None:
        self._data = data

    def reserve(self, raw: lmdb.Environment, size: int) -> int:
        """Have room for a flush of records of `size` bytes.

        Returns:
            The bytes of records for which there is room; 0 if there is not enough.
        """
        size = max(2 * size, _LEAST)
        needed = min(_FACTOR * size, 2 * size + _PAGES)
        info = raw.info()
        end = (int(info["last_pgno"]) + 1) * PAGE
        if int(info["map_size"]) < end + needed:
            return size  # a flush may find the map full, which grows then
        there = os.fstat(self._data).st_size
        if there < end + needed:
            try:
                files.reserve(self._data, end + needed + min(needed, _MORE), there)
            except OSError:
                return 0
        return size

    def release(self, raw: lmdb.Environment) -> None:
        """Cut the data file after its last page."""
        end = (int(raw.info()["last_pgno"]) + 1) * PAGE
        if os.fstat(self._data).st_size > end:
            os.ftruncate(self._data, end)
