"""Cursor helpers that several commands share. Compiled by mypyc."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from streamkeep.engine.txn.overlay import Cursor
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES, pack_number, unpack_node_key

Row = tuple[bytes, bytes]


def at_or_below(cursor: Cursor, db_key: bytes) -> bool:
    """Move a cursor to the last row with a key not above `db_key`; return whether there is one."""
    if not cursor.set_range(db_key):
        return cursor.last()
    return cursor.key() == db_key or cursor.prev()


def neighbours(txn: Txn, table: int, db_key: bytes) -> tuple[Row | None, Row | None]:
    """Return the last row with a key below `db_key`, and the first one from it on.

    LMDB does not notice that a page has the content of another one: a search that leads there
    finds other rows, or none. So both rows are searched for by their own keys, and must again be
    neighbours. Whatever row a caller does not find must be looked for in this way.

    Raises:
        CorruptionError: they are not.
    """
    if table in txn.over:  # rows of the memtable may lie between those of a page
        _neighbours(txn.cursor_below, table, db_key)
    return _neighbours(txn.cursor, table, db_key)


def _neighbours(
    cursor_of: Callable[[int], Cursor], table: int, db_key: bytes
) -> tuple[Row | None, Row | None]:
    cursor = cursor_of(table)
    after = _row(cursor) if cursor.set_range(db_key) else None
    before = _row(cursor) if (cursor.last() if after is None else cursor.prev()) else None
    first = None if before is None else before[0]
    last = None if after is None else after[0]
    sound = True
    # With new cursors, since one that is on a page looks there first.
    if last is not None:
        again = cursor_of(table)
        sound = again.set_range(last) and again.key() == last >= db_key
        sound = sound and (again.key() if again.prev() else None) == first
    if first is not None and sound:
        again = cursor_of(table)
        sound = again.set_range(first) and again.key() == first < db_key
        sound = sound and (again.key() if again.next() else None) == last
    if not sound:
        where = f"table {TABLES[table].name}"
        raise CorruptionError(where, f"a page near the key {db_key.hex()} is not in its place")
    return before, after


def _row(cursor: Cursor) -> Row:
    return cursor.key(), cursor.value()


def has_rows(txn: Txn, table: int, prefix: bytes, start: bytes = b"") -> bool:
    """Return whether a table has a row with a key that begins with `prefix`.

    Args:
        start: the lowest key that counts.
    """
    cursor = txn.cursor(table)
    return cursor.set_range(start or prefix) and cursor.key().startswith(prefix)


def stream_numbers(txn: Txn, table: int, where: str) -> Iterator[int]:
    """Yield the numbers of streams with which keys of a table begin, ascending."""
    cursor = txn.cursor(table)
    found = cursor.first()
    before = -1
    while found:
        number = unpack_node_key(cursor.key())[0]
        if number <= before:  # LMDB finds that in damaged pages; the loop would never end
            raise CorruptionError(where, f"stream {number} comes after {before}")
        yield number
        before = number
        found = cursor.set_range(pack_number(number + 1))


def rows_with(
    txn: Txn, table: int, prefix: bytes, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of the rows with keys that begin with `prefix`, ascending.

    Args:
        start: the key to begin with, in place of `prefix`.
    """
    cursor = txn.cursor(table)
    found = cursor.set_range(start or prefix) if start or prefix else cursor.first()
    while found:
        db_key = cursor.key()
        if not db_key.startswith(prefix):
            return
        yield db_key, cursor.value()
        found = cursor.next()


def bodies_with(txn: Txn, table: int, prefix: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, checked body) of the rows with keys that begin with `prefix`, ascending."""
    for db_key, value in rows_with(txn, table, prefix):
        yield db_key, row_body(table, db_key, value, where)
