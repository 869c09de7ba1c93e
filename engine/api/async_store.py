"""The store for asyncio: the same methods, awaited.

Reads run in the event loop: they take microseconds, and a thread would only take turns with the
event loop, and wait for no writer. (So give a `count` where a stream may be long.) Writes
go to the queue of the process (`group_commit`), where one thread writes for all tasks. Blocked
reads wait for a named pipe that the event loop watches (`async_waiters`). So a thousand tasks need
one thread and one descriptor.

A task that is cancelled while its command runs cannot know whether it ran, as with a server. If a
blocked read is cancelled, no entry was delivered, or its entries are pending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from streamkeep.engine.api import store as store_module
from streamkeep.engine.api.async_commands import AsyncCommands
from streamkeep.engine.api.async_methods import AsyncMethods
from streamkeep.engine.api.follow import Plan, Stop, Stopped, checking
from streamkeep.engine.api.redis_pipeline import Pipeline, results_of, run_together
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import CallSync, Snapshot, Sync, Transaction
from streamkeep.engine.blocking.async_waiters import AsyncWaiters
from streamkeep.engine.blocking.calls import BlockingCall, Wait
from streamkeep.engine.commands.reply_budget import Entries, Found
from streamkeep.engine.store.command import Command, Write, attempt
from streamkeep.engine.store.environment import SHIPPED_POLL_S
from streamkeep.engine.store.group_commit import TaskCall
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, StoreClosedError
from streamkeep.format.node.ranges import Range
from streamkeep.format.segment.manifest import SegmentRecord

Result = TypeVar("Result")


class AsyncPipeline(Pipeline):
    """Queues commands; `await pipeline.execute()` runs them in one transaction."""

    def __init__(self, store: AsyncStore[bytes] | AsyncStore[str], transaction: bool) -> None:
        super().__init__(store._store, transaction, store._decode)
        self._runner = store

    async def execute(  # type: ignore[override]  # awaited
        self, raise_on_error: bool = True
    ) -> list[Any]:
        """Run the queued commands; see `Pipeline.execute`."""
        commands = self._take()
        if not commands:
            return []
        replies = await self._runner._run(run_together(commands))
        return results_of(commands, replies, raise_on_error)

    async def __aenter__(self) -> AsyncPipeline:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.reset()


class AsyncStore(AsyncMethods[Text], AsyncCommands[Text]):
    """A directory of Redis Streams for asyncio; `await streamkeep.aio.open(path)` makes one."""

    def __init__(self, store: Store[Text]) -> None:
        self._store: Store[Text] = store
        self._waiters = store._environment.waiters
        self._waiting = AsyncWaiters(self._waiters)
        self._shipped = -1  # a copy elsewhere was seen to have everything up to this commit
        self._waiting_for_copy = 0  # tasks
        self._looks_at = 0.0  # when a task that waits for that looks again
        self._set_decode(store._decode)

    # --- life -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the store after the commands that were called have run; blocked reads raise."""
        if not self._store._closed:
            with suppress(StoreClosedError):  # another task was faster
                await self._in_turn(self._store.close)

    async def __aenter__(self) -> AsyncStore[Text]:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def _repr_html_(self) -> str:
        return self._store._repr_html_()

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

    def segment_path(self, record: SegmentRecord) -> Path:
        """Return where the file of a segment is."""
        return self._store.segment_path(record)

    # --- several commands at once -----------------------------------------------------------

    async def run(
        self, work: Callable[[Transaction[Text]], Result], sync: CallSync | None = None
    ) -> Result:
        """Run `work(txn)` as one transaction, in the thread that writes; return its result.

        `work` is an ordinary function: a transaction holds the store's only write lock, so it
        must not wait for other tasks. All of it happens, or nothing when it raises.

        Args:
            sync: a sync mode for this transaction, instead of that of the store; or "shipped", as
                for `Store.using`.
        """
        ships = sync == "shipped"
        if ships:
            self._store._environment.shipped()  # raises before a change

        def transact() -> Result:
            with self._store.transaction("commit" if ships else sync) as txn:
                result = work(txn)
                if asyncio.iscoroutine(result):
                    result.close()
                    raise ArgumentError("`run` takes an ordinary function, not a coroutine")
                return result

        result = await self._in_turn(transact)
        if ships:
            await self._wait_for_copy()
        return result

    async def _wait_for_copy(self) -> None:
        """As `Store._wait_for_copy`; of the tasks that wait, one looks for all."""
        environment = self._store._environment
        commit = environment.newest_commit()
        deadline = time.monotonic() + store_module.MOST_SHIPPING_S
        self._waiting_for_copy += 1
        try:
            while self._shipped < commit:
                now = time.monotonic()
                if now >= self._looks_at:
                    self._looks_at = now + SHIPPED_POLL_S
                    self._shipped = environment.shipped()
                elif now >= deadline:
                    raise self._store._not_shipped()
                else:
                    environment.context.check_open()
                    # A task takes 20 us to ask again, so all of them a fifth of the processor.
                    await asyncio.sleep(max(SHIPPED_POLL_S, self._waiting_for_copy / 10_000))
        finally:
            self._waiting_for_copy -= 1

    def using(self, sync: CallSync) -> AsyncSyncView[Text]:
        """Return an object with the commands of the store, which uses another sync mode.

        With "shipped", as for `Store.using`; other tasks go on while a call waits.
        """
        return AsyncSyncView(self, sync)

    def snapshot(self) -> Snapshot[Text]:
        """Return the present state of the store; its methods are not coroutines."""
        return self._store.snapshot()

    def pipeline(self, transaction: bool = True, shard_hint: object = None) -> AsyncPipeline:
        """Queue commands, and run them in one transaction; see `AsyncPipeline`."""
        return AsyncPipeline(self, transaction)

    # --- how commands run -------------------------------------------------------------------

    def _origin(self) -> Store[Text]:
        return self._store

    def _waits(self, sync: Sync | None) -> bool:
        return self._store._waits(sync)

    async def _iterate(self, plan: Plan, stop: Stop) -> AsyncIterator[Any]:
        try:
            while not stop():
                found = await self._wait_for(plan.call(), plan.wait_ms(), self._store._wait, stop)
                items = plan.take(found)
                if items is None:
                    return
                for item in items:
                    yield item
                    if stop():
                        return
                await asyncio.sleep(0)  # a call that finds something does not wait
        finally:
            plan.close()

    async def _run(self, command: Command[Result], durable: bool | None = None) -> Result:
        store = self._store
        if durable is None:
            durable = store._wait
        if command.call is not None:
            found = await self._wait_for(command.call, command.block_ms, durable, command.stop)
            return command.result(found)
        if not command.writes:
            if command.reads_history or store._read_durable:  # these wait for the disk
                return await asyncio.to_thread(store._run, command)
            return store._run(command)
        store._check_writable()
        reply = await self._submit(command, durable)
        if store._environment.is_due():
            await asyncio.to_thread(store._environment.settle)
        if command.leaves_garbage:
            await asyncio.to_thread(store._collect_garbage)
        return command.result(reply)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the thread that writes for tasks, after the commands called so far."""
        return cast(Result, await self._submit(None, False, work))

    def _submit(
        self,
        command: Command[object] | None,
        durable: bool,
        work: Callable[[], object] | None = None,
    ) -> asyncio.Future[object]:
        environment = self._store._environment
        environment.context.check_open()  # a forked child has no such thread
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        environment.group_commit.submit(TaskCall(command, durable, future, work))
        return future

    def _history_batch(self, name: bytes, wanted: Range) -> Entries:
        return self._store._history_batch(name, wanted)

    async def _wait_for(
        self, call: BlockingCall, block_ms: int | None, durable: bool, stop: Stop | None
    ) -> Found:
        call.may_wait = block_ms is not None
        found = await self._run(attempt(call), durable)
        if found or block_ms is None:
            return found

        async def note() -> None:
            await self._run(Write(call.note, ()), durable)

        waiting = Wait(call)
        deadline = self._waiters.deadline(block_ms)
        check = checking(self._store, stop)
        try:
            while not found and await self._waiting.wait(waiting, note, deadline, check):
                try:
                    found = await self._run(attempt(call), durable)
                except BaseException:
                    self._waiters.pass_on(call)
                    raise
        except Stopped:
            return []
        return found


class AsyncSyncView(AsyncCommands[Text]):
    """The commands of a store with another sync mode; each write is a transaction of its own."""

    def __init__(self, store: AsyncStore[Text], sync: CallSync) -> None:
        self._store: AsyncStore[Text] = store
        view = store._store.using(sync)
        self._wait = view._wait
        self._ships = view._ships
        self._set_decode(store._decode)

    async def _run(self, command: Command[Result]) -> Result:
        result = await self._store._run(command, self._wait)
        if self._ships and (command.writes or command.call is not None):
            await self._store._wait_for_copy()
        return result

    def _history_batch(self, name: bytes, wanted: Range) -> Entries:
        return self._store._history_batch(name, wanted)
