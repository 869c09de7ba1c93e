"""Dead letters: listed, put again, dropped; jobs that run now, and jobs that are removed."""

from __future__ import annotations

import pytest

from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import Queue


def bury(queue: Queue, payload: str, reason: str = "no paper", **options: str) -> str:
    job = queue.put(payload, **options)  # type: ignore[arg-type]
    (taken,) = queue.get_many(1)
    taken.fail(reason)
    return job.id


def test_letters_are_found_by_reason(queue: Queue, clock: ManualClock) -> None:
    first = bury(queue, "a")
    clock.ms += 10
    bury(queue, "b", "no ink")
    one, two = queue.dead_letters()
    assert (one.job, one.reason, one.attempts, one.failed_ms) == (
        first,
        "no paper",
        1,
        clock.ms - 10,
    )
    assert two.reason == "no ink"
    assert queue.dead_letters(reason="ink") == [two]
    assert queue.dead_letters(count=1) == [one]
    assert queue.dead_letters(task="send") == []


def test_a_letter_is_put_again_as_a_new_job(queue: Queue) -> None:
    former = bury(queue, "a", priority="high", key="ann")
    bury(queue, "b", "no ink")
    assert queue.requeue(reason="paper") == 1
    (taken,) = queue.get_many(5)
    assert (taken.payload, taken.key, taken.priority, taken.attempt) == ("a", "ann", "high", 1)
    assert taken.id != former
    taken.done()
    assert queue.stats().failed == 1
    assert queue.requeue("1-1") == 0
    assert queue.requeue(queue.dead_letters()[0]) == 1
    assert queue.stats().waiting == 1


def test_a_job_with_an_id_of_its_own_keeps_it(queue: Queue) -> None:
    """Such as one that was delayed, and one that another program has put with a field `id`."""
    queue.store.xadd("mails", {"id": "order-7", "payload": '"a"'})
    for own in ("order-7", queue.put("b", delay="1h").id):
        queue.run_now(own)
        (taken,) = queue.get_many(1)
        assert taken.id == own
        taken.fail("no paper")
        job = queue.job(own)
        assert job.state() == "failed"
        assert queue.requeue(own) == 1
        assert (job.state(), queue.jobs("failed")) == ("waiting", [])
        (taken,) = queue.get_many(1)
        taken.done("printed")
        assert (taken.id, job.result(0)) == (own, "printed")


def test_a_letter_stays_while_its_unique_name_is_taken(queue: Queue) -> None:
    bury(queue, "a", unique="x")
    second = queue.put("b", unique="x")
    assert (queue.requeue(), queue.stats().failed) == (0, 1)
    assert second.cancel()
    assert (queue.requeue(), queue.stats().failed) == (1, 0)


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
    assert queue.requeue(letter.id) == 1
    stats = queue.stats()
    assert (stats.waiting, stats.running, stats.failed) == (1, 0, 0)
