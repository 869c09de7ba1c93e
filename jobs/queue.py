"""The queue of a store, as programs use it: `Queue`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamkeep.engine.api.store import Store
from streamkeep.jobs import cancelling
from streamkeep.jobs.control import ControlMethods
from streamkeep.jobs.dead_letters import LetterMethods
from streamkeep.jobs.job import Job, end_jobs
from streamkeep.jobs.layout import QUEUES_SPACE
from streamkeep.jobs.tasks import TaskMethods
from streamkeep.jobs.times import Duration, at_least
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

        If this process dies, that counts as a death for all of them; see `Job.begin`.

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
        end_jobs(self.core, list(jobs), results)

    # --- jobs by their ID -----------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """Return a handle on a job, of which nothing is checked."""
        return Job(self, job_id)

    def find(self, job_id: str) -> cancelling.Found:
        """Return where a job is: its state, its fields, its worker."""
        return self.core.read(lambda one: cancelling.find(one, self.core.names, job_id))

    def cancel(self, job_id: str) -> bool:
        """Remove a job that has not started; return False if it has, or if there is none."""
        return self.core.step(lambda step: cancelling.cancel(step, job_id), frees=True)


def queue_names(store: Store[Any]) -> list[str]:
    """Return the names of the queues of a store."""
    return [key.decode() for key, _ in store.row_range(QUEUES_SPACE)]
