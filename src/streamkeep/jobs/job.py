"""A job: a handle on one that was put, or one that this worker has taken and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.liveness.marks import Marks
from streamkeep.engine.system.locks import reentrant_lock
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.jobs import codecs, ending, layout
from streamkeep.jobs.errors import (
    JobCancelledError,
    JobFailedError,
    JobLostError,
    NoResultError,
    PayloadError,
    QueueError,
)
from streamkeep.jobs.finding import HAS_ENDED, find
from streamkeep.jobs.handler_errors import STORE_FAILS, end_with_error, log_failure, return_job
from streamkeep.jobs.job_calls import NOTHING, begin_all, end_jobs, leave
from streamkeep.jobs.job_transaction import JobTransaction
from streamkeep.jobs.layout import Attempt, Fields, JobState
from streamkeep.jobs.listing import job_in
from streamkeep.jobs.state import Step, pending_row
from streamkeep.jobs.taking import Taken, park

if TYPE_CHECKING:
    from streamkeep.engine.txn.txn import WriteTxn
    from streamkeep.jobs.core import Core
    from streamkeep.jobs.queue import Queue

Result = TypeVar("Result")

_batches: Final = reentrant_lock()  # of the lists `Job._batch`, which threads share
current: ContextVar[Job | None] = ContextVar("job", default=None)  # that the handler runs for


def current_job() -> Job:
    """Return the job that the calling handler runs for; raise QueueError outside of a handler."""
    job = current.get()
    if job is None:
        raise QueueError("no job runs here: `current_job` is for handlers")
    return job


class Job:
    """A job of a queue.

    `Queue.put` and `delay` return a handle: `id`, `result`, `cancel`, `state`; that of `Queue.job`
    also has its `task`, `payload`, `key` and `headers`. `Queue.get` and handlers get a job that
    they have taken, with the methods that end it.
    """

    def __init__(
        self, queue: Queue, job_id: str, taken: Taken | None = None, fields: Fields | None = None
    ) -> None:
        self.queue = queue
        self._id = job_id
        self._fields = fields
        self._is_new = True
        self.taken = taken
        self._ended = taken is None
        self._ended_in: WriteTxn | None = None  # a transaction of the caller, which may be undone
        self._payload: Any = NOTHING
        self.given_result: Any = NOTHING  # what `set_result` set
        self._transaction: JobTransaction | None = None
        self._marks: list[tuple[Marks, int]] = []  # at most one: this process works on it
        self._batch: list[Job] = []  # the jobs of its call, until one of them is begun
        self.extended: Callable[[], None] = lambda: None  # what `extend` calls

    def __repr__(self) -> str:
        return f"<streamkeep.jobs.Job {self._id or 'not put yet'} of {self.queue.name!r}>"

    # --- what it is -----------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether this worker has ended it, or never had it."""
        txn = self._ended_in
        if txn is not None and not txn.open:
            self._ended_in = None
            if not txn.committed:  # the job is still this worker's, and its death counts again
                self._ended = False
                begin_all([self])
        return self._ended

    @property
    def id(self) -> str:
        """The ID, by which `Queue.job` finds it again."""
        if not self._id:
            raise QueueError("the job has no ID until the transaction that puts it is done")
        return self._id

    @property
    def is_new(self) -> bool:
        """False if `put` found a job that has the same unique name, and this is that one."""
        return self._is_new

    @property
    def fields(self) -> Fields:
        """The fields of its entry; of a job that has ended, those that are kept."""
        return self._taken().fields if self._fields is None else self._fields

    @property
    def task(self) -> str:
        """The name of its task; empty for a job that was put without one."""
        return self.fields.get(layout.TASK, b"").decode(errors="replace")

    @property
    def key(self) -> str | None:
        """The key that it was put with."""
        value = self.fields.get(layout.KEY)
        return None if value is None else value.decode(errors="replace")

    @property
    def priority(self) -> str:
        """Its priority."""
        return layout.PRIORITIES[self._taken().place.priority]

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on; those that died with their worker do not count."""
        taken = self._taken()
        return taken.deliveries - taken.lost

    @property
    def queued_ms(self) -> int:
        """When it was put, in Unix milliseconds."""
        taken = self._taken()
        return int(taken.fields.get(layout.QUEUED, taken.place.ms))

    @property
    def headers(self) -> dict[str, str]:
        """Texts that travel with it."""
        try:
            found = json.loads(self.fields.get(layout.HEADERS, b"{}"))
        except (ValueError, RecursionError):  # another program has put it
            return {}
        if not isinstance(found, dict):
            return {}
        return {name: one for name, one in found.items() if isinstance(one, str)}

    @property
    def payload(self) -> Any:
        """What was put; of a task, a list of its arguments and a dict of its named ones.

        Raises:
            PayloadError: the bytes cannot be decoded.
        """
        if self._payload is NOTHING:
            codec = self.fields.get(layout.CODEC, b"json").decode(errors="replace")
            data = self.fields.get(layout.PAYLOAD)
            what = f"the payload of job {self.id}"
            if data is None:
                raise PayloadError(f"{what} is missing: the entry has no field `payload`")
            self._payload = codecs.decode(codec, data, what, self.queue.core.codec)
        return self._payload

    def state(self) -> JobState:
        """Return what becomes of the job now.

        Returns:
            waiting, delayed (for its time or its retry), running, done, failed (a dead letter) or
            cancelled; unknown if it has ended, and its result was not kept or has expired.
        """
        found = self.queue.core.read(lambda one: job_in(one, self.queue.core.names, self.id))
        return "unknown" if found is None else found.state

    def history(self) -> list[Attempt]:
        """Return the last ten runs that failed, or whose worker died, and did not end the job.

        Of a job that has ended, they are kept with its result or its dead letter.
        """
        found = self.queue.core.read(lambda one: job_in(one, self.queue.core.names, self.id))
        return [] if found is None else list(found.history)

    # --- its end, as a caller sees it -----------------------------------------------------------

    def result(self, timeout: Duration | None = None) -> Any:
        """Return the result; sleep until there is one.

        When it returns, the end of the job is on disk, if the store's sync mode is "commit". A
        store that is open for reading only, and `state`, tell of ends that may not be there yet.

        Args:
            timeout: seconds, or a text such as "5s"; None for no limit, 0 for no wait.

        Raises:
            JobFailedError: it failed for good.
            JobCancelledError: it was cancelled.
            NoResultError: it has ended, and its result was not kept or has expired.
            TimeoutError: it has not ended in time.
        """
        core, job_id = self.queue.core, self.id
        core.run_if_immediate()
        found = core.wait_for(look_for(core, job_id), core.names.result_bell(job_id), timeout)
        return open_result(core, job_id, found)

    def cancel(self) -> bool:
        """Remove it if it has not started; return whether that was so."""
        return self.queue.cancel(self.id)

    async def aresult(self, timeout: Duration | None = None) -> Any:
        """Wait for the result as `result` does; a thousand tasks of an event loop may wait."""
        return await self.queue.core.aio.result_of(self.id, timeout)

    async def astate(self) -> JobState:
        """Return what becomes of the job, as `state` does."""
        return await asyncio.to_thread(self.state)

    async def acancel(self) -> bool:
        """Remove it if it has not started, as `cancel` does."""
        return await asyncio.to_thread(self.cancel)

    # --- its end, by the worker that has it -----------------------------------------------------

    @property
    def transaction(self) -> JobTransaction:
        """What is to happen with the acknowledgement of this job; see `JobTransaction`."""
        self._taken()
        if self._transaction is None:
            self._transaction = JobTransaction(self)
        return self._transaction

    def done(self, result: Any = NOTHING) -> None:
        """End the job: acknowledgement, result and `transaction` in one transaction.

        In a block of `store.transaction()`, it ends with that transaction.

        Raises:
            JobLostError: it is not this worker's any more; nothing was changed.
            PayloadError: the result cannot be encoded, or is too large; nothing was changed.
        """
        end_jobs(self.queue.core, [self], [result])

    def retry(self, after: Duration | None = None, reason: str = "the worker asked") -> bool:
        """End this attempt as a failed one.

        Args:
            after: when to try again; by default by the backoff.
            reason: what a dead letter says.

        Returns:
            False if there were no attempts left, and the job is a dead letter.
        """
        after_ms = None if after is None else milliseconds(after, "after")
        return self.end_attempt(("", reason, ""), after_ms=after_ms)

    def fail(self, reason: str) -> None:
        """End the job for good, as a dead letter with this reason."""
        self.end_attempt(("", "", ""), final=reason)

    def give_back(self, *, delivered: bool = False) -> None:
        """Return the job to the queue at once; this was no attempt.

        Args:
            delivered: keep the count of deliveries, so that the next one is known not to be the
                first; `attempt` is then higher, too.
        """
        self._return(0, delivered)

    def postpone(self, after: Duration) -> None:
        """Return the job to the queue for later; this was no attempt."""
        self._return(after, False)

    def _return(self, after: Duration, delivered: bool) -> None:
        after_ms = milliseconds(after, "after")

        def back(step: Step, taken: Taken) -> None:
            due_ms = step.now_ms + after_ms
            ending.retry(step, taken, due_ms, counts=False, delivered=delivered)

        self._finish(back)

    def park(self) -> None:
        """Leave the job to workers that know its task; this was no attempt."""
        self._finish(park)

    def end_attempt(
        self, error: tuple[str, str, str], *, after_ms: int | None = None, final: str = ""
    ) -> bool:
        """Note that this attempt failed; return whether the job is retried."""
        policy = self.queue.core.policy_of(self.fields)

        def end(step: Step, taken: Taken) -> bool:
            return ending.fail_attempt(step, taken, policy, error, after_ms=after_ms, final=final)

        return self._finish(end)

    def extend(self, max_runtime: Duration | None = None) -> None:
        """Let the job run for its `max_runtime` again, from now on.

        A job without `max_runtime` needs no extension: it stays with its worker while that lives.

        Args:
            max_runtime: another limit, for this run.

        Raises:
            JobLostError: it is not this worker's any more.
        """
        taken = self._taken()
        self._check_running()
        policy = self.queue.core.policy_of(taken.fields)
        if max_runtime is not None:
            policy = policy._replace(max_runtime_ms=milliseconds(max_runtime, "max_runtime"))
        run = taken.place, taken.deliveries, policy, taken.runtime_key
        key = self._step(lambda step: ending.begin_run(step, *run))
        self.taken = taken._replace(runtime_key=key)
        self.extended()  # at once: a handler that now holds the GIL lets no other thread tell of it

    def begin(self) -> None:
        """Note that this process works on the job now, so that its death counts for it.

        A `with` block and the workers do so. Of several jobs that one call has taken, only those
        that were begun count from now on.

        Raises:
            QueueError: this worker has not taken it.
        """
        self._taken()
        if self._batch:
            with _batches:  # another thread may begin one of the others
                for one in self._batch:  # the first that is begun: it works on none of the others
                    if one is not self:
                        leave(one)
                self._batch.clear()
        if not self._marks and not self.ended:
            begin_all([self])

    def lost(self) -> bool:
        """Return whether the job is not this worker's any more."""
        if self.ended:
            return False
        taken = self._taken()
        names = self.queue.core.names
        row = self.queue.core.read(lambda one: pending_row(one, names, taken.place)) or {}
        if (row.get("consumer"), row.get("times_delivered")) == (taken.consumer, taken.deliveries):
            return False
        leave(self)
        return True

    def __enter__(self) -> Job:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the job, unless the block has: done, or a failed attempt after an exception.

        After an interrupt (Ctrl-C) it goes back to the queue. Exceptions leave the block.
        """
        if self.ended:
            return
        if error is None:
            try:
                self.done(self.given_result)
            except Exception as problem:
                self._end_refused(problem)
                raise
        elif not isinstance(error, Exception):
            return_job(self)
        elif not isinstance(error, JobLostError):
            log_failure(self, error, end_with_error(self, error))

    def _end_refused(self, error: Exception) -> None:
        """End the attempt if `done` cannot succeed later either, such as for its result."""
        if not isinstance(error, STORE_FAILS):
            with suppress(JobLostError):  # also if a transaction around it is undone
                log_failure(self, error, end_with_error(self, error))

    def set_result(self, result: Any) -> None:
        """Set what the end of a `with` block stores as the result."""
        self.given_result = result

    def _taken(self) -> Taken:
        if self.taken is None:
            raise QueueError(
                f"the job {self._id} was not taken by this worker; next: take it with `Queue.get`"
            )
        return self.taken

    def _end(self) -> None:
        store = self.queue.core.opened
        outer = None if store is None else store.open_transaction()
        self._ended, self._ended_in = True, None if outer is None else outer.txn
        leave(self)

    def _finish(self, work: Callable[[Step, Taken], Result]) -> Result:
        """End this delivery, in a transaction, if the job is still this worker's."""
        taken = self._taken()
        self._check_running()
        self._ended = True  # before: once it is back, this process may have it again
        try:
            result = self._step(lambda step: work(step, taken), frees=True)
        except BaseException:
            self._ended = False
            raise
        self._end()
        return result

    def _step(self, work: Callable[[Step], Result], *, frees: bool = False) -> Result:
        """Change the job, in a transaction, if it is still this worker's."""

        def change(step: Step) -> Result:
            ending.check_owned(step, [self._taken()])
            return work(step)

        try:
            return self.queue.core.step(change, frees=frees)
        except JobLostError:
            leave(self)
            raise

    def _check_running(self) -> None:
        if self.ended:
            raise JobLostError(f"the job {self._id} has already been ended by this worker")


# --- results, as callers that wait for them see them ----------------------------------------------


def look_for(core: Core, job_id: str) -> Callable[[Snapshot[Any]], list[ending.Stored | None]]:
    """Return the function of a snapshot that looks for the result of a job.

    It returns [result], [None] if there will never be one, or [] while the job has not ended.
    """

    def look(snapshot: Snapshot[Any]) -> list[ending.Stored | None]:
        reader = snapshot.as_bytes()
        stored = ending.load_result(reader, core.names.space, job_id)
        if stored is not None and stored.expires_ms > reader.txn.now_ms():
            return [stored]
        state = find(reader, core.names, job_id).state
        return [None] if state in HAS_ENDED else []

    return look


def open_result(core: Core, job_id: str, found: list[ending.Stored | None]) -> Any:
    """Return the value of a result that was looked for, or raise what it says."""
    if not found:
        raise TimeoutError(f"the job {job_id} of {core.name!r} has not ended in time")
    stored = found[0]
    if stored is None:
        raise NoResultError(
            f"the queue {core.name!r} has no job {job_id}, and no result of it: it has ended and "
            "its result was not kept or has expired, or it never was"
        )
    if stored.state == ending.CANCELLED:
        raise JobCancelledError(f"the job {job_id} was cancelled before it started")
    if stored.state == ending.FAILED:
        raise JobFailedError(*json.loads(stored.data))
    return codecs.decode(stored.codec, stored.data, f"the result of {job_id}", core.codec)
