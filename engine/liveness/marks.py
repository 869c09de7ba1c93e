"""What a process works on at this moment, written into the file of its lease.

A mark is 16 bytes that stand for one delivery. The file is an array of them, with zeros in the free
places. A process that takes over the deliveries of a dead one reads there which of them it was
working on. Nothing is synced: a kill leaves the file as it was, and after a boot no mark matches,
because the boot is a part of each.

A mark that could not be written is missed, and never an error: the work itself has been taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from xxhash import xxh3_128_digest

from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.lock_order import make_lock

SIZE: Final = 16
MOST: Final = 4096  # marks of a process
FREE: Final = bytes(SIZE)


def mark_of(delivery: bytes) -> bytes:
    """Return the mark of a delivery, given as bytes that no other delivery has."""
    return xxh3_128_digest(boot_id() + delivery)


def marks_in(data: bytes) -> list[bytes]:
    """Return the marks in the file of a lease; the places of those that have ended are zeros."""
    return [data[at : at + SIZE] for at in range(0, len(data) - SIZE + 1, SIZE)]


class Marks:
    """The marks of this process. Threads may share it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle  # of the file; -1 after `close`
        self._lock = make_lock("marks")
        self._data = bytearray()
        self._free: list[int] = []

    def add(self, marks: Sequence[bytes]) -> list[int]:
        """Write marks; return their places, -1 for one that there was no room for."""
        places: list[int] = []
        with self._lock:
            for mark in marks:
                if self._free:
                    place = self._free.pop()
                elif len(self._data) < MOST * SIZE:
                    place = len(self._data) // SIZE
                    self._data += FREE
                else:
                    places.append(-1)
                    continue
                self._data[place * SIZE : (place + 1) * SIZE] = mark
                places.append(place)
            self._write(places)
        return places

    def remove(self, places: Iterable[int]) -> None:
        """Free places of marks."""
        used = [place for place in places if place >= 0]
        with self._lock:
            for place in used:
                self._data[place * SIZE : (place + 1) * SIZE] = FREE
            self._free += used
            self._write(used)

    def are_there(self) -> bool:
        """Return whether the process works on something."""
        return any(self._data)

    def close(self) -> None:
        """Write no more, as the file is closed."""
        self._handle = -1

    def _write(self, places: list[int]) -> None:
        """Write what is between the lowest and the highest of the places, in one call."""
        used = [place for place in places if place >= 0]
        if not used or self._handle < 0:
            return
        low, high = min(used) * SIZE, (max(used) + 1) * SIZE
        with suppress(OSError):  # such as a full disk
            os.pwrite(self._handle, self._data[low:high], low)
