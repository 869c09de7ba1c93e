"""Rows of programs: ordered bytes beside the streams, in spaces with a name. Not part of Redis.

A space is a range of the sub-database `rows`, so its rows are in the order of their keys. What a
space holds is decided by the program that uses it, such as the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.tables.scan import bodies_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.keys import MAX_DB_KEY, META, ROWS, space_prefix
from streamkeep.format.rows.meta_rows import batch_key, decode_batch, encode_batch

MAX_SPACE: Final = 255
_WHERE: Final = "row"


def check_space(space: bytes) -> bytes:
    """Return what the keys of a space begin with; raise ArgumentError for a wrong name."""
    if not 0 < len(space) <= MAX_SPACE:
        problem = f"the name of a space has {len(space)} bytes; 1 to {MAX_SPACE} are possible"
        raise ArgumentError(problem)
    return space_prefix(space)


def row_key(space: bytes, key: bytes) -> bytes:
    """Return the key of a row in LMDB; raise ArgumentError if there cannot be one."""
    prefix = check_space(space)
    room = MAX_DB_KEY - len(prefix)
    if not 0 < len(key) <= room:
        problem = f"the key of a row has {len(key)} bytes; in this space, 1 to {room} are possible"
        raise ArgumentError(problem)
    return prefix + key


def row_get(txn: Txn, db_key: bytes) -> bytes | None:
    return txn.get_row(ROWS, db_key, _WHERE)


def row_put(txn: WriteTxn, db_key: bytes, value: bytes) -> None:
    """Store a row, in place of one that has the same key."""
    txn.put_row(ROWS, db_key, value)


def row_delete(txn: WriteTxn, db_key: bytes) -> bool:
    return txn.delete(ROWS, db_key)


def row_range(
    txn: Txn, prefix: bytes, first: bytes, last: bytes, count: int, reverse: bool
) -> list[tuple[bytes, bytes]]:
    """Return key and value of the rows of a space from `first` to `last`, at most `count`.

    Args:
        last: empty for the end of the space.
        count: below 0 for all.
    """
    found: list[tuple[bytes, bytes]] = []
    if count == 0:
        return found
    cursor = txn.cursor(ROWS)
    size = len(prefix)
    low = prefix + first
    high = prefix + last if last else b""
    if reverse:
        # Below the first key after the range: every key of the space is below prefix + ff * room.
        end = high if high else prefix + b"\xff" * (MAX_DB_KEY - size)
        more = cursor.set_range(end)
        if not more:
            more = cursor.last()
        elif cursor.key() != end:
            more = cursor.prev()
    else:
        more = cursor.set_range(low)
    while more:
        db_key = cursor.key()
        if not db_key.startswith(prefix):
            break
        if db_key < low or (high and db_key > high):
            break
        found.append((db_key[size:], row_body(ROWS, db_key, cursor.value(), _WHERE)))
        if len(found) == count:
            break
        more = cursor.prev() if reverse else cursor.next()
    return found


def iter_rows(txn: Txn) -> Iterator[tuple[bytes, bytes]]:
    """Return the keys of all rows, each after its space as in LMDB, and their values."""
    return bodies_with(txn, ROWS, b"", _WHERE)


# --- batches: an application that repeats one writes it only once; see `format/rows/meta_rows` ----


def newest_batch(txn: Txn, application: bytes) -> int | None:
    """Return the number of the newest batch of an application; None before its first one."""
    db_key = batch_key(application)
    body = txn.get_row(META, db_key, "meta batch row")
    return None if body is None else decode_batch(body, db_key)[0]


def note_batch(txn: WriteTxn, application: bytes, batch: int) -> None:
    txn.put_row(META, batch_key(application), encode_batch(batch, txn.now_ms(), application))
