"""The outbox of an application that uses SQLAlchemy, on SQLite, PostgreSQL or MySQL 8.

A row is written by the connection of the session, so it is there if and only if the transaction of
the session commits. `forward` moves rows into a store, each exactly once (`jobs/outbox.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, Text, event
from sqlalchemy.exc import DBAPIError, TimeoutError
from sqlalchemy.orm import Session, object_session

from streamkeep.engine.api.store import Store
from streamkeep.format.core.durations import Duration
from streamkeep.format.core.errors import ArgumentError
from streamkeep.integrations import outbox_rows
from streamkeep.jobs.outbox import Outbox as Forwarder
from streamkeep.jobs.outbox import commits_each_statement

Change = Literal["insert", "update", "delete"]
_CHANGES: Final = ("insert", "update", "delete")


class Outbox:
    """The outbox of one database; its table belongs to the application's metadata."""

    def __init__(self, metadata: MetaData, table: str = "streamkeep_outbox") -> None:
        """Declare the table; `metadata.create_all`, or a migration, makes it.

        Args:
            table: its name.
        """
        self.table = Table(
            table,
            metadata,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            Column("stream", Text, nullable=False),
            Column("payload", Text, nullable=False),
            sqlite_autoincrement=True,  # otherwise SQLite uses numbers of deleted rows again
        )

    # --- write ----------------------------------------------------------------------------------

    def append(
        self, session: Session | Connection, stream: str, fields: Mapping[str, outbox_rows.Value]
    ) -> None:
        """Write an entry into the outbox, as a part of the transaction of a session.

        With an `AsyncSession`: `await session.run_sync(outbox.append, "orders", fields)`.

        Raises:
            ArgumentError: a field cannot be stored; nothing was written.
        """
        session.execute(self.table.insert(), [outbox_rows.row_of(stream, fields)])

    def follow(
        self,
        model: type[Any],
        stream: str,
        fields: Callable[[Any], Mapping[str, outbox_rows.Value]],
        *,
        changes: tuple[Change, ...] = ("insert",),
    ) -> None:
        """Write an entry for each object of a model that a session inserts, updates or deletes.

        Statements that change rows without objects (`session.execute(update(...))`) are not
        events of the mapper, and write none.

        Args:
            fields: returns the fields of the entry for an object; its key is known by then.
            changes: which of "insert", "update", "delete".

        Raises:
            ArgumentError: a change has another name.
        """
        if not changes or set(changes) - set(_CHANGES):
            raise ArgumentError(f"changes must be some of {_CHANGES}, not {changes!r}")

        def write(mapper: Any, connection: Connection, target: Any) -> None:
            connection.execute(self.table.insert(), [outbox_rows.row_of(stream, fields(target))])

        def write_changed(mapper: Any, connection: Connection, target: Any) -> None:
            session = object_session(target)  # which calls this also for what was set to its value
            if session is not None and session.is_modified(target, include_collections=False):
                write(mapper, connection, target)

        for change in changes:
            listener = write_changed if change == "update" else write
            event.listen(model, f"after_{change}", listener, propagate=True)

    # --- forward --------------------------------------------------------------------------------

    def forward(
        self,
        engine: Engine,
        store: Store[Any],
        *,
        every: Duration = 1,
        stop: threading.Event | None = None,
        until_idle: bool = False,
    ) -> int:
        """Move rows into a store, each exactly once, until `stop` is set; return how many.

        It has a connection of its own. Several may run. After an error of the database it connects
        again.

        Args:
            every: how long to wait when there is no row: seconds, or a text such as "1s".
            until_idle: end when there is no row, and raise errors.
        """
        dialect, url = engine.dialect, engine.url
        host = url.host or url.query.get("host", "")  # the query has a socket
        server = "" if dialect.name == "sqlite" else f"{host}:{url.port or ''}/{url.database}"
        table = dialect.identifier_preparer.format_table(self.table)  # in quotes if it needs them

        def connect() -> tuple[Any, Callable[[], object]]:
            borrowed = engine.raw_connection()
            connection: Any = borrowed.driver_connection
            close: Callable[[], object] = borrowed.close
            if dialect.name != "sqlite" or outbox_rows.file_of(connection):
                borrowed.detach()  # the forwarder closes it; a database in memory would end then
                close = connection.close
            if commits_each_statement(connection):  # which is what the application wants of its own
                level: Any = dialect.default_isolation_level  # which the first connection sets
                dialect.set_isolation_level(connection, level)
            if dialect.name == "sqlite" and getattr(connection, "autocommit", None) is False:
                connection.autocommit = -1  # the outbox begins: sqlite3.LEGACY_TRANSACTION_CONTROL
                connection.rollback()
            return connection, close

        def make(connection: Any) -> Forwarder:
            return Forwarder(
                connection,
                table,
                store,
                put=lambda row: outbox_rows.append_row(store, row),
                name=outbox_rows.name_of(self.table.fullname, connection, server),
            )

        return outbox_rows.forward_until(
            stop or threading.Event(),
            connect,
            make,
            (dialect.loaded_dbapi.Error, DBAPIError, TimeoutError),  # no connection is free
            every=every,
            until_idle=until_idle,
        )
