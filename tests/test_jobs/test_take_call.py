"""The end of a job in the transaction that takes the next one; retries that are due, or late."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from inside import checkpoint_now, context_of, journal_of
from patience import wait_until
from raw_store import raw_store
from stores import Open
from streamkeep import Store
from streamkeep.engine.system import files
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
    CorruptionError,
    StoreError,
    StoreFullError,
)
from streamkeep.format.core.keys import ROWS
from streamkeep.jobs import Job, JobLostError, Queue, QueueFullError, current_job, known_tasks, take
from streamkeep.jobs.layout import SETTINGS
from streamkeep.jobs.running import execute
from streamkeep.jobs.take_call import Take
from test_jobs.test_deaths import Lives


@pytest.fixture
def queues(store: Store[Any]) -> tuple[Queue, Queue]:
    """Two queues of a store; taking from the second one fails, since it lost its stream."""
    first, second = Queue(store, "first"), Queue(store, "second")
    second.put("due", delay=1)
    clock = context_of(store).clock
    assert isinstance(clock, ManualClock)
    clock.ms += 1000
    store.delete("second")
    return first, second


def after(*queues: Queue) -> Any:
    return Take(queues, queues[0].consumer, 1, None).after


def test_a_job_does_not_end_without_the_block_that_did_its_work(
    queues: tuple[Queue, Queue],
) -> None:
    first, second = queues
    first.put("work")
    job = first.get(0)
    with pytest.raises(StoreError, match="nothing of the transaction was written"):
        do_and_take(first.store, after(first, second), job)
    assert not first.store.exists("effects")
    assert job.state() == "running"
    job.done()


def do_and_take(store: Store[Any], take_after: Any, job: Job) -> None:
    """Do the work of a job in a block, which also ends it and takes the next one."""
    with store.transaction() as txn:
        txn.xadd("effects", {"of": "work"})
        with suppress(CommandError):
            take_after(job, None)


def test_a_job_ends_once_though_the_next_one_cannot_be_taken(queues: tuple[Queue, Queue]) -> None:
    first, second = queues
    marks = context_of(first.store).leases.marks  # type: ignore[union-attr]
    ended, following = first.put("x"), first.put("y", delay="1h")
    (job,) = first.get_many(1)
    assert marks().are_there()  # type: ignore[union-attr]
    put: list[Any] = []
    with job.transaction as txn:
        txn.xadd("effects", {"of": "x"})
        put.append(first.put("follow-up", delay="1h"))
    assert after(first, second)(job, "result") == []
    assert job.ended
    assert not marks().are_there()  # type: ignore[union-attr]
    assert ended.result(0) == "result"
    assert [entry.fields for entry in first.store.xrange("effects")] == [{b"of": b"x"}]
    assert [one.state() for one in (following, put[0])] == ["delayed", "delayed"]
    assert first.stats()[:5] == (0, 0, 2, 0, 1)
    assert second.stats().delayed == 1
    with pytest.raises(JobLostError):
        job.done()


def test_what_a_job_does_wrong_at_its_end_is_a_failed_attempt(queue: Queue) -> None:
    @queue.task(retries=0)
    def wrong() -> None:
        transaction = current_job().transaction
        transaction.xadd("effects", {"a": 1})
        transaction.xadd("effects", {"a": 1}, id="0-0")

    wrong.delay()
    waiting = queue.put("next")
    (job,) = queue.get_many(1)
    outcome = execute(job, partial(after(queue), job))
    assert outcome.state == "failed"
    assert isinstance(outcome.error, CommandError)
    assert (job.ended, waiting.state(), queue.store.exists("effects")) == (True, "waiting", 0)
    assert queue.stats()[:5] == (1, 0, 0, 1, 0)


def test_damage_where_the_next_job_is_makes_no_failed_attempt(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Queue(path, "first") as first, Queue(path, "second") as second:
        first.put("x")
        second.pause()
    with raw_store(path) as raw:
        (settings,) = raw.keys(ROWS, second.core.names.prefix + SETTINGS)
        raw.flip_bit(ROWS, settings)
    with Store(path) as store:
        first, second = Queue(store, "first"), Queue(store, "second")
        (job,) = first.get_many(1)
        with pytest.raises(CorruptionError):
            second.settings()
        assert after(first, second)(job, "result") == []
        assert first.job(job.id).result(0) == "result"


def test_a_job_that_was_lost_has_no_effect_and_takes_nothing(queue: Queue) -> None:
    queue.put("x")
    (job,) = queue.get_many(1)
    job.transaction.xadd("effects", {"a": 1})
    queue.store.xclaim("mails", "jobs", "other", 0, [job.id])
    waiting = queue.put("next")
    with pytest.raises(JobLostError):
        after(queue)(job, None)
    assert (waiting.state(), queue.store.exists("effects")) == ("waiting", 0)
    assert not context_of(queue.store).leases.marks().are_there()  # type: ignore[union-attr]


def test_get_ends_a_job_in_the_transaction_that_takes_the_next_one(queue: Queue) -> None:
    queue.put_many("ab", result_ttl="1h")
    first = queue.get(0)
    first.set_result("x")
    control = journal_of(queue.store).control
    before = control.newest()
    second = queue.get(0, after=first)
    assert (control.newest(), control.durable()) == (before + 1, before + 1)
    assert (first.ended, first.result(0), second.payload) == (True, "x", "b")
    marks = context_of(queue.store).leases.marks()  # type: ignore[union-attr]
    assert marks.are_there()  # type: ignore[union-attr]
    with pytest.raises(TimeoutError):
        queue.get(0, after=second)
    assert not marks.are_there()  # type: ignore[union-attr]
    assert queue.stats()[:3] == (0, 0, 0)
    with pytest.raises(JobLostError):
        queue.get(0, after=second)
    with pytest.raises(ArgumentError, match="of this queue"):
        queue.get(0, after=Queue(queue.store, "other").put(1))
    third = queue.put(3) and queue.get(0)
    with pytest.raises(ArgumentError, match="of this queue, not 5"):
        queue.get(0, after=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="timeout must be"):
        queue.get("soon", after=third)
    assert not third.ended


def test_a_job_that_was_taken_without_a_sync_is_given_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the one before is made, and the caller gets an error and no job."""
    queue.put_many("ab")
    first = queue.get(0)

    with monkeypatch.context() as patch:
        patch.setattr(
            files, "sync_data", Mock(side_effect=OSError(errno.EMFILE, "too many open files"))
        )
        with pytest.raises(StoreError, match="committed and cannot be synced"):
            queue.get(0, after=first)
        assert queue.stats().running == 0
    assert first.state() == "done"
    assert queue.get(0).payload == "b"


@pytest.mark.parametrize("why", ["no room", "paused"])
def test_due_retries_without_room_hold_up_nothing_else(
    queue: Queue, clock: ManualClock, why: str
) -> None:
    queue.put_many(range(450), retries=9)
    with queue.store.transaction():
        for job in queue.get_many(450):
            job.retry(after=1)
    hung = queue.put("hung", max_runtime="2s", retries=0)
    queue.put_many(["a", "b"], delay="3s")
    queue.get_many(1)
    if why == "paused":
        queue.pause()
    else:
        queue.set_limits(concurrency=1)
    clock.ms += 10_000
    for _ in range(5):  # each works off a bounded number of rows
        queue.get_many(1)
    stats = queue.stats()
    assert (stats.failed, stats.delayed - stats.retrying, stats.waiting) == (1, 0, 2)
    assert [one.job for one in queue.dead_letters()] == [hung.id]


def test_late_retries_run_first_and_in_their_order(queue: Queue, clock: ManualClock) -> None:
    queue.put_many(range(3), retries=9)
    first, second, third = queue.get_many(3)
    second.retry(after=1)
    first.retry(after=2)
    queue.put("new")
    queue.set_limits(concurrency=1)
    clock.ms += 5_000
    assert queue.get_many(9) == []
    assert [queue.job(one.id).state() for one in (first, second)] == ["delayed"] * 2
    assert queue.run_now(first.id)
    third.done()
    queue.set_limits(concurrency=0)
    assert [job.payload for job in queue.get_many(9)] == [1, 0, "new"]
    assert queue.stats().retrying == 0


def test_a_worker_sleeps_while_late_retries_wait_for_room(queue: Queue, clock: ManualClock) -> None:
    """They are no strays, of which one is there."""
    queue.put_many(range(2), retries=9)
    one, other = queue.get_many(2)
    one.retry(after=1)
    queue.set_limits(concurrency=1)
    clock.ms += 2_000
    assert queue.get_many(1) == []
    call = Take([queue], queue.consumer, 1, None)
    assert queue.core.read(call.look) == -1
    queue.store.xadd("mails", {"payload": "3"})
    (stray,) = queue.store.xreadgroup("jobs", "tool", {"mails": ">"})[0][1]
    queue.store.xnack("mails", "jobs", "FAIL", stray.id)
    again = Queue(queue.store, "mails")
    assert again.get_many(1) == []
    assert again.stats().retrying == 2
    other.done()
    assert queue.core.read(call.look) == 0


def test_a_purge_removes_jobs_that_one_that_runs_holds(queue: Queue, clock: ManualClock) -> None:
    queue.put("dead")
    queue.get(0).fail("no paper")
    queue.put_many(range(250), key="one")
    (running,) = queue.get_many(1)
    queue.put_many(range(3), key="one", delay="1h")
    queue.put_many(range(2100), retries=9)
    with queue.store.transaction():
        for job in queue.get_many(2100):
            job.retry(after=1)
    queue.put("low", priority="low")
    queue.put("delayed", delay="2h")
    assert queue.purge() == 254
    stats = queue.stats()
    assert (stats.waiting, stats.held, stats.running, stats.cancelled) == (0, 0, 1, 254)
    assert stats.delayed == stats.retrying == 2100
    assert (stats.failed, stats.workers) == (1, 1)
    running.done()
    queue.put("again", key="one")
    assert "again" in [job.payload for job in queue.get_many(1)]


def test_parked_jobs_without_an_attempt_are_purged_and_cancelled(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives(queue.store, monkeypatch)

    def old(number: int) -> None: ...

    task = queue.task(old)
    jobs = [task.delay(number) for number in range(4)]
    (begun,) = queue.get_many(1)
    begun.retry(after=0)
    assert len(queue.get_many(9)) == 4
    lives.die()
    del queue.core.tasks[b"old"]
    assert take([queue], queue.consumer, 9, timeout=0, known=known_tasks([queue])) == []
    parked = queue.jobs("parked")
    assert parked == queue.jobs("waiting")
    shown = [(one.id, one.attempts, len(one.history)) for one in parked[:2]]
    assert shown == [(jobs[0].id, 1, 2), (jobs[1].id, 0, 1)]
    assert jobs[1].cancel()
    assert not jobs[0].cancel()
    assert queue.purge() == 2
    stats = queue.stats()
    assert (stats.parked, stats.waiting, stats.cancelled) == (1, 1, 3)
    assert jobs[0].state() == "waiting"
    queue.set_limits(max_length=1)
    with pytest.raises(QueueFullError, match="1 job waits"):
        queue.put("more")


@pytest.mark.parametrize("ending", [":high", ":low", ":dead"])
def test_no_queue_is_called_as_a_stream_of_another(queue: Queue, ending: str) -> None:
    with pytest.raises(ArgumentError, match="the queue 'mails' has a stream of that name; next"):
        Queue(queue.store, f"mails{ending}")
    assert Queue(queue.store, f"mails{ending}s").name == f"mails{ending}s"


def test_a_store_that_is_full_of_jobs_gets_empty_again(open_store: Open) -> None:
    store = open_store(sync="none", max_store_bytes=1 << 20)
    queue = Queue(store, "q", result_ttl="1m")

    def fill(size: int) -> int:
        count = 0
        with suppress(StoreFullError):
            while True:
                queue.put("x" * size)
                count += 1
        return count

    count = fill(3000)
    for _ in range(count):
        queue.get(0).done("y")
    assert (queue.stats().done, queue.stats().waiting) == (count, 0)
    # Results that are larger than jobs fill it up. When they have expired, it goes on.
    clock = context_of(store).clock
    assert isinstance(clock, ManualClock)
    clock.ms += 60_001
    assert take([queue], queue.consumer, 1, timeout=0) == []
    fill(500)
    takes = partial(queue.get, 0), lambda: asyncio.run(queue.core.aio.get_many(1))
    for refused in takes:
        with pytest.raises(StoreFullError):
            while True:
                queue.get(0).done("y" * 2000)
        clock.ms += 60_001
        with pytest.raises(StoreFullError):
            refused()
        queue.get(0).done()


def test_a_store_full_of_jobs_and_results_can_be_emptied(open_store: Open) -> None:
    """Flushes of what is deleted need room in the map, also beyond what the takes have filled."""
    store = open_store(sync="none", max_store_bytes=8 << 20)
    queue = Queue(store, "q")
    with pytest.raises(StoreFullError):
        while True:
            queue.put_many([os.urandom(100).hex() for _ in range(50)])
    with pytest.raises(StoreFullError):
        while True:
            queue.get(0).done(os.urandom(2000).hex())
    store.delete("q")

    def has_room() -> bool:
        checkpoint_now(store)
        with suppress(StoreFullError):
            return bool(store.xadd("s", {"n": 1}))
        return False

    wait_until(has_room)
