"""Exchanges and queues as all processes see them: bindings, and passing queues.

A queue of tasks is a queue of `streamkeep.jobs`. A queue that its declarer wants deleted with it
(`auto_delete` or `exclusive`: mailboxes of remote control, replies, receivers of events) is a
*passing queue*: a stream of bounded length that one process reads, without acknowledgement and
without waiting for the disk. It is deleted some time after its reader was last seen.

Rows of the space `kombu`:

    key                                       value
    b EXCHANGE \\0 QUEUE \\0 ROUTING KEY        the pattern of the routing key, or nothing
    p QUEUE                                   of a passing queue: last use and expiry, 8 bytes each
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kombu.utils.json import dumps, loads

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.integrations.values import OpenedStore
from streamkeep.jobs.state import Reader

SPACE: Final = b"kombu"
REFRESH_S: Final = 20.0
_BINDING: Final = b"b"
_PASSING: Final = b"p"
_TIMES: Final = struct.Struct(">QQ")
_LEAST_EXPIRY_MS: Final = 90_000  # above REFRESH_S, so that a busy reader keeps its queue
_MOST_MESSAGES: Final = 10_000
_FIELD: Final = b"message"

Binding = tuple[str, str | None, str]  # routing key, pattern, queue


class Topology:
    """Bindings and passing queues of one store."""

    def __init__(self, opened: OpenedStore) -> None:
        self._opened = opened

    # --- bindings -------------------------------------------------------------------------------

    def bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Bind a queue, durably unless it is a passing one."""
        key = _binding_key(exchange, queue, routing_key)
        value = (pattern or "").encode()
        if self._opened.read(lambda one: one.row_get(SPACE, key)) != value:
            self._opened.apply(lambda txn: txn.row_put(SPACE, key, value))

    def unbind(self, exchange: str, routing_key: str, queue: str) -> None:
        key = _binding_key(exchange, queue, routing_key)
        self._opened.apply(lambda txn: txn.row_delete(SPACE, key), frees=True)

    def table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, without those of passing queues without a reader."""
        prefix = _BINDING + exchange.encode() + b"\0"

        def look(reader: Snapshot[Any]) -> list[Binding]:
            found = []
            now_ms = reader.txn.now_ms()
            for key, value in reader.row_range(SPACE, prefix, prefix + b"\xff" * 200):
                queue, _, routing_key = key[len(prefix) :].decode().partition("\0")
                times = reader.row_get(SPACE, _PASSING + queue.encode())
                if times is None or not _is_over(times, now_ms):
                    found.append((routing_key, value.decode() or None, queue))
            return found

        return self._opened.read(look)

    # --- passing queues ---------------------------------------------------------------------------

    def is_passing(self, queue: str) -> bool:
        key = _PASSING + queue.encode()
        return self._opened.read(lambda one: one.row_get(SPACE, key)) is not None

    def declare_passing(self, queue: str, expires_ms: int) -> str:
        """Make a passing queue, unless it exists; return the ID of its last message.

        It also deletes passing queues whose readers are gone.
        """

        def declare(txn: Transaction[Any]) -> str:
            now_ms = txn.txn.now_ms()
            for key, times in txn.row_range(SPACE, _PASSING, _PASSING + b"\xff" * 200):
                if _is_over(times, now_ms):
                    _delete(txn, key[1:].decode())
            lasting_ms = max(expires_ms, _LEAST_EXPIRY_MS)
            txn.row_put(SPACE, _PASSING + queue.encode(), _TIMES.pack(now_ms, lasting_ms))
            return last_id(txn, queue)

        return self._opened.apply(declare, frees=True)

    def keep(self, queues: list[str], bindings: dict[str, list[tuple[str, str, str]]]) -> None:
        """Note that passing queues have a reader; make those again that were deleted.

        Args:
            bindings: of each queue: exchange, routing key, pattern.
        """

        def keep(txn: Transaction[Any]) -> None:
            now_ms = txn.txn.now_ms()
            for queue in queues:
                key = _PASSING + queue.encode()
                times = txn.row_get(SPACE, key)
                lasting_ms = _LEAST_EXPIRY_MS if times is None else _TIMES.unpack(times)[1]
                txn.row_put(SPACE, key, _TIMES.pack(now_ms, lasting_ms))
                if times is None:
                    for exchange, routing_key, pattern in bindings.get(queue, ()):
                        where = _binding_key(exchange, queue, routing_key)
                        txn.row_put(SPACE, where, pattern.encode())

        self._opened.store.apply(lambda txn: keep(txn.as_bytes()), sync="none")

    def pass_on(self, queues: list[str], message: dict[str, Any]) -> None:
        data = dumps(message).encode()

        def append(txn: Transaction[Any]) -> None:
            for queue in queues:
                txn.xadd(stream_of(queue), {_FIELD: data}, maxlen=_MOST_MESSAGES)

        self._opened.store.apply(lambda txn: append(txn.as_bytes()), sync="none")

    def delete(self, queue: str) -> None:
        """Delete the bindings of a queue, and a passing queue itself."""
        self._opened.apply(lambda txn: _delete(txn, queue), frees=True)


def stream_of(queue: str) -> bytes:
    return b"kombu:" + queue.encode()


def last_id(reader: Reader, queue: str) -> str:
    found = reader.xrevrange(stream_of(queue), count=1)
    return found[0].id.decode() if found else "0-0"


def messages_after(
    reader: Reader, queue: str, position: str, count: int = 100
) -> list[tuple[str, dict[str, Any]]]:
    found = reader.xrange(stream_of(queue), f"({position}", "+", count)
    return [(entry.id.decode(), loads(entry.fields[_FIELD].decode())) for entry in found]


def _delete(txn: Transaction[Any], queue: str) -> None:
    name = queue.encode()
    for key, _ in txn.row_range(SPACE, _BINDING, _BINDING + b"\xff" * 200):
        if key[1:].split(b"\0")[1] == name:
            txn.row_delete(SPACE, key)
    if txn.row_delete(SPACE, _PASSING + name):
        txn.delete(stream_of(queue))


def _is_over(times: bytes, now_ms: int) -> bool:
    used_ms, lasting_ms = _TIMES.unpack(times)
    return bool(used_ms + lasting_ms < now_ms)


def _binding_key(exchange: str, queue: str, routing_key: str) -> bytes:
    return _BINDING + b"\0".join(one.encode() for one in (exchange, queue, routing_key))
