"""The control file `journal/head`: the state of the journal that processes share (`shared_file`).

    0     log position after an even commit: file number, offset, chain, commit number, and
          the XOR of these four
    64    the same, after an odd commit
    128   a commit that LMDB has made: the newest, or one shortly before it
    136   commit number up to which the journal is on disk
    144   number of the file that holds this commit
    152   1 after a failed sync: no process may write until the store has been recovered
    160   16 bytes: the boot for which this file is valid
    176   number of erasures; a process that sees a new number clears its memory (`scrub`)
    184   the newest wave of syncs that was begun (`sync_leader`)
    192   the newest wave that has ended
    200   number of times the file is open; too high after a process was killed
    208   the mount on which the file was set up, 0 if the system has no such number

A log position is written under LMDB's write lock, before LMDB commits. So the position after the
newest commit is always complete, even if a process is killed. The other one belongs to the commit
before, or to a commit that is being made. (LMDB releases its lock with the commit, so no process
could update the position after the commit in a safe order.) The durable commit is written by the
sync leader and only rises.

The file is never synced and need not survive a power loss: the first process that opens it after
a boot sets it up again and ignores the old contents. So a file that is missing, empty, or of
another boot or mount shows that the system may have lost pages that were not on disk.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from librt.strings import read_i64_le
from mypy_extensions import i64

from streamkeep.engine.system import boot_id, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile
from streamkeep.format.core.errors import StoreError
from streamkeep.format.core.id_codec import unsigned

CONTROL_FILE: Final = "head"
_SIZE: Final = 4096
_POSITION: Final = struct.Struct("<QQQQQ")
_pack_position: Final = _POSITION.pack
_EVEN_AT: Final = 0
_ODD_AT: Final = 64
_EVEN: Final = slice(_EVEN_AT, _EVEN_AT + _POSITION.size)
_ODD: Final = slice(_ODD_AT, _ODD_AT + _POSITION.size)
_BOOT: Final = 160
_BOOT_END: Final = 176
_TRIES: Final = 1000

# Offsets in words of 8 bytes:
_COMMITTED: Final = 16
_DURABLE: Final = 17
_DURABLE_FILE: Final = 18
_POISON: Final = 19
_ERASURES: Final = 22
_BEGUN: Final = 23
_ENDED: Final = 24
_OPENINGS: Final = 25
_MOUNT: Final = 26


class LogPosition(NamedTuple):
    """The place in the journal right after the record of a commit."""

    file_number: int
    offset: int
    chain: int
    commit_number: int


class ControlFile:
    """The mapped file."""

    def __init__(self, folder: Folder) -> None:
        """Open the file, or create it."""
        self._path = str(folder.path / CONTROL_FILE)
        self._poisoned = False  # by this process
        self.handle = folder.open(CONTROL_FILE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        try:
            status = os.fstat(self.handle)
            self._identity = status.st_ino, status.st_dev
            files.reserve(self.handle, _SIZE)
            self._file = SharedFile(self.handle)
            self._map = self._file.data
            self._words = memoryview(self._map).cast("q")
            here = boot_id.boot_id()
            if self._map[_BOOT:_BOOT_END] != here:
                self._file.write(0, bytes(_SIZE))
                self._file.write(_BOOT, here)
                self._file.set_word(_MOUNT, boot_id.mount_id(folder.path))
            self._file.set_word(_OPENINGS, self._words[_OPENINGS] + 1)
        except BaseException:
            os.close(self.handle)
            raise
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap and close the file."""
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        with suppress(OSError):  # too high a number is harmless
            self._file.set_word(_OPENINGS, self._words[_OPENINGS] - 1)
        fcntl.flock(self.handle, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close the file in a forked child, without a change: it is the parent's."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            self._words.release()
            self._file.close()
            os.close(handle)

    def reset(self, position: LogPosition, durable_file: int, durable_commit: int) -> None:
        """Set up a new file; no other process has the store open.

        Args:
            durable_file: the first journal file that may not be on disk.
        """
        self.set_made(position.commit_number)
        self.set_position(position)
        self.set_durable(durable_file, durable_commit)

    def position_after(self, commit_number: int) -> LogPosition | None:
        """Return the log position after a recent commit; None if it is not known."""
        number, offset, chain = self.parts_after(commit_number)
        return LogPosition(number, offset, chain, commit_number) if number else None

    def parts_after(self, commit_number: int) -> tuple[int, int, int]:
        """Return file number, offset and chain of `position_after`; zeros if it is not known."""
        return _parts(self._map[_ODD if commit_number & 1 else _EVEN], commit_number)

    def to_sync(self, commit_number: int) -> tuple[int, int] | None:
        """Return (file number, commit number) of the newest commit that is known to be made.

        The caller does not hold the write lock, so writers may change the file at the same time.

        Args:
            commit_number: a commit that was made; the result is this one or a later one.
        """
        # The made commit is read before the positions: the position of a failed commit is published
        # again, with another value, before a commit of that number is made.
        made = max(commit_number, self._words[_COMMITTED])
        number = _file_number(self._map[_ODD if made & 1 else _EVEN], made)
        if number > 0:
            return int(number), made
        # Two later positions have replaced it, or are being written. Read until both are from one
        # moment. If one of them is half written, or they follow each other, then the commit of the
        # lower one was made.
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
        """Publish the log position after the newest commit; raise StoreFullError as `publish`."""
        self.publish(position.file_number, position.offset, position.chain, position.commit_number)

    def publish(self, number: int, offset: int, chain: int, commit_number: int) -> None:
        """Publish the log position after a commit that LMDB is about to make.

        Raises:
            StoreFullError: there is no room; nothing was published.
        """
        check = number ^ offset ^ chain ^ commit_number
        at = _ODD_AT if commit_number & 1 else _EVEN_AT
        try:
            self._file.write(at, _pack_position(number, offset, chain, commit_number, check))
        except OSError as error:
            raise translate_os(error) from error

    def set_made(self, commit_number: int) -> None:
        """Record that LMDB has made a commit."""
        with suppress(OSError):  # the number may be too low
            self._file.set_word(_COMMITTED, commit_number)

    def durable(self) -> int:
        """Return the commit up to which everything is on disk."""
        return self._words[_DURABLE]

    def durable_file(self) -> int:
        """Return the number of the journal file that was synced last."""
        return self._words[_DURABLE_FILE]

    def set_durable(self, file_number: int, commit_number: int) -> None:
        """Publish the durable commit; only the sync leader may do so."""
        with suppress(OSError):  # the next sync then covers these commits again
            self._file.set_word(_DURABLE_FILE, file_number)
            self._file.set_word(_DURABLE, commit_number)

    def is_shared(self) -> bool:
        """Return whether another process may have the file open."""
        return self._words[_OPENINGS] != 1

    def begun(self) -> int:
        """Return the newest wave of syncs that was begun; see `sync_leader`."""
        return self._words[_BEGUN]

    def ended(self) -> int:
        """Return the newest wave that has ended."""
        return self._words[_ENDED]

    def begin_wave(self, wave: int) -> None:
        """Record that a wave was begun."""
        with suppress(OSError):  # the wave's lock is held
            self._file.set_word(_BEGUN, wave)

    def end_wave(self, wave: int) -> None:
        """Record that a wave has ended."""
        with suppress(OSError):  # the next leader then waits for the lock of this wave
            self._file.set_word(_ENDED, wave)

    def check_not_moved(self) -> None:
        """Raise if the store was deleted or moved; its path may hold another store by now.

        Raises:
            StoreError: the store was deleted or moved.
        """
        try:
            found = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_ino, found.st_dev) != self._identity:
            store = os.path.dirname(os.path.dirname(self._path))
            raise StoreError(
                f"{store}: the store was deleted or moved while it was open; next: close it"
            )

    def poisoned(self) -> bool:
        """Return whether a sync has failed."""
        return self._poisoned or self._words[_POISON] != 0

    def may_write(self, erasures: int) -> bool:
        """Return whether no sync has failed and `erasures` is still the number of erasures."""
        return not self.poisoned() and self._words[_ERASURES] == erasures

    def erasures(self) -> int:
        """Return the number of erasures since the file was set up."""
        return self._words[_ERASURES]

    def count_erasure(self) -> None:
        """Make every process clear its memory before its next write; under the write lock."""
        try:
            self._file.set_word(_ERASURES, self._words[_ERASURES] + 1)
        except OSError as error:
            raise translate_os(error) from error

    def poison(self) -> None:
        """Make every process refuse to write."""
        self._poisoned = True
        with suppress(OSError):  # this process refuses to write in any case
            self._file.set_word(_POISON, 1)


def _decode(data: bytes) -> LogPosition | None:
    """Return a published log position; None if it is half written or missing."""
    commit_number = int(read_i64_le(data, 24))
    number, offset, chain = _parts(data, commit_number)
    return LogPosition(number, offset, chain, commit_number) if number else None


def _parts(data: bytes, commit_number: int) -> tuple[int, int, int]:
    """Return file number, offset and chain of a position; zeros unless it follows this commit."""
    number = _file_number(data, commit_number)
    if number <= 0:
        return 0, 0, 0
    return int(number), int(read_i64_le(data, 8)), unsigned(read_i64_le(data, 16))


def _file_number(data: bytes, commit_number: int) -> i64:
    """Return the file number of a position; 0 unless it is complete and follows this commit."""
    number: i64 = read_i64_le(data, 0)
    commit: i64 = read_i64_le(data, 24)
    check: i64 = number ^ read_i64_le(data, 8) ^ read_i64_le(data, 16) ^ commit
    return number if check == read_i64_le(data, 32) and commit == i64(commit_number) else 0


class ControlState(NamedTuple):
    """The contents of the control file that a process finds when it opens a store.

    Attributes:
        poisoned: a sync has failed.
        made: a commit that LMDB has made: the newest, or one shortly before it.
        same_mount: the file was set up on its present mount.
        known: the commits whose log positions are complete; the newest is always one of them.
    """

    poisoned: bool
    made: int
    same_mount: bool
    known: frozenset[int]


def read_control_file(folder: Folder) -> ControlState | None:
    """Read the file without a change; None if there is none of this boot."""
    if not folder.exists(CONTROL_FILE):
        return None
    data = folder.read(CONTROL_FILE)
    if len(data) != _SIZE or data[_BOOT:_BOOT_END] != boot_id.boot_id():
        return None
    words = memoryview(data).cast("q")
    mount = boot_id.mount_id(folder.path)
    known = set()
    for at in (_EVEN_AT, _ODD_AT):  # a slice object as the index of bytes fails when compiled
        position = _decode(data[at : at + _POSITION.size])
        if position is not None:
            known.add(position.commit_number)
    same_mount = words[_MOUNT] == mount
    return ControlState(words[_POISON] != 0, words[_COMMITTED], same_mount, frozenset(known))
