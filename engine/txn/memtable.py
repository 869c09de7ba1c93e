"""The memtable: the rows that the journal has changed since the *image*, which LMDB's file is.

Every process has one of its own. It gets the changes of this process and, record by record, those
of the others. Whoever finds it big puts it into LMDB (`flush`). Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import lmdb
from librt.strings import BytesWriter
from mypy_extensions import i64

from streamkeep.engine.txn.overlay import LazyRow, Table, encoded
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import GROUPS, NAMES, STREAMS
from streamkeep.format.journal.journal import (
    DELETE,
    EXTEND,
    MOVE,
    PUT,
    ChangeReader,
    extend_checksum,
    is_sound,
)

_MOST_COMMITS: Final = 1000
_MOST_BYTES: Final = 1 << 20  # of records

Handles = Mapping[int, "lmdb._Database"]


class ExtendedRow(LazyRow):
    """What EXTEND operations of other processes have made of a row, not put together yet.

    Many come before anybody reads it. The bytes after the head only grow, and rows that follow each
    other share them.
    """

    def __init__(
        self, head: bytes, body: BytesWriter, size: i64, end: bytes, *, sound: bool
    ) -> None:
        self.head = head
        self.body = body
        self.size = size  # bytes of the body that belong to this row
        self.sound = sound  # whether the row was that was extended first
        self._end = end  # the last byte before the checksum

    def encode(self) -> bytes:
        value = self.head + self.body.getvalue()[: self.size] + self._end
        return value + extend_checksum(value, sound=self.sound)


def extended(old: bytes | LazyRow | None, change: ChangeReader) -> ExtendedRow:
    """Return the row after an EXTEND operation; raise CorruptionError if that does not fit."""
    head, kept, tail = change.head, change.kept, change.value
    last: i64 = len(tail) - 1
    if last < 0:
        raise CorruptionError("journal", "an EXTEND that adds nothing")
    if not (
        isinstance(old, ExtendedRow)
        and len(old.head) == len(head)
        and old.size == kept == len(old.body)
    ):
        row = None if old is None else encoded(old)
        change.change().check(-1 if row is None else len(row))
        assert row is not None
        sound = is_sound(row)
        body = BytesWriter()
        body.write(row[len(head) : len(head) + kept])
    else:
        body, sound = old.body, old.sound
    body.write(tail[:last])
    return ExtendedRow(head, body, len(body), tail[last:], sound=sound)


class Memtable:
    """Rows by table and key.

    Attributes:
        tables: a table that a snapshot shows is copied before it changes.
        commits: how many commits are in it.
        bytes: the size of their records.
        room: the size of records that a flush surely finds room for.
        streams: the keys of rows of `streams` and `names` that other processes have changed.
        changed: whether they have changed rows of other tables.
        regrouped: whether they have created or destroyed groups.
        most_commits: with how many commits it is big.
    """

    def __init__(self) -> None:
        self.most_commits = _MOST_COMMITS
        self.tables: dict[int, Table] = {}
        self.commits = 0
        self.bytes = 0
        self.room = 0
        self.streams: set[bytes] = set()
        self.changed = False
        self.regrouped = False

    def clear(self) -> None:
        """Forget all rows: the image has them. Snapshots keep theirs."""
        self.tables = {}
        self.commits = 0
        self.bytes = 0
        self.room = 0

    def is_big(self) -> bool:
        """Return whether it is time for a flush."""
        return self.commits >= self.most_commits or self.bytes >= _MOST_BYTES

    def freeze(self) -> dict[int, Table]:
        """Return the tables for a snapshot, which counts them as `hidden` at its end."""
        for table in self.tables.values():
            table.shown += 1
        return self.tables.copy()

    def merge(self, changes: dict[int, Table], size: int) -> None:
        """Take over the rows of a commit of this process, whose record has `size` bytes."""
        for number, table in changes.items():
            if number in self.tables:
                self._table(number).update(table)
            else:
                self.tables[number] = table
        self.commits += 1
        self.bytes += size

    def apply(self, body: bytes, image: lmdb.Transaction[bytes], handles: Handles) -> None:
        """Make the changes of a record; after an error, the caller must forget all rows.

        Args:
            image: a transaction of LMDB that has no commit after the newest one here.

        Raises:
            CorruptionError: the record is damaged, or does not fit to the rows.
        """
        change = ChangeReader(body, handles)
        while change.next():
            number, db_key, kind = change.table, change.db_key, change.kind
            table = self._table(number)
            old: bytes | LazyRow | None = None
            if number == GROUPS or kind > DELETE:
                if db_key in table.rows:
                    old = table.rows[db_key]
                else:
                    old = image.get(db_key, None, handles[number])
            if number == GROUPS and (old is None or kind == DELETE):
                self.regrouped = True
            if kind == PUT:
                table.put(db_key, change.value)
            elif kind == DELETE:
                table.remove(db_key)
            elif kind == MOVE:
                if old is None:
                    raise CorruptionError("journal", "a MOVE of a row that does not exist")
                table.remove(db_key)
                self._table(int(change.kept)).put(db_key, old)
            elif kind == EXTEND:
                table.put(db_key, extended(old, change))
            else:
                row = None if old is None else encoded(old)
                table.put(db_key, change.change().apply(row))
            if number in (STREAMS, NAMES):
                self.streams.add(db_key)
            else:
                self.changed = True
        self.commits += 1
        self.bytes += len(body)

    def _table(self, number: int) -> Table:
        table = self.tables.get(number)
        if table is None:
            table = self.tables[number] = Table()
        elif table.shown != table.hidden:
            table = self.tables[number] = table.copy()
        return table

    def write(self, image: lmdb.Transaction[bytes], handles: Handles) -> int:
        """Put the rows into a transaction of LMDB; return their number."""
        count = 0
        for number, table in self.tables.items():
            handle = handles[number]
            rows, keys = table.rows, table.keys()
            count += len(rows)
            if len(keys) != len(rows):
                for db_key, value in rows.items():
                    if value is None:
                        image.delete(db_key, b"", handle)
            newest = False  # LMDB then fills its pages, instead of leaving each half empty
            last = b""
            if keys:
                cursor = image.cursor(handle)
                last = cursor.key() if cursor.last() else b""
            for db_key in keys:
                value = rows[db_key]
                assert value is not None
                newest = newest or db_key > last
                image.put(db_key, encoded(value), True, True, newest, handle)
        return count
