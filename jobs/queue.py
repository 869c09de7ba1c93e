"""The queue of a store, as programs use it: `Queue`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import cancelling, codecs, ending
from streamkeep.jobs.base import at_least
from streamkeep.jobs.control import ControlMethods
from streamkeep.jobs.errors import JobCancelledError, JobFailedError, NoResultError
from streamkeep.jobs.job import NOTHING, Job
from streamkeep.jobs.layout import QUEUES_SPACE, Names
from streamkeep.jobs.letters import LetterMethods
from streamkeep.jobs.remains import AT_ONCE
from streamkeep.jobs.running import Done, Outcome, aexecute, execute
from streamkeep.jobs.state import Step
from streamkeep.jobs.tasks import TaskMethods
from streamkeep.jobs.times import Duration, milliseconds
from streamkeep.jobs.waiting import take


class Queue(TaskMethods, ControlMethods, LetterMethods):
    """A durable queue in a store. Threads and processes may share it.

    Every method that changes something is one transaction; when it returns, the change is as
    durable as the store's sync mode says. In a block of `store.transaction()` of the same store, it
    is a part of that transaction.
    """

    def __repr__(self) -> str:
        return f"<streamkeep.jobs.Queue {self.name!r}>"

    # --- get and end ----------------------------------------------------------------------------

    def get(self, timeout: Duration | None = None) -> Job:
        """Take the next job; sleep until there is one.

        Use it as `with queue.get() as job:`. Leaving the block acknowledges the job; an exception
        in it is a failed attempt, and leaves the block. If this process dies, another worker gets
        the job at once.

        Args:
            timeout: seconds, or a text such as "5s"; None for no limit, 0 for no wait.

        Raises:
            TimeoutError: there was none in time.
        """
        found = self.get_many(1, timeout)
        if not found:
            raise TimeoutError(f"no job of the queue {self.name!r} came in time")
        return found[0]

    def get_many(self, count: int, timeout: Duration | None = 0) -> list[Job]:
        """Take up to `count` jobs in one transaction; sleep until there is at least one.

        Args:
            timeout: as in `get`; by default it does not wait.

        Returns:
            The jobs; an empty list if there was none in time.
        """
        return take([self], self.consumer, at_least(count, 1, "count"), timeout=timeout)

    def done_many(self, jobs: Iterable[Job], results: Iterable[Any] | None = None) -> None:
        """End several jobs that did their work, in one transaction.

        Args:
            results: one for each job; by default none.

        Raises:
            JobLostError: one of them is not this worker's any more; nothing was changed.
        """
        its = list(jobs)
        self.apply(self.plan_done(its, results), frees=True)
        self.note_ended(its)

    def note_ended(self, its: list[Job]) -> None:
        """Note that the transaction of `plan_done` is done."""
        for job in its:
            job.ended = True
        if len(its) < AT_ONCE:
            taken = [job.taken for job in its if job.taken is not None]
            self.remains.note((one.place, one.fields) for one in taken)

    def plan_done(
        self, its: list[Job], results: Iterable[Any] | None
    ) -> Callable[[Transaction[Any]], Step]:
        """Return the function of a transaction that ends jobs; it returns its step."""
        given = list(results) if results is not None else [NOTHING] * len(its)
        if len(given) != len(its):
            raise ArgumentError(f"{len(its)} jobs, and {len(given)} results")
        if any(job.queue.names.name != self.names.name for job in its):
            raise ArgumentError(f"a job of another queue than {self.name!r}")
        ends = [job.end(one) for job, one in zip(its, given, strict=True)]

        def end(txn: Transaction[Any]) -> Step:
            step = Step(txn, self.names)
            ending.check_owned(step, [one.job for one in ends])
            works = [work for one in ends for work in one.works]
            for work in works:
                work(txn)
            if works:  # they may have put jobs into this queue
                step = Step(txn, self.names)
            ending.finish(step, ends)
            step.save()
            return step

        return end

    # --- jobs by their ID -----------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """Return a handle on a job, of which nothing is checked."""
        return Job(self, job_id)

    def find(self, job_id: str) -> cancelling.Found:
        """Return where a job is: its state, its fields, its worker."""
        return self.read(lambda one: cancelling.find(one, self.names, job_id))

    def cancel(self, job_id: str) -> bool:
        """Remove a job that has not started; return False if it has, or if there is none."""
        return self.step(lambda step: cancelling.cancel(step, job_id), frees=True)

    def result_of(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Return the result of a job; see `Job.result`."""
        if self.immediate and not self._runs_now():
            self.run_until_idle()
        wait_ms = None if timeout is None else milliseconds(timeout, "timeout")

        def look(snapshot: Snapshot[Any]) -> list[ending.Stored | None]:
            return look_for_result(snapshot.as_bytes(), self.names, job_id)

        if wait_ms == 0:
            found = self.read(look)
        else:
            bell = self.names.result_bell(job_id)
            found = self.store.read_when(look, [(bell, None)], block=wait_ms or 0)
        return self.open_result(job_id, found)

    def open_result(self, job_id: str, found: list[Any]) -> Any:
        """Return the value of a result that was looked for, or raise what it says."""
        if not found:
            raise TimeoutError(f"the job {job_id} of {self.name!r} has not ended in time")
        stored = found[0]
        if stored is None:
            raise NoResultError(
                f"the queue {self.name!r} has no job {job_id}, and no result of it: it has ended "
                "and its result was not kept or has expired, or it never was"
            )
        if stored.state == ending.CANCELLED:
            raise JobCancelledError(f"the job {job_id} was cancelled before it started")
        if stored.state == ending.FAILED:
            raise JobFailedError(*json.loads(stored.data))
        return codecs.decode(stored.codec, stored.data, f"the result of {job_id}", self.codec)

    def encode_result(self, job: Job, result: Any) -> tuple[str, bytes]:
        """Return a result as its codec and bytes; raise PayloadError if that is not possible."""
        what = f"the result of job {job.id}"
        return self.codec, codecs.encode(self.codec, result, what, self.max_result_bytes)

    # --- in the calling thread ------------------------------------------------------------------

    def execute(self, job: Job, done: Done | None = None) -> Outcome:
        """Run the handler of a job and end the job; see `running.execute`."""
        return execute(self, job, done)

    async def aexecute(self, job: Job, done: Done | None = None) -> Outcome:
        """Run a handler that is a coroutine function, and end the job."""
        return await aexecute(self, job, done)


def look_for_result(
    snapshot: Snapshot[Any], names: Names, job_id: str
) -> list[ending.Stored | None]:
    """Return [result], [None] if it never comes, or [] while the job has not ended."""
    stored = ending.load_result(snapshot, names.space, job_id)
    if stored is not None and stored.expires_ms > snapshot.txn.now_ms():
        return [stored]
    state = cancelling.find(snapshot, names, job_id).state
    return [None] if state in (cancelling.UNKNOWN, cancelling.ENDED) else []


def queue_names(store: Store[Any]) -> list[str]:
    """Return the names of the queues of a store."""
    return [key.decode() for key, _ in store.row_range(QUEUES_SPACE)]
