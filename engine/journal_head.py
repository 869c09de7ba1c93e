"""What the processes of a store share about its journal, in a mapped file.

    0     file number, offset, chain, commit number, all four XORed    behind the newest commit
    64    commit number up to which the journal is on disk
    72    number of the file that holds it
    80    1 after a failed sync: nobody may write until the store has been recovered
    88    16 bytes: the boot that all this is of

The first part is written under LMDB's write lock, after the commit. A process that is killed
before leaves it behind the store, or half written: the next writer finds out (the commit number is
not LMDB's, or the last field is wrong) and looks the place up in the journal. The second part is
written by whoever synced, without a lock: where two write at the same time, less may stand there
than is on disk, never more, and a file is named only after all before it were synced.

Nothing here needs to survive a power loss: the first process that opens the file after a boot
sets it up anew. What the disk has of an older one counts for nothing, in particular not its word
of what is on disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from streamkeep.engine import boot, files
from streamkeep.format.errors import StoreError

HEAD_FILE: Final = "head"
_SIZE: Final = 4096
_TAIL: Final = struct.Struct("=QQQQQ")
_pack_tail: Final = _TAIL.pack_into
_U64: Final = struct.Struct("=Q")
_DURABLE: Final = 64
_DURABLE_FILE: Final = 72
_POISONED: Final = 80
_BOOT: Final = 88
_BOOT_END: Final = 104
_TRIES: Final = 1000


class Place(NamedTuple):
    """A place in the journal: behind the record of a commit."""

    file_number: int
    offset: int
    chain: int
    commit_number: int


class JournalHead:
    """The mapped file."""

    def __init__(self, folder: Path) -> None:
        """Open the file, or create it."""
        self.handle = files.open_file(folder / HEAD_FILE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        try:
            files.reserve(self.handle, _SIZE)
            self._map = mmap.mmap(self.handle, _SIZE)
            here = boot.boot_id()
            if self._map[_BOOT:_BOOT_END] != here:
                self._map[:] = bytes(_SIZE)
                self._map[_BOOT:_BOOT_END] = here
        except OSError:
            os.close(self.handle)
            raise
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap and close the file."""
        self._map.close()
        os.close(self.handle)

    def reset(self, place: Place, durable_file: int, durable_commit: int) -> None:
        """Set a new file up; no other process has the store open.

        Args:
            durable_file: the first file that may hold what is not on disk.
        """
        self.set_place(place)
        self.set_durable(durable_file, durable_commit)

    def place(self) -> Place | None:
        """Return the place behind the newest commit; None when it is half written.

        Called without the write lock, it may meet a writer at work, and so looks again.
        """
        for _ in range(_TRIES):
            number, offset, chain, commit_number, check = _TAIL.unpack_from(self._map)
            if check == number ^ offset ^ chain ^ commit_number and number:
                return Place(number, offset, chain, commit_number)
        return None

    def set_place(self, place: Place) -> None:
        """Publish the place behind the newest commit."""
        self.publish(place.file_number, place.offset, place.chain, place.commit_number)

    def publish(self, number: int, offset: int, chain: int, commit_number: int) -> None:
        """As `set_place`, of its four parts."""
        check = number ^ offset ^ chain ^ commit_number
        _pack_tail(self._map, 0, number, offset, chain, commit_number, check)

    def durable(self) -> int:
        """Return the commit up to which everything is on disk."""
        return int(_U64.unpack_from(self._map, _DURABLE)[0])

    def durable_file(self) -> int:
        """Return the number of the file that was synced last."""
        return int(_U64.unpack_from(self._map, _DURABLE_FILE)[0])

    def set_durable(self, file_number: int, commit_number: int) -> None:
        """Publish what is on disk."""
        self._map[_DURABLE_FILE : _DURABLE_FILE + 8] = _U64.pack(file_number)
        self._map[_DURABLE : _DURABLE + 8] = _U64.pack(commit_number)

    def check_there(self) -> None:
        """Raise when the store was deleted: files made from now on would be in the way of another.

        Raises:
            StoreError: the store is not there any more.
        """
        if os.fstat(self.handle).st_nlink == 0:
            raise StoreError("the store was deleted while it was open; close it")

    def poisoned(self) -> bool:
        """Say whether a sync has failed."""
        return self._map[_POISONED] != 0

    def poison(self) -> None:
        """Have every process refuse to write."""
        self._map[_POISONED] = 1


def is_poisoned(folder: Path) -> bool:
    """Say, without touching the file, whether a sync has failed since the machine was booted."""
    path = folder / HEAD_FILE
    if not path.exists():
        return False
    data = path.read_bytes()
    return len(data) == _SIZE and data[_POISONED] != 0 and data[_BOOT:_BOOT_END] == boot.boot_id()
