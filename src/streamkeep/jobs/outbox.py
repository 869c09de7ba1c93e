"""The outbox: rows of an application's database become entries or jobs, each exactly once.

An application that changes its own database and then puts a job may die in between. So it writes
the message into a table of that database, in its own transaction, and a forwarder moves the rows:

1. In a transaction of the database, select rows, which locks them.
2. In one transaction of the store, append those whose IDs the store does not remember, and remember
   them.
3. Delete the rows, and commit the transaction of the database.
4. Forget the IDs.

A crash before step 2 changes nothing. A crash before step 3 leaves rows that are appended, and the
store remembers that: the next forwarder only deletes them. A crash before step 4 leaves IDs that
never come again; the next forwarder forgets them. Nothing expires, so a forwarder that did not run
for a month doubles nothing. Several forwarders may run: the database locks the rows for one.

A server may end a session, and its locks, at any time. So step 2 asks it once more if IDs were
forgotten since step 1, before which the rows may have been another forwarder's.

IDs must never be used again. SQLite uses them again in a table without AUTOINCREMENT, so such a
table is refused.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Transaction
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError, StoreFullError
from streamkeep.jobs.layout import part_of, short

log = logging.getLogger("streamkeep.jobs")

Row = dict[str, Any]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_QUOTES: Final = re.compile(r"""(["`])([A-Za-z0-9_]+)\1""")
_SEEN: Final = b"id:"
_CHANGED: Final = b"forgotten"
_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Outbox:
    """Forwards the rows of one table. Give it a connection of its own: it begins and commits."""

    def __init__(
        self,
        connection: Any,
        table: str,
        store: Store[Any],
        *,
        stream: str | None = None,
        put: Callable[[Row], object] | None = None,
        id_column: str = "id",
        columns: Sequence[str] | None = None,
        batch: int = 500,
        name: str | None = None,
    ) -> None:
        """Name a table, and what its rows become.

        Args:
            connection: of any driver that follows Python's DB-API: SQLite, PostgreSQL (psycopg),
                MySQL 8. It may not commit each statement, which would lock no row.
            table: its name, in the quotes of the database if that needs them.
            stream: rows become entries of this stream, columns their fields; NULL is left out.
            put: instead: called with each row as a dict, in the transaction of the store. It may
                put jobs into queues of that store: `lambda row: send.delay(row["to"])`.
            id_column: its values must be unique, and never used again.
            columns: the columns that travel; by default all but the ID.
            batch: the rows of one transaction.
            name: under which the store remembers; by default that of the table. Another database
                that is forwarded into the same store needs another name.

        Raises:
            ArgumentError: one of these is wrong, the connection commits each statement, or the
                table may use IDs again.
        """
        if (stream is None) == (put is None):
            raise ArgumentError("an outbox needs either `stream` or `put`")
        plain = _QUOTES.sub(r"\2", table) if isinstance(table, str) else table
        for one in (plain, id_column, *(columns or ())):
            if not isinstance(one, str) or not _NAME.fullmatch(one):
                raise ArgumentError(f"{one!r} is not the name of a table or a column")
        if isinstance(batch, bool) or not isinstance(batch, int) or not 0 < batch <= 10_000:
            raise ArgumentError(f"batch must be a number from 1 to 10,000, not {batch!r}")
        if commits_each_statement(connection):
            raise ArgumentError(
                "the connection commits each statement (autocommit), so it would lock no row, and "
                "two forwarders would append one; next: give the outbox a connection of its own, "
                "with autocommit off"
            )
        self._connection = connection
        self._table = table
        self._store = store
        self._stream = stream
        self._put = put
        self._id = id_column
        self._columns = columns
        self._batch = batch
        self._space = b"outbox:" + part_of(name or table, "the name of an outbox")
        driver = type(connection).__module__.partition(".")[0]
        self._is_sqlite = driver == "sqlite3"
        self._mark = _MARKS.get(getattr(sys.modules.get(driver), "paramstyle", ""), "%s")
        if self._is_sqlite:
            self._check_sqlite()

    def _check_sqlite(self) -> None:
        """Raise ArgumentError for a table that uses the numbers of deleted rows again.

        Also for a connection that begins each transaction itself, before it locks a row.
        """
        if getattr(self._connection, "autocommit", None) is False:
            raise ArgumentError(
                "the connection has a transaction open at any time (autocommit=False); next: give "
                "the outbox one that was opened without `autocommit`"
            )
        schema, _, name = _QUOTES.sub(r"\2", self._table).rpartition(".")
        schema = schema or "main"
        cursor = self._connection.execute(
            f"SELECT sql FROM \"{schema}\".sqlite_master WHERE type = 'table' AND name = ?", (name,)
        )
        row = cursor.fetchone()
        if row is None:
            raise ArgumentError(f"the database has no table {self._table!r}")
        cursor = self._connection.execute(
            "SELECT name, type FROM pragma_table_info(?, ?)", (name, schema)
        )
        kinds = {name: str(kind).upper() for name, kind in cursor.fetchall()}
        if self._id not in kinds:
            raise ArgumentError(f"{self._table!r} has no column {self._id!r}; next: `id_column`")
        if kinds.get(self._id) == "INTEGER" and "AUTOINCREMENT" not in str(row[0]).upper():
            raise ArgumentError(
                f"SQLite gives the numbers of deleted rows of {self._table!r} to new ones; declare "
                f"the column as `{self._id} INTEGER PRIMARY KEY AUTOINCREMENT`"
            )

    # --- forwarding -----------------------------------------------------------------------------

    def forward(self) -> int:
        """Forward the rows that are there, up to `batch`; return how many were appended.

        They are on disk in the store before they are deleted, in each sync mode. Those before a row
        that cannot be put are forwarded; the next call raises its error.

        Raises:
            ArgumentError: the connection has a transaction open, which is not this object's; or two
                rows have one ID, or one has NULL. Nothing was deleted.
        """
        return self._forward()[1]

    def _forward(self) -> tuple[int, int]:
        """Return how many rows there were, and how many of them were appended.

        The others were appended by a forwarder that died before it deleted them.
        """
        if self._is_sqlite and self._connection.in_transaction:
            raise ArgumentError("the connection has a transaction open; give the outbox its own")
        cursor = self._connection.cursor()
        forgotten = self._forgotten()
        try:
            rows = self._select(cursor)
            fresh = 0
            if rows:
                self._check_ids(rows)
                fresh = self._append(cursor, rows, forgotten)
                self._delete(cursor, rows)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            cursor.close()
        if rows:
            self._forget([_key(row[self._id]) for row in rows])
        else:  # only now, since it looks at all rows, which may be many
            self._forget_left()
        return len(rows), fresh

    def run(
        self, *, every: Duration = 1, stop: threading.Event | None = None, once: bool = False
    ) -> int:
        """Forward rows until `stop` is set; return how many.

        Args:
            every: how long to wait when there was no row: databases do not say when there is one.
            once: end when there is no row.
        """
        ended = stop or threading.Event()
        pause_s = milliseconds(every, "every") / 1000
        total = 0
        while not ended.is_set():
            found, fresh = self._forward()
            total += fresh
            if not found:
                if once:
                    break
                ended.wait(pause_s)
        return total

    def _select(self, cursor: Any) -> list[Row]:
        chosen = "*" if self._columns is None else ", ".join([self._id, *self._columns])
        query = f"SELECT {chosen} FROM {self._table} ORDER BY {self._id} LIMIT {self._batch}"
        if self._is_sqlite:
            cursor.execute("BEGIN IMMEDIATE")
        else:
            query += " FOR UPDATE SKIP LOCKED"
        cursor.execute(query)
        names = [one[0] for one in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _check_ids(self, rows: list[Row]) -> None:
        """Raise ArgumentError for rows that cannot be told apart."""
        ids = [row[self._id] for row in rows]
        if None in ids or len({_key(one) for one in ids}) < len(ids):
            wrong = next((one for one in ids if one is None or ids.count(one) > 1), ids[0])
            raise ArgumentError(
                f"a row of {self._table!r} has {wrong!r} in {self._id!r}, and each needs a value "
                "of its own; next: correct or delete it"
            )

    def _append(self, cursor: Any, rows: list[Row], forgotten: bytes | None) -> int:
        """Append rows; return how many were not there. If one cannot be, it leaves `rows` with all
        after it, unless it is the first: a queue with a limit may never have room for all of them.

        Args:
            forgotten: what `_forgotten` returned before the rows were locked.
        """
        while True:
            done = fresh = 0
            try:
                # On disk, since the rows are deleted next.
                with self._store.transaction(sync="commit") as outer:
                    txn = outer.as_bytes()
                    # The server may have ended this session, with its locks, while the store was
                    # another's. Who then got the rows may have forwarded and forgotten them.
                    unsure = not self._is_sqlite and forgotten != txn.row_get(self._space, _CHANGED)
                    for row in () if unsure else rows:
                        key = _key(row[self._id])
                        if txn.row_get(self._space, key) is None:
                            self._append_row(txn, row)
                            txn.row_put(self._space, key, b"")
                            fresh += 1
                        done += 1
                if unsure:  # not asked with the write lock: the server may not answer for long
                    forgotten = self._forgotten()
                    cursor.execute("SELECT 1")  # the rows were locked until now
                    continue
                if not fresh:  # it has waited for nothing, and who appended them may have died so
                    self._store.sync()
                return fresh
            except Exception as error:
                if done == len(rows):  # what the commit raises is no row's
                    done = done // 2 if isinstance(error, StoreFullError) else 0
                if not done:
                    raise
                del rows[done:]

    def _delete(self, cursor: Any, rows: list[Row]) -> None:
        marks = ", ".join([self._mark] * len(rows))
        ids = tuple(row[self._id] for row in rows)
        cursor.execute(f"DELETE FROM {self._table} WHERE {self._id} IN ({marks})", ids)
        if 0 <= cursor.rowcount != len(rows):
            raise ArgumentError(
                f"{len(rows)} rows of {self._table!r} were forwarded, and {cursor.rowcount} have "
                f"their IDs, {self._id!r}; next: give each row a value of its own"
            )

    def _append_row(self, txn: Transaction[bytes], row: Row) -> None:
        if self._put is not None:
            self._put(row)
            return
        assert self._stream is not None
        shown = {name: one for name, one in row.items() if one is not None}
        if self._columns is None and len(shown) > 1:
            shown.pop(self._id)
        txn.xadd(self._stream, {name: _text(one) for name, one in shown.items()})

    # --- what was not forgotten -----------------------------------------------------------------

    def _forget_left(self) -> None:
        """Forget the IDs that a forwarder which died did not, unless their rows are there."""
        left = self._store.row_range(self._space, _SEEN, _SEEN + b"\xff" * 130, self._batch)
        if not left:
            return
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"SELECT {self._id} FROM {self._table}")
            present: set[bytes] = set()
            while rows := cursor.fetchmany(1000):
                present.update(_key(row[0]) for row in rows)
        finally:
            cursor.close()
            self._connection.rollback()
        self._forget([key for key, _ in left if key not in present])

    def _forgotten(self) -> bytes | None:
        """Return what changes whenever a forwarder forgets IDs."""
        return self._store.row_get(self._space, _CHANGED)

    def _forget(self, keys: list[bytes]) -> None:
        def forget(txn: Transaction[Any]) -> None:
            if not self._is_sqlite:
                txn.row_put(self._space, _CHANGED, os.urandom(8))
            for key in keys:
                txn.row_delete(self._space, key)

        if keys:
            self._store.apply(forget, frees=True)


def commits_each_statement(connection: Any) -> bool:
    """Return whether a connection is in autocommit mode, as its driver says it."""
    ask = getattr(connection, "get_autocommit", None)  # MySQL's, where `autocommit` is a method
    return bool(ask()) if ask else getattr(connection, "autocommit", False) is True


def _key(row_id: object) -> bytes:
    if isinstance(row_id, (bytearray, memoryview)):  # whose text is not their value
        row_id = bytes(row_id)
    return _SEEN + short(f"{type(row_id).__name__}:{row_id}".encode())


def _text(value: Any) -> bytes | str | int | float:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (dict, list)):  # a column of JSON, as drivers decode it
        return json.dumps(value, ensure_ascii=False, default=str)
    return value if isinstance(value, (bytes, str, int, float)) else str(value)
