"""The queue of a worker whose processes are killed."""

from __future__ import annotations

import time

from streamkeep.jobs import Queue, current_job

MOST_DEATHS = 1_000_000  # these workers die for no fault of the job


def make_queue(path: str, work_s: float) -> Queue:
    queue = Queue(path, backoff="1ms..5ms", max_deaths=MOST_DEATHS, sync="none")

    @queue.task
    def step(number: int) -> int:
        time.sleep(work_s)
        job = current_job()
        job.transaction.xadd("effects", {"number": number})
        if number % 50 == 0 and job.attempt == 1:
            raise ValueError("the first attempt of this one fails")
        return number

    return queue
