"""One call that takes jobs: what it runs in a transaction, what follows it, and how it waits.

A worker that waits sleeps until a job comes into a stream, until the next time of the schedule, or
until a worker dies. The kernel and the commits of other processes wake it; nothing is polled.

Compiled by mypyc, since each job needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.api.work import When
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError, CommandError, StoreFullError
from streamkeep.jobs.ending import remove_expired
from streamkeep.jobs.errors import JobLostError
from streamkeep.jobs.handler_errors import return_job
from streamkeep.jobs.job import Job
from streamkeep.jobs.job_calls import begin_all, end_jobs, note_ended, plan_end
from streamkeep.jobs.layout import GROUP
from streamkeep.jobs.state import Step, job_id_of
from streamkeep.jobs.taking import Taken, Taking, due_in, take_in

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment
    from streamkeep.engine.txn.txn import WriteTxn
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
        self.queues = list(queues)
        environments = {queue.core.store._environment for queue in self.queues}
        if len(environments) != 1:
            raise ArgumentError("one or more queues of one store are needed")
        self._environment: Environment = environments.pop()
        self._begins = begins
        self._txn: WriteTxn | None = None  # of the newest attempt
        self._deaths: dict[bytes, int] = {}  # of workers, that this attempt has counted
        self._consumer = consumer
        self._count = count
        self._known = known

    def when(self) -> When:
        """Return when `work` may find something."""
        queues = self.queues
        return When(
            self.look,
            [(name, GROUP) for one in queues for name in one.core.names.streams],
            (GROUP, self._consumer, *[one.core.names.name for one in queues]),
            claims_dead=True,
        )

    def work(self, txn: Transaction[Any], ended: Step | None = None) -> list[tuple[Queue, Taken]]:
        """Take jobs of the queues, which take turns to be the first.

        Args:
            ended: of the job that ended earlier in this transaction.
        """
        self._forget_counted()
        self._txn = txn.txn
        self._txn.takes = True
        self.goes_on = False  # see `Step.looked_at`
        found: list[tuple[Queue, Taken]] = []
        turn = next(self.queues[0].core.turns)
        first = turn % len(self.queues)
        queues = self.queues[first:] + self.queues[:first] if first else self.queues
        for queue in queues:
            room = self._count - len(found)
            if room <= 0:
                break
            if ended is not None and ended.names is queue.core.names:
                step = ended
            else:
                step = Step(txn.as_bytes(), queue.core.names)
            known = None if self._known is None else self._known[queue.name]
            wanted = Taking(
                self._consumer,
                queue.core.store._lease(),
                room,
                known,
                turn // len(self.queues),
                queue.core.policy_of,
            )
            taken = take_in(step, wanted)
            found += [(queue, one) for one in taken]
            self._deaths.update(step.deaths)
            self.goes_on |= step.looked_at > 0
            queue.core.ended_entries.delete(step, idle=not taken)
            if not taken:
                remove_expired(step)
            step.save()
        return found

    def after(self, job: Job, result: Any, sync: Sync | None = None) -> list[Job]:
        """End a job with its result, and take others, in one transaction, as a worker does.

        Args:
            sync: a sync mode for it, instead of that of the store.

        Raises:
            JobLostError, PayloadError: as `Job.done`; nothing was changed.
        """
        core = job.queue.core
        end = plan_end(core, [job], [result])
        store = core.store
        inside = store.open_transaction() is not None
        try:
            found = core.apply(lambda txn: self.work(txn, end(txn)), frees=True, sync="none")
        except JobLostError:
            raise
        except Exception:  # perhaps of the take: a stream was deleted, or is damaged
            if inside:  # which is undone, with all that the job has done in it
                raise
            end_jobs(core, [job], [result], sync=sync)
            return []
        note_ended(core, [job])
        taken = self.jobs(found)
        if not inside and store._waits(sync):
            try:
                store._environment.sync()
            except BaseException:
                for one in taken:  # nobody else could: this process lives
                    return_job(one)
                raise
        return taken

    def look(self, snapshot: Snapshot[Any]) -> int:
        """Return in how many milliseconds `work` may find something; -1 for after a commit."""
        reader = snapshot.as_bytes()
        least = -1
        for queue in self.queues:
            if queue.core.ended_entries.are_there():
                return 0  # `work` deletes them
            known = None if self._known is None else self._known[queue.name]
            left = due_in(reader, queue.core.names, known)
            if left == 0:
                return 0
            if left > 0:
                least = left if least < 0 else min(least, left)
        return least

    def set_up(self, *, again: bool = False) -> None:
        """Make the streams of the queues; `again` if a stream or its group was deleted."""
        for queue in self.queues:
            queue.core.set_up_again() if again else queue.core.set_up()

    def wait(self, wait_ms: int | None, stop: Callable[[], bool] | None) -> list[Job]:
        """Run `work` until it finds something, or the time is over: None for no limit."""
        core, block = self.queues[0].core, wait_ms or 0
        try:
            if wait_ms == 0:
                while not (found := core.apply(self.work, sync=UNSYNCED)) and self.goes_on:
                    pass
            else:
                found = core.store.apply_when(
                    self.work, self.when(), block=block, stop=stop, sync=UNSYNCED
                )
        except StoreFullError:
            self.make_room()
            raise
        return self.jobs(found)

    def make_room(self) -> None:
        """Remove results that have expired: no end of a job does so while none can be taken."""
        for queue in self.queues:
            queue.core.step(remove_expired, frees=True)

    def jobs(self, found: list[Any]) -> list[Job]:
        jobs = [Job(queue, job_id_of(one.place, one.fields), one) for queue, one in found]
        self._forget_counted()
        if self._begins and jobs:
            begin_all(jobs)
        return jobs

    def _forget_counted(self) -> None:
        """Remove the marks of the deaths that the newest attempt has counted, if it was committed.

        An attempt may be undone, such as for the command of another caller that shared its
        transaction. The next one may take other jobs, and the deaths would count for none.
        """
        deaths, self._deaths = self._deaths, {}
        txn = self._txn
        if deaths and txn is not None and txn.committed:
            self._environment.leases.forget_work(deaths)


def known_tasks(queues: Sequence[Queue]) -> dict[str, Collection[bytes]]:
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
    try:
        return call.wait(wait_ms, stop)
    except CommandError:  # a stream or its group was deleted
        call.set_up(again=True)
        return call.wait(wait_ms, stop)
