"""On which jobs this process works, so that its death counts for them; see `Job.begin`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job


class Batch:
    """The jobs that one call has taken, of which none was begun yet."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()

    def begin(self, job: Job) -> None:
        """Note, when the first of them is begun, that this process works on none of the others."""
        with self._lock:
            jobs, self._jobs = self._jobs, []
            for one in jobs:
                if one is not job:
                    one._leave()


def begin_all(jobs: list[Job]) -> None:
    """Note that this process works on the jobs that one call has taken."""
    store = jobs[0].queue.core.opened
    marks = None if store is None else store._environment.leases.marks()
    if marks is None:  # there are no leases, or no room for marks, or the store was closed
        return
    for job in jobs:
        taken = job.taken
        if taken is not None:
            mark = job.queue.core.names.mark_of(taken.place, taken.deliveries)
            job._marks.append((marks, marks.add(mark)))
    if len(jobs) > 1:
        batch = Batch(jobs)
        for job in jobs:
            job._batch = batch
