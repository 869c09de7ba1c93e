"""Taking jobs, with a wait: one call for one queue or several of a store.

A worker that waits sleeps until a job comes into a stream, until the next time of the schedule, or
until a worker dies. The kernel and the commits of other processes wake it; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from streamkeep.engine.api.views import Sync
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import CommandError
from streamkeep.jobs.job import Job
from streamkeep.jobs.take_call import Take

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue


# A power loss after a take makes the job wait again, as if it had not been taken. That is right: it
# has not ended. The end of a job is synced, and every commit before it is on disk then.
UNSYNCED: Final[Sync] = "none"


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
    queue = queues[0]

    def taken() -> list[Job]:
        if wait_ms == 0:
            while not (now := queue.core.apply(call.work, sync=UNSYNCED)) and call.goes_on:
                pass
            return call.jobs(now)
        when = call.when()
        found = queue.store.apply_when(
            call.work, when, block=wait_ms or 0, stop=stop, sync=UNSYNCED
        )
        return call.jobs(found)

    try:
        return taken()
    except CommandError:  # a stream or its group was deleted
        call.set_up(again=True)
        return taken()
