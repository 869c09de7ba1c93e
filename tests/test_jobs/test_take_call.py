"""The end of a job in the transaction that takes the next one."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inside import context_of, journal_of
from raw_store import raw_store
from streamkeep import Store
from streamkeep.engine.system import files
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import ArgumentError, CommandError, CorruptionError, StoreError
from streamkeep.format.core.keys import ROWS
from streamkeep.jobs import Job, JobLostError, Queue, current_job
from streamkeep.jobs.layout import SETTINGS
from streamkeep.jobs.take_call import Take


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
    outcome = queue.core.execute(job, partial(after(queue), job))
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

    def refuse(handle: int) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", refuse)
        with pytest.raises(StoreError, match="committed and cannot be synced"):
            queue.get(0, after=first)
        assert queue.stats().running == 0
    assert first.state() == "done"
    assert queue.get(0).payload == "b"
