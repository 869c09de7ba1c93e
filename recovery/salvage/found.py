"""What is readable of a damaged store: the rows of its trees, with changes laid over them.

`search` hides the rows that are damaged and adds those that no tree leads to. All later steps read
through this. The changes, and notes, are in an LMDB environment of their own, so they
may be as many as the rows; the caller removes its folder.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, TypeVar

import lmdb

from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.copying import open_new, tables_of
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.check import Slot
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.rows.records import StreamRecord, decode_stream_record, encode_key_row
from streamkeep.recovery.fsck.rows import KEY_SHAPE, Shape, parse_row
from streamkeep.recovery.pages.tree import Tables
from streamkeep.recovery.salvage.losses import LostAndFound, Report

NAMED: Final = b"K"  # note: the number of a stream; value: its name

_BATCH_BYTES: Final = 32 << 20  # bytes changed in one transaction
_PIECE: Final = 256  # rows read at a time
_HIDDEN: Final = b""  # no row is empty: each has a checksum
_NUMBER_SIZE: Final = 8

T = TypeVar("T")
Pair = tuple[bytes, bytes]  # key and value


class Found:
    """The rows of a damaged store, notes about them, and the account of what is lost.

    Args:
        folder: for what is laid over the trees.
        tables: its trees; None without one.
        lost: the new store's lost+found.
    """

    def __init__(self, folder: Folder, tables: Tables | None, lost: LostAndFound) -> None:
        self.report = Report()
        self.lost = lost
        self._trees = tables
        self._raw = open_new(folder)
        self._tables = tables_of(self._raw)
        self._txn = self._raw.begin(write=True)
        self._notes = self._raw.open_db(b"notes", self._txn)
        self._changed = 0

    def close(self) -> None:
        self._txn.abort()
        self._raw.close()
        self.lost.close()

    def lose(self, number: int, note: str) -> None:
        self.report.stream(number).notes.append(note)

    def keep(
        self, number: int, why: str, slots: Iterable[Slot], key: bytes | None = None, **more: int
    ) -> None:
        name = self.noted(NAMED + keys.pack_number(number))
        key = key if name is None else name
        count = self.lost.keep_entries(why, key, number, slots, **more)
        self.report.stream(number).moved += count

    # --- rows -------------------------------------------------------------------------------

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        """Lay a row over those of the trees."""
        self._put(self._tables[table], db_key, value)

    def hide(self, table: int, db_key: bytes) -> None:
        """Have no row with a key."""
        self._put(self._tables[table], db_key, _HIDDEN)

    def get(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none that can be read."""
        value = self._txn.get(db_key, db=self._tables[table])
        if value is not None:
            return value or None
        try:
            return None if self._trees is None else self._trees.get(table, db_key)
        except CorruptionError:
            return None

    def get_row(self, table: int, db_key: bytes, where: str) -> bytes | None:
        """Return the body of the row with a key, after checking its checksum."""
        value = self.get(table, db_key)
        return None if value is None else row_body(table, db_key, value, where)

    def rows(self, table: int, prefix: bytes = b"", start: bytes = b"") -> Iterator[Pair]:
        """Yield the rows whose keys begin with `prefix` and are at least `start`, ascending.

        The caller may change rows during the iteration.
        """
        over = ((key, 0, value) for key, value in self._rows(self._tables[table], prefix, start))
        for db_key, _, value in heapq.merge(over, self._under(table, prefix, start)):
            if value:
                yield db_key, value

    def _under(self, table: int, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield the rows of the trees that no change replaces."""
        if self._trees is None:
            return
        over = self._tables[table]
        for row in self._trees.walk(table, prefix, start):
            if keys.fits(table, row.key) and self._txn.get(row.key, db=over) is None:
                yield row.key, 1, row.value()

    def under(self, shape: Shape[T], prefix: bytes) -> Iterator[tuple[bytes, T]]:
        """Yield key and content of those of these rows that can be parsed."""
        for db_key, value in self.rows(shape.table, prefix):
            try:
                parsed = parse_row(shape, db_key, value)
            except CorruptionError:
                continue
            yield db_key, parsed

    def record(self, number: int) -> StreamRecord | None:
        """Return the record of a stream; None without a row, or if it cannot be read."""
        value = self.get(keys.STREAMS, keys.pack_number(number))
        try:
            if value is not None:
                return decode_stream_record(decode_envelope(value, "stream").record, "stream")
        except CorruptionError:
            pass
        return None

    def numbers(self, table: int) -> Iterator[int]:
        """Yield the numbers that the keys of a table begin with, each once, ascending."""
        start = b""
        while row := next(self.rows(table, start=start), None):
            number = int.from_bytes(row[0][:_NUMBER_SIZE], "big")
            yield number
            if number == keys.LAST_NUMBER:
                return
            start = keys.pack_number(number + 1)

    # --- notes --------------------------------------------------------------------------------

    def note(self, key: bytes, value: bytes = b"") -> None:
        self._put(self._notes, key, value)

    def noted(self, key: bytes) -> bytes | None:
        return self._txn.get(key, db=self._notes)

    def notes(self, prefix: bytes) -> Iterator[Pair]:
        """Yield the notes whose keys begin with `prefix`, without it."""
        for key, value in self._rows(self._notes, prefix, b""):
            yield key[len(prefix) :], value

    # --- LMDB ---------------------------------------------------------------------------------

    def _put(self, table: lmdb._Database, db_key: bytes, value: bytes) -> None:
        self._txn.put(db_key, value, db=table)
        self._changed += len(db_key) + len(value)
        if self._changed >= _BATCH_BYTES:
            self._changed = 0
            self._txn.commit()
            self._txn = self._raw.begin(write=True)

    def _rows(self, table: lmdb._Database, prefix: bytes, start: bytes) -> Iterator[Pair]:
        following = max(prefix, start)
        while True:
            cursor = self._txn.cursor(table)
            piece: list[Pair] = []
            found = cursor.set_range(following) if following else cursor.first()
            while found and len(piece) < _PIECE and cursor.key().startswith(prefix):
                piece.append((bytes(cursor.key()), bytes(cursor.value())))
                found = cursor.next()
            yield from piece
            if len(piece) < _PIECE:
                return
            following = piece[-1][0] + b"\0"


def ascending(*numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers of ascending sequences, each once, ascending."""
    return (number for number, _ in groupby(heapq.merge(*numbers)))


# --- the names of streams: one for each number, from `keys`, or else from `names` ----------------


def read_names(found: Found) -> None:
    """Note one name for each stream that `keys` names."""
    for db_key, value in found.rows(keys.KEYS):
        try:
            number, name = parse_row(KEY_SHAPE, db_key, value)
        except CorruptionError as error:
            found.lost.keep_value("name", error.problem, value, key=db_key.hex())
            found.report.other.append(f"the name of a stream: {error.problem}")
            continue
        own_key = keys.name_key(b"", name)
        if own_key != db_key:
            if found.get(keys.KEYS, own_key) is not None:
                continue  # that row counts
            _take(found, number, name)
        number_key = keys.pack_number(number)
        if found.noted(NAMED + number_key) is None or (
            found.get_row(keys.NAMES, number_key, "names") == name
        ):
            found.note(NAMED + number_key, name)


def name_of(found: Found, number: int) -> tuple[bytes, bool]:
    """Return the name of a stream, and whether it is a new one."""
    number_key = keys.pack_number(number)
    known = found.noted(NAMED + number_key)
    if known is not None:
        return known, False
    name = found.get_row(keys.NAMES, number_key, "names")
    is_new = name is None or found.get(keys.KEYS, keys.name_key(b"", name)) is not None
    if name is None or is_new:
        name = b"lost+found/stream-%d" % number
        while found.get(keys.KEYS, keys.name_key(b"", name)) is not None:
            name += b"'"
    _take(found, number, name)
    found.note(NAMED + number_key, name)
    return name, is_new


def is_live(found: Found, number: int) -> bool:
    """Return whether the new store has a stream, once those with its number were written."""
    return found.noted(NAMED + keys.pack_number(number)) is not None


def _take(found: Found, number: int, name: bytes) -> None:
    """Have no other stream get a name."""
    own_key = keys.name_key(b"", name)
    found.put(keys.KEYS, own_key, with_checksum(keys.KEYS, own_key, encode_key_row(number, name)))
