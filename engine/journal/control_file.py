"""The control file `journal/head`: the state of the journal that processes share (`shared_file`).

    0     number of the journal file to which the last record was written; 0: none is in use
    8     the newest commit: its record is published
    24    commit number up to which the journal is on disk
    32    where this commit ends: number of the file << 32 | offset
    40    1 after a failed sync: no process may write until the store has been recovered
    48    number of erasures; a process that sees a new number clears its memory (`scrub`)
    56    number of journal files that were begun: a name may belong to another file since
    64    a caller wants that copies of the store elsewhere get everything up to this commit now
    72    a random number of the newest opening: by it, others see that they are not alone
    80    the mount on which the file was set up, 0 if the system has no such number
    88    changes before a process that waits for the write lock is woken (`futex`)
    96    the inode of the file when it was set up; another one shows a copy
    104   number of journal files that were begun before the names of all were last on disk
    112   16 bytes: the boot for which this file is valid
    144   when the newest sync of a checkpoint began, in ns of CLOCK_MONOTONIC
    152   the same of the newest one that has ended well
    160   1 while processes may wait for the write lock, 2 while one does that comes first

The first two numbers are written under the write lock and only rise. The file number is written
before a commit of that file counts. So a reader that takes a commit number first and the file
number afterwards knows every file that it must sync. The durable commit and its place may be later
ones, and never earlier ones. The other numbers are hints.

Each process that has the file open also has a shared lock of its first byte, which ends with the
process. It has the lock before it writes its number. So a process that first reads the number, and
then finds no other lock, is alone for as long as the number stays: to see that takes no system
call, and no lock for which others would wait if its holder were stopped.

A process holds the exclusive lock of the file (flock) around each write transaction of LMDB.

The file is never synced and need not survive a power loss: a process that opens the store alone
after a boot sets it up again and ignores the old contents. So a file that is missing, empty, or of
another boot or mount shows that the system may have lost pages that were not on disk. Processes of
different boots cannot share a store, since they have no locks in common.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from streamkeep.engine.system import boot_id, files
from streamkeep.engine.system.futex import Futex
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.long_wait import WRITE_LOCK, LongWait, holders_of, lock_file
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile
from streamkeep.format.core.errors import NotAStoreError, StoreLockedError
from streamkeep.format.journal.checkpoint import NO_BOOT
from streamkeep.format.journal.position import LogPosition

CONTROL_FILE: Final = "head"
NEW_CONTROL_FILE: Final = "head.new"  # while an opening makes it
_SIZE: Final = 4096
_OPENING: Final = files.FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
_OPENINGS_OF_OTHERS: Final = files.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_BOOT: Final = 112
_BOOT_END: Final = 128
_MOST_INODE: Final = (1 << 63) - 1

# Offsets in words of 8 bytes:
_FILE: Final = 0
_NEWEST: Final = 1
_DURABLE: Final = 3
_DURABLE_PLACE: Final = 4
_POISON: Final = 5
_ERASURES: Final = 6
_BEGUN: Final = 7
_WANTED: Final = 8
_OPENED: Final = 9
_MOUNT: Final = 10
_PASSED_ON: Final = 11
_INODE: Final = 12
_NAMED: Final = 13
_SYNC_BEGUN: Final = 18
_SYNC_ENDED: Final = 19
_WAITING: Final = 20
_OFFSET_BITS: Final = 32  # of a place in the journal
_MOST_OFFSET: Final = (1 << _OFFSET_BITS) - 1


def _place(file_number: int, offset: int) -> int:
    return file_number << _OFFSET_BITS | min(offset, _MOST_OFFSET)


class ControlFile:
    """The mapped file."""

    def __init__(self, folder: Folder, name: str = CONTROL_FILE, *, only: bool = False) -> None:
        """Open the file, or create it.

        Args:
            name: that of one that will replace it.
            only: this process is the only one that has the store open.

        Raises:
            StoreLockedError: a process of another boot has set it up, and has the store open.
        """
        self._path = str(folder.path / name)
        self._poisoned = False  # by this process
        self.moved = False  # the store was found to be deleted or moved
        self.wait = LongWait(WRITE_LOCK, lambda: holders_of([self.handle]))
        self._alone = 0  # the number of the opening with which this process was alone; 0: never
        self.handle = folder.open(name, os.O_RDWR | os.O_CREAT)
        try:
            status = os.fstat(self.handle)
            self._identity = status.st_ino, status.st_dev
            files.reserve(self.handle, _SIZE)
            self._file = SharedFile(self.handle, _SIZE)
            self._map = self._file.data
            self._words = memoryview(self._map).cast("q")
            self.futex = Futex(self._map, 8 * _PASSED_ON)
            here = boot_id.boot_id()
            there = self._map[_BOOT:_BOOT_END]
            if there != here:
                if there != NO_BOOT:
                    if not only:
                        raise StoreLockedError(
                            f"{self._path}: a process on another machine, or in a sandbox with a "
                            "kernel of its own, has the store open, and shares no locks with this "
                            "one; next: close the store there"
                        )
                    self._file.write(0, bytes(_SIZE))
                self._file.write(_BOOT, here)
                self._file.set_word(_MOUNT, boot_id.mount_id(folder.path))
                self._file.set_word(_INODE, status.st_ino & _MOST_INODE)
            elif not self._is_open_elsewhere():
                # It is a new file, or else a reader opens the store first, or has it open: then
                # nothing was lost since the mount before, or the reader would have been refused.
                mount = boot_id.mount_id(folder.path)
                if self._words[_MOUNT] != mount:
                    self._file.set_word(_MOUNT, mount)
            with suppress(OSError):  # without such locks, no process ever counts as alone
                fcntl.fcntl(self.handle, fcntl.F_OFD_SETLK, _OPENING)
            self._file.set_word(_OPENED, int.from_bytes(os.urandom(8)) >> 1 | 1)
            self.look_for_others()
            self._first = self._alone  # as it is now
        except BaseException:
            os.close(self.handle)
            raise

    def close(self) -> None:
        """Unmap and close the file; does nothing the second time. A forked child closes it as well.

        The numbers stay readable: a thread may ask whether its commit was on disk at the end.
        """
        handle, self.handle = self.handle, -1
        if handle >= 0:
            mapped, self._words = self._words, memoryview(bytes(self._map)).cast("q")
            mapped.release()
            self._file.close()
            os.close(handle)

    @contextmanager
    def lmdb_lock(self, patient: bool = True) -> Iterator[None]:
        """Keep other processes from LMDB's own write lock in a `with` block.

        An opening needs that for a moment, and each flush. Whoever waits for it inside of LMDB does
        so without an end if its holder is stopped, and nobody finds out which process that is.

        Raises:
            StoreLockedError: the process that has the lock is stopped.
            BlockingIOError: a process has the lock, and `patient` is False.
        """
        try:  # an interrupt may arrive as soon as the lock is held
            lock_file(self.handle, self.wait, patient)
            yield
        finally:
            fcntl.flock(self.handle, fcntl.LOCK_UN)

    def reset(self, position: LogPosition, durable: int) -> None:
        """Set up a new file; no other process has the store open.

        Args:
            position: after the newest commit. If it has a file, a checkpoint has that commit.
            durable: a commit up to which all is on disk.
        """
        self.publish(position.commit_number)
        self._try_word(_DURABLE, durable)
        if position.file_number:
            self.count_begun()  # by a process that may have died before its name was on disk
            self.set_file(position.file_number)
            self._try_word(_DURABLE_PLACE, _place(position.file_number, position.offset))

    def file_number(self) -> int:
        return self._words[_FILE]

    def set_file(self, file_number: int) -> None:
        """Publish the file of the record that was just written; under the write lock.

        Raises:
            StoreFullError: there is no room; nothing was published.
        """
        self._publish(_FILE, file_number)

    def begun(self) -> int:
        return self._words[_BEGUN]

    def count_begun(self) -> None:
        """Count a journal file that was begun, before its first record; under the write lock.

        Raises:
            StoreFullError: there is no room.
        """
        self._publish(_BEGUN, self._words[_BEGUN] + 1)

    def named(self) -> int:
        """Return how many files were begun when the names of all of them were last on disk."""
        return self._words[_NAMED]

    def set_named(self, begun: int) -> None:
        """Publish that the names of this many files that were begun are on disk."""
        self._try_word(_NAMED, begun)  # without room, the folder is synced again

    def newest(self) -> int:
        return self._words[_NEWEST]

    def publish(self, commit_number: int) -> None:
        """Publish a commit, after its record; under the write lock.

        Raises:
            StoreFullError: there is no room; nothing was published.
        """
        self._publish(_NEWEST, commit_number)

    def _publish(self, word: int, value: int) -> None:
        try:
            self._file.set_word(word, value, insist=True)
        except OSError as error:
            raise translate_os(error) from error

    def _try_word(self, word: int, value: int) -> None:
        """Write a word; do nothing if there is no room.

        It calls nothing that is interpreted, where an interrupt could come in the middle of a
        commit.
        """
        try:  # noqa: SIM105  # `suppress` is interpreted
            self._file.set_word(word, value)
        except OSError:
            pass

    def waits_first(self) -> bool:
        """Return whether a process waits for the write lock and is to have it next."""
        return self._words[_WAITING] > 1

    def passed_on(self) -> int:
        """Return the word of `futex`, to be read before this process looks at the lock."""
        return self._words[_PASSED_ON]

    def say_awaited(self, first: bool) -> None:
        """Have the process that releases the write lock call `pass_on`.

        Args:
            first: those that come from now on wait, too, until who was woken has the lock.
        """
        if self._words[_WAITING] < 1 + first:
            self._try_word(_WAITING, 1 + first)  # without room, this process is not woken

    def pass_on(self, first: bool) -> None:
        """Wake the process that has waited for longest, after the write lock was released.

        No other one is woken until that one has the lock, or says again that it waits. The words
        are changed first: who has looked at the lock in between, and goes on to wait, either finds
        the second one changed, or says again that it waits.

        Args:
            first: who comes before that process has the lock comes into line after it.
        """
        if self._words[_WAITING] and self.futex.can_wake():
            first = first or self.waits_first()
            self._try_word(_WAITING, 2 * first)
            self._try_word(_PASSED_ON, time.monotonic_ns())
            if not self.futex.wake() and first:
                self._try_word(_WAITING, 1)  # it was killed, or looks by itself at this moment

    def say_taken(self) -> None:
        """Say that others may wait, when a process that has waited has the lock."""
        self._try_word(_WAITING, 1)

    def wanted(self) -> int:
        return self._words[_WANTED]

    def want(self, commit_number: int) -> None:
        """Ask those that make copies to go on at once, up to a commit."""
        if self._words[_WANTED] < commit_number:
            self._try_word(_WANTED, commit_number)  # without room, the copy comes a second later

    def durable(self) -> int:
        return self._words[_DURABLE]

    def durable_place(self) -> tuple[int, int]:
        """Return file and offset up to which the journal is on disk."""
        place = self._words[_DURABLE_PLACE]
        return place >> _OFFSET_BITS, place & _MOST_OFFSET

    def set_durable(self, file_number: int, offset: int, commit_number: int) -> None:
        """Publish the durable commit, after a sync or a checkpoint; do nothing if a later one is.

        Each of the two words is true by itself, so two processes may do so at the same time.

        Args:
            offset: where the commit ends in its file; a lower one if that is not known.
        """
        if self._words[_DURABLE] > commit_number:
            return
        self._try_word(_DURABLE_PLACE, _place(file_number, offset))
        self._try_word(_DURABLE, commit_number)  # without room, a sync covers these commits again

    def begin_sync(self) -> int:
        """Note that the sync of a checkpoint begins; return what `finish_sync` then needs."""
        mark = time.monotonic_ns()
        self._try_word(_SYNC_BEGUN, mark)
        return mark

    def finish_sync(self, mark: int) -> None:
        """Note that it has ended well."""
        self._try_word(_SYNC_ENDED, mark)

    def is_syncing(self) -> bool:
        """Return whether a process syncs one, or was stopped or ended before it was done."""
        return self._words[_SYNC_BEGUN] != self._words[_SYNC_ENDED]

    def look_for_others(self) -> None:
        """Find out whether this process is alone, after others have closed the file or died."""
        opened = self._words[_OPENED]
        if opened != self._alone and not self._is_open_elsewhere():
            self._alone = opened

    def _is_open_elsewhere(self) -> bool:
        """Return whether another process has the file open; also True where no lock tells."""
        try:
            found = fcntl.fcntl(self.handle, fcntl.F_OFD_GETLK, _OPENINGS_OF_OTHERS)
        except OSError:
            return True
        return bool(files.FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def is_shared(self) -> bool:
        """Return whether another process may have the file open."""
        return self._words[_OPENED] != self._alone

    def was_shared(self) -> bool:
        """Return whether another process may have had the file open since this one opened it."""
        return self._words[_OPENED] != self._first

    def check_not_moved(self) -> None:
        """Raise if the store was deleted or moved; its path may hold another store by now.

        Raises:
            NotAStoreError: the store was deleted or moved.
            StoreError: the system does not say.
        """
        try:
            found = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            raise translate_os(error) from error
        self.moved = found is None or (found.st_ino, found.st_dev) != self._identity
        if self.moved:
            store = os.path.dirname(os.path.dirname(self._path))
            gone = NotAStoreError(
                f"{store}: the store was deleted or moved while it was open; "
                "next: open it where it is"
            )
            gone.was_open = True
            raise gone

    def poisoned(self) -> bool:
        return self._poisoned or self._words[_POISON] != 0

    def may_write(self, erasures: int) -> bool:
        """Return whether no sync has failed and `erasures` is still the number of erasures.

        Not in a store that was found to be gone, either.
        """
        return not (self.moved or self.poisoned()) and self._words[_ERASURES] == erasures

    def erasures(self) -> int:
        return self._words[_ERASURES]

    def count_erasure(self) -> None:
        """Make every process clear its memory before its next write; under the write lock."""
        self._publish(_ERASURES, self._words[_ERASURES] + 1)

    def poison(self) -> None:
        """Make every process refuse to write."""
        self._poisoned = True
        with suppress(OSError):  # this process refuses to write in any case
            self._file.set_word(_POISON, 1, insist=True)


class ControlState(NamedTuple):
    """The contents of the control file that a process finds when it opens a store.

    Attributes:
        poisoned: a sync has failed in this boot.
        made: the newest commit.
        durable: a commit up to which everything was on disk.
        same_mount: the file was set up in this boot, on its present mount.
        knows_mount: the system gives numbers to mounts, so that `same_mount` is certain.
        copied: the file is a copy, so `data.mdb` may be one that was made while it changed.
        cut_off: a process died in the middle of the sync of a checkpoint, in this boot.
    """

    poisoned: bool
    made: int
    durable: int
    same_mount: bool
    knows_mount: bool
    copied: bool
    cut_off: bool


def read_control_file(folder: Folder) -> ControlState | None:
    """Read the file without a change; None if there is none, or one with numbers that none has.

    Of a former boot, it may be of any moment before its end: the numbers may be too low.
    """
    if not folder.exists(CONTROL_FILE):
        return None
    data, status = folder.read(CONTROL_FILE), folder.status(CONTROL_FILE)
    boot = data[_BOOT:_BOOT_END]
    if len(data) < _SIZE or not any(boot):
        return None
    words = memoryview(data[:_SIZE]).cast("q")
    made, durable = words[_NEWEST], words[_DURABLE]
    if made < 0 or durable < 0:  # damaged
        return None
    here, mount = boot == boot_id.boot_id(), words[_MOUNT]
    return ControlState(
        here and words[_POISON] != 0,
        made,
        durable,
        here and mount == boot_id.mount_id(folder.path),
        mount != 0,
        status is None or words[_INODE] != status.st_ino & _MOST_INODE,
        here and words[_SYNC_BEGUN] != words[_SYNC_ENDED],
    )
