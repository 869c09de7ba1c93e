"""What is kept of each task: a row of the store, in the space `django`.

    r ID           JSON: the members of `Record`
    e expiry ID    nothing; results by the time at which they expire

A record is written in the transaction that puts the job, and in the one that ends an attempt. While
a task waits or runs, its arguments and its state are those of its job; a record has them when the
task has ended. IDs begin with the time, so records are in the order in which they were enqueued.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.jobs.layout import pack_time, unpack_time

SPACE: Final = b"django"
SUCCESSFUL: Final = "SUCCESSFUL"
FAILED: Final = "FAILED"
_RECORD: Final = b"r"
_EXPIRY: Final = b"e"
_EXPIRED_AT_ONCE: Final = 4  # that each end of a task may remove
_PAGE: Final = 200

Reader = Transaction[Any] | Snapshot[Any]


@dataclass
class Record:
    """What is kept of a task.

    Attributes:
        job: the ID of its job in the queue.
        task: the path of the function, such as `shop.tasks.send`.
        run_after: as an ISO date with its offset; empty for at once.
        enqueued, started, attempted, finished, expires: Unix milliseconds; 0 for not yet.
        status: SUCCESSFUL or FAILED; empty while the job says how it is.
        errors: of each attempt that failed: the path of the exception, and the traceback.
        workers: of each attempt that has ended.
    """

    job: str
    queue: str
    task: str
    backend: str
    priority: int = 0
    run_after: str = ""
    enqueued: int = 0
    started: int = 0
    attempted: int = 0
    finished: int = 0
    expires: int = 0
    status: str = ""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    errors: list[list[str]] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    value: Any = None

    def encode(self) -> bytes:
        """Return it as JSON, without what is empty."""
        members = {name: value for name, value in asdict(self).items() if value or value is False}
        members["value"] = self.value
        return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


_MEMBERS: Final = frozenset(one.name for one in fields(Record))


def decode(data: bytes) -> Record:
    """Return a record; what a later version has added is left out."""
    return Record(**{name: value for name, value in json.loads(data).items() if name in _MEMBERS})


def new_id() -> str:
    """Return an ID for a task: 12 hexadecimal digits of the time, and 20 that are random."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def load(reader: Reader, result_id: str) -> Record | None:
    """Return the record of a task; None if there is none, or if it has expired."""
    if not result_id.isascii() or not 0 < len(result_id) <= 64:
        return None
    data = reader.row_get(SPACE, _RECORD + result_id.encode())
    record = None if data is None else decode(data)
    if record is not None and 0 < record.expires <= reader.txn.now_ms():
        return None
    return record


def save(txn: Transaction[Any], result_id: str, record: Record, ttl_ms: int) -> None:
    """Write a record; one of a task that has ended is kept for so long."""
    key = result_id.encode()
    if record.status:
        now_ms = txn.txn.now_ms()
        if not ttl_ms:
            txn.row_delete(SPACE, _RECORD + key)
            return
        record.expires = now_ms + ttl_ms
        txn.row_put(SPACE, _EXPIRY + pack_time(record.expires) + key, b"")
        remove_expired(txn, _EXPIRED_AT_ONCE)
    else:
        record.expires = 0
    txn.row_put(SPACE, _RECORD + key, record.encode())


def remove_expired(txn: Transaction[Any], count: int) -> int:
    """Remove records that have expired, at most `count`; return how many rows were looked at."""
    last = _EXPIRY + pack_time(txn.txn.now_ms())
    found = txn.row_range(SPACE, _EXPIRY, last, count)
    for key, _ in found:
        txn.row_delete(SPACE, key)
        data = txn.row_get(SPACE, _RECORD + key[9:])
        # A task that was requeued has a later expiry, or none.
        if data is not None and decode(data).expires == unpack_time(key[1:9]):
            txn.row_delete(SPACE, _RECORD + key[9:])
    return len(found)


def newest_first(reader: Reader, before: str = "") -> Iterator[tuple[str, Record]]:
    """Yield (ID, record) of all tasks, the newest first, from below an ID on."""
    last = _RECORD + (before.encode() if before else b"\xff" * 64)
    while True:
        rows = reader.row_range(SPACE, _RECORD, last, _PAGE, reverse=True)
        for key, data in rows:
            if key != last:
                yield key[1:].decode(), decode(data)
        if len(rows) < _PAGE:
            return
        last = rows[-1][0]
