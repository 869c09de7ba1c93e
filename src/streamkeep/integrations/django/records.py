"""What is kept of each task: a value of the store, in the space `django` (see `values`).

Its name is the ID of the task, and its value JSON: the members of `Record`. A record is written in
the transaction that puts the job, and in the one that ends an attempt. While a task waits or runs,
its arguments and its state are those of its job; a record has them when the task has ended. IDs
begin with the time, so records are in the order in which they were enqueued.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from streamkeep.engine.api.views import Transaction
from streamkeep.integrations.values import Values
from streamkeep.jobs import finding
from streamkeep.jobs.layout import Names
from streamkeep.jobs.state import Reader

VALUES: Final = Values("django")
SUCCESSFUL: Final = "SUCCESSFUL"
FAILED: Final = "FAILED"
_LOOKED_AT: Final = 4


@dataclass
class Record:
    """What is kept of a task.

    Attributes:
        job: the ID of its job in the queue.
        task: the path of the function, such as `shop.tasks.send`.
        run_after: as an ISO date with its offset; empty for at once.
        enqueued, started, attempted, finished: Unix milliseconds; 0 for not yet.
        status: SUCCESSFUL or FAILED; empty while the job says how it is.
        errors: of each attempt that failed: the path of the exception, and the traceback.
        workers: of each attempt that has ended.
    """

    queue: str
    task: str
    backend: str
    job: str = ""
    priority: int = 0
    run_after: str = ""
    enqueued: int = 0
    started: int = 0
    attempted: int = 0
    finished: int = 0
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
    if not result_id.isascii() or not 0 < len(result_id) <= 64:
        return None
    data = VALUES.get(reader, result_id)
    return None if data is None else decode(data)


def save(txn: Transaction[Any], result_id: str, record: Record, ttl_ms: int) -> None:
    """Write a record; that of a task that has ended is kept for `ttl_ms`."""
    if record.status and not ttl_ms:
        VALUES.delete(txn, result_id)
    else:
        VALUES.put(txn, result_id, record.encode(), ttl_ms if record.status else 0)


def expire_left(txn: Transaction[Any], after: str, ttl_ms: int) -> str:
    """Have records expire whose jobs were ended by other than their handlers, such as by a purge.

    No record is written then. So each end of a task looks at a few others that are older than
    records of tasks that have ended get: their tasks wait, or have ended so.

    Args:
        after: the ID that the last call returned.
    """
    found = VALUES.between(txn, after, f"{txn.txn.now_ms() - ttl_ms:012x}", _LOOKED_AT)
    for result_id, expires_ms, data in found:
        record = decode(data)
        if expires_ms or record.status:
            continue
        if finding.find(txn, Names(record.queue), record.job).state not in finding.HAS_ENDED:
            continue
        if ttl_ms:
            VALUES.expire(txn, result_id, ttl_ms)
        else:
            VALUES.delete(txn, result_id)
    return found[-1][0] if found else ""
