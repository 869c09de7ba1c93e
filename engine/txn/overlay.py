"""Rows in memory that lie over a table of LMDB, and a cursor over both.

A row in memory hides the row of LMDB with the same key. A removed row is kept as None, because it
hides one, too. Compiled by mypyc.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, cast

import lmdb

from streamkeep.format.core.errors import CorruptionError

_FORWARD: Final = 1
_BACKWARD: Final = -1
_MANY: Final = 8  # removed rows, from which on a search notes where they end
_MOST_NOTES: Final = 256


class LazyRow:
    """A value that is encoded when somebody reads it."""

    def encode(self) -> bytes:
        raise NotImplementedError


class Table:
    """Rows of one table, by key.

    Attributes:
        rows: values, or None for a removed row.
        shown: in how many snapshots these rows were shown.
        hidden: how many of these have ended. While it is less than `shown`, nothing here changes.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | LazyRow | None] = {}
        self.shown = 0
        self.hidden = 0
        self._keys: list[bytes] | None = None  # from the first use of a cursor on
        self._ends: dict[bytes, bytes] | None = None  # of removed rows, by the start of a search

    def copy(self) -> Table:
        """Return a table with the same rows, which may change."""
        table = Table()
        table.rows = self.rows.copy()
        keys, ends = self._keys, self._ends
        if keys is not None:
            table._keys = keys.copy()
        if ends is not None:
            table._ends = ends.copy()
        return table

    def seek(self, cursor: lmdb.Cursor[bytes], start: bytes) -> bool:
        """Move LMDB's cursor to its first row from `start` on that was not removed here.

        The oldest rows of a queue are removed one by one, and until the next flush each search for
        the oldest would pass all of them (XADD with IDMP took 285 us, 12 without it). A row of LMDB
        that was removed is hidden for ever, since the image of a table never changes: a search
        begins where the last one from the same start has come to.
        """
        rows, ends = self.rows, self._ends
        begin = start if ends is None else ends.get(start, start)
        found: bool = cursor.set_range(begin) if begin else cursor.first()
        passed = 0
        last = b""
        while found:
            db_key: bytes = cursor.key()
            if db_key not in rows or rows[db_key] is not None:
                break
            last = db_key
            passed += 1
            found = cursor.next()
        if passed >= _MANY:
            if ends is None or len(ends) >= _MOST_NOTES:
                ends = self._ends = {}
            ends[start] = last
        return found

    def keys(self) -> list[bytes]:
        """Return the keys of all rows that are not removed, in ascending order."""
        keys = self._keys
        if keys is None:
            keys = sorted([db_key for db_key, value in self.rows.items() if value is not None])
            self._keys = keys
        return keys

    def put(self, db_key: bytes, value: bytes | LazyRow) -> None:
        keys = self._keys
        if keys is not None and self.rows.get(db_key) is None:
            if not keys or db_key > keys[-1]:
                keys.append(db_key)
            else:
                insort(keys, db_key)
        self.rows[db_key] = value

    def remove(self, db_key: bytes) -> None:
        """Note that there is no such row."""
        keys = self._keys
        if keys is not None and self.rows.get(db_key) is not None:
            del keys[bisect_left(keys, db_key)]
        self.rows[db_key] = None

    def update(self, other: Table) -> None:
        """Take over the rows of another table, which are newer."""
        if self._keys is None:
            self.rows.update(other.rows)
            return
        for db_key, value in other.rows.items():
            if value is None:
                self.remove(db_key)
            else:
                self.put(db_key, value)


def encoded(value: bytes | LazyRow) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode()


class Cursor:
    """A position in the rows of a table, in the order of their keys.

    Each movement returns whether there is a row; without one, `key` and `value` are empty. It goes
    by the present key, so rows may be added and removed in the meantime.

    Args:
        cursor: LMDB's, whose rows do not change.
        over: rows in memory that lie over it, the newest first.
    """

    def __init__(self, cursor: lmdb.Cursor[bytes], over: list[Table]) -> None:
        self._cursor = cursor
        self._over = over
        self._found = False  # whether LMDB's cursor is on a row
        self._direction = 0  # in which LMDB's cursor has passed the present key, or is on it
        self._on_lmdb = False
        self._key = b""
        self._value: bytes | LazyRow = b""

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        """Return the value of the row, as it was when the cursor came there."""
        if self._on_lmdb:
            return self._cursor.value()
        return encoded(self._value)

    def first(self) -> bool:
        return self.set_range(b"")

    def set_range(self, db_key: bytes) -> bool:
        self._direction = _FORWARD
        if self._over:
            self._found = self._over[-1].seek(self._cursor, db_key)
        else:
            self._found = self._cursor.set_range(db_key) if db_key else self._cursor.first()
        return self._settle(db_key, True)

    def last(self) -> bool:
        self._direction = _BACKWARD
        self._found = self._cursor.last()
        return self._settle(b"", False)

    def next(self) -> bool:
        return self._step(_FORWARD)

    def prev(self) -> bool:
        return self._step(_BACKWARD)

    def _step(self, direction: int) -> bool:
        """Move past the present key, in a direction."""
        here, cursor, forward = self._key, self._cursor, direction == _FORWARD
        if not here:
            return False
        if self._direction == direction:
            if self._on_lmdb:
                self._found = cursor.next() if forward else cursor.prev()
            return self._settle(here, False)
        self._direction = direction
        self._found = cursor.set_range(here)
        if not forward:
            self._found = cursor.prev() if self._found else cursor.last()
        elif self._found and cursor.key() == here:
            self._found = cursor.next()
        if self._found and (cursor.key() <= here if forward else cursor.key() >= here):
            raise CorruptionError("LMDB", f"the row {cursor.key().hex()} is not in its place")
        return self._settle(here, False)

    def _is_hidden(self, db_key: bytes, depth: int) -> bool:
        """Return whether one of the first `depth` tables has a row with this key."""
        over = self._over
        for place in range(depth):  # noqa: SIM110  # `any` makes an object of each round
            if db_key in over[place].rows:
                return True
        return False

    def _settle(self, bound: bytes, inclusive: bool) -> bool:
        """Take the next key in the direction; LMDB's cursor is on its first one there, if any.

        Args:
            bound: the key to begin at; backward, b"" for the end of the table.
            inclusive: take that key, too, if it is there; only forward.
        """
        over, forward = self._over, self._direction == _FORWARD
        best = b""
        self._value = b""
        self._on_lmdb = False
        for place in range(len(over)):
            keys = over[place].keys()
            if not forward:
                at = (bisect_left(keys, bound) if bound else len(keys)) - 1
            elif inclusive:
                at = bisect_left(keys, bound)
            else:
                at = bisect_right(keys, bound)
            while 0 <= at < len(keys):
                db_key = keys[at]
                if best and (db_key >= best if forward else db_key <= best):
                    break  # here and below: it may hide thousands of rows, which nobody needs
                if not self._is_hidden(db_key, place):
                    best = db_key
                    self._value = cast("bytes | LazyRow", over[place].rows[db_key])
                    break
                at += self._direction
        cursor, depth = self._cursor, len(over)
        while self._found:
            db_key = cursor.key()
            if best and (db_key >= best if forward else db_key <= best):
                break
            if not self._is_hidden(db_key, depth):
                best = db_key
                self._on_lmdb = True
                break
            self._found = cursor.next() if forward else cursor.prev()
        self._key = best
        return len(best) > 0
