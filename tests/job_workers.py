"""A program that forks workers and producers of a queue, to be killed; see `fork_server`.

Each job adds its number to the stream `starts` when it begins, and to `effects` with its
acknowledgement. Some fail for a while, some for good, some put a follow-up. A producer notes each
number before and after its put.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork_server import serve
from streamkeep.jobs import Queue, Retry, Task, current_job, known_tasks, take
from streamkeep.jobs.running import execute

MOST_WAITING = 200  # jobs, for which a producer waits


@dataclass
class Worker:
    """What a process does.

    Attributes:
        note: a file that it makes when it has begun.
        then: "hold": take one job and wait; "work": work until it is killed; "put": put jobs until
            it is killed; "batch": take three jobs, and begin one after the other; the payload
            "poison" kills it; "pause": pause the queue, put a delayed job and end.
        first: the first number of a producer.
    """

    path: str
    note: str
    then: str
    first: int = 0


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


def put_jobs(queue: Queue, worker: Worker) -> None:
    """Put one job after the other, and note "? number" before each and "! number" after it."""
    work = declare(queue)
    rng = random.Random(worker.first)
    keys = ["", "", *[f"{worker.first}-{number}" for number in range(3)]]
    number = worker.first
    with Path(worker.note).open("a", buffering=1) as note:
        while True:
            key = rng.choice(keys)
            delay_s = rng.choice([0, 0, 0, rng.random() * 2]) if not key else 0
            due_ms = time.time_ns() // 1_000_000 + round(delay_s * 1000)
            options = work.options(
                key=key or None,
                delay=delay_s or None,
                priority=rng.choice(["high", "normal", "low"]) if not key else None,
            )
            note.write(f"? {number}\n")
            options.delay(number, key, rng.choice([0, 0, 0, 1, 2]), due_ms)
            note.write(f"! {number}\n")
            number += 1
            while number % 50 == 0 and queue.stats().waiting > MOST_WAITING:
                time.sleep(0.01)


def run(wanted: dict[str, Any]) -> None:
    worker = Worker(**wanted)
    queue = Queue(worker.path, sync="none", max_deaths=1000)
    declare(queue)
    logging.disable()
    if worker.then == "put":
        put_jobs(queue, worker)
    if worker.then == "pause":
        queue.pause()
        queue.put("later", delay=0.001)
        return
    if worker.then == "batch":
        for job in queue.get_many(3):
            with job:
                if job.payload == "poison":
                    os.kill(os.getpid(), signal.SIGKILL)
    if worker.then == "hold":
        queue.get(60)
    Path(worker.note).touch()
    while worker.then == "hold":
        signal.pause()
    while True:
        known = known_tasks([queue])
        for job in take([queue], queue.consumer, random.randint(1, 3), known=known):
            execute(job)


if __name__ == "__main__":
    serve(run, lambda wanted: f"{wanted['note']}.errors")
