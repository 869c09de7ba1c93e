"""The broker and the results backend of dramatiq, in one process; `test_examples` kills workers.

What dramatiq tests of its Redis broker is here in its sense: messages run, are delayed, retried and
dead-lettered, go back when a worker stops, and are flushed and joined.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import dramatiq
import pytest
from dramatiq import Message, QueueJoinTimeout, Worker
from dramatiq.errors import ConnectionClosed, QueueNotFound
from dramatiq.results import ResultMissing, Results, ResultTimeout

import streamkeep
from inside import journal_of
from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import (
    ArgumentError,
    NotAStoreError,
    RecoveryNeededError,
    StoreClosedError,
    StoreFullError,
)
from streamkeep.integrations.dramatiq import StreamkeepBackend, StreamkeepBroker
from streamkeep.integrations.dramatiq import broker as module
from streamkeep.jobs.putting import put_all

PATIENCE_MS = int(PATIENCE_S * 1000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StreamkeepBroker]:
    one = StreamkeepBroker(f"streamkeep:///{tmp_path}/s")
    backend = StreamkeepBackend(tmp_path / "s")
    one.add_middleware(Results(backend=backend))
    dramatiq.set_broker(one)  # where messages look for their results
    yield one
    dramatiq.broker.global_broker = None
    one.close()
    backend.close()


@pytest.fixture
def worker(broker: StreamkeepBroker) -> Iterator[Worker]:
    one = Worker(broker, worker_timeout=10, worker_threads=2)
    one.start()
    yield one
    one.stop()


def actor_of(broker: StreamkeepBroker, work: Any, name: str = "work", **options: Any) -> Any:
    return dramatiq.actor(work, actor_name=name, broker=broker, **options)


def test_actors_run_and_their_results_wake_callers(
    broker: StreamkeepBroker, worker: Worker
) -> None:
    double = actor_of(broker, lambda number: 2 * number, store_results=True)
    messages = [double.send(number) for number in range(20)]
    assert [one.get_result(block=True, timeout=PATIENCE_MS) for one in messages] == [
        *range(0, 40, 2)
    ]
    broker.join("default", timeout=PATIENCE_MS)
    assert broker.queue().stats().done == 20


@pytest.mark.parametrize("trouble", ["the queue drains", "the disk is full"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_retry_or_a_pipeline_that_the_store_refuses_is_not_lost(
    broker: StreamkeepBroker,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    fails: bool,
) -> None:
    ran: list[int] = []
    after = threading.Event()

    def refuse(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "put_all", put_all)
        raise StoreFullError("full")

    def first() -> None:
        ran.append(1)
        if len(ran) == 1:
            if trouble == "the queue drains":
                assert not broker.queue().drain(0)
            else:
                monkeypatch.setattr(module, "put_all", refuse)
            if fails:
                raise ValueError

    work = actor_of(broker, first, min_backoff=1, max_backoff=1)
    (work.message() | actor_of(broker, lambda _: after.set(), name="after").message()).run()
    assert after.wait(PATIENCE_S)
    broker.join("default", timeout=PATIENCE_MS)


@pytest.mark.parametrize(
    ("problem", "after"),
    [
        ("PayloadError", {}),
        ("QueueNotFound", {"queue_name": "of another program"}),
        ("broker_priority", {"options": {"broker_priority": "urgent"}}),
    ],
)
def test_a_message_is_a_dead_letter_if_what_follows_it_can_never_be_put(
    broker: StreamkeepBroker,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    after: dict[str, Any],
) -> None:
    work = actor_of(broker, lambda: "x" * 2000)
    if problem == "PayloadError":
        monkeypatch.setattr(broker.queue().core, "most_payload", 1000)
    (work.message() | work.message().copy(**after)).run()
    broker.join("default", timeout=PATIENCE_MS)
    [letter] = broker.queue().dead_letters()
    assert problem in letter.reason


def test_a_delayed_message_stays_in_the_store_until_its_time(
    broker: StreamkeepBroker, worker: Worker
) -> None:
    ran: list[str] = []
    ran_at: list[float] = []

    def note(name: str) -> None:
        ran_at.append(time.time())
        ran.append(name)

    work = actor_of(broker, note)
    due = time.time() + 0.3
    work.send_with_options(args=("late",), delay=300)
    work.send_with_options(args=("never",), delay=3_600_000)
    work.send("now")
    work.send_with_options(args=("past",), delay=-300)  # its program has waited too long
    wait_until(lambda: len(ran) == 3)
    assert sorted(ran) == ["late", "now", "past"]
    assert ran_at[ran.index("late")] >= due - 0.001  # the store counts milliseconds
    assert broker.queue().stats().delayed == 1
    broker.flush_all()
    broker.join("default", timeout=PATIENCE_MS)


def test_a_consumer_ends_when_its_store_is_gone_and_the_next_has_the_one_in_its_place(
    broker: StreamkeepBroker, tmp_path: Path
) -> None:
    actor = actor_of(broker, print)
    actor_of(broker, print, name="other", queue_name="other").send(0)
    actor.send(1)
    consumer = broker.consume("default", prefetch=5, timeout=10)
    assert next(consumer).args == (1,)
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    with pytest.raises(ConnectionClosed, match="deleted or moved"):
        wait_until(lambda: next(consumer) is not None)  # the end of its time may come first
    consumer.close()
    with pytest.raises(NotAStoreError):
        actor.send(2)
    streamkeep.open(tmp_path / "s").close()
    actor.send(2)
    assert next(broker.consume("default", timeout=PATIENCE_MS)).args == (2,)


def test_results_go_to_the_store_in_place_of_one_that_was_moved(
    broker: StreamkeepBroker, tmp_path: Path
) -> None:
    results = StreamkeepBackend(tmp_path / "s")
    actor = actor_of(broker, print)
    first, second = actor.send(1), actor.send(2)
    results.store_result(first, 1, 10_000)
    broker.close()
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError):
        results.store_result(second, 2, 10_000)
    streamkeep.open(tmp_path / "s").close()
    results.store_result(second, 2, 10_000)
    assert results.get_result(second) == 2
    with pytest.raises(ResultMissing):
        results.get_result(first)
    results.close()


def test_results_leave_a_store_that_must_be_recovered_closed(
    broker: StreamkeepBroker, tmp_path: Path
) -> None:
    results = StreamkeepBackend(tmp_path / "s")
    actor = actor_of(broker, print)
    message = actor.send(1)
    results.store_result(message, 1, 10_000)
    journal_of(broker.queue().store).control.poison()
    with pytest.raises(RecoveryNeededError):
        results.store_result(message, 2, 10_000)
    with suppress(RecoveryNeededError):
        broker.close()
    actor.send(2)  # recovers it, because no other has it open
    results.store_result(message, 3, 10_000)
    assert results.get_result(message) == 3
    results.close()


def test_a_consumer_whose_store_another_closed_leaves_the_one_in_its_place_open(
    broker: StreamkeepBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare_queue("default")
    consumer = broker.consume("default", timeout=0)
    opened = broker.queue().store
    monkeypatch.setattr(module, "take", mock.Mock(side_effect=StoreClosedError("by another")))
    with pytest.raises(ConnectionClosed):
        next(consumer)
    assert broker.queue().store is opened


def test_priorities_of_the_store(broker: StreamkeepBroker) -> None:
    low = actor_of(broker, print, broker_priority="low")
    low.send("low")
    low.send_with_options(args=("high",), broker_priority="high")
    with pytest.raises(ArgumentError, match="broker_priority"):
        low.send_with_options(args=("?",), broker_priority="urgent")
    consumer = broker.consume("default", prefetch=5, timeout=0)
    assert [next(consumer).args for _ in range(2)] == [("high",), ("low",)]
    consumer.close()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Mute(), ValueError("caf\udce9")])
def test_a_message_whose_failure_cannot_be_told_is_a_dead_letter(
    broker: StreamkeepBroker, error: Exception
) -> None:
    actor_of(broker, print).send(1)
    consumer = broker.consume("default", prefetch=1, timeout=0)
    message = next(consumer)
    assert message is not None
    message.stuff_exception(error)
    consumer.nack(message)
    consumer.close()
    [letter] = broker.queue().dead_letters()
    assert letter.reason.startswith(f"it failed: {type(error).__name__}: ")


def test_a_death_counts_for_a_message_from_its_start_on(broker: StreamkeepBroker) -> None:
    work = actor_of(broker, print)
    work.send(1)
    work.send(2)
    consumer = broker.consume("default", prefetch=8, timeout=0)
    messages = [next(consumer), next(consumer)]
    broker.emit_before("process_message", messages[1])
    assert [one is not None and bool(one.streamkeep_job._marks) for one in messages] == [
        False,
        True,
    ]
    consumer.close()


def test_a_message_of_an_actor_that_the_worker_does_not_have_waits(
    broker: StreamkeepBroker, worker: Worker
) -> None:
    broker.declare_queue("default")
    message: Message[None] = Message(
        queue_name="default", actor_name="later", args=(), kwargs={}, options={}
    )
    broker.enqueue(message)
    wait_until(lambda: broker.queue().stats().parked == 1)
    ran: list[int] = []
    actor_of(broker, lambda: ran.append(1), name="later")
    wait_until(lambda: ran)


def test_results_are_missing_late_and_expire(broker: StreamkeepBroker, worker: Worker) -> None:
    work = actor_of(broker, lambda: 1, store_results=True, result_ttl=1)
    message = work.message()
    with pytest.raises(ResultMissing):
        message.get_result()
    with pytest.raises(ResultTimeout):
        message.get_result(block=True, timeout=1)
    sent = work.send()
    broker.join("default", timeout=PATIENCE_MS)

    def is_gone() -> bool:
        try:
            sent.get_result()
        except ResultMissing:
            return True
        return False

    wait_until(is_gone)


def test_joins_end_and_unknown_queues_are_refused(broker: StreamkeepBroker) -> None:
    actor_of(broker, print).send()
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=1)
    consumer = broker.consume("default", prefetch=5, timeout=0)
    consumer.requeue([next(consumer)])  # as a worker that stops does
    consumer.close()
    broker.flush("default")
    broker.join("default", timeout=1)
    for call in (broker.flush, broker.join, broker.consume):
        with pytest.raises(QueueNotFound):
            call("missing")
    for kind in (StreamkeepBroker, StreamkeepBackend):
        with pytest.raises(ArgumentError, match="streamkeep:"):
            kind("redis://localhost")
