"""The newest batch of an application: set with its transaction, kept, and checked."""

from __future__ import annotations

import pytest

from raw_store import codes, raw_store
from stores import Open
from streamkeep.engine.commands.rows import newest_batch, note_batch
from streamkeep.format.core.keys import META
from streamkeep.format.rows.meta_rows import batch_key, encode_batch

pytestmark = pytest.mark.both_modes(daily=True)

NAMES = [b"", b"/checkpoints/one", b"\xff\x00", b"x" * 600]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_noted_with_its_transaction(open_store: Open, name: bytes) -> None:
    store = open_store()
    with store.transaction() as transaction:
        assert newest_batch(transaction.txn, name) is None
        note_batch(transaction.txn, name, 7)
    with store.transaction() as transaction:
        note_batch(transaction.txn, name, 8)
        transaction.abort()
    store.close()
    with open_store().snapshot() as snapshot:
        assert newest_batch(snapshot.txn, name) == 7
        assert newest_batch(snapshot.txn, b"another") is None


@pytest.mark.parametrize("body", [b"short", encode_batch(1, 2, b"another")])
def test_a_damaged_row_is_found(open_store: Open, body: bytes) -> None:
    store = open_store("damaged")
    path = store.path
    with store.transaction() as transaction:
        note_batch(transaction.txn, b"job", 1)
    store.close()
    with raw_store(path) as raw:
        before = raw.body(META, batch_key(b"job"))
        raw.put(META, batch_key(b"job"), body)
    assert codes(path) == ["SK002"]
    with raw_store(path) as raw:
        raw.put(META, batch_key(b"job"), before)
