"""A program that forks workers of a queue, to be killed; see `fork_server`.

Each job adds its number to the stream `starts` when it begins, and to `effects` with its
acknowledgement. Some fail for a while, some for good, some put a follow-up.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork_server import serve
from streamkeep.jobs import Queue, Retry, Task, current_job, known_tasks, take


@dataclass
class Worker:
    """What a process does.

    Attributes:
        note: a file that it makes when it has begun.
        then: "hold": take one job and wait; "work": work until it is killed.
    """

    path: str
    note: str
    then: str


def has_follow_up(number: int) -> bool:
    return number % 10 == 9


def fails_for_good(number: int) -> bool:
    return number % 50 == 17


def declare(queue: Queue) -> Task[[int, str, int, int], int]:
    """Give a queue the task of these tests; return it."""

    @queue.task(retries=20, backoff="1ms..20ms", give_up_on=ValueError)
    def work(number: int, key: str, failures: int, due_ms: int) -> int:
        job = current_job()
        queue.store.xadd("starts", {"number": number, "due": due_ms})
        time.sleep(random.expovariate(200))
        with job.transaction as txn:
            txn.xadd("effects", {"number": number, "key": key})
            if has_follow_up(number):
                note.delay(number)
        if fails_for_good(number):
            raise ValueError("for good")
        if job.attempt <= failures:
            raise Retry if number % 2 else OSError
        return number

    @queue.task(key="follow-ups")
    def note(number: int) -> None:
        current_job().transaction.xadd("follow-ups", {"number": number})

    return work


def run(wanted: dict[str, Any]) -> None:
    worker = Worker(**wanted)
    queue = Queue(worker.path, sync="none", max_deaths=1000)
    declare(queue)
    logging.disable()
    if worker.then == "hold":
        queue.get(60)
    Path(worker.note).touch()
    while worker.then == "hold":
        signal.pause()
    while True:
        known = known_tasks([queue])
        for job in take([queue], queue.consumer, random.randint(1, 3), known=known):
            queue.execute(job)


if __name__ == "__main__":
    serve(run, lambda wanted: f"{wanted['note']}.errors")
