"""Taking jobs, with a wait: one call for one queue or several of a store.

A worker that waits sleeps until a job comes into a stream, until the next time of the schedule, or
until a worker dies. The kernel and the commits of other processes wake it; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.api.work import When
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.jobs import taking
from streamkeep.jobs.job import Job, begin_all, job_of, note_ended, plan_end
from streamkeep.jobs.layout import GROUP
from streamkeep.jobs.running import DEAD, RETRYING, log_failure
from streamkeep.jobs.state import Step
from streamkeep.jobs.times import Duration, milliseconds

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment
    from streamkeep.jobs.queue import Queue


# A power loss after a take makes the job wait again, as if it had not been taken. That is right: it
# has not ended. The end of a job is synced, and every commit before it is on disk then.
UNSYNCED: Final[Sync] = "none"


class Take:
    """One call that takes jobs: what it runs in a transaction, and when that may find something."""

    def __init__(
        self,
        queues: Sequence[Queue],
        consumer: bytes,
        count: int,
        known: dict[str, Collection[bytes]] | None,
        *,
        begins: bool = True,
    ) -> None:
        """Take the arguments of `take`."""
        self.queues = list(queues)
        if not queues or any(one.store._environment is not self._environment for one in queues):
            raise ArgumentError("one or more queues of one store are needed")
        self._begins = begins
        self._deaths: dict[bytes, int] = {}  # of workers, that jobs of the last `work` have counted
        self._consumer = consumer
        self._count = count
        self._known = known

    @cached_property
    def when(self) -> When:
        """When `work` may find something."""
        queues = self.queues
        return When(
            self.look,
            [(name, GROUP) for one in queues for name in one.core.names.streams],
            (GROUP, self._consumer, *[one.core.names.name for one in queues]),
            claims_dead=True,
        )

    @property
    def _environment(self) -> Environment:
        return self.queues[0].store._environment

    def work(
        self, txn: Transaction[Any], ended: Step | None = None
    ) -> list[tuple[Queue, taking.Taken]]:
        """Take jobs of the queues, which take turns to be the first.

        Args:
            ended: of the job that ended earlier in this transaction.
        """
        found: list[tuple[Queue, taking.Taken]] = []
        self._deaths = {}
        turn = self.queues[0].core.next_turn()
        first = turn % len(self.queues)
        for queue in self.queues[first:] + self.queues[:first]:
            room = self._count - len(found)
            if room <= 0:
                break
            if ended is not None and ended.names is queue.core.names:
                step = ended
            else:
                step = Step(txn.as_bytes(), queue.core.names)
            known = None if self._known is None else self._known[queue.name]
            wanted = taking.Taking(
                self._consumer,
                queue.store._lease(),
                room,
                known,
                turn // len(self.queues),
                queue.core.policy_of,
            )
            taken = taking.take(step, wanted)
            found += [(queue, one) for one in taken]
            self._deaths.update(step.deaths)
            queue.core.ended_entries.delete(step, idle=not taken)
            step.save()
        return found

    def after(self, job: Job, result: Any) -> list[Job]:
        """End a job with its result, and take others, in one transaction.

        Raises:
            JobLostError, PayloadError: as `Job.done`; nothing was changed.
        """
        end = plan_end(job.queue.core, [job], [result])
        try:
            found = self.queues[0].core.apply(lambda txn: self.work(txn, end(txn)), frees=True)
        except CommandError:  # perhaps of the take: a stream was deleted
            job.done(result)
            return []
        note_ended(job.queue.core, [job])
        return self.jobs(found)

    def look(self, snapshot: Snapshot[Any]) -> int:
        """Return in how many milliseconds `work` may find something; -1 for after a commit."""
        reader = snapshot.as_bytes()
        least = -1
        for queue in self.queues:
            if queue.core.ended_entries.are_there():
                return 0  # `work` deletes them
            known = None if self._known is None else self._known[queue.name]
            pause = taking.pause(reader, queue.core.names, known)
            if pause == 0:
                return 0
            if pause > 0:
                least = pause if least < 0 else min(least, pause)
        return least

    def set_up(self, *, again: bool = False) -> None:
        """Make the streams of the queues.

        Args:
            again: a stream or its group was deleted.
        """
        for queue in self.queues:
            if again:
                queue.core.set_up_again()
            else:
                queue.core.set_up()

    def jobs(self, found: list[Any]) -> list[Job]:
        """Return the jobs that `work` took, after its transaction."""
        jobs = [job_of(queue, taken) for queue, taken in found]
        if self._deaths:
            self._environment.leases.forget_work(self._deaths)
        if self._begins and jobs:
            begin_all(jobs)
        return jobs


def known_tasks(queues: Sequence[Queue]) -> dict[str, Collection[bytes]]:
    """Return the names of the tasks of each queue."""
    return {one.name: one.core.known_tasks() for one in queues}


def take(
    queues: Sequence[Queue],
    consumer: bytes,
    count: int,
    *,
    timeout: Duration | None = None,
    known: dict[str, Collection[bytes]] | None = None,
    stop: Callable[[], bool] | None = None,
    begins: bool = True,
) -> list[Job]:
    """Take jobs of several queues of one store; sleep until there is one.

    Args:
        consumer: the consumer that they are pending with; `Queue.consumer`.
        count: the most that are taken.
        timeout: seconds, or a text; None for no limit, 0 for no wait.
        known: the names of the tasks that the worker has, by queue (`known_tasks`); jobs of other
            tasks stay pending for other workers. None takes every job.
        stop: asked before each sleep, and once a second; True ends the wait.
        begins: the death of this process counts for all of the jobs from now on. False if the
            caller begins each when its handler does (`Job.begin`).
    """
    call = Take(queues, consumer, count, known, begins=begins)
    call.set_up()
    wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
    queue = queues[0]
    again = False
    while True:
        try:
            if wait_ms == 0:
                return call.jobs(queue.core.apply(call.work, sync=UNSYNCED))
            found = queue.store.apply_when(
                call.work, call.when, block=wait_ms or 0, stop=stop, sync=UNSYNCED
            )
            return call.jobs(found)
        except CommandError:  # a stream or its group was deleted
            if again:
                raise
            again = True
            call.set_up(again=True)


def run_until_idle(queue: Queue, limit: int) -> int:
    """Run the jobs that are due, in this thread; return their number."""
    import asyncio

    ran = 0
    while ran < limit:
        jobs = take([queue], queue.consumer, 1, timeout=0, known=known_tasks([queue]))
        if not jobs:
            break
        task = queue.core.task_of(jobs[0])
        if task is not None and task.is_async:
            outcome = asyncio.run(queue.core.aexecute(jobs[0]))
        else:
            outcome = queue.core.execute(jobs[0])
        if outcome.error is not None and outcome.state in (RETRYING, DEAD):
            log_failure(jobs[0], outcome.error, outcome.state)
        ran += 1
    return ran
