"""The asyncio twin of the store: the same methods, awaited.

Reads run where they are called: they take microseconds, never wait for a lock, and a thread would
only take turns with the event loop. (So give a `count` where a stream may be long.) Writes go to
one thread (worker.py) and share its commits. Blocked reads wait at a door that the event loop
watches (async_waiting.py). So a thousand tasks need one thread and one descriptor.

A task that is cancelled while its command runs does not know whether it ran, as with a server. A
blocked read that is cancelled has taken nothing, or its entries are pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from streamkeep.engine.api.async_archive import AsyncArchiveMethods
from streamkeep.engine.api.async_commands import AsyncCommands
from streamkeep.engine.api.async_writer import Worker
from streamkeep.engine.api.command_base import Id, Key
from streamkeep.engine.api.follow import (
    Plan,
    Stop,
    Stopped,
    checking,
    never,
    plan_consume,
    plan_follow,
)
from streamkeep.engine.api.redis_pipeline import Pipeline
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync, SyncView, Transaction
from streamkeep.engine.archive.archiver import DEFAULT_OPTIONS, ArchiveOptions, ArchiveReport
from streamkeep.engine.archive.maintenance import MaintenanceReport
from streamkeep.engine.blocking.async_waiters import AsyncLobby
from streamkeep.engine.blocking.calls import BlockingCall
from streamkeep.engine.blocking.history_call import HistoryCall
from streamkeep.engine.checkpoint.durability import Durability
from streamkeep.engine.commands.arguments import check_block
from streamkeep.format.core.entry import Entry, Text
from streamkeep.format.core.errors import ArgumentError, StoreClosedError
from streamkeep.format.node.node import Range

Result = TypeVar("Result")


class AsyncPipeline(Pipeline):
    """Queues commands; `await pipeline.execute()` runs them in one transaction."""

    def __init__(
        self,
        store: Store[Any],
        worker: Worker,
        transaction: bool,
        decode: bool,
    ) -> None:
        super().__init__(store, transaction, decode)
        self._worker = worker

    async def execute(  # type: ignore[override]  # a twin, not a kind of the other
        self, raise_on_error: bool = True
    ) -> list[Any]:
        """Run the queued commands; see `Pipeline.execute`."""
        run = partial(self._run, self._take(), raise_on_error)
        results: list[Any] = await self._worker.run(run)
        return results

    async def __aenter__(self) -> AsyncPipeline:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.reset()


class AsyncStore(AsyncArchiveMethods[Text], AsyncCommands[Text]):
    """A directory of Redis Streams for asyncio; `await streamkeep.aio.open(path)` makes one."""

    def __init__(self, store: Store[Text]) -> None:
        self._store: Store[Text] = store
        self._worker = Worker(store._run_steps, store._environment.context.check_open)
        self._lobby = store._environment.waiters
        self._waiting = AsyncLobby(self._lobby)
        self._set_decode(store._decode)

    # --- life -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the store when the commands that were called have run; blocked reads raise."""
        try:
            if not self._store._closed:
                with suppress(StoreClosedError):  # another task was faster
                    await self._worker.run(self._store.close)
        finally:
            if self._store._closed:
                self._worker.stop()

    async def __aenter__(self) -> AsyncStore[Text]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._store).replace("streamkeep.Store", "streamkeep.aio.AsyncStore", 1)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._store.path

    @property
    def uuid(self) -> str:
        """The store's identity, given when it was created."""
        return self._store.uuid

    # --- several commands at once -----------------------------------------------------------

    async def run(
        self, work: Callable[[Transaction[Text]], Result], sync: Sync | None = None
    ) -> Result:
        """Run `work(txn)` as one transaction, in the thread that writes; return its result.

        `work` is an ordinary function: a transaction holds the store's only write lock, so it
        must not wait for other tasks. All of it happens, or nothing when it raises.

        Args:
            sync: when it is durable, where that is not to be as the store was opened.
        """

        def transact() -> Result:
            with self._store.transaction(sync) as txn:
                result = work(txn)
                if asyncio.iscoroutine(result):
                    result.close()
                    raise ArgumentError("`run` takes an ordinary function, not a coroutine")
                return result

        result: Result = await self._worker.run(transact)
        return result

    def using(self, sync: Sync) -> AsyncSyncView[Text]:
        """Return all commands with another sync mode than the store was opened with."""
        return AsyncSyncView(self, sync)

    async def durability(self) -> Durability:
        """Return how far the store is on disk, and what its last recovery did."""
        found: Durability = await self._worker.run(self._store.durability)
        return found

    def snapshot(self) -> Snapshot[Text]:
        """Return the store as it is now; see `Store.snapshot`. Its methods are not coroutines."""
        return self._store.snapshot()

    def pipeline(self, transaction: bool = True, shard_hint: object = None) -> AsyncPipeline:
        """Queue commands, and run them in one transaction; see `AsyncPipeline`."""
        return AsyncPipeline(self._store, self._worker, transaction, self._decode)

    async def maintain(self) -> MaintenanceReport:
        """Enforce the retention of all streams; see `Store.maintain`."""
        return await asyncio.to_thread(self._store.maintain)

    async def archive(
        self, *, wait: bool = True, options: ArchiveOptions = DEFAULT_OPTIONS
    ) -> ArchiveReport:
        """Make segments of what was trimmed, in a thread of its own; see `Store.archive`."""
        return await asyncio.to_thread(self._store.archive, wait=wait, options=options)

    async def erase(self, key: Key, *ids: Id, timeout: float = 60.0) -> int:
        """Delete entries and overwrite their bytes in every file; see `Store.erase`."""
        return await asyncio.to_thread(self._store.erase, key, *ids, timeout=timeout)

    async def sync(self) -> None:
        """Make everything committed so far durable, whatever the sync mode."""
        await self._worker.run(self._store.sync)

    # --- endless reads ----------------------------------------------------------------------

    def follow(
        self,
        key: Key,
        start: Id = "$",
        *,
        count: int | None = 100,
        block: int | None = 0,
        stop: Stop | None = None,
        history: bool = False,
    ) -> AsyncIterator[Entry[Text]]:
        """Iterate over the entries of a stream as they come; see `Store.follow`."""
        return self._iterate(plan_follow(self._store, key, start, count, history), block, stop)

    def consume(
        self,
        key: Key,
        groupname: Key,
        consumername: Key,
        *,
        count: int | None = 10,
        block: int | None = 0,
        claim_min_idle_time: int | None = None,
        noack: bool = False,
        stop: Stop | None = None,
    ) -> AsyncIterator[Entry[Text]]:
        """Iterate over what a group delivers to one consumer; see `Store.consume`."""
        plan = plan_consume(
            self._store, key, groupname, consumername, count, noack, claim_min_idle_time
        )
        return self._iterate(plan, block, stop)

    def _iterate(
        self, plan: Plan, block: int | None, stop: Stop | None
    ) -> AsyncIterator[Entry[Text]]:
        block_ms = None if block is None else check_block("XREAD", block)
        return self._follow_plan(plan, block_ms, stop or never)

    async def _follow_plan(
        self, plan: Plan, block_ms: int | None, stop: Stop
    ) -> AsyncIterator[Entry[Text]]:
        check = checking(self._store, stop)
        while not stop():
            try:
                found = await self._run_call(plan.call(), block_ms if plan.waits else None, check)
            except Stopped:
                return
            entries = plan.take(found)
            if entries is None:
                return
            for entry in entries:
                yield entry
                if stop():
                    return

    # --- how commands run -------------------------------------------------------------------

    async def _read(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        if self._store._read_durable:  # waits for the disk
            return await self._worker.run(partial(self._store._read, convert, command, *args))
        return self._store._read(convert, command, *args)

    async def _read_history(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        # Segments are read from the disk and decompressed: not in the event loop.
        return await asyncio.to_thread(self._store._read_history, convert, command, *args)

    def _history_batch(self, name: bytes, wanted: Range) -> list[Any]:
        return self._store._history_batch(name, wanted)

    async def _write(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        alone = partial(self._store._write, convert, command, *args)
        return await self._worker.run(alone, (convert, command, args))

    async def _free(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        alone = partial(self._store._free, convert, command, *args)
        return await self._worker.run(alone, (convert, command, args), frees=True)

    async def _block(
        self, convert: Callable[[Any], Any] | None, call: BlockingCall, block_ms: int
    ) -> Any:
        found = await self._run_call(call, block_ms, self._store._check_open)
        return found if convert is None else convert(found)

    async def _run_call(
        self,
        call: BlockingCall,
        block_ms: int | None,
        check: Callable[[], None],
        write: Callable[..., Any] | None = None,
    ) -> list[list[Any]]:
        run = (write or self._write) if call.writes else self._read
        call.may_wait = block_ms is not None
        if isinstance(call, HistoryCall):
            run = self._read_history
        found: list[list[Any]] = await run(None, call.run)
        if found or block_ms is None:
            return found

        async def note() -> None:
            await run(None, call.note)

        deadline = self._lobby.deadline(block_ms)
        while not found and await self._waiting.wait(call, note, deadline, check):
            try:
                found = await run(None, call.run)
            except BaseException:
                self._lobby.pass_on(call)
                raise
        return found

    def _begin_scan(self) -> Any:
        return self._store._begin_scan()


class AsyncSyncView(AsyncCommands[Text]):
    """The commands of a store with another sync mode; each write is a transaction of its own."""

    def __init__(self, store: AsyncStore[Text], sync: Sync) -> None:
        self._store: AsyncStore[Text] = store
        self._view: SyncView[Text] = store._store.using(sync)
        self._set_decode(store._decode)

    async def _read(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        return await self._store._read(convert, command, *args)

    async def _read_history(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        return await self._store._read_history(convert, command, *args)

    def _history_batch(self, name: bytes, wanted: Range) -> list[Any]:
        return self._store._history_batch(name, wanted)

    async def _write(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        alone = partial(self._view._write, convert, command, *args)
        return await self._store._worker.run(alone)

    async def _free(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        alone = partial(self._view._free, convert, command, *args)
        return await self._store._worker.run(alone)

    async def _block(
        self, convert: Callable[[Any], Any] | None, call: BlockingCall, block_ms: int
    ) -> Any:
        store = self._store
        found = await store._run_call(call, block_ms, store._store._check_open, self._write)
        return found if convert is None else convert(found)

    def _begin_scan(self) -> Any:
        return self._store._begin_scan()
