"""Puts and gets: what a job holds, how it ends, and what a transaction makes of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from patience import thread_of, wait_until
from streamkeep import ArgumentError, CommandError, Store, StoreError
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import (
    Job,
    JobFailedError,
    JobLostError,
    NoResultError,
    NoSuchJobError,
    PayloadError,
    Queue,
    QueueError,
    QueueFullError,
    Retry,
    take,
)
from streamkeep.jobs.ended_entries import AT_ONCE


def counts(queue: Queue) -> tuple[int, int, int, int, int]:
    """Return how many jobs wait, run, are delayed, are dead and are done."""
    found = queue.stats()
    return found.waiting, found.running, found.delayed, found.failed, found.done


def letters(queue: Queue) -> list[dict[str, Any]]:
    found = queue.store.xrange(queue.core.names.dead)
    return [{str(name, "utf8"): str(one, "utf8") for name, one in e.fields.items()} for e in found]


def test_an_exception_in_the_block_is_a_failed_attempt(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "streamkeep.jobs")
    put = queue.put("x", retries=1)
    for attempt in (1, 2):
        with pytest.raises(KeyError), queue.get(0) as job:
            assert job.attempt == attempt
            raise KeyError("no")
        clock.ms += 10_000
    assert counts(queue) == (0, 0, 0, 1, 0)
    assert f"job {put.id} () failed and is a dead letter in mails:dead: builtins.KeyError" in (
        caplog.text
    )
    (letter,) = letters(queue)
    assert letter.items() >= {
        ("reason", "it failed 2 times"),
        ("error", "builtins.KeyError"),
        ("message", "'no'"),
        ("attempts", "2"),
        ("deaths", "0"),
        ("job", put.id),
        ("payload", '"x"'),
    }
    with pytest.raises(JobFailedError, match="KeyError: 'no'") as failed:
        put.result()
    assert "raise KeyError" in failed.value.traceback_text


@pytest.mark.parametrize("given", ["result", "transaction"])
def test_a_block_whose_job_cannot_end_so_is_a_failed_attempt(queue: Queue, given: str) -> None:
    """It ran for as long as its process lived."""
    queue.put("x", retries=0)
    with pytest.raises((PayloadError, CommandError)), queue.get(0) as job:
        if given == "result":
            job.set_result(object())
        else:
            job.transaction.xgroup_setid("missing", "group", 0)
    assert counts(queue) == (0, 0, 0, 1, 0)


def test_an_interrupt_gives_the_job_back_as_no_attempt(queue: Queue) -> None:
    queue.put("x")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), queue.get(0) as job:
            assert job.attempt == 1
            raise KeyboardInterrupt
    assert counts(queue) == (0, 0, 1, 0, 0)
    assert [one.attempt for one in queue.get_many(5)] == [1]


def test_an_interrupt_leaves_the_block_also_if_the_job_is_lost(queue: Queue) -> None:
    """An error of the queue took its place, and a loop that goes on after such errors went on."""
    queue.put("x")
    with pytest.raises(KeyboardInterrupt), queue.get(0) as job:
        queue.store.xack("mails", "jobs", job.id)
        raise KeyboardInterrupt


def test_one_of_two_threads_ends_a_job(queue: Queue) -> None:
    """The second one ended a later run of the process, and the job ran twice at a time."""
    queue.put("x")
    job = queue.get(0)
    with queue.store.transaction():
        first = thread_of(lambda: job.postpone(5))
        wait_until(lambda: job.ended)
        with pytest.raises(JobLostError):
            job.give_back()
    first.join()
    assert counts(queue) == (0, 0, 1, 0, 0)


def test_a_relative_path_names_one_store_wherever_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened again, as in a forked child, was another store, and an empty one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Queue("store") as queue:
        queue.put("x")
        queue.close()
        monkeypatch.chdir("elsewhere")
        assert queue.stats().waiting == 1


def test_what_another_worker_has_by_now_cannot_be_ended(queue: Queue) -> None:
    queue.put_many("ab")
    mine, kept = queue.get_many(2)
    queue.store.xclaim("mails", "jobs", "other", 0, [mine.id])
    assert (mine.lost(), kept.lost()) == (True, False)
    for end in (mine.done, mine.retry, mine.give_back, lambda: mine.fail("x"), mine.extend):
        with pytest.raises(JobLostError, match="another worker has it"):
            end()
    with pytest.raises(JobLostError):
        queue.done_many([kept, mine])
    assert counts(queue) == (0, 2, 0, 0, 0)
    kept.done()
    assert counts(queue) == (0, 1, 0, 0, 1)


def test_a_block_that_lost_its_job_raises_its_own_error(queue: Queue) -> None:
    queue.put("a")
    with pytest.raises(JobLostError), queue.get(0) as job:
        queue.store.xack("mails", "jobs", job.id)


def test_transactions_join_puts_ends_and_appends(queue: Queue) -> None:
    queue.put("first")
    job = queue.get(0)
    with pytest.raises(KeyError), queue.store.transaction() as txn:
        queue.put("second")
        txn.xadd("log", {"a": 1})
        job.done()
        raise KeyError
    assert (counts(queue), queue.store.exists("log")) == ((0, 1, 0, 0, 0), 0)
    job = queue.job(job.id)
    queue.store.xclaim("mails", "jobs", "other", 0, [job.id])
    with queue.store.transaction() as txn:
        second = queue.put("second")
        third = queue.put("third", delay=5)
        txn.xadd("log", {"id": second.id})
    assert counts(queue) == (1, 1, 1, 0, 0)
    assert (second.state(), third.state()) == ("waiting", "delayed")


ENDS: dict[str, Callable[[Job], object]] = {
    "done": lambda job: job.done(),
    "done_many": lambda job: job.queue.done_many([job]),
    "retry": lambda job: job.retry(after=5),
    "fail": lambda job: job.fail("for good"),
    "give_back": lambda job: job.give_back(),
}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_that_is_undone_leaves_the_job_to_its_worker(queue: Queue, how: str) -> None:
    queue.put("a")
    job = queue.get(0)
    with pytest.raises(KeyError), queue.store.transaction():
        ENDS[how](job)
        with pytest.raises(JobLostError, match="already been ended"):
            job.done()
        raise KeyError
    assert not job.ended
    assert not queue.get_many(1)  # it deletes what it thinks has ended
    assert (counts(queue), left(queue)) == ((0, 1, 0, 0, 0), 1)
    with queue.store.transaction():
        ENDS[how](job)
    assert job.ended
    assert counts(queue)[1] == 0
    with pytest.raises(JobLostError, match="already been ended"):
        job.done()


def test_a_transaction_that_fails_in_the_block_of_a_job_is_a_failed_attempt(queue: Queue) -> None:
    queue.put("a")
    with pytest.raises(KeyError), queue.get(0) as job, queue.store.transaction():
        job.done()
        raise KeyError
    assert counts(queue) == (0, 0, 1, 0, 0)


def test_a_put_that_fails_halfway_undoes_the_transaction_around_it(queue: Queue) -> None:
    queue.set_limits(max_length=1)
    with pytest.raises(StoreError, match="is full"), queue.store.transaction() as txn:
        txn.xadd("log", {"a": 1})
        with pytest.raises(QueueFullError):
            queue.put_many(["first", "second"])
    assert (counts(queue), queue.store.exists("log")) == ((0, 0, 0, 0, 0), 0)
    with queue.store.transaction() as txn:
        queue.put("first")
        with pytest.raises(QueueFullError):  # which has changed nothing
            queue.put("second")
        txn.xadd("log", {"a": 1})
    assert (counts(queue), queue.store.exists("log")) == ((1, 0, 0, 0, 0), 1)


def test_a_text_store_serves_a_queue_as_well(open_store: Callable[..., Store]) -> None:
    store = open_store(decode_responses=True)
    queue = Queue(store, "mails")
    with store.transaction() as txn:
        put = queue.put({"to": "Zoë"})
        assert txn.xlen("mails") == 1
    with queue.get(0) as job:
        assert job.payload == {"to": "Zoë"}
        job.set_result("ok")
    assert (put.result(0), counts(queue)) == ("ok", (0, 0, 0, 0, 1))


def test_results_expire_and_leave_nothing(queue: Queue, clock: ManualClock) -> None:
    puts = queue.put_many(range(20), result_ttl="1m")
    queue.done_many(queue.get_many(20), range(20))
    assert puts[3].result(0) == 3
    clock.ms += 60_001
    with pytest.raises(NoResultError, match="not kept or has expired"):
        puts[3].result()
    for _ in range(6):
        queue.put("x", result_ttl=0)
        queue.get(0).done(1)
    queue.put("y")
    queue.get(0).done(2)
    kinds = {key[:1] for key, _ in queue.store.row_range("jobs:mails", b"e", b"e\xff")}
    left = queue.store.row_range("jobs:mails", b"r", b"r\xff")
    assert (kinds, len(left)) == ({b"e"}, 17)  # each stored result removes up to four others
    with pytest.raises(NoResultError):
        Job(queue, "1-1").result()
    with pytest.raises(TimeoutError):
        queue.put("z").result("1ms")
    queue.get(0).done()
    assert not queue.get_many(1)  # a worker that finds no job removes the others
    assert len(queue.store.row_range("jobs:mails", b"r", b"r\xff")) == 1
    clock.ms += 3_600_001
    Queue(queue.store, queue.name).pause()  # and so does a process that begins
    assert not queue.store.row_range("jobs:mails", b"e", b"e\xff")


@pytest.mark.parametrize("codec", ["json", "bytes", "pickle"])
def test_payloads_and_results_travel_by_their_codec(queue: Queue, codec: str) -> None:
    values = {"json": [1, "é"], "bytes": b"\x00\xff", "pickle": {1, 2}}
    own = Queue(queue.store, "own", codec=codec)
    put = own.put(values[codec])
    with own.get(0) as job:
        job.set_result(job.payload)
    assert put.result(0) == values[codec]


def test_a_pickle_is_read_only_by_a_queue_that_names_pickle(queue: Queue) -> None:
    queue.put({1}, codec="pickle")
    job = queue.get(0)
    with pytest.raises(PayloadError, match="can run any code"):
        print(job.payload)


def test_bad_arguments_change_nothing(queue: Queue) -> None:
    wrong: list[dict[str, Any]] = [
        {"at": 5},
        {"priority": "urgent"},
        {"backoff": "5m..1s"},
        {"key": ""},
        {"headers": {"a": 1}},
        {"codec": "yaml"},
        {"expires": True},
    ]
    for options in wrong:
        with pytest.raises(ArgumentError, match=str(next(iter(options)))):
            queue.put("x", **options)
    with pytest.raises(PayloadError, match=r"as json: .*; next: pass a text .* or bytes with"):
        queue.put({1})
    with pytest.raises(ArgumentError, match="name of a queue"):
        Queue(queue.store, "")
    with pytest.raises(QueueError, match="not taken by this worker"):
        queue.put("x").done()
    assert counts(queue) == (1, 0, 0, 0, 0)


def test_what_cannot_be_decoded_becomes_a_dead_letter(queue: Queue) -> None:
    queue.core.set_up()
    queue.store.xadd("mails", {"payload": b"{not json"})
    queue.store.xadd("mails", {"other": b"1"})
    for _ in range(2):
        with pytest.raises(PayloadError), queue.get(0) as job:
            print(job.payload)
    reasons = [letter["reason"] for letter in letters(queue)]
    assert reasons == ["its payload or result cannot be used"] * 2


def test_a_result_that_is_too_large_names_its_size(store: Store) -> None:
    queue = Queue(store, max_result_bytes=100)
    queue.put("x")
    job = queue.get(0)
    with pytest.raises(PayloadError, match="has 202 bytes as json, at most 100"):
        job.done("x" * 200)
    assert counts(queue) == (0, 1, 0, 0, 0)
    job.done("x")


def test_a_store_that_is_read_only_is_read(open_store: Callable[..., Store], store: Store) -> None:
    Queue(store, "mails").put("x")
    store.close()
    queue = Queue(open_store(readonly=True), "mails")
    assert counts(queue) == (1, 0, 0, 0, 0)
    for call in (lambda: queue.put("y"), queue.get, queue.pause):
        with pytest.raises(StoreError, match="readonly=True"):
            call()


def test_a_path_is_opened_at_first_use_and_again_after_a_close(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with Queue(path, sync="none") as queue:
        assert not path.exists()
        queue.put("x")
        queue.close()
        assert queue.get(0).payload == "x"
    with streamkeep.open(path) as store:
        assert store.xpending("default", "jobs")["pending"] == 1


def test_one_worker_takes_from_several_queues_in_turns(store: Store) -> None:
    one, two = Queue(store, "one"), Queue(store, "two")
    one.put_many(range(4))
    two.put_many(range(4))
    found = [take([one, two], one.consumer, 1, timeout=0)[0].queue.name for _ in range(8)]
    assert sorted(found[:4]) == ["one", "one", "two", "two"]
    assert take([one, two], one.consumer, 1, timeout=0) == []


def test_retry_may_wait_without_counting(queue: Queue, clock: ManualClock) -> None:
    queue.put("x", retries=0)
    for _ in range(3):
        with pytest.raises(Retry), queue.get(0) as job:
            assert job.attempt == 1
            raise Retry(after="1m", counts=False)
        clock.ms += 60_000
    assert letters(queue) == []


def test_minutes_count_what_ended_in_them_and_are_kept_for_a_day(
    queue: Queue, clock: ManualClock
) -> None:
    def minutes() -> list[tuple[int, int, int]]:
        return [(one.start_ms // 60_000, *one[1:]) for one in queue.minutes()]

    clock.ms = 60_000 * 1000
    queue.put_many(range(6))
    queue.done_many(queue.get_many(4))
    queue.get().retry()
    assert minutes() == [(1000, 4, 1)]
    clock.ms += 195_000
    queue.get().done()
    assert minutes() == [(1000, 4, 1), (1003, 1, 0)]
    assert (queue.stats().done, queue.stats().failed_attempts) == (5, 1)
    clock.ms -= 600_000
    queue.put(1)
    queue.get().done()
    assert minutes() == [(1000, 4, 1), (1003, 1, 0), (993, 1, 0)]
    for _ in range(3):
        clock.ms += 25 * 3600_000
        queue.put(1)
        queue.get().done()
    assert minutes() == [(3993, 1, 0), (5493, 1, 0)]
    assert queue.minutes(1)[0].done == 1


# --- entries of jobs that have ended: when they are deleted, and that nothing else is -------------


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
    assert (left(queue), kept.state(), dropped.state()) == (0, "done", "unknown")
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


def test_what_a_killed_process_left_goes_with_the_next_one(queue: Queue, store: Store) -> None:
    queue.put_many(range(4))
    jobs = queue.get_many(4)
    queue.done_many([jobs[0], jobs[1], jobs[3]])
    Queue(store, "mails").put(5)  # the third is pending, so that only those before it are sought
    assert [int(one.fields[b"payload"]) for one in store.xrange("mails")] == [2, 3, 5]
    jobs[2].done()
    Queue(store, "mails").get(0)
    assert [int(one.fields[b"payload"]) for one in store.xrange("mails")] == [5]


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
