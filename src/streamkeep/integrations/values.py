"""Named values that expire, in rows of a store: results of tasks, schedules, counters.

    key                    value
    v NAME                 expiry (8 bytes, Unix milliseconds, 0 for never), then the value
    e EXPIRY NAME          nothing; values by the time at which they expire

NAME is the name, or its beginning and its BLAKE2b-256 if it is longer than 200 bytes. All methods
with a transaction or a snapshot read and change rows in it; a value and its row by expiry change
together. Each put removes a few values that have expired, so that a space does not grow without
limit.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import utf8
from streamkeep.integrations.address import parse_address
from streamkeep.jobs.core import LazyStore
from streamkeep.jobs.handler_errors import FOR_GOOD
from streamkeep.jobs.layout import short
from streamkeep.jobs.state import Reader

Result = TypeVar("Result")

_VALUE: Final = b"v"
_EXPIRY: Final = b"e"
_TIME: Final = struct.Struct(">Q")
_MOST_NAME: Final = 200
_EXPIRED_AT_ONCE: Final = 4  # that each put removes
_PAGE: Final = 200
MAX_TTL_MS: Final = 1 << 52


class Values:
    def __init__(self, space: str) -> None:
        self.space = utf8(space, "the space of values")

    def put(self, txn: Transaction[Any], name: str, value: bytes, ttl_ms: int = 0) -> None:
        """Store a value, and wake the callers that wait for it.

        Args:
            ttl_ms: how long it is kept; 0 for without limit.
        """
        now_ms = txn.txn.now_ms()
        key = _name_key(name)
        expires_ms = now_ms + ttl_ms if ttl_ms else 0
        self._forget_expiry(txn, key)
        txn.row_put(self.space, _VALUE + key, _TIME.pack(expires_ms) + value)
        if expires_ms:
            txn.row_put(self.space, _EXPIRY + _TIME.pack(expires_ms) + key, b"")
        last = _EXPIRY + _TIME.pack(now_ms) + b"\xff" * 250
        for old, _ in txn.row_range(self.space, _EXPIRY, last, _EXPIRED_AT_ONCE):
            txn.row_delete(self.space, old)
            txn.row_delete(self.space, _VALUE + old[9:])
        txn.wake(self.bell(name))

    def get(self, reader: Reader, name: str) -> bytes | None:
        """Return a value; None if there is none, or it has expired."""
        data = reader.row_get(self.space, _VALUE + _name_key(name))
        if data is None:
            return None
        expires_ms = _TIME.unpack_from(data)[0]
        return None if 0 < expires_ms <= reader.txn.now_ms() else data[8:]

    def delete(self, txn: Transaction[Any], name: str) -> bool:
        """Remove a value; return whether there was one that had not expired."""
        found = self.get(txn, name) is not None
        key = _name_key(name)
        self._forget_expiry(txn, key)
        txn.row_delete(self.space, _VALUE + key)
        return found

    def expire(self, txn: Transaction[Any], name: str, ttl_ms: int) -> None:
        """Set how long a value is kept, if there is one and its time differs by over a tenth."""
        now_ms = txn.txn.now_ms()
        data = txn.row_get(self.space, _VALUE + _name_key(name))
        if data is None:
            return
        expires_ms = _TIME.unpack_from(data)[0]
        left_ms = expires_ms - now_ms
        near = expires_ms and ttl_ms and abs(left_ms - ttl_ms) <= ttl_ms // 10
        if (expires_ms and left_ms <= 0) or near:
            return
        self.put(txn, name, data[8:], ttl_ms)

    def between(
        self, reader: Reader, after: str, before: str, count: int
    ) -> list[tuple[str, int, bytes]]:
        """Return name, expiry and value of the first between two names, at most `count`.

        Names longer than 200 bytes are shortened. An expiry of 0 is never.
        """
        first, last = _VALUE + after.encode() + b"\0", _VALUE + before.encode()
        return [
            (key[1:].decode(errors="replace"), _TIME.unpack_from(data)[0], data[8:])
            for key, data in reader.row_range(self.space, first, last, count)
        ]

    def last_first(self, reader: Reader, before: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield name and value of all that have not expired, from the last name to the first.

        Args:
            before: begin below this name. Names longer than 200 bytes are shortened.
        """
        now_ms = reader.txn.now_ms()
        end = _VALUE + (_name_key(before) if before else b"\xff" * 250)
        while True:
            rows = reader.row_range(self.space, _VALUE, end, _PAGE, reverse=True)
            for key, data in rows:
                if key != end and not 0 < _TIME.unpack_from(data)[0] <= now_ms:
                    yield key[1:].decode(errors="replace"), data[8:]
            if len(rows) < _PAGE:
                return
            end = rows[-1][0]

    def bell(self, name: str) -> bytes:
        """Return the key that callers wait for until a value is stored."""
        return self.space + b"\0" + _name_key(name)

    def _forget_expiry(self, txn: Transaction[Any], key: bytes) -> None:
        former = txn.row_get(self.space, _VALUE + key)
        if former is not None and any(former[:8]):
            txn.row_delete(self.space, _EXPIRY + former[:8] + key)


class OpenedStore(LazyStore):
    """The store of an adapter, opened at its first use, and again in a forked child."""

    def __init__(
        self, given: str | os.PathLike[str] | Store[Any], sync: Sync | None = None
    ) -> None:
        """Take what `parse_address` takes, or a store that is open, which is used as it is."""
        if isinstance(given, Store):
            super().__init__(given, "commit")
        else:
            super().__init__(*parse_address(given, sync))
        self._async: AsyncStore[Any] | None = None

    async def asynchronous(self) -> AsyncStore[Any]:
        """Return the store for coroutines; it is opened in a thread."""
        store, known = self.opened, self._async
        if store is None:
            store = await asyncio.to_thread(lambda: self.store)
        if known is None or known._store is not store:
            known = self._async = AsyncStore(store)
        return known

    def check(self) -> None:
        """Raise if the store has to be opened again: it was moved, or a sync has failed."""
        if isinstance(self._given, Store):
            return  # its program opens it
        journal = self.store._environment.context.journal
        assert journal is not None  # it was opened for writing
        journal.control.check_not_moved()
        journal.syncs.check()
        self.read(lambda _: None)  # finds out whether the journal lacks commits

    def use(self, work: Callable[[], Result]) -> Result:
        """Call what uses the store; once more if the store has to be opened again."""
        try:
            with self.usable():
                return work()
        except FOR_GOOD:
            with self.usable():  # what stays open keeps others from a recovery
                return work()

    async def use_async(self, work: Callable[[AsyncStore[Any]], Awaitable[Result]]) -> Result:
        """Await what uses the store; once more if the store has to be opened again."""
        store = await self.asynchronous()
        try:
            with self.usable():
                return await work(store)
        except FOR_GOOD:
            store = await self.asynchronous()
            with self.usable():
                return await work(store)

    def apply(self, work: Callable[[Transaction[Any]], Result], *, frees: bool = False) -> Result:
        """Run a function of a transaction; see `Store.apply`."""
        return self.store.apply(lambda txn: work(txn.as_bytes()), frees=frees)

    def read_when(
        self, look: Callable[[Snapshot[Any]], list[Result]], bells: Sequence[bytes], wait_ms: int
    ) -> list[Result]:
        """Run a function of a snapshot until it returns something, or the time is over.

        Args:
            bells: the keys whose `wake` may change the answer.
            wait_ms: 0 for no limit.
        """
        wake_on = [(bell, None) for bell in bells]
        return self.store.read_when(lambda one: look(one.as_bytes()), wake_on, block=wait_ms)


def ttl_of(seconds: float | None, name: str) -> int:
    """Return a number of seconds as milliseconds; 0 for None. Raise ArgumentError for others."""
    if seconds is None:
        return 0
    good = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not good or not 0 < seconds < MAX_TTL_MS / 1000:
        raise ArgumentError(f"{name} must be a number of seconds above 0, not {seconds!r}")
    return max(1, round(seconds * 1000))


def _name_key(name: str) -> bytes:
    return short(utf8(name, "the name of a value"), _MOST_NAME) or b"\0"
