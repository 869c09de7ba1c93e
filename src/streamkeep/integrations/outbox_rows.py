"""What adapters of the outbox have in common: the columns of a row, and the loop that forwards.

A row has the columns `stream` and `payload`. The payload is JSON: an object of fields, whose values
are as in `format/core/json_form.py`. What a row without a stream means is up to the adapter.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
    StoreFullError,
    StoreLockedError,
    StreamFullError,
)
from streamkeep.format.core.json_form import from_json, json_bytes
from streamkeep.jobs.errors import QueueDrainingError, QueueFullError
from streamkeep.jobs.outbox import Outbox, Row

log = logging.getLogger("streamkeep.outbox")

MALFORMED: Final = (AttributeError, RecursionError, TypeError, ValueError)  # what payloads raise
_FULL: Final = (StoreFullError, StreamFullError, QueueFullError, QueueDrainingError)
_PASSES: Final = (*_FULL, StoreLockedError)  # the last: the holder of its lock is stopped
Value = str | bytes | int | float


def row_of(stream: str, fields: Mapping[str, Value]) -> dict[str, str]:
    """Return the columns of a row for an entry.

    Raises:
        ArgumentError: the stream has no name, there is no field, one is neither a text, bytes, nor
            a number, or a name is no text.
    """
    if not stream:
        raise ArgumentError("the name of the stream is empty")
    if not fields:
        raise ArgumentError("an entry needs at least one field")
    members: dict[str, Any] = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise ArgumentError(f"the name of a field must be a text, not {name!r}")
        if isinstance(value, bytes):
            members[name] = json_bytes(value)
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ArgumentError(
                f"the field {name!r} must be a text, bytes or a number, not {value!r}; next: "
                "encode it, for example with json.dumps"
            )
        else:
            members[name] = value
    payload = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    try:
        payload.encode()
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        raise ArgumentError(f"a field has {wrong!r}, no character; next: give bytes") from None
    return {"stream": stream, "payload": payload}


def append_row(store: Store[Any], row: Row) -> None:
    """Append the entry of a row to its stream, in the transaction that this thread has open."""
    fields: dict[str, Any] = {}
    try:
        for name, value in json.loads(row["payload"]).items():
            fields[name] = value if isinstance(value, (int, float)) else from_json(value)
    except MALFORMED as error:
        raise wrong_row(row, "an entry", error) from error
    txn = store.open_transaction()
    assert txn is not None
    try:
        txn.xadd(row["stream"], fields)
    except StreamFullError:  # which passes
        raise
    except (ArgumentError, CommandError) as error:
        raise wrong_row(row, "an entry", error) from error


def wrong_row(row: Row, what: str, error: Exception) -> ArgumentError:
    """Return the error for a row that cannot be forwarded as it is."""
    return ArgumentError(
        f"row {row['id']} of the outbox is not {what}: {error!r}; next: correct its payload, or "
        "delete the row"
    )


def name_of(table: str, connection: Any, server: str = "") -> str:
    """Return the name under which a store remembers the rows of a table.

    It has the database in it: those of other applications have the same tables and numbers.

    Args:
        server: host, port and name of the database; empty for one of SQLite, which has a path.
    """
    return f"{table}@{server or file_of(connection)}"


def file_of(connection: Any) -> str:
    """Return the path of a database of SQLite; empty for one in memory."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


def forward_until(
    stop: threading.Event,
    connect: Callable[[], tuple[Any, Callable[[], object]]],
    make: Callable[[Any], Outbox],
    errors: tuple[type[BaseException], ...],
    *,
    every: Duration = 1,
    until_idle: bool = False,
) -> int:
    """Forward rows until `stop` is set; return how many. Connect again after errors of a database.

    Args:
        connect: returns a connection of the driver, and what ends its use.
        make: returns the outbox of a connection.
        errors: what the driver raises. These, and a store, a stream or a queue that takes nothing
            now, end no forwarder.
        every: how long to wait when there is no row.
        until_idle: end when there is no row, and raise errors.
    """
    pause_s = milliseconds(every, "every") / 1000
    # Not what is wrong with a row: it would be tried, with all that follow, for ever.
    transient: tuple[type[BaseException], ...] = (*errors, *_PASSES)
    total = 0
    while not stop.is_set():
        close = None
        try:
            connection, close = connect()
            outbox = make(connection)
            while not stop.is_set():
                found, fresh = outbox._forward()
                total += fresh
                if not found and until_idle:
                    return total
                stop.wait(0 if found else pause_s)
        except transient as error:
            if until_idle:
                raise
            log.error("the outbox cannot be forwarded, and is tried again: %s", error)
            stop.wait(max(pause_s, 1.0))
        finally:
            if close is not None:
                try:
                    close()
                except errors:
                    log.debug("a connection that failed cannot be closed", exc_info=True)
    return total
