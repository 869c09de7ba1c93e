"""The wait table: which reader waits for which stream, in memory that all processes share.

`waiters/board` is a file of fixed size that each process maps. It holds nothing durable: its rows
say which readers a writer wakes after its commit. A lost row costs a second of latency, a row left
over costs a wake-up without a reader.

    word        holds (u64, in the machine's byte order)
    ----------  ---------------------------------------------------------------------------
    0           number of rows; a writer that reads zero wakes no reader
    1           the last ticket
    2           1 while a process changes the table
    3           magic: which layout this is
    512..1023   how many rows have a key with this hash, modulo 512
    1024..      rows of 5 words, in the order of their tickets:
                ticket, hash of the key, hash of the group (0: XREAD), kind, bell

Rows have no gaps and are in the order of their tickets, so the first row of a key and group is
the head of their queue. A call that was woken and found nothing returns with its old ticket: as in
Redis, a call that stays blocked keeps its place. Rows change only under a lock on the file, which
the system releases if the process dies. Word 2 then shows the next process that the change was not
completed, and it counts the rows again. All rows of a wait are removed when one of them is taken to
wake it, so that no second writer does the same.

A writer takes no lock to find out that no reader waits: after its commit it reads word 0, then the
count of its key. No wake-up is lost by that, because a wait adds its rows *before* it looks at the
store for the last time. Either the writer sees the row, or the reader sees the commit. (On a
machine with a weaker memory order both may miss it; the reader then finds the entry in its next
fallback poll.)

A process that is stopped (SIGSTOP) while it has the lock must not stop the others: they wait for
PATIENCE_S, and for IMPATIENT_S hardly at all. Then readers poll, and writers wake none.

Compiled by mypyc. A KeyboardInterrupt cannot come in the middle of a change in compiled code.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from typing import Final

import xxhash

from streamkeep.engine.notify.notifier import Bell, Notifier, remove_dead
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.locks import is_mine, make_lock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile, keep_in_place

# Kinds of rows: what the reader waits for.
READ: Final = 0  # XREAD
GROUP: Final = 1  # XREADGROUP
CLAIM: Final = 2  # XREADGROUP with CLAIM, which also takes NACKed entries

EVERYONE: Final = 1 << 40  # more than a queue can have
ANY_COMMIT: Final = b"\0any commit of streamkeep\0"  # in place of a key: every commit wakes these

PATIENCE_S: Final = 1.0  # a change of the table takes microseconds
IMPATIENT_S: Final = 10.0  # for so long after a wait that was in vain, none is as long
_SPIN_S: Final = 0.001
_POLL_S: Final = 0.0005
BOARD_FILE: Final = "board"
_SIZE: Final = 1 << 18
_MAGIC: Final = 0x31_44_52_41_4F_42_4B_53  # "SKBOARD1"
_ROWS: Final = 0
_TICKET: Final = 1
_DIRTY: Final = 2
_LAYOUT: Final = 3
_COUNTS: Final = 512
_BUCKETS: Final = 512
_FIRST: Final = 1024
_WORDS: Final = 5  # per row
_ROW_SIZE: Final = 8 * _WORDS
_START: Final = 8 * _FIRST
_CAPACITY: Final = (_SIZE - _START) // _ROW_SIZE
_ROW: Final = struct.Struct("=5Q")
_WORD: Final = struct.Struct("=Q")
_flock: Final = fcntl.flock
_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN
_EMPTY: Final = memoryview(bytes(_START)).cast("Q")

Interest = tuple[bytes, bytes, int]  # key, group (empty for XREAD), kind
Row = tuple[int, int, int, int, int]  # ticket, key, group, kind, bell


class Event:
    """A change by a commit that wakes blocked readers of a key."""

    def __init__(self, key: bytes, group: bytes | None, least_kind: int, count: int) -> None:
        self.key = key
        self.group = group  # None: all groups
        self.least_kind = least_kind  # READ: all readers; GROUP: not those of XREAD; ...
        self.count = count  # readers to wake in the queue of each group; those of XREAD all


def added(key: bytes, count: int) -> Event:
    """Entries were added: wakes every XREAD, and one consumer of each group per entry."""
    return Event(key, None, READ, count)


def replaced(key: bytes) -> Event:
    """Another stream has this key now: wakes all readers."""
    return Event(key, None, READ, EVERYONE)


def removed(key: bytes, group: bytes | None) -> Event:
    """A key or one of its groups is gone: wakes the consumers, which raise an error."""
    return Event(key, group, GROUP, EVERYONE)


def touched(key: bytes) -> Event:
    """A key has changed, such as its time to live: wakes no reader."""
    return Event(key, None, CLAIM, 0)


def given_back(key: bytes, group: bytes, count: int) -> Event:
    """Pending entries were released: wakes one consumer that claims for each of them."""
    return Event(key, group, CLAIM, count)


def hash_name(name: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(name)) | 1


_ANY: Final = hash_name(ANY_COMMIT)


class WaitTable:
    """The wait table of one store in this process; without a `folder`, an empty one."""

    def __init__(self, folder: Folder | None) -> None:
        self.folder = folder
        self.words: memoryview = _EMPTY
        self._mutex = make_lock("wait table")
        self._file = -1
        self._shared: SharedFile | None = None
        self._held = False  # this process has the lock
        self._impatient_until = 0.0  # by CLOCK_MONOTONIC
        self._bells: Notifier | None = None
        if folder is not None:
            self._open(folder)

    def has_readers(self) -> bool:
        return self.words[_ROWS] != 0

    def has_followers(self) -> bool:
        """Return whether a reader may wait for any commit."""
        return self.words[_COUNTS + _ANY % _BUCKETS] != 0

    def _open(self, folder: Folder) -> None:
        keep_in_place(folder.handle)
        handle = folder.open(BOARD_FILE, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(handle)
            files.reserve(handle, _SIZE)  # on a full disk, a write to a hole is a bus error
            shared = SharedFile(handle, _SIZE)
            words = memoryview(shared.data).cast("Q")
            if not words[_LAYOUT]:  # it is new, or its maker was killed
                shared.set_word(_LAYOUT, _MAGIC)
            if words[_LAYOUT] != _MAGIC:
                raise OSError(f"{folder.path / BOARD_FILE} has another layout")
            self._shared = shared
            self.words = words
            self._bells = Notifier(folder)
            self._recount(remove_dead(folder))
        except BaseException:
            self.words = _EMPTY
            os.close(handle)
            raise
        _flock(handle, _UNLOCK)
        self._file = handle

    def close(self) -> None:
        """Close the table. From now on it wakes no reader and registers no wait."""
        with self._mutex:
            if self._bells is not None:
                self._bells.close()
                self._bells = None
            self.abandon()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the mutex may never be released."""
        handle = self._file
        self._file = -1
        self._held = False
        self.words = _EMPTY
        self._shared = None
        self.folder = None
        if self._bells is not None:
            self._bells.abandon()
            self._bells = None
        if handle >= 0:
            os.close(handle)

    def is_open(self) -> bool:
        return self._file >= 0

    def is_waking(self) -> bool:
        """Return whether this thread wakes a reader: in a signal handler that interrupts it."""
        return self._bells is not None and is_mine(self._bells.lock)

    # --- waits ------------------------------------------------------------------------------

    def open_bell(self) -> Bell:
        """Make a bell, under the lock: a process that cleans up could remove a half-made one."""
        folder = self.folder
        if folder is None or self._file < 0:
            raise OSError("the wait table is closed")
        with self._mutex:
            try:
                self._enter()
                return Bell(folder)
            finally:
                self._leave()

    def register(self, bell: int, interests: list[Interest], ticket: int = 0) -> int:
        """Begin a wait; return its ticket, or 0 if the table or the disk is full.

        Args:
            ticket: of an earlier wait of the same call, which keeps its place in the queues; 0
                for a new place at the end.
        """
        with self._mutex:
            try:
                self._enter()
                words = self.words
                rows: int = words[_ROWS]
                if self._file < 0 or rows + len(interests) > _CAPACITY:
                    return 0
                shared = self._opened()
                if not ticket:
                    ticket = words[_TICKET] + 1
                    shared.set_word(_TICKET, ticket)
                place = rows
                while place and words[_FIRST + (place - 1) * _WORDS] > ticket:
                    place -= 1
                for key, group, kind in interests:
                    hashed = hash_name(key)
                    grouped = 0 if kind == READ else hash_name(group)
                    at = _START + place * _ROW_SIZE
                    row = _ROW.pack(ticket, hashed, grouped, kind, bell)
                    shared.write(at, row + shared.data[at : _START + rows * _ROW_SIZE])
                    bucket = _COUNTS + hashed % _BUCKETS
                    shared.set_word(bucket, words[bucket] + 1)
                    rows += 1
                    shared.set_word(_ROWS, rows)
                return ticket
            except OSError:  # the next change counts the rows; the caller polls
                return 0
            finally:
                self._leave()

    def unregister(self, ticket: int) -> bool:
        """End a wait; return False if it was woken, which has removed it."""
        with self._mutex:
            try:
                self._enter()
                return self._file >= 0 and self._drop(_WORD.pack(ticket))
            except OSError:  # the row stays, and costs a wake-up without a reader
                return True
            finally:
                self._leave()

    # --- wake-ups ---------------------------------------------------------------------------

    def notify(self, counts: dict[bytes, int], events: list[Event]) -> None:
        """Wake the readers that wait for a change by a commit: new entries by key, and events."""
        failpoints.hit("notify:before")
        try:
            for key, count in counts.items():
                self._wake(added(key, count))
            for event in events:
                self._wake(event)
            if self.has_followers():
                self._wake(added(ANY_COMMIT, 1))
        except OSError:  # the commit is made; the readers find it in their next poll
            pass

    def _wake(self, event: Event) -> None:
        hashed = hash_name(event.key)
        bells = self._bells
        if not self.words[_COUNTS + hashed % _BUCKETS] or bells is None:
            return
        group = -1 if event.group is None else hash_name(event.group)
        rows = self._take(event, hashed, group, {}, event.count)
        while rows:
            dead: dict[int, int] = {}
            for row in rows:
                if not bells.notify(row[4], row[0]):
                    dead[row[2]] = dead.get(row[2], 0) + 1
            if not dead:
                os.sched_yield()  # on few processors, let the woken reader run first
                return
            rows = self._take(event, hashed, group, dead, 0)  # the next in the queues

    def _take(
        self, event: Event, hashed: int, group: int, counts: dict[int, int], count: int
    ) -> list[Row]:
        """Remove the waits to wake from the table; return one row of each.

        Args:
            group: hash of the only group to wake; -1 for all.
            counts: how many readers to wake by group; `count` for groups that are not in it.
        """
        taken: list[Row] = []
        with self._mutex:
            try:
                self._enter()
                left = dict(counts)
                data = self._data()
                needle = _WORD.pack(hashed)
                at = data.find(needle)
                while at >= 0:
                    if at % _ROW_SIZE == 8:
                        row: Row = _ROW.unpack_from(data, at - 8)
                        if row[3] >= event.least_kind and (group < 0 or row[2] == group):
                            wanted = EVERYONE if row[3] == READ else left.get(row[2], count)
                            if wanted > 0:
                                left[row[2]] = wanted - 1
                                taken.append(row)
                    at = data.find(needle, at + 1)
                for row in taken:
                    self._drop(_WORD.pack(row[0]))
            finally:
                self._leave()
        return taken

    # --- under the lock ---------------------------------------------------------------------

    def _enter(self) -> None:
        if self._file >= 0:
            self._lock(self._file)
            self._held = True
            if self.words[_DIRTY]:
                self._recount(None)
            self._opened().set_word(_DIRTY, 1)

    def _lock(self, handle: int) -> None:
        """Take the lock; raise TimeoutError, an OSError, if its holder seems to be stopped."""
        began = 0.0
        while True:
            try:
                _flock(handle, _EXCLUSIVE)
                self._impatient_until = 0.0
                return
            except BlockingIOError:
                pass
            now = time.monotonic()
            began = began or now
            if now - began > (_SPIN_S if now < self._impatient_until else PATIENCE_S):
                self._impatient_until = now + IMPATIENT_S
                raise TimeoutError("another process keeps the lock of the wait table")
            if now - began < _SPIN_S:
                os.sched_yield()  # not sleep(0), which sleeps for 60 us
            else:
                time.sleep(_POLL_S)

    def _leave(self) -> None:
        if self._held:  # otherwise an interrupt came first, and the mark is that of another process
            self._held = False
            with suppress(OSError):  # the next process counts the rows again
                self._opened().set_word(_DIRTY, 0)
            _flock(self._file, _UNLOCK)

    def _opened(self) -> SharedFile:
        shared = self._shared
        if shared is None:
            raise OSError("the wait table is closed")
        return shared

    def _data(self) -> bytes:
        rows: int = self.words[_ROWS]
        if not rows:
            return b""
        return self._opened().data[_START : _START + rows * _ROW_SIZE]

    def _rows(self) -> list[Row]:
        return list(_ROW.iter_unpack(self._data()))

    def _drop(self, ticket: bytes) -> bool:
        """Remove the rows of a ticket, given as they begin; return whether there were any."""
        data = self._data()
        words = self.words
        rows: int = words[_ROWS]
        removed = 0
        at = data.find(ticket)
        while at >= 0:
            if at % _ROW_SIZE == 0:
                hashed: int = _WORD.unpack_from(data, at + 8)[0]
                start = at - removed * _ROW_SIZE
                rest = rows * _ROW_SIZE - start - _ROW_SIZE
                shared = self._opened()
                if rest:
                    end = _START + rows * _ROW_SIZE
                    shared.write(_START + start, shared.data[end - rest : end])
                rows -= 1
                removed += 1
                shared.set_word(_ROWS, rows)
                bucket = _COUNTS + hashed % _BUCKETS
                shared.set_word(bucket, max(0, words[bucket] - 1))
            at = data.find(ticket, at + 1)
        return removed > 0

    def _recount(self, bells: set[int] | None) -> None:
        """Repair the table after a process died while it changed it.

        Args:
            bells: those that have readers; rows of others are dropped. None if that is unknown.
        """
        shared = self._opened()
        ticket: int = self.words[_TICKET]
        shared.set_word(_ROWS, min(self.words[_ROWS], _CAPACITY))
        rows = [row for row in self._rows() if bells is None or row[4] in bells]
        counts = [0] * _BUCKETS
        for row in rows:
            counts[row[1] % _BUCKETS] += 1
            ticket = max(ticket, row[0])
        shared.write(_START, b"".join(_ROW.pack(*row) for row in rows))
        shared.write(8 * _COUNTS, struct.pack(f"={_BUCKETS}Q", *counts))
        shared.set_word(_ROWS, len(rows))
        shared.set_word(_TICKET, ticket)
        shared.set_word(_DIRTY, 0)
