"""The queue of a store, as programs use it: `Queue`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, Unpack

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given, whole
from streamkeep.jobs import codecs, listing
from streamkeep.jobs import dead_letters as dead
from streamkeep.jobs import periodic as rules_of
from streamkeep.jobs.core import Core
from streamkeep.jobs.dead_letters import Letter
from streamkeep.jobs.declaring import Declaring
from streamkeep.jobs.errors import NoSuchJobError
from streamkeep.jobs.job import Job
from streamkeep.jobs.job_calls import end_jobs
from streamkeep.jobs.layout import QUEUES_SPACE, ListState
from streamkeep.jobs.listing import Listed, Minute, QueueStats, WorkerFacts, stats_of
from streamkeep.jobs.options import (
    DEFAULT_BACKOFF,
    Backoff,
    Options,
    Policy,
    backoff_of,
    check_options,
)
from streamkeep.jobs.periodic import Rule
from streamkeep.jobs.putting import put_all
from streamkeep.jobs.state import EVERYONE, Reader, Settings, Step, load_settings
from streamkeep.jobs.take_call import Take, take

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Queue(Declaring):
    """A durable queue in a store. Threads and processes may share it.

    Every method that changes something is one transaction; when it returns, the change is as
    durable as the store's sync mode says. Only to take jobs waits for no disk: after a power loss,
    those that have not ended wait again in any case. In a block of `store.transaction()` of the
    same store, a method is a part of that transaction.

    Attributes:
        core: for adapters, what workers and the other parts of the package use.
    """

    _core_type: ClassVar[type[Core]] = Core

    def __init__(
        self,
        path_or_store: str | Path | Store[Any],
        name: str = "default",
        immediate: bool = False,
        *,
        codec: str = codecs.JSON,
        retries: int = 3,
        backoff: str | Duration | Backoff = DEFAULT_BACKOFF,
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
            codec: of payloads and results: "json", "bytes", or "pickle", which runs code that a
                payload contains: only if all writers are trusted.
            retries: how many attempts may follow the first one that failed.
            backoff: how long a job waits before its next attempt: "1s..10m", the default, is one
                second after the first failure, twice as long after each further one, ten minutes at
                most; a half of it is random. One duration for a fixed wait.
            result_ttl: how long results are kept; 0 for not at all.
            max_deaths: a job that this many workers ran when they died is a dead letter.
            max_result_bytes: the largest result.
            sync: with a path: when a change is durable; see `streamkeep.open`.
        """
        self.core = self._core_type(
            self,
            path_or_store,
            name,
            immediate=immediate,
            codec=codec,
            policy=Policy(
                whole(retries, "retries", 0),
                backoff_of(backoff),
                0,
                milliseconds(result_ttl, "result_ttl"),
                whole(max_deaths, "max_deaths", 1),
            ),
            max_result_bytes=whole(max_result_bytes, "max_result_bytes", 1),
            sync=sync,
        )
        self.name = name

    def __repr__(self) -> str:
        return f"<streamkeep.jobs.Queue {self.name!r}>"

    @property
    def store(self) -> Store[Any]:
        """The store, which is opened if need be."""
        return self.core.store

    @property
    def consumer(self) -> bytes:
        """The consumer of this process in the groups of the queue."""
        return self.core.consumer

    def close(self) -> None:
        """Close the store, if this queue has opened it. A later call opens it again."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run_until_idle(self, limit: int = 1_000_000) -> int:
        """Run, in this thread, the jobs that are due, until there are none; return their number.

        For tests, and for programs without a worker. Jobs of tasks only; `get` takes the others.
        """
        return self.core.run_until_idle(limit)

    # --- put ------------------------------------------------------------------------------------

    def put(self, payload: Any, **options: Unpack[Options]) -> Job:
        """Put a payload, for `get`; return its job.

        Args:
            delay: how long it waits before it may be taken: seconds, or a text such as "5m".
            at: when it may be taken, an aware datetime. One that is past is now.
            key: jobs of one key are taken one at a time, in order; others are not held back.
            unique: a name that one job at a time may have, from its put to its end. If it is taken,
                nothing is put, and the job that has it is returned with `is_new` False.
            priority: "high", "normal" or "low". Lower ones are served now and then in any case.
            retries, backoff, max_runtime, result_ttl: instead of those of the queue.
            expires: a job that was not taken by then becomes a dead letter.
            headers: texts that travel with the job.
            codec: instead of that of the queue.

        Raises:
            PayloadError: the payload cannot be encoded.
            QueueFullError, QueueDrainingError: nothing was put.
        """
        return put_all(self.core, [(payload, check_options(options))], {})[0]

    def put_many(self, payloads: Iterable[Any], **options: Unpack[Options]) -> list[Job]:
        """Put several payloads in one transaction; all get the same options, which `put` has."""
        chosen = check_options(options)
        return put_all(self.core, [(payload, chosen) for payload in payloads], {})

    # --- periodic tasks ---------------------------------------------------------------------------

    def register_periodic(self) -> None:
        """Store the rules of `periodic` that this program has; workers do so when they start."""
        rules = list(self.core.rules.values())

        def store_rules(step: Step) -> None:
            for rule in rules:
                rules_of.register(step, rule)

        if rules:
            self.core.step(store_rules)

    def unschedule(self, name: str) -> bool:
        """Remove the rule of a periodic task from the store; return whether there was one."""
        self.core.rules.pop(name, None)
        return self.core.step(lambda step: rules_of.remove(step, name))

    def schedules(self) -> list[Rule]:
        """Return the rules of the periodic tasks in the store, each with its next time."""
        return self.core.read(lambda one: rules_of.rules(one, self.core.names))

    # --- get and end ----------------------------------------------------------------------------

    def get(self, timeout: Duration | None = None, *, after: Job | None = None) -> Job:
        """Take the next job; sleep until there is one.

        Use it as `with queue.get() as job:`. Leaving the block acknowledges the job; an exception
        in it is a failed attempt, and leaves the block. If this process dies, another worker gets
        the job at once.

        Args:
            timeout: seconds, or a text such as "5s"; None for no limit, 0 for no wait.
            after: a job that has done its work. It ends as by `Job.done` with the result of
                `Job.set_result`, before any wait, and in the transaction that takes the next job if
                there is one: a loop needs one transaction for each job in place of two.

        Raises:
            TimeoutError: there was none in time. The job `after` has ended.
            JobLostError, PayloadError: as `Job.done`; nothing was changed.
        """
        found = [] if after is None else self._end_and_take(after, timeout)
        found = found or self.get_many(1, timeout)
        if not found:
            raise TimeoutError(f"no job of the queue {self.name!r} came in time")
        return found[0]

    def _end_and_take(self, job: Job, timeout: Duration | None) -> list[Job]:
        if not isinstance(job, Job) or job.queue.core is not self.core:
            raise ArgumentError(f"after must be a job of this queue, not {as_given(job)}")
        if timeout is not None:
            milliseconds(timeout, "timeout")  # before the job ends
        return Take([self], self.consumer, 1, None).after(job, job.given_result)

    def get_many(self, count: int, timeout: Duration | None = 0) -> list[Job]:
        """Take up to `count` jobs in one transaction; sleep until there is at least one.

        If this process dies, that counts as a death for all of them; see `Job.begin`.

        Args:
            timeout: as in `get`; by default it does not wait.

        Returns:
            The jobs; an empty list if there was none in time.
        """
        return take([self], self.consumer, whole(count, "count", 1), timeout=timeout)

    def done_many(self, jobs: Iterable[Job], results: Iterable[Any] | None = None) -> None:
        """End several jobs that did their work, in one transaction.

        Args:
            results: one for each job; by default none.

        Raises:
            JobLostError: one of them is not this worker's any more; nothing was changed.
        """
        its = list(jobs)
        for job in its:
            if not isinstance(job, Job):
                raise ArgumentError(f"jobs must be jobs of `get`, not {as_given(job)}")
        end_jobs(self.core, its, results)

    async def aput(self, payload: Any, **options: Unpack[Options]) -> Job:
        """Put a payload as `put` does, without holding up the event loop."""
        return (await self.core.aio.put(payload, **options)).job

    # --- jobs by their ID -----------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """Return a job by its ID, in any process.

        Raises:
            NoSuchJobError: there is none, or it is done and its result was not kept
                (`result_ttl=0`) or has expired, or it was a dead letter that was removed.
        """
        found = self.core.read(lambda one: listing.job_in(one, self.core.names, job_id))
        if found is None:
            raise NoSuchJobError(
                f"the queue {self.name!r} has no job {job_id!r}: it never was, or it has ended and "
                "its result was not kept or has expired; next: correct the ID, or give the task a "
                "longer result_ttl"
            )
        return Job(self, found.id, fields=found.fields)

    async def ajob(self, job_id: str) -> Job:
        """Return a job by its ID as `job` does, without holding up the event loop."""
        return (await self.core.aio.job(job_id)).job

    def jobs(self, state: ListState = "waiting", count: int = 50) -> list[Listed]:
        """Return jobs of one state.

        Args:
            state: waiting, in the order in which they are taken; running; delayed, the next one
                first; parked (no worker knows their task); failed, those that are dead letters, the
                newest first; done or cancelled, the same, as long as their results are kept.
            count: how many at most.
        """
        most = whole(count, "count", 1)
        return self.core.read(lambda one: listing.jobs_in(one, self.core.names, state, most))

    def cancel(self, job_id: str) -> bool:
        """Remove a job that has not started; return False if it has, or if there is none.

        One that only waits, by `postpone` or `Retry(counts=False)`, has not started.
        """
        return self._change_one(dead.cancel, job_id)

    # --- dead letters ---------------------------------------------------------------------------

    def dead_letters(
        self, *, count: int | None = None, reason: str | None = None, task: str | None = None
    ) -> list[Letter]:
        """Return dead letters, the oldest first.

        Args:
            count: how many at most.
            reason: only those with this text in their reason, error or message.
            task: only those of this task.
        """
        most = None if count is None else whole(count, "count", 0)

        def look(snapshot: Snapshot[Any]) -> list[Letter]:
            every = dead.letters(snapshot, self.core.names.dead)
            return list(islice((one for one in every if dead.matches(one, reason, task)), most))

        return self.core.read(look)

    def requeue(
        self, *letters: str | Letter, reason: str | None = None, task: str | None = None
    ) -> int:
        """Put dead letters into the queue again; return how many.

        Each letter leaves `NAME:dead` in the transaction that puts its job. One whose unique name
        is taken by another job stays. A job keeps its ID, and has all its attempts again.

        Args:
            letters: or their IDs, or the IDs of their jobs; none for all that match the others.
            reason, task: as in `dead_letters`.

        Raises:
            ArgumentError: a text names two letters: it is the ID of one, and of another one's job.
                Nothing was changed.
            QueueDrainingError: the letters stay; `resume` ends the draining.
        """
        return self._each(letters, reason, task, dead.requeue)

    def drop_dead(
        self, *letters: str | Letter, reason: str | None = None, task: str | None = None
    ) -> int:
        """Remove dead letters for good; return how many. The arguments are those of `requeue`."""
        return self._each(letters, reason, task, dead.drop)

    def _each(
        self,
        letters: tuple[str | Letter, ...],
        reason: str | None,
        task: str | None,
        change: Callable[[Step, Letter], bool],
    ) -> int:
        """Change the letters that match, in transactions of a bounded size."""
        chosen = self.core.read(
            lambda one: dead.chosen(one, self.core.names, letters, reason, task)
        )
        changed = 0
        for start in range(0, len(chosen), dead.AT_ONCE):
            some = chosen[start : start + dead.AT_ONCE]
            changed += self.core.step(
                lambda step, some=some: sum(change(step, one) for one in some),  # type: ignore[misc]
                frees=True,
            )
        return changed

    # --- now, and never -------------------------------------------------------------------------

    def run_now(self, job_id: str) -> bool:
        """Let a job start that waits for its time or its retry; return False if it does not."""
        return self._change_one(dead.hurry, job_id)

    def _change_one(self, change: Callable[..., bool | None], job_id: str) -> bool:
        for _ in range(dead.TRIES):
            # The schedule is long, and has no index by jobs. Writers need not wait for this look.
            key = self._outside(lambda one: dead.retry_row(one, self.core.names, job_id))
            work = partial(change, job_id=job_id, key=key)
            if (changed := self.core.step(work, frees=True)) is not None:
                return changed
        return False

    def _outside(self, look: Callable[[Reader], Result]) -> Result:
        """Look at a snapshot, or at the transaction that this thread has open."""
        if self.core.store.open_transaction() is None:
            return self.core.read(look)
        return self.core.step(lambda step: look(step.txn))

    def purge(self) -> int:
        """Remove every job that has not started, as `cancel` does; return how many.

        Jobs that run, that wait for a retry or were postponed, and dead letters stay. It runs in
        transactions of a bounded size, so jobs that are put in the meantime may stay.
        """
        removed = 0
        while count := self.core.step(dead.purge, frees=True):
            removed += count
        parked = self._outside(lambda one: dead.parked(one, self.core.names))
        for start in range(0, len(parked), dead.AT_ONCE):
            some_ids = parked[start : start + dead.AT_ONCE]
            removed += self.core.step(partial(dead.cancel_all, job_ids=some_ids), frees=True)
        return removed

    # --- control --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let no worker take a job, in any process, until `resume`. Running jobs continue."""
        self.core.step(lambda step: step.change_settings(paused=True))

    def resume(self) -> None:
        """End `pause` and `drain`."""

        def resume(step: Step) -> None:
            if step.settings.draining:  # firings have come since then
                for rule in rules_of.rules(step.txn, step.names):
                    rules_of.arm(step, rule)
            step.change_settings(paused=False, draining=False)
            step.wake_workers(EVERYONE)

        self.core.step(resume)

    def drain(self, timeout: Duration | None = None) -> bool:
        """Take no new jobs, except for follow-ups of its own, and wait until all have ended.

        `resume` ends it. When it returns True, the ends of all jobs are on disk, if the store's
        sync mode is "commit".

        Args:
            timeout: seconds, or a text; None for no limit, 0 for no wait.

        Returns:
            Whether nothing waits, runs, or is delayed.
        """
        self.core.step(lambda step: step.change_settings(draining=True))
        self.core.run_if_immediate()
        return bool(self.core.wait_for(self._is_empty, self.core.names.end_bell, timeout))

    def _is_empty(self, snapshot: Snapshot[Any]) -> list[bool]:
        found = stats_of(snapshot.as_bytes(), self.core.names)
        return [] if found.waiting or found.running or found.delayed else [True]

    def set_limits(
        self, *, max_length: int | None = None, concurrency: int | None = None
    ) -> Settings:
        """Set limits of the queue, in the store, for all its programs; return all settings.

        A setting that is None stays as it is; 0 removes a limit.

        Args:
            max_length: how many jobs may wait (not those that are delayed, or run). Beyond it, a
                put raises QueueFullError.
            concurrency: how many jobs of the queue may run at a time, in all processes.
        """
        changes: dict[str, Any] = {}
        if max_length is not None:
            changes["max_length"] = whole(max_length, "max_length", 0)
        if concurrency is not None:
            changes["concurrency"] = whole(concurrency, "concurrency", 0)

        def change(step: Step) -> Settings:
            step.change_settings(**changes)
            step.wake_workers(EVERYONE)
            return step.settings

        return self.core.step(change)

    def settings(self) -> Settings:
        """Return the settings that all programs of the queue share."""
        return self.core.read(lambda one: load_settings(one, self.core.names))

    def stats(self) -> QueueStats:
        """Return how many jobs are in each state, and how many workers live."""
        return self.core.read(lambda one: stats_of(one, self.core.names))

    def workers(self) -> list[WorkerFacts]:
        """Return the processes that live and have taken a job."""
        return self.core.read(lambda one: listing.workers_of(one, self.core.names))

    def minutes(self, count: int = 60) -> list[Minute]:
        """Return the last minutes in which jobs ended or attempts failed, of one day at most."""
        most = whole(count, "count", 1)
        return self.core.read(lambda one: listing.minutes_of(one, self.core.names, most))


def queue_names(store: Store[Any]) -> list[str]:
    return [key.decode() for key, _ in store.row_range(QUEUES_SPACE)]
