"""The board: who waits for which stream, in memory that all processes of a store share.

`waiters/board` is a file of fixed size that each process maps. It holds nothing that must last:
what is on it says whom a writer rings after its commit, and a row that is lost or left over costs
a second of latency or a ring for nobody.

    word        holds (u64, in the machine's byte order)
    ----------  ---------------------------------------------------------------------------
    0           number of rows; zero tells a writer at once that nobody waits
    1           the ticket that was given last
    2           1 while a process changes the board
    3           magic: which layout this is
    512..1023   how many rows have a key with this hash, modulo 512
    1024..      rows of 5 words, in the order of their tickets:
                ticket, hash of the key, hash of the group (0: XREAD), kind, door

Rows stand densely in the order of their tickets, so that the first row of a key and group is the
head of their queue. A call that was woken and found nothing comes back with its old ticket: who
stays blocked keeps its place, as in Redis. Rows change only under a lock (flock, which a process
that dies gives back), and word 2 tells the next one in that the last one died in between: it
counts anew. A wait that is rung has all its rows taken off in the same step: no second writer
rings it in vain.

Nobody takes the lock to find out that nobody waits: after its commit a writer reads word 0, then
the count of its key. No ring is lost by that, because a wait puts up its rows *before* it looks
at the store for the last time: either the writer sees the row, or that look sees the commit. (One
that slips through on a machine with a weaker memory order waits for the fallback poll.)

Compiled by mypyc, which also keeps a KeyboardInterrupt out of the middle of a change.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final

import xxhash

from streamkeep.engine.notify.notifier import Bell, Notifier, remove_dead
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.lock_order import make_lock
from streamkeep.engine.system.safe_files import Folder

# Kinds of rows: what the wait is for.
READ: Final = 0  # XREAD
GROUP: Final = 1  # XREADGROUP
CLAIM: Final = 2  # XREADGROUP with CLAIM, which takes NACKed entries, too

EVERYONE: Final = 1 << 40  # a count that no queue reaches

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
_EXCLUSIVE: Final = fcntl.LOCK_EX
_UNLOCK: Final = fcntl.LOCK_UN
_NOBODY: Final = memoryview(bytes(_START)).cast("Q")

Interest = tuple[bytes, bytes, int]  # key, group (empty for XREAD), kind
Row = tuple[int, int, int, int, int]  # ticket, key, group, kind, door


class Event:
    """What a commit did that blocked readers of a key wake up for."""

    def __init__(self, key: bytes, group: bytes | None, least_kind: int, count: int) -> None:
        self.key = key
        self.group = group  # None: of all groups
        self.least_kind = least_kind  # who is concerned: READ everybody, GROUP not XREAD, ...
        self.count = count  # how many heads of the queue of each group; XREAD always all


def added(key: bytes, count: int) -> Event:
    """Entries were added: every XREAD, and of each group one consumer per entry."""
    return Event(key, None, READ, count)


def replaced(key: bytes) -> Event:
    """Another stream has this key now: everybody looks at it."""
    return Event(key, None, READ, EVERYONE)


def removed(key: bytes, group: bytes | None) -> Event:
    """A key is gone, or one of its groups: the consumers have an error to raise."""
    return Event(key, group, GROUP, EVERYONE)


def given_back(key: bytes, group: bytes, count: int) -> Event:
    """Pending entries were given back: one consumer that claims for each of them."""
    return Event(key, group, CLAIM, count)


def hash_name(name: bytes) -> int:
    """Return what stands on the board for a key or a group."""
    return int(xxhash.xxh3_64_intdigest(name)) | 1


def _allocate(handle: int) -> None:
    """Give the file its size, and its place on the disk: a write to a hole can be a bus error."""
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is None:
        os.write(handle, bytes(_SIZE))
    else:
        allocate(handle, 0, _SIZE)


class WaitTable:
    """The board of one store in this process; without a `folder`, one that nobody waits at."""

    def __init__(self, folder: Folder | None) -> None:
        self.folder = folder
        self.words: memoryview = _NOBODY
        self._mutex = make_lock("wait table")
        self._file = -1
        self._map: mmap.mmap | None = None
        self._held = False  # this process has the lock
        self._bells: Notifier | None = None
        if folder is not None:
            self._open(folder)

    def _open(self, folder: Folder) -> None:
        handle = folder.open(BOARD_FILE, os.O_RDWR | os.O_CREAT)
        try:
            _flock(handle, _EXCLUSIVE)
            if os.fstat(handle).st_size < _SIZE:
                _allocate(handle)
            area = mmap.mmap(handle, _SIZE)
            words = memoryview(area).cast("Q")
            if not words[_LAYOUT]:  # new, or whoever made it was killed
                words[_LAYOUT] = _MAGIC
            if words[_LAYOUT] != _MAGIC:
                raise OSError(f"{folder.path / BOARD_FILE} has another layout")
            self._map = area
            self.words = words
            self._bells = Notifier(folder)
            self._recount(remove_dead(folder))
        except BaseException:
            self.words = _NOBODY
            os.close(handle)
            raise
        _flock(handle, _UNLOCK)
        self._file = handle

    def close(self) -> None:
        """Leave the board; rings and waits find nobody from now on."""
        with self._mutex:
            if self._bells is not None:
                self._bells.close()
                self._bells = None
            self.abandon()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the mutex may be held for ever."""
        handle = self._file
        self._file = -1
        self._held = False
        self.words = _NOBODY
        self._map = None
        self.folder = None
        if self._bells is not None:
            self._bells.abandon()
            self._bells = None
        if handle >= 0:
            os.close(handle)

    def is_open(self) -> bool:
        """Say whether waits can be put up."""
        return self._file >= 0

    # --- waits ------------------------------------------------------------------------------

    def open_bell(self) -> Bell:
        """Make a door. Whoever cleans up meanwhile would take one without a reader for dead."""
        folder = self.folder
        if folder is None or self._file < 0:
            raise OSError("there is no board")
        with self._mutex:
            try:
                self._enter()
                return Bell(folder)
            finally:
                self._leave()

    def register(self, bell: int, interests: list[Interest], ticket: int = 0) -> int:
        """Begin a wait; return its ticket, 0 when the board is full.

        Args:
            ticket: of an earlier wait of the same call, which keeps its place in the queues; 0
                for a new one behind all others.
        """
        with self._mutex:
            try:
                self._enter()
                words = self.words
                rows: int = words[_ROWS]
                if self._file < 0 or rows + len(interests) > _CAPACITY:
                    return 0
                if not ticket:
                    ticket = words[_TICKET] + 1
                    words[_TICKET] = ticket
                place = rows
                while place and words[_FIRST + (place - 1) * _WORDS] > ticket:
                    place -= 1
                for key, group, kind in interests:
                    hashed = hash_name(key)
                    grouped = 0 if kind == READ else hash_name(group)
                    at = _START + place * _ROW_SIZE
                    area = self._mapped()
                    if place < rows:
                        area.move(at + _ROW_SIZE, at, (rows - place) * _ROW_SIZE)
                    area[at : at + _ROW_SIZE] = _ROW.pack(ticket, hashed, grouped, kind, bell)
                    words[_COUNTS + hashed % _BUCKETS] += 1
                    rows += 1
                    words[_ROWS] = rows
                return ticket
            finally:
                self._leave()

    def unregister(self, ticket: int) -> bool:
        """End a wait; False when it is not there any more: it was rung."""
        with self._mutex:
            try:
                self._enter()
                return self._file >= 0 and self._drop(0, _WORD.pack(ticket))
            finally:
                self._leave()

    def tickets(self) -> int:
        """Return how many waits are on the board."""
        with self._mutex:
            try:
                self._enter()
                return len({row[0] for row in self._rows()})
            finally:
                self._leave()

    # --- rings ------------------------------------------------------------------------------

    def notify(self, counts: dict[bytes, int], events: list[Event]) -> None:
        """Wake who waits for what a commit did: entries added by key, and other events."""
        failpoints.hit("ring:before")
        try:
            for key, count in counts.items():
                self._ring(added(key, count))
            for event in events:
                self._ring(event)
        except OSError:  # the commit stands; those who wait find out by themselves, later
            pass

    def _ring(self, event: Event) -> None:
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
                os.sched_yield()  # whoever was rung goes first, where processors are scarce
                return
            rows = self._take(event, hashed, group, dead, 0)  # those behind them

    def _take(
        self, event: Event, hashed: int, group: int, counts: dict[int, int], count: int
    ) -> list[Row]:
        """Take the waits off the board that are to be rung, one row of each.

        Args:
            group: hash of the only group that is meant; -1 for all.
            counts: how many heads of a group's queue; `count` of those that are not in it.
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
                    self._drop(0, _WORD.pack(row[0]))
            finally:
                self._leave()
        return taken

    # --- under the lock ---------------------------------------------------------------------

    def _enter(self) -> None:
        if self._file >= 0:
            _flock(self._file, _EXCLUSIVE)
            self._held = True
            if self.words[_DIRTY]:
                self._recount(None)
            self.words[_DIRTY] = 1

    def _leave(self) -> None:
        if self._held:  # else an interrupt came first, and the mark is another process's
            self._held = False
            self.words[_DIRTY] = 0
            _flock(self._file, _UNLOCK)

    def _mapped(self) -> mmap.mmap:
        area = self._map
        if area is None:
            raise OSError("there is no board")
        return area

    def _data(self) -> bytes:
        """Return the bytes of all rows."""
        rows: int = self.words[_ROWS]
        if not rows:
            return b""
        return self._mapped()[_START : _START + rows * _ROW_SIZE]

    def _rows(self) -> list[Row]:
        return list(_ROW.iter_unpack(self._data()))

    def _drop(self, offset: int, needle: bytes) -> bool:
        """Remove the rows that have `needle` at an offset; say whether there were any."""
        data = self._data()
        words = self.words
        rows: int = words[_ROWS]
        removed = 0
        at = data.find(needle)
        while at >= 0:
            if at % _ROW_SIZE == offset:
                hashed: int = _WORD.unpack_from(data, at - offset + 8)[0]
                start = at - offset - removed * _ROW_SIZE
                behind = rows * _ROW_SIZE - start - _ROW_SIZE
                if behind:
                    self._mapped().move(_START + start, _START + start + _ROW_SIZE, behind)
                rows -= 1
                removed += 1
                words[_ROWS] = rows
                bucket = _COUNTS + hashed % _BUCKETS
                words[bucket] = max(0, words[bucket] - 1)
            at = data.find(needle, at + 1)
        return removed > 0

    def _recount(self, bells: set[int] | None) -> None:
        """Put the board in order after a process died while it changed it.

        Args:
            doors: those that have readers; rows of others are dropped. None when unknown.
        """
        words = self.words
        words[_ROWS] = min(words[_ROWS], _CAPACITY)
        rows = [row for row in self._rows() if bells is None or row[4] in bells]
        for bucket in range(_BUCKETS):
            words[_COUNTS + bucket] = 0
        for index, row in enumerate(rows):
            at = _START + index * _ROW_SIZE
            self._mapped()[at : at + _ROW_SIZE] = _ROW.pack(*row)
            words[_COUNTS + row[1] % _BUCKETS] += 1
        words[_ROWS] = len(rows)
        if rows:
            words[_TICKET] = max(words[_TICKET], *(row[0] for row in rows))
        words[_DIRTY] = 0
