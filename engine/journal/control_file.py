"""What the processes of a store share about its journal, in a mapped file.

    0     file number, offset, chain, commit number, all four XORed    behind an even commit
    64    the same, behind an odd one
    128   a commit that LMDB has made, the newest or one shortly before it
    136   commit number up to which the journal is on disk
    144   number of the file that holds it
    152   1 after a failed sync: nobody may write until the store has been recovered
    160   16 bytes: the boot that all this is of
    176   how many erasures there were: who sees a new number clears its memory (`scrub`)
    184   the wave of syncs that was begun last (`turns`)
    192   the wave that was over last
    200   how often the file is open; too high where a process was killed
    208   the mount on which it was set up, 0 where the system does not say

The places are written under LMDB's write lock, before LMDB commits: so the one behind the newest
commit is always there and whole, whoever is killed, and the other is that of the commit before or
of one that is being made. After the commit nobody could write in an order that others rely on,
since LMDB gives up its lock with it. What is on disk is written by whoever synced, in its
turn, and only rises.

Nothing here needs to survive a power loss: the first process that opens the file after a boot
sets it up again. What the disk has of an older one counts for nothing, in particular not its word
of what is on disk. The file is never synced, either. So a file that is missing, empty, or of
another boot or mount shows that the system may have lost pages that were not on disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final, NamedTuple

from librt.strings import read_i64_le
from mypy_extensions import i64

from streamkeep.engine.system import boot_id, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError
from streamkeep.format.core.id_codec import unsigned

CONTROL_FILE: Final = "head"
_SIZE: Final = 4096
_PLACE: Final = struct.Struct("<QQQQQ")
_pack_place: Final = _PLACE.pack_into
_EVEN_AT: Final = 0
_ODD_AT: Final = 64
_EVEN: Final = slice(_EVEN_AT, _EVEN_AT + _PLACE.size)
_ODD: Final = slice(_ODD_AT, _ODD_AT + _PLACE.size)
_BOOT: Final = 160
_BOOT_END: Final = 176
_TRIES: Final = 1000

# As words of 8 bytes:
_COMMITTED: Final = 16
_DURABLE: Final = 17
_DURABLE_FILE: Final = 18
_POISON: Final = 19
_ERASURES: Final = 22
_BEGUN: Final = 23
_OVER: Final = 24
_OPENINGS: Final = 25
_MOUNT: Final = 26


class LogPosition(NamedTuple):
    """A place in the journal: behind the record of a commit."""

    file_number: int
    offset: int
    chain: int
    commit_number: int


class ControlFile:
    """The mapped file."""

    def __init__(self, folder: Folder) -> None:
        """Open the file, or create it."""
        self._path = str(folder.path / CONTROL_FILE)
        self.handle = folder.open(CONTROL_FILE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        try:
            status = os.fstat(self.handle)
            self._identity = status.st_ino, status.st_dev
            files.reserve(self.handle, _SIZE)
            self._map = mmap.mmap(self.handle, _SIZE)
            here = boot_id.boot_id()
            mount = -1
            if self._map[_BOOT:_BOOT_END] != here:
                self._map[:] = bytes(_SIZE)
                self._map[_BOOT:_BOOT_END] = here
                mount = boot_id.mount_id(folder.path)
        except BaseException:
            os.close(self.handle)
            raise
        self._words = memoryview(self._map).cast("q")
        if mount >= 0:
            self._words[_MOUNT] = mount
        self._words[_OPENINGS] += 1
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap and close the file."""
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        self._words[_OPENINGS] -= 1
        fcntl.flock(self.handle, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """As `close`, in a forked child: the parent has it open, or was closing it."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            self._words.release()
            self._map.close()
            os.close(handle)

    def reset(self, position: LogPosition, durable_file: int, durable_commit: int) -> None:
        """Set a new file up; no other process has the store open.

        Args:
            durable_file: the first file that may hold what is not on disk.
        """
        self.set_made(position.commit_number)
        self.set_position(position)
        self.set_durable(durable_file, durable_commit)

    def position_after(self, commit_number: int) -> LogPosition | None:
        """Return the place behind the newest commit; None when it is not known."""
        number, offset, chain = self.parts_after(commit_number)
        return LogPosition(number, offset, chain, commit_number) if number else None

    def parts_after(self, commit_number: int) -> tuple[int, int, int]:
        """Return file number, offset and chain of that place; zeros when it is not known."""
        return _parts(self._map[_ODD if commit_number & 1 else _EVEN], commit_number)

    def to_sync(self, commit_number: int) -> tuple[int, int] | None:
        """Return the newest commit that is known to be made, and before it the file it ends in.

        Called without the write lock, it may meet writers at work. What was made is read first: a
        place that was published for a commit that failed is published again, elsewhere, before
        that commit is made. Where the place behind the newest is gone again, two later ones stand
        there, or are being written; it looks until both stood there at one moment: where one is
        half written, or the two follow each other, the commit of the first was made.

        Args:
            commit_number: one that was made; the result is this one or a later one.
        """
        made = max(commit_number, self._words[_COMMITTED])
        number = _file_number(self._map[_ODD if made & 1 else _EVEN], made)
        if number > 0:
            return int(number), made
        for _ in range(_TRIES):
            made = max(commit_number, self._words[_COMMITTED])
            even, odd = self._map[_EVEN], self._map[_ODD]
            if self._map[_EVEN] != even:
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
                return known.file_number, known.commit_number
        return None

    def set_position(self, position: LogPosition) -> None:
        """Publish the place behind the newest commit."""
        self.publish(position.file_number, position.offset, position.chain, position.commit_number)

    def publish(self, number: int, offset: int, chain: int, commit_number: int) -> None:
        """Publish the place behind a commit that is about to be made, of its four parts."""
        check = number ^ offset ^ chain ^ commit_number
        at = _ODD_AT if commit_number & 1 else _EVEN_AT
        _pack_place(self._map, at, number, offset, chain, commit_number, check)

    def set_made(self, commit_number: int) -> None:
        """Note that LMDB has made a commit."""
        self._words[_COMMITTED] = commit_number

    def durable(self) -> int:
        """Return the commit up to which everything is on disk."""
        return self._words[_DURABLE]

    def durable_file(self) -> int:
        """Return the number of the file that was synced last."""
        return self._words[_DURABLE_FILE]

    def set_durable(self, file_number: int, commit_number: int) -> None:
        """Publish what is on disk, in one's turn."""
        self._words[_DURABLE_FILE] = file_number
        self._words[_DURABLE] = commit_number

    def is_shared(self) -> bool:
        """Say whether another process may have the file open."""
        return self._words[_OPENINGS] != 1

    def begun(self) -> int:
        """Return the number of the wave of syncs that was begun last; see `turns`."""
        return self._words[_BEGUN]

    def over(self) -> int:
        """Return the number of the wave that was over last."""
        return self._words[_OVER]

    def begin_wave(self, wave: int) -> None:
        """Note that a wave was begun."""
        self._words[_BEGUN] = wave

    def end_wave(self, wave: int) -> None:
        """Note that a wave is over."""
        self._words[_OVER] = wave

    def check_there(self) -> None:
        """Raise when the store was deleted or moved: another may be there, with its own files.

        Raises:
            StoreError: the store is not there any more.
        """
        try:
            found = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_ino, found.st_dev) != self._identity:
            raise StoreError("the store was deleted or moved while it was open; close it")

    def poisoned(self) -> bool:
        """Say whether a sync has failed."""
        return self._words[_POISON] != 0

    def may_write(self, erasures: int) -> bool:
        """Say whether no sync has failed, and there were no more erasures than so many."""
        return self._words[_POISON] == 0 and self._words[_ERASURES] == erasures

    def erasures(self) -> int:
        """Return how many erasures there were since the file was set up."""
        return self._words[_ERASURES]

    def count_erasure(self) -> None:
        """Have every process clear its memory before it writes again; under the write lock."""
        self._words[_ERASURES] += 1

    def poison(self) -> None:
        """Have every process refuse to write."""
        self._words[_POISON] = 1


def _decode(data: bytes) -> LogPosition | None:
    """Return the place that was published; None when it is half written, or there is none."""
    commit_number = int(read_i64_le(data, 24))
    number, offset, chain = _parts(data, commit_number)
    return LogPosition(number, offset, chain, commit_number) if number else None


def _parts(data: bytes, commit_number: int) -> tuple[int, int, int]:
    """Return file number, offset and chain of a place behind a commit; zeros unless it is whole."""
    number = _file_number(data, commit_number)
    if number <= 0:
        return 0, 0, 0
    return int(number), int(read_i64_le(data, 8)), unsigned(read_i64_le(data, 16))


def _file_number(data: bytes, commit_number: int) -> i64:
    """Return the number of the file in a place; 0 unless it is whole, and behind this commit."""
    number: i64 = read_i64_le(data, 0)
    commit: i64 = read_i64_le(data, 24)
    check: i64 = number ^ read_i64_le(data, 8) ^ read_i64_le(data, 16) ^ commit
    return number if check == read_i64_le(data, 32) and commit == i64(commit_number) else 0


class HeadState(NamedTuple):
    """What a process that opens a store finds in the file.

    Args:
        poisoned: a sync has failed.
        made: a commit that LMDB has made, the newest or one shortly before it.
        same_mount: the file was set up on the mount on which it is now.
        known: the commits whose places behind it are there and whole: the newest is always one.
    """

    poisoned: bool
    made: int
    same_mount: bool
    known: frozenset[int]


def read_head(folder: Folder) -> HeadState | None:
    """Read the file without touching it; None when there is none of this boot."""
    if not folder.exists(CONTROL_FILE):
        return None
    data = folder.read(CONTROL_FILE)
    if len(data) != _SIZE or data[_BOOT:_BOOT_END] != boot_id.boot_id():
        return None
    words = memoryview(data).cast("q")
    mount = boot_id.mount_id(folder.path)
    known = set()
    for at in (_EVEN_AT, _ODD_AT):  # a slice object as the index of bytes fails when compiled
        position = _decode(data[at : at + _PLACE.size])
        if position is not None:
            known.add(position.commit_number)
    same_mount = words[_MOUNT] == mount
    return HeadState(words[_POISON] != 0, words[_COMMITTED], same_mount, frozenset(known))
