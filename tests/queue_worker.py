"""A program that forks workers of a queue, which are killed; see `fork_server`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fork_server import serve
from streamkeep.jobs import Queue, Worker, current_job

MOST_DEATHS = 1_000_000  # these workers die for no fault of the job


@dataclass
class Wanted:
    """What a worker does: which queue, and for how long each job takes."""

    path: str
    work_s: float
    errors: str


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


def work(wanted: dict[str, Any]) -> None:
    asked = Wanted(**wanted)
    Worker(make_queue(asked.path, asked.work_s)).run()


if __name__ == "__main__":
    serve(work, lambda wanted: str(wanted["errors"]))
