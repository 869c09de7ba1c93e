"""The queue for asyncio: `streamkeep.aio.Queue`.

Writes go to the thread that writes for all tasks of a process, and waits take no threads: a
thousand tasks may wait for results. Jobs are those of `Queue`, with methods to be awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import CommandError, StoreFullError
from streamkeep.format.core.values import whole
from streamkeep.jobs.declaring import Declaring
from streamkeep.jobs.handler_errors import return_job
from streamkeep.jobs.job import Job, look_for, open_result
from streamkeep.jobs.job_calls import NOTHING, note_ended, plan_end
from streamkeep.jobs.options import Options, check_options
from streamkeep.jobs.putting import collect, plan_put
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.take_call import UNSYNCED, Take
from streamkeep.jobs.task import Task

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def _awaited(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]]:
    """Return a method of `Queue` or `Job` as one that is awaited, and runs in a thread."""

    @wraps(method)
    async def run(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        plain = self.job if isinstance(self, AsyncJob) else self.queue
        return await asyncio.to_thread(method, plain, *args, **kwargs)

    return run


class AsyncJob:
    """A job of an `AsyncQueue`: a `Job` whose methods are awaited. `job` is that `Job`."""

    id: str  # these are properties of `Job`; see below
    is_new: bool
    payload: Any
    attempt: int
    task: str
    key: str | None
    priority: str
    queued_ms: int
    headers: dict[str, str]
    ended: bool

    def __init__(self, queue: AsyncQueue, job: Job) -> None:
        self.queue = queue
        self.job = job

    def __repr__(self) -> str:
        return repr(self.job)

    def set_result(self, result: Any) -> None:
        """Set what the end of an `async with` block stores as the result."""
        self.job.set_result(result)

    def begin(self) -> None:
        """Note that this process works on the job now; see `Job.begin`."""
        self.job.begin()

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the result; see `Job.result`."""
        return await self.queue.result_of(self.id, timeout)

    async def done(self, result: Any = NOTHING) -> None:
        """End the job; see `Job.done`."""
        await self.queue.done_many([self], [result])

    state = _awaited(Job.state)
    history = _awaited(Job.history)
    cancel = _awaited(Job.cancel)
    retry = _awaited(Job.retry)
    fail = _awaited(Job.fail)
    give_back = _awaited(Job.give_back)
    postpone = _awaited(Job.postpone)
    lost = _awaited(Job.lost)
    extend = _awaited(Job.extend)


for _name in AsyncJob.__annotations__:
    setattr(AsyncJob, _name, property(attrgetter(f"job.{_name}"), doc=getattr(Job, _name).__doc__))


class AsyncQueue(Declaring):
    """A durable queue for asyncio: the methods of `Queue`, awaited. `queue` is that `Queue`.

    `task` and `periodic` declare tasks as for `Queue`; `await send.adelay("ann")` puts a call. A
    function that `AsyncStore.run` runs as a transaction calls the methods of `queue` itself.
    """

    def __init__(
        self,
        path_or_store: str | Path | Store[Any] | AsyncStore[Any] | Queue,
        name: str = "default",
        **options: Any,
    ) -> None:
        """Name a queue; see `Queue`. A `Queue` that is given is used as it is."""
        if isinstance(path_or_store, Queue):
            self.queue = path_or_store
        else:
            if isinstance(path_or_store, AsyncStore):
                path_or_store = path_or_store._store
            self.queue = Queue(path_or_store, name, **options)
        self.name = self.queue.name
        self.core = self.queue.core
        self._own: AsyncStore[Any] | None = None

    def __repr__(self) -> str:
        return repr(self.queue).replace("jobs.Queue", "aio.Queue")

    @property
    def store(self) -> AsyncStore[Any]:
        """The store, which is opened if need be; that holds up the event loop once."""
        return AsyncStore(self.queue.store)

    @property
    def consumer(self) -> bytes:
        """The consumer of this process in the groups of the queue."""
        return self.queue.consumer

    async def _store(self) -> AsyncStore[Any]:
        """Return the store; the first call opens it in a thread."""
        own = self._own
        if own is None or own._store is not self.queue.core.opened:
            await asyncio.to_thread(self.queue.core.set_up)
            own = self._own = AsyncStore(self.queue.store)
        return own

    async def close(self) -> None:
        """Close the store, if this queue has opened it."""
        self._own = None
        await asyncio.to_thread(self.queue.close)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # --- put ------------------------------------------------------------------------------------

    async def put(self, payload: Any, **options: Unpack[Options]) -> AsyncJob:
        """Put a payload, with the options of `Queue.put`; return its job."""
        return (await self.put_prepared([(payload, check_options(options))]))[0]

    async def put_many(self, payloads: Iterable[Any], **options: Unpack[Options]) -> list[AsyncJob]:
        """Put several payloads in one transaction."""
        chosen = check_options(options)
        return await self.put_prepared([(payload, chosen) for payload in payloads])

    async def delay(
        self, task: Task[Parameters, Any], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> AsyncJob:
        """Put a call of a task, which may have options: `delay(send.options(key="a"), "ann")`.

        Raises:
            TypeError, PayloadError, QueueFullError, QueueDrainingError: as `Task.delay`; nothing
                was put.
        """
        payload, common = task.call_of(args, kwargs)
        return (await self.put_prepared([(payload, task.put_options)], common))[0]

    async def put_prepared(
        self,
        payloads: list[tuple[Any, Options]],
        common: dict[bytes, bytes] | None = None,
        *,
        always: bool = False,
    ) -> list[AsyncJob]:
        store = await self._store()
        work, jobs = plan_put(self.queue.core, payloads, common or {}, always=always)
        if not collect(self.core, work):
            await store.apply(lambda txn: work(txn.as_bytes()))
            await self._run_now()
        return [AsyncJob(self, job) for job in jobs]

    async def _run_now(self) -> None:
        if self.core.immediate and not self.core.runs_now():
            await self.run_until_idle()

    # --- get and end ----------------------------------------------------------------------------

    @asynccontextmanager
    async def get(
        self, timeout: Duration | None = None, *, after: AsyncJob | None = None
    ) -> AsyncIterator[AsyncJob]:
        """Take the next job for the block: `async with queue.get() as job:`; see `Queue.get`.

        Raises:
            TimeoutError: there was none in time.
            JobLostError, PayloadError: as `Job.done`, of the job `after`.
        """
        found: list[AsyncJob] = []
        if after is not None:
            job = after.job if isinstance(after, AsyncJob) else after
            taken = asyncio.to_thread(self.queue._end_and_take, job, timeout)
            found = [AsyncJob(self, one) for one in await _or_back(taken)]
        found = found or await self.get_many(1, timeout)
        if not found:
            raise TimeoutError(f"no job of the queue {self.name!r} came in time")
        mine = found[0]

        async def end() -> None:
            try:
                await mine.done(mine.job.given_result)
            except Exception as error:
                await asyncio.to_thread(mine.job._end_refused, error)
                raise

        try:
            yield mine
        except BaseException as error:
            leave = asyncio.to_thread(mine.job.__exit__, type(error), error, None)
            await asyncio.shield(_Certain(leave))
            raise
        if not mine.job.ended:
            await asyncio.shield(_Certain(end()))

    async def get_many(self, count: int, timeout: Duration | None = 0) -> list[AsyncJob]:
        """Take up to `count` jobs; wait until there is at least one; see `Queue.get_many`."""
        store, most = await self._store(), whole(count, "count", 1)
        found = await atake(store, [self.queue], self.consumer, most, timeout=timeout)
        return [AsyncJob(self, job) for job in found]

    async def done_many(
        self, jobs: Iterable[AsyncJob], results: Iterable[Any] | None = None
    ) -> None:
        """End several jobs in one transaction; see `Queue.done_many`."""
        await self.done_jobs([one.job for one in jobs], results)

    async def done_jobs(self, its: list[Job], results: Iterable[Any] | None = None) -> None:
        """End jobs of `take`; see `Queue.done_many`."""
        store = await self._store()

        async def end() -> None:
            work = plan_end(self.core, its, results)
            await store.apply(lambda txn: work(txn.as_bytes()), frees=True)
            note_ended(self.core, its)

        await asyncio.shield(_Certain(end()))  # what is cancelled now did its work

    # --- jobs by their ID, and control ------------------------------------------------------------

    async def job(self, job_id: str) -> AsyncJob:
        """Return a job by its ID; see `Queue.job`."""
        return AsyncJob(self, await asyncio.to_thread(self.queue.job, job_id))

    async def result_of(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Wait for the result of a job; see `Job.result`. A thousand tasks may wait."""
        wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
        await self._run_now()
        look, bell = look_for(self.core, job_id), self.core.names.result_bell(job_id)
        return open_result(self.core, job_id, await self._wait_for(look, bell, wait_ms))

    async def drain(self, timeout: Duration | None = None) -> bool:
        """Take no new jobs, and wait until all have ended; see `Queue.drain`."""
        wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
        await asyncio.to_thread(self.queue.drain, 0)  # a thread that waits would outlive its task
        bell = self.core.names.end_bell
        return bool(await self._wait_for(self.queue._is_empty, bell, wait_ms))

    async def _wait_for(
        self, look: Callable[[Snapshot[Any]], list[Result]], bell: bytes, wait_ms: int | None
    ) -> list[Result]:
        """Return what a function of a snapshot finds, as `Core.wait_for` does."""
        store = await self._store()
        if wait_ms == 0:
            found = self.core.read(look)
        else:
            found = await store.read_when(look, [(bell, None)], block=wait_ms or 0)
        if found and self.core.needs_sync():
            await store.sync()
        return found

    jobs = _awaited(Queue.jobs)
    run_until_idle = _awaited(Queue.run_until_idle)
    register_periodic = _awaited(Queue.register_periodic)
    cancel = _awaited(Queue.cancel)
    run_now = _awaited(Queue.run_now)
    purge = _awaited(Queue.purge)
    dead_letters = _awaited(Queue.dead_letters)
    requeue = _awaited(Queue.requeue)
    drop_dead = _awaited(Queue.drop_dead)
    schedules = _awaited(Queue.schedules)
    unschedule = _awaited(Queue.unschedule)
    settings = _awaited(Queue.settings)
    stats = _awaited(Queue.stats)
    workers = _awaited(Queue.workers)
    minutes = _awaited(Queue.minutes)
    pause = _awaited(Queue.pause)
    resume = _awaited(Queue.resume)
    set_limits = _awaited(Queue.set_limits)


async def atake(
    store: AsyncStore[Any],
    queues: Sequence[Queue],
    consumer: bytes,
    count: int,
    *,
    timeout: Duration | None = None,
    known: dict[str, Collection[bytes]] | None = None,
    begins: bool = True,
) -> list[Job]:
    """Take jobs of several queues of one store, whose streams exist; see `take_call.take`."""
    call = Take(queues, consumer, count, known, begins=begins)
    wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
    stopping = False

    async def taken(*, again: bool = False) -> list[Job]:
        try:
            if wait_ms == 0:
                while not (now := await store.apply(call.work, sync=UNSYNCED)) and call.goes_on:
                    pass
                return call.jobs(now)
            found = await store.apply_when(
                call.work, call.when(), block=wait_ms or 0, stop=lambda: stopping, sync=UNSYNCED
            )
            return call.jobs(found)
        except StoreFullError:
            await asyncio.to_thread(call.make_room)
            raise
        except CommandError:  # a stream or its group was deleted
            if again:
                raise
            await asyncio.to_thread(call.set_up, again=True)
            return await taken(again=True)

    def stop() -> None:
        nonlocal stopping
        stopping = True
        queues[0].store.ask_stops()

    return await _or_back(taken(), stop)


class _Certain(asyncio.Task[Result]):
    """A task that ends by itself only: `asyncio.run` cancels all tasks, and waits for this one."""

    def cancel(self, msg: object = None) -> bool:
        """Do nothing."""
        return False


async def _or_back(
    taking: Coroutine[Any, Any, list[Job]], stop: Callable[[], None] = lambda: None
) -> list[Job]:
    """Await jobs; those that are taken when the caller is cancelled go back to their queue."""
    task = _Certain(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()

        async def give_back() -> None:
            with suppress(Exception):
                for job in await task:
                    await asyncio.to_thread(return_job, job)

        going = _Certain(give_back())
        while not going.done():  # the caller may be cancelled again, as by an outer timeout
            with suppress(asyncio.CancelledError):
                await asyncio.shield(going)
        raise
