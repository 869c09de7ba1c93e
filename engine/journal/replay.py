"""Applying the records of the journal to LMDB's tables.

Most records change a row that the record before has changed, too. So changed rows stay in memory
until the end, or until there are many, and LMDB gets each once.
"""

from __future__ import annotations

from typing import Final

import lmdb

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.journal.journal import DELETE, MOVE, PUT, read_changes

_MOST_ROWS: Final = 1000


class Replay:
    """A replay into one write transaction; `finish` ends it."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: dict[int, lmdb._Database]) -> None:
        self._txn = txn
        self._tables = tables
        self._rows: dict[tuple[int, bytes], bytes] = {}  # by table and key: LMDB gets them later

    def apply(self, body: bytes) -> None:
        """Make the changes of a record; raise CorruptionError."""
        txn, rows = self._txn, self._rows
        for change in read_changes(body, self._tables):
            table, db_key = self._tables[change.table], change.db_key
            place = (change.table, db_key)
            if change.kind == PUT:
                rows.pop(place, None)
                txn.put(db_key, change.value, db=table)
            elif change.kind == DELETE:
                rows.pop(place, None)
                txn.delete(db_key, db=table)
            elif change.kind == MOVE:
                row = txn.pop(db_key, db=table)
                row = rows.pop(place, row)
                if row is None:
                    raise CorruptionError("journal", "a MOVE of a row that does not exist")
                rows.pop((change.kept, db_key), None)
                txn.put(db_key, row, db=self._tables[change.kept])
            else:
                old = rows.get(place)
                rows[place] = change.apply(txn.get(db_key, db=table) if old is None else old)
        if len(rows) > _MOST_ROWS:
            self.finish()

    def finish(self) -> None:
        """Put the rows that are in memory into the transaction."""
        for (table, db_key), row in self._rows.items():
            self._txn.put(db_key, row, db=self._tables[table])
        self._rows.clear()
