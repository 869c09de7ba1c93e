"""What the processes of a store share about its journal, in a mapped file.

    0     file number, offset, chain, commit number, all four XORed    behind an even commit
    64    the same, behind an odd one
    128   a commit that LMDB has made, the newest or one shortly before it
    136   commit number up to which the journal is on disk
    144   number of the file that holds it
    152   1 after a failed sync: nobody may write until the store has been recovered
    160   16 bytes: the boot that all this is of
    176   how many erasures there were: who sees a new number clears its memory (`scrub`)

The places are written under LMDB's write lock, before LMDB commits: so the one behind the newest
commit is always there and whole, whoever is killed, and the other is that of the commit before or
of one that is being made. After the commit nobody could write in an order that others rely on,
since LMDB gives up its lock with it. What is on disk is written by whoever synced, under a file
lock, and only rises.

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
_PLACES: Final = (0, 64)
_COMMITTED: Final = 128
_DURABLE: Final = 136
_DURABLE_FILE: Final = 144
_POISONED: Final = 152
_BOOT: Final = 160
_BOOT_END: Final = 176
_ERASURES: Final = 176
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
        except BaseException:
            os.close(self.handle)
            raise
        self.unlock()

    def close(self) -> None:
        """Unmap and close the file."""
        self._map.close()
        os.close(self.handle)

    def reset(self, place: Place, durable_file: int, durable_commit: int) -> None:
        """Set a new file up; no other process has the store open.

        Args:
            durable_file: the first file that may hold what is not on disk.
        """
        self.set_made(place.commit_number)
        self.set_place(place)
        self.set_durable(durable_file, durable_commit)

    def place_behind(self, commit_number: int) -> Place | None:
        """Return the place behind the newest commit; None when it is not known."""
        place = _decode(self._slot(commit_number & 1))
        return None if place is None or place.commit_number != commit_number else place

    def to_sync(self, commit_number: int) -> Place | None:
        """Return the place behind the newest commit that is known to be made.

        Called without the write lock, it may meet writers at work, and so looks again until both
        places stood there at one moment: where one is half written, or the two follow each other,
        the commit of the first was made. What was made is read before: a place that was published
        for a commit that failed is published again, elsewhere, before that commit is made.

        Args:
            commit_number: one that was made; the place is behind it, or a later one.
        """
        for _ in range(_TRIES):
            made = max(commit_number, int(_U64.unpack_from(self._map, _COMMITTED)[0]))
            even, odd = self._slot(0), self._slot(1)
            if self._slot(0) != even:
                continue
            one, other = _decode(even), _decode(odd)
            known = one or other
            if one is not None and other is not None:
                last, known = one, other
                if last.commit_number < known.commit_number:
                    last, known = known, last
                if last.commit_number <= made:
                    known = last
                elif known.commit_number + 1 != last.commit_number:
                    continue
            if known is not None and known.commit_number >= commit_number:
                return known
        return None

    def _slot(self, number: int) -> bytes:
        at = _PLACES[number]
        return self._map[at : at + _TAIL.size]

    def set_place(self, place: Place) -> None:
        """Publish the place behind the newest commit."""
        self.publish(place.file_number, place.offset, place.chain, place.commit_number)

    def publish(self, number: int, offset: int, chain: int, commit_number: int) -> None:
        """Publish the place behind a commit that is about to be made, of its four parts."""
        check = number ^ offset ^ chain ^ commit_number
        at = _PLACES[commit_number & 1]
        _pack_tail(self._map, at, number, offset, chain, commit_number, check)

    def set_made(self, commit_number: int) -> None:
        """Note that LMDB has made a commit."""
        self._map[_COMMITTED : _COMMITTED + 8] = _U64.pack(commit_number)

    def durable(self) -> int:
        """Return the commit up to which everything is on disk."""
        return int(_U64.unpack_from(self._map, _DURABLE)[0])

    def durable_file(self) -> int:
        """Return the number of the file that was synced last."""
        return int(_U64.unpack_from(self._map, _DURABLE_FILE)[0])

    def set_durable(self, file_number: int, commit_number: int) -> None:
        """Publish what is on disk, under `lock`."""
        self._map[_DURABLE_FILE : _DURABLE_FILE + 8] = _U64.pack(file_number)
        self._map[_DURABLE : _DURABLE + 8] = _U64.pack(commit_number)

    def lock(self) -> None:
        """Have no other process say what is on disk; threads of one need a lock of their own."""
        fcntl.flock(self.handle, fcntl.LOCK_EX)

    def try_lock(self) -> bool:
        """As `lock`; False when another process has it."""
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def await_unlock(self) -> None:
        """Return when whoever has the lock gives it back; all who wait return at once."""
        fcntl.flock(self.handle, fcntl.LOCK_SH)
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def unlock(self) -> None:
        """Take back `lock`."""
        fcntl.flock(self.handle, fcntl.LOCK_UN)

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

    def may_write(self, erasures: int) -> bool:
        """Say whether no sync has failed, and there were no more erasures than so many."""
        return self._map[_POISONED] == 0 and self.erasures() == erasures

    def erasures(self) -> int:
        """Return how many erasures there were since the file was set up."""
        return int(_U64.unpack_from(self._map, _ERASURES)[0])

    def count_erasure(self) -> None:
        """Have every process clear its memory before it writes again; under the write lock."""
        self._map[_ERASURES : _ERASURES + 8] = _U64.pack(self.erasures() + 1)

    def poison(self) -> None:
        """Have every process refuse to write."""
        self._map[_POISONED] = 1


def _decode(data: bytes) -> Place | None:
    """Return the place that was published; None when it is half written, or there is none."""
    number, offset, chain, commit_number, check = _TAIL.unpack(data)
    if check == number ^ offset ^ chain ^ commit_number and number:
        return Place(number, offset, chain, commit_number)
    return None


def is_poisoned(folder: Path) -> bool:
    """Say, without touching the file, whether a sync has failed since the machine was booted."""
    path = folder / HEAD_FILE
    if not path.exists():
        return False
    data = path.read_bytes()
    return len(data) == _SIZE and data[_POISONED] != 0 and data[_BOOT:_BOOT_END] == boot.boot_id()
