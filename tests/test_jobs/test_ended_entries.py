"""Entries of jobs that have ended: when they are deleted, and that nothing else is."""

from __future__ import annotations

import pytest

from streamkeep import Store
from streamkeep.jobs import NoSuchJobError, Queue
from streamkeep.jobs.ended_entries import AT_ONCE


def left(queue: Queue) -> int:
    return queue.store.xlen("mails")


def test_an_ended_job_whose_entry_is_left_neither_waits_nor_can_be_cancelled(queue: Queue) -> None:
    kept, dropped = queue.put(1), queue.put(2, result_ttl=0)
    queue.done_many(queue.get_many(2), [1, 2])
    assert left(queue) == 2
    assert (kept.state(), dropped.state()) == ("done", "done")
    assert not kept.cancel()
    assert not dropped.cancel()
    assert queue.stats().waiting == queue.stats().running == queue.stats().cancelled == 0
    assert not queue.get_many(1)  # an idle worker deletes what has ended
    assert (kept.state(), dropped.state()) == ("done", "unknown")
    with pytest.raises(NoSuchJobError, match="result was not kept"):
        queue.job(dropped.id)


def test_a_busy_process_deletes_many_at_a_time(queue: Queue) -> None:
    queue.put_many(range(3 * AT_ONCE))
    most = 0
    for _ in range(2 * AT_ONCE):
        queue.get(0).done()
        most = max(most, left(queue) - queue.stats().waiting)
    assert most == AT_ONCE


def test_large_payloads_do_not_stay(queue: Queue) -> None:
    queue.put_many(["x" * 300_000, "y", "z"])
    queue.get(0).done()
    queue.get(0)
    assert left(queue) == 2


def test_an_idle_process_deletes_all(queue: Queue) -> None:
    queue.put_many([1, 2])
    queue.done_many(queue.get_many(2))
    with pytest.raises(TimeoutError):
        queue.get(0.001)
    assert left(queue) == 0


def test_what_a_killed_process_left_goes_with_the_next_one(queue: Queue, store: Store) -> None:
    queue.put_many(range(4))
    jobs = queue.get_many(4)
    queue.done_many([jobs[0], jobs[1], jobs[3]])
    Queue(store, "mails").put(5)  # the third is pending, so that only those before it are sought
    assert [int(one.fields[b"payload"]) for one in store.xrange("mails")] == [2, 3, 5]
    jobs[2].done()
    Queue(store, "mails").get(0)
    assert [int(one.fields[b"payload"]) for one in store.xrange("mails")] == [5]


def test_an_end_that_was_undone_keeps_its_entry(queue: Queue, store: Store) -> None:
    queue.put(1)
    job = queue.get(0)
    with pytest.raises(KeyError), store.transaction():
        job.done()
        raise KeyError
    assert not queue.get_many(1)  # it deletes what it thinks has ended
    assert job.state() == "running"
    assert left(queue) == 1


def test_another_group_keeps_what_it_has_not_read(queue: Queue, store: Store) -> None:
    queue.put(1)
    store.xgroup_create("mails", "audit", 0)
    queue.get(0).done()
    assert not queue.get_many(1)
    assert left(queue) == 1
    [[_, [entry]]] = store.xreadgroup("audit", "one", {"mails": ">"})
    store.xack("mails", "audit", entry.id)
    Queue(store, "mails").put(2)
    assert left(queue) == 1


def test_a_stream_or_a_group_that_was_deleted_is_made_again(queue: Queue, store: Store) -> None:
    queue.put(1, priority="high")
    store.delete("mails:high")
    store.xgroup_destroy("mails", "jobs")
    other = Queue(store, "mails")
    other.put(2)
    assert [job.payload for job in other.get_many(9)] == [2]
    queue.put(3, priority="high")
    assert [job.payload for job in queue.get_many(9)] == [3]
