"""Delays, keys, unique names, priorities, limits: how jobs come into a queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import job_workers
from fork_server import forking
from job_workers import Worker
from patience import PATIENCE_S, thread_of, wait_until
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import (
    JobCancelledError,
    JobFailedError,
    Queue,
    QueueDrainingError,
    QueueFullError,
)
from streamkeep.jobs.take_call import Take
from test_jobs.conftest import is_awaited
from test_jobs.test_queue import counts, letters


def payloads(queue: Queue, count: int = 99) -> list[Any]:
    return [job.payload for job in queue.get_many(count)]


def test_jobs_start_in_the_order_of_their_times_and_none_before(
    queue: Queue, clock: ManualClock
) -> None:
    at = datetime.fromtimestamp(clock.ms / 1000, UTC)
    for seconds in (3, 1, 2):
        queue.put(seconds, delay=seconds)
    queue.put(1.5, at=at + timedelta(seconds=1.5))
    queue.put(0, at=at - timedelta(days=1))
    assert (payloads(queue), counts(queue)) == ([0], (0, 1, 4, 0, 0))
    for ms, due in ((999, []), (1000, [1]), (1499, []), (3000, [1.5, 2, 3])):
        clock.ms = round(at.timestamp() * 1000) + ms
        assert payloads(queue) == due


def test_many_jobs_come_in_bounded_steps(queue: Queue, clock: ManualClock) -> None:
    queue.put_many(range(450), delay="1s")
    clock.ms += 1000
    assert (payloads(queue, 1), queue.stats().delayed) == ([0], 250)
    assert payloads(queue, 999) + payloads(queue, 999) == list(range(1, 450))
    queue.put_many(range(450), expires="1m")
    queue.put("good")
    clock.ms += 60_001
    work = Take([queue], queue.consumer, 1, None).work
    assert (queue.core.apply(work), queue.stats().failed) == ([], 200)
    assert (queue.get(0).payload, queue.stats().failed) == ("good", 450)
    queue.put_many(range(3), expires="1m")
    queue.put("last")
    for job in queue.get_many(4):
        job.postpone(1)
    queue.pause()
    clock.ms += 60_001
    assert payloads(queue) == []  # they leave the schedule, and find no room
    queue.resume()
    assert payloads(queue, 1) == ["last"]


def test_a_sleeping_worker_wakes_for_what_is_due(tmp_path: Any) -> None:
    with Queue(tmp_path / "store", sync="none") as queue:
        queue.put("later", delay=0.05)
        assert queue.get(timeout=PATIENCE_S).payload == "later"
        found: list[Any] = []
        thread = thread_of(lambda: found.append(queue.get().payload))
        wait_until(lambda: is_awaited(queue))
        queue.put("soon", delay=0.01)
        thread.join()
        assert found == ["soon"]


KINDS = ["delayed", "held", "waiting", "running", "retrying", "postponed", "late"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_cancelled_unless_it_has_started(
    queue: Queue, clock: ManualClock, kind: str
) -> None:
    """One that was postponed only waits, also after an attempt that failed."""
    options: dict[str, dict[str, Any]] = {"delayed": {"delay": 5}, "held": {"key": "k"}}
    if kind == "held":
        queue.put("first", key="k")
    job = queue.put("x", unique="u", **options.get(kind, {}))
    if kind in KINDS[3:]:
        taken = queue.get(0)
        if kind != "running":
            taken.retry(after=0)
        if kind in ("postponed", "late"):
            queue.get(0).postpone(5)
    if kind == "late":  # due, and without room
        queue.set_limits(concurrency=1)
        queue.put("runs", priority="high")
        queue.get(0)
        clock.ms += 5000
        assert queue.get_many(1) == []
    states = dict(held="waiting", retrying="delayed", postponed="delayed", late="delayed")
    assert job.state() == states.get(kind, kind)
    if kind == "postponed":
        assert queue.run_now(job.id)
    assert (job.cancel(), job.cancel()) == (kind not in ("running", "retrying"), False)
    if kind in ("running", "retrying"):
        return
    queue.set_limits(concurrency=0)
    with pytest.raises(JobCancelledError):
        job.result(0)
    assert queue.put("again", unique="u").is_new
    assert queue.stats().cancelled == 1
    assert sorted(payloads(queue)) == (["again", "first"] if kind == "held" else ["again"])
    left = queue.store.row_range("jobs:mails")
    assert not [key for key, _ in left if key[:1] in b"jsh"]


@pytest.mark.slow
def test_a_hundred_thousand_jobs_of_one_key_do_not_slow_the_others(queue: Queue) -> None:
    for _ in range(100):
        queue.put_many(range(1000), key="k")
    queue.put_many("abc")
    assert payloads(queue, 4) == [0, "a", "b", "c"]
    assert queue.stats().held == 99_999
    assert queue.store.xlen("mails") == 4


def test_higher_priorities_go_first_and_lower_ones_are_not_starved(queue: Queue) -> None:
    for number in range(20):
        for priority in ("low", "normal", "high"):
            queue.put(f"{priority}{number}", priority=priority)
    order = [payloads(queue, 1)[0] for _ in range(16)]
    assert [one[:-1] if one[-2].isalpha() else one[:-2] for one in order].count("high") == 12
    assert {"normal0", "normal1", "low0", "low1"} <= set(order)
    assert order[0] == "high0"


def test_a_full_queue_refuses_jobs(queue: Queue) -> None:
    queue.set_limits(max_length=2)
    queue.put_many([1, 2])
    with pytest.raises(QueueFullError, match="2 jobs wait, the limit is 2; next"):
        queue.put(3)
    with pytest.raises(QueueFullError):
        queue.put_many([3, 4])
    with pytest.raises(QueueFullError), queue.store.transaction():
        queue.put(3)
    assert counts(queue) == (2, 0, 0, 0, 0)
    job = queue.get(0)
    assert job.payload == 1
    queue.put(3)
    assert counts(queue) == (2, 1, 0, 0, 0)
    assert queue.set_limits(max_length=0).max_length == 0
    queue.put(4)


def test_a_handler_fills_no_queue_of_another_store(queue: Queue, tmp_path: Path) -> None:
    with Queue(tmp_path / "other", queue.name, sync="none") as other:
        other.set_limits(max_length=1)
        queue.task(retries=0, name="fill")(lambda: other.put_many("ab")).delay()
        queue.run_until_idle()
        assert (queue.stats().failed, other.stats().waiting) == (1, 0)


def test_a_job_that_expired_does_not_run(queue: Queue, clock: ManualClock) -> None:
    expired = queue.put(1, expires="1m", key="k", result_ttl="1d")
    queue.put(2, expires="1h", delay="30m", key="k")
    clock.ms += 60_001
    assert payloads(queue) == []
    clock.ms += 1_800_000
    (second,) = queue.get_many(9)
    assert [one["reason"] for one in letters(queue)] == ["it expired before it ran"]
    assert second.retry(after="2h")
    clock.ms += 7_200_000
    with pytest.raises(JobFailedError, match="it expired before it ran"):
        expired.result(0)
    assert payloads(queue) == [2]  # it has begun in time


@pytest.mark.parametrize("held", [False, True])
def test_a_job_that_expired_has_its_unique_name_no_more(
    queue: Queue, clock: ManualClock, held: bool
) -> None:
    queue.put("first", key="k")
    first = queue.get(0)
    queue.put("old", unique="u", expires="1m", key="k" if held else None)
    clock.ms += 60_001
    new = queue.put("new", unique="u", delay="1m")
    assert new.is_new
    first.done()
    assert payloads(queue) == []
    assert [one["reason"] for one in letters(queue)] == ["it expired before it ran"]
    assert queue.put("again", unique="u").id == new.id
    clock.ms += 60_000
    assert payloads(queue) == ["new"]


def test_a_paused_queue_gives_no_jobs(queue: Queue, clock: ManualClock) -> None:
    queue.put(1)
    queue.put(2, delay=1)
    queue.pause()
    clock.ms += 1000
    assert (payloads(queue), queue.stats().paused) == ([], True)
    found: list[Any] = []
    thread = thread_of(lambda: found.append(queue.get().payload))
    wait_until(lambda: is_awaited(queue))
    queue.resume()
    thread.join()
    assert found + payloads(queue) == [1, 2]


@pytest.mark.parametrize("end", ["done", "cancel", "purge"])
def test_a_draining_queue_takes_no_jobs_and_says_when_it_is_empty(queue: Queue, end: str) -> None:
    job = queue.put(1)
    assert not queue.drain(0)
    with pytest.raises(QueueDrainingError, match="resume it"):
        queue.put(2)
    found: list[bool] = []
    thread = thread_of(lambda: found.append(queue.drain()))
    wait_until(lambda: is_awaited(queue, queue.core.names.end_bell))
    {"done": lambda: queue.get(0).done(), "cancel": job.cancel, "purge": queue.purge}[end]()
    thread.join()
    assert found == [True]
    queue.resume()
    queue.put(2)


def test_what_another_process_has_set_holds_at_once(tmp_path: Path) -> None:
    """A process remembers settings and the next time of the schedule until another one commits."""
    path = tmp_path / "store"
    with Queue(path, sync="none") as queue, forking(job_workers.__name__) as server:
        queue.put_many("ab")
        queue.get(0).done()
        worker = server.fork(Worker(str(path), str(tmp_path / "note"), "pause"))
        assert server.wait(worker) == 0
        assert queue.get_many(9) == []
        queue.resume()
        found: list[Any] = []

        def all_came() -> bool:
            found.extend(job.payload for job in queue.get_many(9))
            return len(found) > 1

        wait_until(all_came)
        assert found == ["b", "later"]


def test_an_entry_of_another_program_waits_for_its_key(queue: Queue) -> None:
    queue.put(0, key="k")
    entry_id = queue.store.xadd("mails", {"payload": "1", "key": "k"}).decode()
    first = queue.get(0)
    assert queue.get_many(9) == []
    queue.put(2, key="k")
    gone = queue.store.xadd("mails", {"payload": "3", "key": "k"}).decode()
    assert queue.cancel(gone)
    first.done()
    [second] = queue.get_many(9)
    assert (second.id, second.payload) == (entry_id, 1)
    second.done()
    assert [job.payload for job in queue.get_many(9)] == [2]


def test_a_worker_knows_the_limit_of_a_task_that_another_program_has_put(queue: Queue) -> None:
    program = Queue(queue.store, "mails")
    send = program.task(name="send")(print)
    first = send.options(key="a", unique="u").delay(0)
    send.options(key="a").delay(1)
    send.options(priority="high").delay(2)
    queue.store.xadd("mails", {"task": "send", "payload": "[[3],{}]", "key": "a"})
    queue.task(name="send", concurrency=1)(print)
    found: list[int] = []
    while jobs := queue.get_many(9):
        (job,) = jobs  # at a time
        found.append(job.payload[0][0])
        if found == [2]:
            job.retry(after=0)
            (job,) = queue.get_many(9)
            assert (job.payload[0], job.attempt, first.state()) == ([2], 2, "waiting")
        assert not send.options(unique="u").delay(9).is_new or first.state() == "unknown"
        job.done()
    assert found == [2, 0, 1, 3, 9]
    assert not queue.store.row_range("jobs:mails", b"g", b"i\xff")


def test_the_next_process_takes_what_another_program_has_added_to_a_new_priority(
    queue: Queue,
) -> None:
    queue.put("own")
    entry_id = queue.store.xadd("mails:high", {"payload": "1"}).decode()
    jobs = Queue(queue.store, "mails").get_many(9)
    assert [(job.id, job.payload) for job in jobs] == [(f"high-{entry_id}", 1), (jobs[1].id, "own")]


def test_an_entry_of_another_program_with_a_limit_of_0_has_none(queue: Queue) -> None:
    queue.core.set_up()
    for payload in ("1", "2"):
        fields = {"payload": payload, "task": "t", "key": payload, "concurrency": "0"}
        queue.store.xadd("mails", fields)
    jobs = queue.get_many(9)
    assert [job.payload for job in jobs] == [1, 2]
    queue.done_many(jobs)
    assert not queue.store.row_range("jobs:mails", b"g", b"i")


@pytest.mark.parametrize("how", ["cancel", "purge"])
def test_an_entry_of_another_program_with_a_wrong_limit_can_be_removed(
    queue: Queue, how: str
) -> None:
    """Each such call failed with a ValueError, and a purge removed nothing."""
    queue.core.set_up()
    entry_id = queue.store.xadd("mails", {"payload": "1", "concurrency": "x"}).decode()
    assert queue.cancel(entry_id) if how == "cancel" else queue.purge()
    assert queue.stats().waiting == 0


def test_what_another_program_has_added_first_is_seen_before_it_is_taken(queue: Queue) -> None:
    """The stream has no group yet."""
    entry_id = queue.store.xadd("mails", {"payload": "1"}).decode()
    assert queue.stats().waiting == 1
    assert queue.job(entry_id).state() == "waiting"
    assert queue.get(0).id == entry_id


def test_what_deleted_jobs_held_is_free_for_the_next_process_that_finds_no_job(
    queue: Queue,
) -> None:
    """Only then: a job that waits may be the one that has the key."""
    send = queue.task(name="send", concurrency=2)(print)
    deleted = [queue.put(0, key="a", unique="u").id, send.delay(1).id, send.delay(2).id]
    queue.put(3, key="a")
    for number in (4, 5, 6):
        send.options(key="b").delay(number)
    other = queue.put(7)
    assert queue.store.xdel("mails", *deleted) == 3
    assert queue.put(8, unique="u").cancel()
    assert not Queue(queue.store, "mails").cancel("none")
    assert queue.stats().held == 4
    assert other.cancel()
    found: list[object] = []
    while jobs := (again := Queue(queue.store, "mails")).get_many(9):
        found += [job.payload for job in jobs]
        again.done_many(jobs)
    assert sorted(found, key=str) == [3, *([[one], {}] for one in (4, 5, 6))]
    assert not queue.store.row_range("jobs:mails", b"g", b"i\xff")
