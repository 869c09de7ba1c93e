"""What a process works on at this moment, written into the file of its lease.

A mark is 16 bytes that stand for one delivery. The file is an array of them, with zeros in the free
places. A process that takes over the deliveries of a dead one reads there which of them it was
working on. Nothing is synced: a kill leaves the file as it was, and after a boot no mark matches,
because the boot is a part of each.

A mark for which there is no room is missed, and never an error: the work itself has been taken.
Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_128_digest

from streamkeep.engine.system import files
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.system.shared_file import SharedFile

SIZE: Final = 16
MOST: Final = 1024  # marks of a process
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
        """Reserve room in the file of the lease, which is empty; raise OSError if there is none.

        The map has a descriptor of its own, and closing it ends the lock of the lease.
        """
        files.write_at(handle, bytes(MOST * SIZE), 0)
        self._file: SharedFile | None = SharedFile(handle)
        self._lock = make_lock("marks")
        self._used = 0  # places that were ever used
        self._free: list[int] = []

    def add(self, mark: bytes) -> int:
        """Write a mark; return its place, -1 if there is no room."""
        with self._lock:
            if self._free:
                place = self._free.pop()
            elif self._used < MOST:
                place = self._used
                self._used += 1
            else:
                return -1
            self._write(place, mark)
        return place

    def remove(self, place: int) -> None:
        if place >= 0:
            with self._lock:
                self._write(place, FREE)
                self._free.append(place)

    def are_there(self) -> bool:
        """Return whether the process works on something."""
        return len(self._free) < self._used

    def close(self) -> None:
        """Write no more, as the lease ends."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def leave_to_parent(self) -> None:
        """In a forked child, write no more. Another thread may have held the lock."""
        self._lock = make_lock("marks")
        self.close()

    def _write(self, place: int, mark: bytes) -> None:
        file = self._file
        if file is not None:
            try:  # noqa: SIM105  # `suppress` costs as much as the rest
                file.write(place * SIZE, mark)
            except OSError:  # a full disk, where blocks move
                pass
