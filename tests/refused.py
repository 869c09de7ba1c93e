"""A command that is refused must have changed nothing: what tests compare before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inside import context_of, run_read
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Transaction
from streamkeep.engine.tables.group import Group
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.keys import CONSUMERS, GROUPS, TABLES, name_key
from streamkeep.format.node.envelope import decode_envelope

Tables = dict[str, list[tuple[bytes, bytes]]]  # the rows of each, by its name


@contextmanager
def unchanged(on: Store[Any] | Transaction[Any]) -> Iterator[None]:
    """Run commands that are refused; no row of the store, or of the transaction, may change.

    What the process keeps decoded must be what is stored: such a change would come later.
    """
    before = rows_of(on)
    yield
    assert rows_of(on) == before


def rows_of(on: Store[Any] | Transaction[Any]) -> Tables:
    if isinstance(on, Transaction):
        on.txn.save()
        return _rows(on.txn)
    run_read(on, assert_cached_is_stored, on)
    return run_read(on, _rows)


def _rows(txn: Txn) -> Tables:
    return {
        table.name: [(bytes(db_key), bytes(value)) for db_key, value in rows_with(txn, number, b"")]
        for number, table in TABLES.items()
    }


def assert_cached_is_stored(txn: Txn, store: Store[Any]) -> None:
    """Compare streams and groups that are kept decoded with their rows."""
    context = context_of(store)
    for name, stream in context.cache.items():
        stored = txn.load_stream(name)
        assert stored is not None, name
        envelope = decode_envelope(stored.stored, "stream")
        now = stream.encode(stream.record.encode(), envelope.epoch, envelope.commit_number)
        assert (now, stream.differs()) == (stored.stored, False), name
    for cached_rows in context.cached_rows.values():
        assert isinstance(cached_rows, Group)
        db_key = name_key(cached_rows.stream_key, cached_rows.record.name)
        now = with_checksum(GROUPS, db_key, cached_rows.record.encode())
        assert now == cached_rows.stored == txn.get(GROUPS, db_key), db_key
        assert not cached_rows._changed, db_key
        for consumer in cached_rows._consumers.values():
            row_key = name_key(cached_rows.prefix, consumer.name)
            row = txn.get_row(CONSUMERS, row_key, "consumer")
            assert consumer.encode() == row, consumer.name
