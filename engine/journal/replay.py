"""Applying the records of the journal to LMDB's tables."""

from __future__ import annotations

import lmdb

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.log.journal import DELETE, MOVE, read_changes


def apply_record(
    txn: lmdb.Transaction[bytes], tables: dict[int, lmdb._Database], body: bytes
) -> None:
    """Make the changes of a record in a write transaction; raise CorruptionError."""
    for change in read_changes(body, tables):
        table = tables[change.table]
        if change.kind == DELETE:
            txn.delete(change.db_key, db=table)
        elif change.kind == MOVE:
            row = txn.pop(change.db_key, db=table)
            if row is None:
                raise CorruptionError("journal", "a MOVE of a row that does not exist")
            txn.put(change.db_key, row, db=tables[change.kept])
        else:
            old = txn.get(change.db_key, db=table)
            txn.put(change.db_key, change.apply(old), db=table)
