"""The ways of cursors that commands share."""

from __future__ import annotations

import inside
from streamkeep.engine.api.store import Store
from streamkeep.engine.txn.scan import at_or_below, bodies_with, has_rows, rows_with
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.keys import META

WHERE = "test"


def fill(txn: WriteTxn) -> None:
    for name in (b"b1", b"b3", b"c"):
        txn.put_row(META, name, b"body of " + name)


def keys_of(txn: WriteTxn, prefix: bytes, start: bytes = b"") -> list[bytes]:
    return [db_key for db_key, _ in rows_with(txn, META, prefix, start)]


def test_a_cursor_goes_to_the_last_row_at_or_below_a_key(store: Store) -> None:
    txn = inside.begin_write(store)
    fill(txn)
    found: dict[bytes, bytes | None] = {}
    for wanted in (b"a", b"b1", b"b2", b"b3", b"bz", b"c", b"c\0"):
        cursor = txn.cursor(META)
        found[wanted] = cursor.key() if at_or_below(cursor, wanted) else None
    txn.abort()
    assert found == {
        b"a": None,
        b"b1": b"b1",
        b"b2": b"b1",
        b"b3": b"b3",
        b"bz": b"b3",
        b"c": b"c",
        b"c\0": b"c",
    }


def test_rows_of_a_prefix_end_with_it(store: Store) -> None:
    txn = inside.begin_write(store)
    fill(txn)
    assert keys_of(txn, b"b") == [b"b1", b"b3"]
    assert keys_of(txn, b"b", start=b"b2") == [b"b3"]
    assert keys_of(txn, b"bz") == []
    assert keys_of(txn, b"")[:3] == [b"b1", b"b3", b"c"]  # then those of the store
    assert next(bodies_with(txn, META, b"c", WHERE)) == (b"c", b"body of c")
    assert (has_rows(txn, META, b"b"), has_rows(txn, META, b"b2")) == (True, False)
    txn.abort()
