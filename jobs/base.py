"""What all parts of a queue have in common: its store, its transactions, its tasks."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.api.work import SharedTransaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import codecs
from streamkeep.jobs.errors import QueueError
from streamkeep.jobs.layout import QUEUES_SPACE, TASK, Fields, Names
from streamkeep.jobs.policy import Policy
from streamkeep.jobs.remains import Remains, find_remains
from streamkeep.jobs.state import Step
from streamkeep.jobs.strays import has_strays, schedule_strays
from streamkeep.jobs.times import Backoff, Duration, backoff_of, milliseconds
from streamkeep.jobs.waiting import run_until_idle

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job
    from streamkeep.jobs.periodic import Rule
    from streamkeep.jobs.queue import Queue
    from streamkeep.jobs.task import Task

log = logging.getLogger("streamkeep.jobs")

Result = TypeVar("Result")


class QueueBase:
    """The store of a queue, its tasks, and how its transactions run; a base of `Queue`."""

    def __init__(
        self,
        path_or_store: str | Path | Store[Any],
        name: str = "default",
        immediate: bool = False,
        *,
        codec: str = codecs.JSON,
        retries: int = 3,
        backoff: str | Duration | Backoff = "1s..10m",
        result_ttl: Duration = "1h",
        max_deaths: int = 5,
        max_result_bytes: int = 1 << 20,
        sync: Sync = "commit",
    ) -> None:
        """Name a queue; it is made when it is first used.

        Args:
            path_or_store: the directory of a store, which is opened at the first use, and again in
                a forked child; or a store that is open.
            immediate: for tests: a put runs what is due, in the calling thread, before it returns.
            codec: of payloads and results: "json", "bytes", "msgspec", one of `register_codec`, or
                "pickle", which runs code that a payload contains: only if all writers are trusted.
            retries: how many attempts may follow the first one that failed.
            backoff: how long a job waits before its next attempt: "1s..10m" is one second after
                the first failure, twice as long after each further one, ten minutes at most; a half
                of it is random. One duration for a fixed wait.
            result_ttl: how long results are kept; 0 for not at all.
            max_deaths: a job is a dead letter after this many workers died with it.
            max_result_bytes: the largest result.
            sync: with a path: when a change is durable; see `streamkeep.open`.
        """
        self.names = Names(name)
        self.name = name
        self.immediate = immediate
        self.codec = codecs.check_codec(codec)
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.max_result_bytes = at_least(max_result_bytes, 1, "max_result_bytes")
        self.policy = Policy(
            at_least(retries, 0, "retries"),
            backoff_of(backoff),
            0,
            milliseconds(result_ttl, "result_ttl"),
            at_least(max_deaths, 1, "max_deaths"),
        )
        self._given = path_or_store
        self._sync = sync
        self._rules: dict[str, Rule] = {}
        self._opened: Store[Any] | None = None
        self._pid = 0
        self._ready = False
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self.remains = Remains()
        self._consumer = b""
        self._runs = threading.local()

    @property
    def whole(self) -> Queue:
        """This queue, with all its methods."""
        return cast("Queue", self)

    # --- the store ------------------------------------------------------------------------------

    @property
    def store(self) -> Store[Any]:
        """The store, which is opened if need be."""
        if self._opened is None or self._pid != os.getpid():
            self._open()
        assert self._opened is not None
        return self._opened

    def _open(self) -> None:
        from streamkeep.facade import open as open_store

        with self._lock:
            if self._opened is None or self._pid != os.getpid():
                given = self._given
                opened: Store[Any] = (
                    given if isinstance(given, Store) else open_store(given, sync=self._sync)
                )
                host = socket.gethostname()[:60]
                self._consumer = f"{host}-{os.getpid()}-{secrets.token_hex(3)}".encode()
                self._ready = False
                self.remains = Remains()  # those of the parent are not this child's
                self._opened, self._pid = opened, os.getpid()

    def close(self) -> None:
        """Close the store, if this queue has opened it. A later call opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and not isinstance(self._given, Store) and self._pid == os.getpid():
            opened.close()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def consumer(self) -> bytes:
        """The consumer of this process in the groups of the queue."""
        return self._consumer if self._opened is not None and self.store else self._named()

    def _named(self) -> bytes:
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
        store = self.store
        outer: Any = store.open_transaction()
        if outer is None:
            return store.apply(lambda txn: work(txn.as_bytes()), frees=frees, sync=sync)
        try:
            return work(SharedTransaction(store, outer.txn).as_bytes())
        except QueueError:
            raise  # before it has changed anything
        except BaseException as error:
            outer.interrupt(error)
            raise

    def step(self, work: Callable[[Step], Result], *, frees: bool = False) -> Result:
        """Run a function of a `Step`."""

        def run(txn: Transaction[Any]) -> Result:
            step = Step(txn, self.names)
            result = work(step)
            step.save()
            return result

        self.set_up()
        return self.apply(run, frees=frees)

    def read(self, look: Callable[[Snapshot[Any]], Result]) -> Result:
        """Run a function of a snapshot."""
        with self.store.snapshot() as snapshot:
            return look(snapshot.as_bytes())

    def set_up(self) -> None:
        """Make the streams of the queue, unless this process knows that they exist."""
        store = self.store
        if not self._ready:
            if self.read(lambda one: one.row_get(QUEUES_SPACE, self.names.name)) is None:
                self.set_up_again()
            elif self.apply(self._tidy, sync="none"):
                log.warning("%r: jobs that a tool gave back are due again", self.name)
            self._ready = store.open_transaction() is None

    def run_until_idle(self, limit: int = 1_000_000) -> int:
        """Run, in this thread, the jobs that are due, until there are none; return their number.

        For tests, and for programs without a worker. Jobs of tasks only; `get` takes the others.
        """
        self._runs.now = True
        try:
            return run_until_idle(self.whole, limit)
        finally:
            self._runs.now = False

    def _runs_now(self) -> bool:
        return bool(getattr(self._runs, "now", False))

    def task_of(self, job: Job) -> Task[Any, Any] | None:
        """Return the task of a job; None if this program has none of its name."""
        return self.tasks.get(job.task)

    def known_tasks(self) -> Collection[bytes]:
        """Return the names of the tasks whose jobs a worker of this program takes."""
        return frozenset(name.encode() for name in self.tasks)

    def policy_of(self, fields: Fields) -> Policy:
        """Return retries, backoff and limits of a job."""
        task = self.tasks.get(fields.get(TASK, b"").decode(errors="replace"))
        return (self.policy if task is None else task.policy).of_job(fields)

    def _tidy(self, txn: Transaction[Any]) -> int:
        """Delete what killed processes left; return how many jobs a tool gave back."""
        step = Step(txn, self.names)
        self.remains.note((place, {}) for place in find_remains(step))
        self.remains.delete(step, idle=True)
        count = schedule_strays(step) if has_strays(step) else 0
        step.save()
        return count

    def set_up_again(self) -> None:
        """Make the streams of the queue that are missing."""

        def run(txn: Transaction[Any]) -> None:
            Step(txn, self.names).set_up()

        self.apply(run)

    def next_turn(self) -> int:
        """Return a number that rises with each call: whose turn among the priorities it is."""
        return next(self._turns)


def at_least(value: int, least: int, name: str) -> int:
    """Return a whole number; raise ArgumentError for another, or one that is too small."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise ArgumentError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
