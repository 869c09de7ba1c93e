"""Rows that a deferred transaction has changed, and that LMDB gets when it ends.

A stream changes its row with each append, and a group with each delivery. In a deferred transaction
(`deferral`) the journal has each of these changes, so LMDB needs only the last one: the rows are
put into its transaction when that ends, or before code looks at their table in another way than by
a single key.

The row of a stream is not even encoded before: what an append changes is in its record. All rows
here are as the newest record of the journal has them. So they can be saved at any time, also in a
transaction that has changed the same streams and may still fail. Compiled by mypyc.
"""

from __future__ import annotations

import lmdb

from streamkeep.engine.txn.stream import UnsavedRow
from streamkeep.format.core.keys import CONSUMERS, GROUPS, STREAMS


class Unsaved:
    """The rows of one deferred transaction: of streams, groups and consumers."""

    def __init__(self) -> None:
        self.streams: dict[bytes, UnsavedRow] = {}  # by the key of the row
        self.rows: dict[int, dict[bytes, bytes]] = {GROUPS: {}, CONSUMERS: {}}
        self.saved = 0  # how many rows the transaction has got

    def count(self) -> int:
        """Return how many rows the transaction has got, or will get when it ends."""
        unsaved = len(self.streams) + len(self.rows[GROUPS]) + len(self.rows[CONSUMERS])
        return self.saved + unsaved

    def save(self, raw: lmdb.Transaction[bytes], tables: dict[int, lmdb._Database]) -> None:
        """Put all rows into LMDB's transaction. What fails stays unsaved."""
        self.save_streams(raw, tables[STREAMS])
        for table in self.rows:
            self.save_rows(raw, table, tables[table])

    def save_streams(self, raw: lmdb.Transaction[bytes], table: lmdb._Database) -> None:
        """Put the rows of streams into LMDB's transaction."""
        for db_key, row in self.streams.items():
            value = row.encode()
            raw.put(db_key, value, True, True, False, table)
            row.saved(value)
        self.saved += len(self.streams)
        self.streams.clear()

    def save_rows(self, raw: lmdb.Transaction[bytes], number: int, table: lmdb._Database) -> None:
        """Put the rows of one other table into LMDB's transaction."""
        rows = self.rows[number]
        for db_key, value in rows.items():
            raw.put(db_key, value, True, True, False, table)
        self.saved += len(rows)
        rows.clear()

    def clear(self) -> None:
        """Begin with another transaction, without the rows of the last one."""
        self.saved = 0
        self.streams.clear()
        for rows in self.rows.values():
            rows.clear()
