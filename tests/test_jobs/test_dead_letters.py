"""Dead letters: listed, put again, dropped; jobs of each state, as they are listed."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import Attempt, JobLostError, NoSuchJobError, Queue
from streamkeep.jobs.listing import call_text


def bury(queue: Queue, payload: str, reason: str = "no paper", **options: str) -> str:
    job = queue.put(payload, **options)  # type: ignore[arg-type]
    (taken,) = queue.get_many(1)
    taken.fail(reason)
    return job.id


def test_letters_are_found_put_again_and_dropped(queue: Queue, clock: ManualClock) -> None:
    jobs = [bury(queue, "a", priority="high", key="ann")]
    clock.ms += 10
    jobs.append(bury(queue, "b", "no ink"))
    one, two = queue.dead_letters()
    assert (one.reason, one.attempts, one.failed_ms) == ("no paper", 1, clock.ms - 10)
    assert (two.reason, queue.dead_letters(reason="ink")) == ("no ink", [two])
    assert (queue.dead_letters(count=1), queue.dead_letters(task="send")) == ([one], [])
    clock.ms += 3_700_000  # the results have expired
    assert [one.id for one in queue.jobs("failed")] == jobs[::-1]
    assert queue.requeue(reason="paper") == 1
    assert [one.id for one in queue.jobs("failed")] == jobs[1:]
    (taken,) = queue.get_many(5)
    assert (taken.payload, taken.key, taken.priority, taken.attempt) == ("a", "ann", "high", 1)
    taken.done()
    assert (queue.requeue("1-1"), queue.requeue(two, two.id, task="another")) == (0, 0)
    bury(queue, "c")
    letter, other = queue.dead_letters()
    assert queue.requeue(letter, other.id) == 2
    bury(queue, "d")
    assert (queue.drop_dead(), queue.stats().failed, queue.jobs("failed")) == (1, 0, [])


def test_a_job_that_is_put_again_keeps_its_id(queue: Queue) -> None:
    """Also one that was delayed, and one that another program has put with a field `id`."""
    queue.store.xadd("mails", {"id": "order-7", "payload": '"a"'})
    for options in (None, {"delay": "1h"}, {"priority": "low"}):
        own = "order-7" if options is None else queue.put("b", **options).id  # type: ignore[arg-type]
        queue.run_now(own)
        (taken,) = queue.get_many(1)
        assert (taken.id, taken.lost()) == (own, False)
        taken.fail("no paper")
        job = queue.job(own)
        assert job.state() == "failed"
        assert queue.requeue(own) == 1
        assert (job.state(), queue.jobs("failed")) == ("waiting", [])
        (taken,) = queue.get_many(1)
        taken.done("printed")
        assert (taken.id, job.result(0)) == (own, "printed")


def test_a_job_that_is_put_again_is_held_under_its_id(queue: Queue) -> None:
    jobs = [bury(queue, text, key="ann") for text in "ab"]
    queue.put("c", key="ann").queue.get(0)
    assert queue.requeue(*jobs) == 2
    assert [one.id for one in queue.jobs()] == jobs
    assert (queue.cancel(jobs[0]), queue.purge(), queue.stats().held) == (True, 1, 0)
    assert queue.requeue(bury(queue, "d")) == 1
    [job] = queue.jobs()
    assert job.place is not None
    assert queue.cancel(job.place.entry_id)  # as an operator sees it in the stream
    assert queue.job(job.id).state() == "cancelled"


def test_an_id_of_two_letters_is_refused(queue: Queue, clock: ManualClock) -> None:
    """A letter may have the ID of another letter's job, since both are IDs of entries."""
    for payload in ("a", "b"):
        queue.put(payload, retries=0)
        clock.ms += 10
    queue.put("c", retries=0)
    for taken in queue.get_many(3):
        taken.fail(f"no {taken.payload}")
        clock.ms += 10
    first, _, third = queue.dead_letters()
    assert first.id == third.job
    with pytest.raises(ArgumentError, match=f"'{first.id}' is the ID of a dead letter, and of"):
        queue.drop_dead(first.id)
    assert queue.stats().failed == 3
    assert queue.drop_dead(first) == 1
    assert [one.reason for one in queue.dead_letters()] == ["no b", "no c"]
    assert queue.requeue(third.job) == 1
    assert [one.reason for one in queue.dead_letters()] == ["no b"]


def test_delayed_jobs_and_retries_run_now(queue: Queue) -> None:
    delayed, failed = queue.put("a", delay="1h"), queue.put("b")
    (taken,) = queue.get_many(1)
    taken.retry(after="1h")
    assert queue.get_many(5) == []
    assert [queue.run_now(job.id) for job in (delayed, failed)] == [True, True]
    assert sorted(str(job.payload) for job in queue.get_many(5)) == ["a", "b"]
    assert not queue.run_now(delayed.id)
    assert not queue.run_now("job-99")


@pytest.mark.parametrize(
    "options",
    [
        {"retries": "x"},
        {"retries": "-1"},
        {"expires": "soon"},
        {"backoff": "1s..x"},
        {"backoff": "\udcff"},
        {"max_runtime": "9" * 40},
        {"concurrency": "q", "task": "t"},
        {"result_ttl": "-5"},
        {"queued": ""},
    ],
)
def test_an_entry_with_options_that_mean_nothing_holds_up_no_other(
    queue: Queue, options: dict[str, str]
) -> None:
    queue.core.set_up()
    fields = {name: one.encode(errors="surrogateescape") for name, one in options.items()}
    queue.store.xadd("mails", {"payload": "1", "headers": "{", **fields})
    queue.put("next")
    [job] = queue.get_many(9)
    assert job.payload == "next"
    job.done()
    [letter] = queue.dead_letters()
    assert letter.reason.startswith("its options cannot be read: ")
    queue.store.xadd("mails:dead", {"job": "1-1", **fields})
    assert queue.requeue() == 2
    stats = queue.stats()
    assert (stats.waiting, stats.running, stats.failed) == (2, 0, 0)


def test_a_letter_without_a_job_gets_the_id_of_its_new_entry(queue: Queue) -> None:
    """That of the letter may be the ID of another job, since both are IDs of entries."""
    job = queue.put("a")
    assert queue.store.xadd("mails:dead", {"payload": '"b"'}).decode() == job.id
    assert queue.requeue() == 1
    assert job.cancel()
    assert [one.payload for one in queue.get_many(9)] == ["b"]


# --- what a queue says of its jobs, its workers, and the last minutes -----------------------------


def test_jobs_of_each_state_are_listed_with_times_and_workers(
    queue: Queue, clock: ManualClock
) -> None:
    @queue.task(retries=1)
    def half(number: int) -> int:
        clock.ms += 250
        return 10 // number

    begin = clock.ms
    whole, failing, cancelled = half.delay(5), half.delay(0), half.delay(1)
    half.options(key="k").delay(1)
    held = half.options(key="k").delay(2)
    queue.cancel(cancelled.id)
    later = half.options(delay="1h").delay(3)
    assert [one.id for one in queue.jobs()][:2] == [whole.id, failing.id]
    assert queue.jobs()[-1].id == held.id
    assert [one.id for one in queue.jobs("delayed")] == [later.id]
    assert queue.run_until_idle() == 4
    assert [(one.id, one.retries, one.attempts) for one in queue.jobs("delayed")] == [
        (failing.id, True, 1),
        (later.id, False, 0),
    ]
    (first,) = [one for one in queue.jobs("done") if one.id == whole.id]
    assert (first.queued_ms, first.ended_ms - first.begun_ms, first.attempts) == (begin, 250, 1)
    assert first.worker == queue.consumer.decode()
    assert call_text(first.fields, 100) == "half(5)"
    clock.ms += 60_000
    assert queue.run_until_idle() == 1
    (dead,) = queue.jobs("failed")
    (letter,) = queue.dead_letters()
    assert (dead.id, dead.attempts) == (failing.id, 2)
    assert letter.fields[b"worker"] == queue.consumer
    assert int(letter.fields[b"begun"]) == dead.begun_ms == dead.ended_ms - 250
    assert [one.id for one in queue.jobs("cancelled")] == [cancelled.id]
    assert [(one.done, one.failed_attempts) for one in queue.minutes()] == [(3, 1), (0, 1)]
    queue.requeue(letter)
    (again,) = queue.jobs()
    assert b"worker" not in again.fields
    wrong: list[Any] = ["dead", []]
    for state in wrong:
        with pytest.raises(ArgumentError, match="one of waiting, running"):
            queue.jobs(state)


def test_a_running_job_is_found_behind_many_that_wait_for_a_retry(queue: Queue) -> None:
    for _ in range(10):
        queue.put(0).queue.get(0).retry(after="1h")
    job = queue.put(1)
    queue.get(0)
    (one,) = queue.jobs("running", 1)
    assert (one.id, one.worker, one.attempts) == (job.id, queue.consumer.decode(), 1)
    (worker,) = queue.workers()
    assert (worker.host, worker.process, worker.jobs) == (socket.gethostname(), os.getpid(), 1)
    assert worker.since_ms > 1_700_000_000_000


def test_the_former_runs_of_a_job_are_kept_with_times_and_workers(
    queue: Queue, clock: ManualClock
) -> None:
    @queue.task(retries=12, max_runtime="1s", backoff="1m")
    def flaky(number: int) -> None:
        clock.ms += 250
        raise OSError(f"no line {clock.ms}" + "!" * 1000)

    job = flaky.delay(7)
    begin = clock.ms
    assert queue.run_until_idle() == 1
    first = Attempt(begin, begin + 250, queue.consumer.decode(), "")
    for found in (queue.job(job.id).history(), queue.jobs("delayed")[0].history):
        (run,) = found
        assert run.error.startswith(f"builtins.OSError: no line {begin + 250}!!!")
        assert (run._replace(error=""), len(run.error)) == (first, 200)
    clock.ms += 60_000
    taken = queue.get(0)
    assert queue.jobs("running")[0].history == queue.job(job.id).history()
    clock.ms += 4000  # its worker does not end it, so that another one does
    assert queue.get_many(9) == []
    second = queue.job(job.id).history()[1]
    assert second._replace(error="") == (clock.ms - 4000, clock.ms, queue.consumer.decode(), "")
    assert "it ran longer than 1000 ms" in second.error
    with pytest.raises(JobLostError):
        taken.done()
    for _ in range(11):
        clock.ms += 60_000
        assert queue.run_until_idle() == 1
    (letter,) = queue.dead_letters()
    assert len(letter.history) == 10 < letter.attempts == 13
    assert letter.history[-1].ended_ms == letter.failed_ms - 60_250
    assert letter.history == queue.job(job.id).history() == queue.jobs("failed")[0].history
    assert not queue.store.row_range(f"jobs:{queue.name}", b"x", b"x\xff")
    queue.requeue(letter)
    assert not queue.jobs()[0].history
    again = queue.get(0)
    again.retry(after=0, reason="not yet")
    queue.get(0).done("well")
    ((_, _, _, error),) = queue.job(again.id).history()
    assert (error, queue.job(again.id).state()) == ("not yet", "done")


def test_a_history_of_another_program_is_none(queue: Queue) -> None:
    for wrong in (b"\xff", b"7", b"[7]", b'[[1, 2, "w", 3]]', b"[" * 100_000):
        queue.store.xadd(f"{queue.name}:dead", {"job": "1-1", "history": wrong, "from": b"\xff"})
    assert [one.history for one in queue.dead_letters()] == [[]] * 5
    assert queue.requeue(queue.dead_letters()[0]) == 1


def test_a_job_is_looked_up_by_its_id_in_each_state(queue: Queue, clock: ManualClock) -> None:
    def states() -> list[str]:
        return [queue.job(one.id).state() for one in jobs]

    jobs = [queue.put({"n": n}, key="k", delay="1h" if n == 3 else None) for n in range(5)]
    assert states() == ["waiting", "waiting", "waiting", "delayed", "waiting"]
    queue.get(0).done("well")
    assert queue.cancel(jobs[4].id)
    with pytest.raises(KeyError), queue.get(0):
        raise KeyError
    assert states() == ["done", "delayed", "waiting", "delayed", "cancelled"]
    queue.run_now(jobs[1].id)
    taken = queue.get(0)
    assert (taken.id, states()[1]) == (jobs[1].id, "running")
    taken.fail("no ink")
    clock.ms += 3_700_000  # the results have expired; the dead letter stays
    found = queue.job(jobs[1].id)
    assert (found.state(), found.payload, found.key) == ("failed", {"n": 1}, "k")
    while queue.get_many(9):  # an idle worker deletes what has ended
        pass
    with pytest.raises(NoSuchJobError, match="longer result_ttl"):
        queue.job(jobs[0].id)


def test_a_job_is_not_looked_for_among_the_letters_before_it(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(queue, "old")
    clock.ms += 3_600_001
    job = queue.put("new")
    queue.get(0).done()
    assert queue.get_many(9) == []
    monkeypatch.setattr("streamkeep.jobs.dead_letters.letter_of", None)
    assert job.state() == "unknown"
