"""A program with the queue, checks, backups and files of streams, as users write it.

For type checkers, as `user_program.py`; it is never run.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamkeep
from streamkeep import Store, recovery, transfer
from streamkeep.integrations.asgi import EventStream
from streamkeep.jobs import (
    Attempt,
    Job,
    JobFailedError,
    JobLostError,
    JobState,
    JobTransaction,
    ListState,
    NoResultError,
    Queue,
    QueueDrainingError,
    QueueFullError,
    QueueStats,
    Retry,
    Task,
    Worker,
    current_job,
    queue_names,
)
from streamkeep.jobs.async_queue import AsyncQueue
from streamkeep.jobs.dead_letters import Letter
from streamkeep.jobs.outbox import Outbox

if TYPE_CHECKING:
    from typing import assert_type
else:

    def assert_type(value: object, kind: object) -> None:
        """Do nothing."""


queue = Queue("shop.store", "mail", retries=3, backoff="2s..10m", result_ttl="1d")


@queue.task
def add(left: int, right: int) -> int:
    return left + right


@queue.task(retries=5, retry_on=(OSError, TimeoutError), max_runtime="5m", concurrency=2)
def send(to: str, *, subject: str = "") -> str:
    job = current_job()
    assert_type(job, Job)
    if job.attempt > 2:
        raise Retry("10m", reason="the server is busy")
    with job.transaction as txn:
        assert_type(txn, JobTransaction)
        txn.xadd("sent", {"to": to, "subject": subject})
        send.options(unique=to, delay="1h").delay(to)
    job.extend("1m")
    return to


@queue.task
async def fetch(url: str) -> bytes:
    await asyncio.sleep(0)
    return url.encode()


@queue.periodic("0 3 * * *", tz="Europe/Berlin", missed="once")
def nightly() -> None:
    queue.put(b"\0", codec="bytes")


def puts() -> None:
    assert_type(add(1, 2), int)
    assert_type(add.delay(1, right=2), Job)
    job = send.options(key="ann", priority="high", at=datetime.now(UTC)).delay("ann", subject="x")
    assert_type(job.id, str)
    assert_type(job.is_new, bool)
    assert_type(job.state(), JobState)
    assert_type(job.history(), list[Attempt])
    assert_type(job.cancel(), bool)
    print(job.key, job.task, job.fields)
    assert_type((job.headers, job.priority, job.queued_ms), tuple[dict[str, str], str, int])
    assert_type(queue.put({"n": 1}, retries=2, headers={"from": "me"}), Job)
    assert_type(queue.put_many([1, 2], expires="1h"), list[Job])
    try:
        print(job.result("5s"))
    except (NoResultError, JobFailedError, TimeoutError) as error:
        print(error)
    except (QueueFullError, QueueDrainingError):
        raise


def takes() -> None:
    with queue.get("10s") as job:
        payload: Any = job.payload
        job.set_result(payload)
    assert_type(job.ended, bool)
    jobs = queue.get_many(10, timeout=None)
    assert_type(jobs, list[Job])
    try:
        queue.done_many(jobs, results=[job.id for job in jobs])
    except JobLostError:
        for job in jobs:
            assert_type(job.lost(), bool)
    other = queue.get(after=jobs[0])
    other.begin()
    other.done({"n": 1})
    assert_type(other.retry("5s", reason="again"), bool)
    other.fail("wrong")
    other.give_back()
    other.postpone("1m")
    worker = Worker([queue], concurrency=4, mode="asyncio", grace="10s")
    worker.run()
    assert_type(worker.running, list[Job])
    worker.stop_once(now=True)
    worker.stop()
    assert_type(queue.run_until_idle(), int)


def control(store: Store[str]) -> None:
    queue.pause()
    queue.resume()
    assert_type(queue.drain("1m"), bool)
    assert_type(queue.purge(), int)
    queue.set_limits(max_length=1000)
    print(queue.settings())
    stats = queue.stats()
    assert_type(stats, QueueStats)
    assert_type(stats.waiting, int)
    letters = queue.dead_letters(count=5, reason="timeout", task="send")
    assert_type(letters, list[Letter])
    assert_type(letters[0].message, str)
    assert_type(letters[0].history[0].begun_ms, int)
    assert_type(queue.requeue(letters[0].id), int)
    assert_type(queue.drop_dead(task="send"), int)
    assert_type(queue.run_now("job-1"), bool)
    assert_type(queue.cancel("job-1"), bool)
    assert_type(queue.job("job-1"), Job)
    state: ListState = "done"
    assert_type(queue.jobs(state, 10)[0].ended_ms, int)
    assert_type([one.host for one in queue.workers()], list[str])
    assert_type([one.failed_attempts for one in queue.minutes(5)], list[int])
    queue.register_periodic()
    print([rule.name for rule in queue.schedules()])
    assert_type(queue.unschedule("nightly"), bool)
    assert_type(queue_names(store), list[str])
    assert_type(queue.store, Store[Any])
    queue.close()


def outbox(store: Store[bytes]) -> None:
    box = Outbox(
        sqlite3.connect("shop.db"), "outbox", store, put=lambda row: add.delay(row["n"], 1)
    )
    assert_type(box.forward(), int)


def double_it(number: int) -> int:
    return 2 * number


async def of_tasks() -> None:
    jobs = AsyncQueue(queue)
    job = await jobs.put({"n": 1}, delay="5s")
    assert_type(job.id, str)
    called = await jobs.delay(send, "ann", subject="x")
    plain = await send.adelay("ann", subject="x")
    assert_type(plain, Job)
    await plain.aresult("5s")
    assert_type(await plain.astate(), JobState)
    assert_type(await plain.acancel(), bool)
    assert_type(await queue.ajob(plain.id), Job)
    assert_type(await queue.aput({"n": 1}, key="k"), Job)
    print(await jobs.job(plain.id), jobs.task(double_it).name)
    assert_type(await called.state(), JobState)
    async with jobs.get("1s") as taken:
        taken.begin()
        await taken.extend("1m")
    assert_type(await jobs.stats(), QueueStats)
    letters = await jobs.dead_letters(reason="paper")
    assert_type(await jobs.requeue(*letters), int)
    assert_type(await jobs.drop_dead("1-1", task="send"), int)
    assert_type(await jobs.run_now(job.id), bool)
    assert_type(await jobs.purge(), int)
    assert_type((await jobs.jobs("parked"))[0].id, str)
    assert_type((await jobs.workers())[0].jobs, int)
    assert_type((await jobs.minutes())[0].done, int)
    assert_type([rule.name for rule in await jobs.schedules()], list[str])
    assert_type(await jobs.unschedule("nightly"), bool)
    assert_type((taken.task, taken.queued_ms, taken.headers), tuple[str, int, dict[str, str]])
    assert_type((taken.key, taken.priority), tuple[str | None, str])
    assert_type(await taken.lost(), bool)
    await taken.postpone("5m")
    await jobs.close()


def checks(path: Path) -> Iterator[str]:
    for finding in recovery.check(path):
        assert_type(finding, recovery.Finding)
        if finding.severity is not recovery.Severity.NOTE:
            yield f"{finding.code} {finding.where}: {finding.problem}"
    copy = path.with_suffix(".backup")
    assert_type(recovery.backup(path, copy), recovery.BackupReport)
    assert_type(recovery.compact(path), recovery.Compacted)
    assert_type(recovery.ship(path, "s3://bucket/orders"), recovery.ShipReport)
    assert_type(
        recovery.verify_copy("s3://bucket/orders").problems, tuple[streamkeep.CorruptionError, ...]
    )
    assert_type(recovery.restore_copy("s3://bucket/orders", copy), recovery.RestoreReport)
    with Store(path) as store, recovery.shipping(store, "copy"):
        store.ship_now("10s")
    with streamkeep.open(path) as one, streamkeep.open(copy) as other:
        for difference in transfer.diff(one, other):
            assert_type(difference, transfer.Difference)
            yield difference.kind


def files(store: Store[str]) -> None:
    dumped = transfer.dump(store, "orders.jsonl", format="jsonl", keys="orders")
    assert_type(dumped, transfer.DumpReport)
    assert_type(transfer.load(store, "orders.jsonl"), transfer.LoadReport)


events = EventStream("events.store", "orders", append=True)
task: Task[[int, int], int] = add
