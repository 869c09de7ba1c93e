"""Many jobs that wait, for room, their time or another job: taken, counted, removed."""

from __future__ import annotations

import pytest

from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import Queue, QueueFullError, known_tasks, take
from streamkeep.jobs.take_call import Take

# --- many retries at a time ---------------------------------------------------------------------


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
    queue.put_many(range(2), retries=9)
    one, other = queue.get_many(2)
    one.retry(after=1)
    queue.set_limits(concurrency=1)
    clock.ms += 2_000
    assert queue.get_many(1) == []
    call = Take([queue], queue.consumer, 1, None)
    assert queue.core.read(call.look) == -1
    other.done()
    assert queue.core.read(call.look) == 0


def test_a_late_retry_is_no_stray(queue: Queue, clock: ManualClock) -> None:
    queue.put_many(range(2), retries=9)
    one, _ = queue.get_many(2)
    one.retry(after=1)
    queue.set_limits(concurrency=1)
    clock.ms += 2_000
    assert queue.get_many(1) == []
    queue.store.xadd("mails", {"payload": "3"})
    (stray,) = queue.store.xreadgroup("jobs", "tool", {"mails": ">"})[0][1]
    queue.store.xnack("mails", "jobs", "FAIL", stray.id)
    other = Queue(queue.store, "mails")
    assert other.get_many(1) == []
    assert other.stats().retrying == 2


# --- what was not begun -------------------------------------------------------------------------


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
    assert stats.failed == 1
    running.done()
    queue.put("again", key="one")
    assert "again" in [job.payload for job in queue.get_many(1)]


def test_parked_jobs_that_no_worker_began_are_purged_and_cancelled(queue: Queue) -> None:
    def old(number: int) -> None: ...

    task = queue.task(old)
    jobs = [task.delay(number) for number in range(4)]
    (begun,) = queue.get_many(1)
    begun.retry(after=0)
    del queue.core.tasks["old"]
    assert take([queue], queue.consumer, 9, timeout=0, known=known_tasks([queue])) == []
    assert [job.state() for job in jobs] == ["waiting"] * 4
    assert jobs[1].cancel()
    assert not jobs[0].cancel()
    assert queue.purge() == 2
    stats = queue.stats()
    assert (stats.parked, stats.waiting, stats.cancelled) == (1, 1, 3)
    assert jobs[0].state() == "waiting"


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [":high", ":low", ":dead"])
def test_no_queue_is_called_as_a_stream_of_another(queue: Queue, ending: str) -> None:
    with pytest.raises(ArgumentError, match="the queue 'mails' has a stream of that name; next"):
        Queue(queue.store, f"mails{ending}")
    assert Queue(queue.store, f"mails{ending}s").name == f"mails{ending}s"


# --- what waits, counted ------------------------------------------------------------------------


def test_jobs_that_wait_are_counted_after_one_was_cancelled(queue: Queue) -> None:
    jobs = queue.put_many(range(950))
    taken = queue.get_many(300)
    queue.done_many(taken[:200])
    assert [jobs[number].cancel() for number in (500, 700, 949)] == [True] * 3
    assert queue.stats().waiting == 647
    queue.set_limits(max_length=648)
    queue.put("fits")
    with pytest.raises(QueueFullError, match="648 jobs wait"):
        queue.put("too many")


def test_letters_are_named_by_themselves_or_by_their_ids(queue: Queue) -> None:
    queue.put_many(range(5))
    for job in queue.get_many(5):
        job.fail("no paper")
    first, second, third, *_ = queue.dead_letters()
    assert queue.requeue(first, second.job, third.id, task="another") == 0
    assert queue.requeue(first, second.job) == 2
    assert queue.drop_dead(third.id, first) == 1
    assert queue.drop_dead() == 2
    assert queue.stats().failed == 0
