"""What is below the methods of a queue: its store, its transactions, its tasks.

`Queue` has what programs call. Its parts, workers and adapters use `Queue.core`.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.api.work import SharedTransaction, apply_bytes
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.locks import reentrant_lock
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError, StoreError, StreamkeepError
from streamkeep.format.core.values import whole
from streamkeep.jobs import codecs
from streamkeep.jobs.dead_letters import free_deleted, schedule_strays
from streamkeep.jobs.ended_entries import EndedEntries, find_ended_entries
from streamkeep.jobs.ending import remove_expired
from streamkeep.jobs.errors import QueueError
from streamkeep.jobs.handler_errors import FOR_GOOD, log_failure
from streamkeep.jobs.layout import ENDINGS, QUEUES_SPACE, TASK, Fields, Names
from streamkeep.jobs.options import Policy
from streamkeep.jobs.running import Outcome, execute, in_loop, run_job
from streamkeep.jobs.state import Step
from streamkeep.jobs.take_call import known_tasks, take

if TYPE_CHECKING:
    from streamkeep.jobs.async_queue import AsyncQueue
    from streamkeep.jobs.job import Job
    from streamkeep.jobs.periodic import Rule
    from streamkeep.jobs.queue import Queue
    from streamkeep.jobs.task import Task

log = logging.getLogger("streamkeep.jobs")

Result = TypeVar("Result")
Watch = Callable[["Job"], Callable[[Outcome], None]]


# Which queues run what is due in this context: a put of a handler does not run it inside of that.
_idling: ContextVar[tuple[Core, ...]] = ContextVar("idling", default=())
INTERVAL_MS: Final = 10  # of `sync="interval"`, which workers use for the ends of their jobs


class LazyStore:
    """The store of a queue or an adapter."""

    def __init__(self, path_or_store: str | Path | Store[Any], sync: Sync) -> None:
        """Take a path, which is opened with a sync mode; or a store, which is used as it is."""
        given = path_or_store
        if not isinstance(given, Store):  # the directory of the process may change before it opens
            given = path_of(given, "the path of a store").absolute()
        self._given = given
        self._sync = sync
        self.opened: Store[Any] | None = None
        self.creates = True  # a missing store
        self._lock = reentrant_lock()
        _all.add(self)

    def leave_to_parent(self) -> None:
        """In a forked child: leave the store, and a lock that another thread may have held."""
        self._lock = reentrant_lock()
        self.opened = None

    @property
    def store(self) -> Store[Any]:
        """The store, which is opened if need be."""
        opened = self.opened
        return self._open() if opened is None else opened

    def _open(self) -> Store[Any]:
        with self._lock:
            opened = self.opened
            if opened is None:
                given = self._given
                if isinstance(given, Store):
                    opened = given
                else:
                    from streamkeep.facade import open as open_store

                    more: Any = {"interval": INTERVAL_MS / 1000} if self._sync == "commit" else {}
                    opened = open_store(given, sync=self._sync, create=self.creates, **more)
                self._note_opened()
                self.opened = opened
            return opened

    def _note_opened(self) -> None:
        """Do what has to be done when the store was opened, before another thread gets it."""

    def close(self, only: Store[Any] | None = None) -> None:
        """Close the store, if it was opened here. A later call opens it again.

        Args:
            only: close this one, and not another that was opened since.
        """
        with self._lock:
            opened = self.opened
            if only is not None and opened is not only:
                return
            self.opened = None
        if opened is not None and not isinstance(self._given, Store):
            journal = opened._environment.context.journal
            assert journal is not None  # it was opened for writing
            self.creates = False  # in place of one that was moved: an empty one would look well
            with suppress(StoreError):
                journal.control.check_not_moved()
                self.creates = True
            opened.close()

    @contextmanager
    def usable(self, failed: tuple[type[StreamkeepError], ...] = FOR_GOOD) -> Iterator[Store[Any]]:
        """Yield the store; close it if one of these errors says that it is not to stay open."""
        used = self.store
        try:
            yield used
        except failed:
            with suppress(StoreError):  # it cannot have a last checkpoint
                self.close(used)
            raise

    def read(self, look: Callable[[Snapshot[Any]], Result]) -> Result:
        with self.store.snapshot() as snapshot, translated():
            return look(snapshot.as_bytes())


_all: Final[weakref.WeakSet[LazyStore]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for one in list(_all):
        one.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class Core(LazyStore):
    """The store of a queue, its tasks, and how its transactions run.

    Attributes:
        most_payload: the largest payload, in bytes.
        tasks: by their names, as jobs have them.
    """

    most_payload = 16 << 20

    def __init__(
        self,
        queue: Queue,
        path_or_store: str | Path | Store[Any],
        name: str,
        *,
        immediate: bool,
        codec: str,
        policy: Policy,
        max_result_bytes: int,
        sync: Sync,
    ) -> None:
        """Take the arguments of `Queue`; `queue` is the object that programs have."""
        super().__init__(path_or_store, sync)
        self.queue = queue
        self.names = Names(name)
        for ending in ENDINGS:
            if name.endswith(ending):
                other = name.removesuffix(ending)
                raise ArgumentError(
                    f"a queue cannot be called {name!r}: the queue {other!r} has a stream of that "
                    f"name; next: choose a name that does not end in {', '.join(ENDINGS)}"
                )
        self.name = name
        self.immediate = immediate
        self.codec = codecs.check_codec(codec)
        self.tasks: dict[bytes, Task[Any, Any]] = {}
        self.max_result_bytes = max_result_bytes
        self.policy = policy
        self.rules: dict[str, Rule] = {}
        self._ready = False
        self.turns = itertools.count()
        self.ended_entries = EndedEntries()
        self._consumer = b""

    @cached_property
    def aio(self) -> AsyncQueue:
        """The same queue for asyncio."""
        from streamkeep.jobs.async_queue import AsyncQueue  # it imports `Queue`

        return AsyncQueue(self.queue)

    # --- the store ------------------------------------------------------------------------------

    def _note_opened(self) -> None:
        host = socket.gethostname()[:60]
        now_ms = time.time_ns() // 1_000_000  # `listing` says since when a worker is there
        self._consumer = f"{host}-{os.getpid()}-{now_ms:x}{secrets.token_hex(3)}".encode()
        self._ready = False
        self.ended_entries = EndedEntries()  # those of the parent are not this child's

    @contextmanager
    def moved_to(self, store: Store[Any], *, immediate: bool) -> Iterator[None]:
        """Use another store for a block, and run jobs at once if `immediate`; for tests."""
        former = self._given, self.immediate
        self.close()
        self._given, self.immediate = store, immediate
        try:
            yield
        finally:
            self.close()
            self._given, self.immediate = former

    @property
    def consumer(self) -> bytes:
        """The consumer of this process in the groups of the queue."""
        if self.opened is None:
            self._open()
        return self._consumer

    # --- transactions ---------------------------------------------------------------------------

    def apply(
        self,
        work: Callable[[Transaction[Any]], Result],
        *,
        frees: bool = False,
        sync: Sync | None = None,
    ) -> Result:
        """Run a function of a transaction, in the one that this thread has open if it has one."""
        store = self.opened or self.store
        outer: Any = store.open_transaction()
        if outer is None:
            # As `Store.apply` does, without its checks of arguments, which each job would pay for.
            durable = False if sync == "none" else store._waits(sync)
            return store._run(apply_bytes(store, work, frees=frees), durable)
        try:
            return work(SharedTransaction(store, outer.txn).as_bytes())
        except QueueError as error:
            if error.partly:
                outer.interrupt(error)
            raise
        except BaseException as error:
            outer.interrupt(error)
            raise

    def sync_of_ends(self) -> Sync | None:
        """Return the sync mode with which a worker ends a job that did its work.

        No caller waits for that end, so it need not wait for the disk: a power loss just after it
        undoes it together with the effects of `Job.transaction`, and the job runs again. A caller
        that asks for the end of a job waits then; see `wait_for`.
        """
        return "interval" if self.store.sync_mode == "commit" else None

    def needs_sync(self) -> bool:
        """Return whether callers may only be told what is on disk."""
        store = self.store
        if store.sync_mode != "commit" or store._readonly:
            return False
        return store.open_transaction() is None

    def wait_for(
        self, look: Callable[[Snapshot[Any]], list[Result]], bell: bytes, timeout: Duration | None
    ) -> list[Result]:
        """Return what a function of a snapshot finds in time, when that is on disk; [] for nothing.

        Args:
            bell: the key that is rung when it may find something.
        """
        wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
        if wait_ms == 0:
            found = self.read(look)
        else:
            found = self.store.read_when(look, [(bell, None)], block=wait_ms or 0)
        if found and self.needs_sync():
            self.store.sync()
        return found

    def step(self, work: Callable[[Step], Result], *, frees: bool = False) -> Result:
        def run(txn: Transaction[Any]) -> Result:
            step = Step(txn, self.names)
            result = work(step)
            step.save()
            return result

        self.set_up()
        return self.apply(run, frees=frees)

    def set_up(self) -> None:
        """Make the streams of the queue, unless this process knows that they exist."""
        store = self.store
        if not self._ready:
            if self.read(lambda one: one.row_get(QUEUES_SPACE, self.names.name)) is None:
                self.set_up_again()
            elif self.apply(self._tidy, frees=True, sync="none"):
                log.warning("%r: jobs that a tool gave back are due again", self.name)
            self._ready = store.open_transaction() is None

    def runs_now(self) -> bool:
        return self in _idling.get()

    def run_if_immediate(self) -> None:
        if self.immediate and not self.runs_now():
            self.run_until_idle()

    def run_until_idle(self, limit: int = 1_000_000, watch: Watch | None = None) -> int:
        """Do as `Queue.run_until_idle`.

        Args:
            watch: called with each job that begins; returns what is called with its outcome. None
                to log the attempts that failed.
        """
        whole(limit, "limit", 0)
        ran, queues = 0, [self.queue]
        token = _idling.set((*_idling.get(), self))
        try:
            while ran < limit:
                jobs = take(queues, self.consumer, 1, timeout=0, known=known_tasks(queues))
                if not jobs:
                    break
                ended = None if watch is None else watch(jobs[0])
                task = self.task_of(jobs[0])
                is_async = task is not None and task.is_async
                outcome = in_loop(self.run_job(jobs[0])) if is_async else execute(jobs[0])
                if ended is None:
                    log_failure(jobs[0], outcome.error, outcome.state)
                else:
                    ended(outcome)
                ran += 1
        finally:
            _idling.reset(token)
        return ran

    run_job = staticmethod(run_job)  # an adapter whose tasks run in another way overrides it

    def task_of(self, job: Job) -> Task[Any, Any] | None:
        """Return the task of a job; None if this program has none of its name."""
        return self.tasks.get(job.fields.get(TASK, b""))

    def known_tasks(self) -> Collection[bytes]:
        """Return the names of the tasks; a take that waits finds those that come later."""
        return self.tasks.keys()

    def policy_of(self, fields: Fields) -> Policy:
        task = self.tasks.get(fields.get(TASK, b""))
        return (self.policy if task is None else task.policy).of_job(fields)

    def _tidy(self, txn: Transaction[Any]) -> int:
        """Delete what killed processes left; return how many jobs a tool gave back."""
        step = Step(txn, self.names)
        step.set_up()  # a tool may have deleted a stream, or its group
        self.ended_entries.note((place, {}) for place in find_ended_entries(step))
        self.ended_entries.delete(step, idle=True)
        remove_expired(step)
        count = schedule_strays(step)
        free_deleted(step)
        step.save()
        return count

    def set_up_again(self) -> None:
        """Make the streams of the queue that are missing."""
        self.apply(lambda txn: Step(txn, self.names).set_up())
