"""The broker, the result backend and the schedule source of taskiq.

The tests of taskiq-redis for its stream broker and its backends are here in their sense: messages
are delivered once among workers, acknowledged, taken over; results are kept, taken, expire.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduledTask, TaskiqResult
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress, TaskState

import streamkeep
from failing import failing
from inside import journal_of
from patience import PATIENCE_S
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    NotAStoreError,
    RecoveryNeededError,
    StoreFullError,
)
from streamkeep.integrations.taskiq import (
    ResultIsMissingError,
    StreamkeepBroker,
    StreamkeepResultBackend,
    StreamkeepScheduleSource,
)
from streamkeep.jobs import Job, QueueFullError
from streamkeep.jobs.async_queue import AsyncQueue, atake
from streamkeep.jobs.handler_errors import return_job


@pytest.fixture(autouse=True)
def _no_tasks_of_others() -> None:
    AsyncBroker.global_task_registry = {}


def message(number: int, name: str = "work", **labels: Any) -> BrokerMessage:
    """Return a message as taskiq's own formatter makes it."""
    data = b'{"task_id":"%d","task_name":"%s","labels":{},"args":[%d],"kwargs":{}}'
    text = data % (number, name.encode(), number)
    return BrokerMessage(task_id=str(number), task_name=name, message=text, labels=labels)


@asynccontextmanager
async def started(path: Path, *tasks: str, **options: Any) -> AsyncIterator[StreamkeepBroker]:
    broker = StreamkeepBroker(path, **options)
    for name in tasks or ("work",):
        broker.register_task(lambda number: number, task_name=name)
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


def result(value: int) -> TaskiqResult[int]:
    return TaskiqResult(is_err=False, log="log", return_value=value, execution_time=0.0)


async def ack(one: AckableMessage) -> None:
    done = one.ack()
    assert done is not None
    await done


async def numbers(broker: StreamkeepBroker, count: int) -> list[int]:
    """Take and acknowledge messages; return their numbers."""
    found = []
    async with aclosing(broker.listen()) as messages:
        async for one in messages:
            found.append(broker.formatter.loads(one.data).args[0])
            await ack(one)
            if len(found) == count:
                break
    return found


async def test_a_task_runs_in_a_receiver_and_its_result_comes_back(tmp_path: Path) -> None:
    broker = StreamkeepBroker(tmp_path / "s").with_result_backend(
        StreamkeepResultBackend(f"streamkeep:///{tmp_path}/s")
    )

    @broker.task
    async def add(one: int, two: int) -> int:
        return one + two

    @broker.task
    def divide(one: int, two: int) -> float:
        return one / two

    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=3))
    sent = [await add.kiq(number, 1) for number in range(7)]
    results = [await one.wait_result(check_interval=0.001) for one in sent]
    assert [one.return_value for one in results] == list(range(1, 8))
    failed = await (await divide.kiq(1, 0)).wait_result(check_interval=0.001)
    assert isinstance(failed.error, ZeroDivisionError)
    while broker.queue().stats().running:  # acknowledged after the result was stored
        await asyncio.sleep(0)
    receiver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiver
    assert broker.queue().stats().done == 8
    await broker.shutdown()


@pytest.mark.parametrize(
    "error",
    [
        StoreFullError("the disk is full"),
        OSError(errno.EIO, "Input/output error"),
        CorruptionError("page 7", "its checksum does not match"),
    ],
)
async def test_an_acknowledgement_waits_for_a_store_that_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("streamkeep.integrations.taskiq.broker._AGAIN_S", 0.001)
    monkeypatch.setattr(AsyncQueue, "done_jobs", failing([error] * 3, AsyncQueue.done_jobs))
    async with started(tmp_path / "s") as broker:
        await broker.kick(message(1))
        listening = broker.listen()
        one = await anext(listening)
        for _ in range(2):  # the second time, there is nothing to acknowledge
            await ack(one)
        assert broker.queue().stats().done == 1
        await listening.aclose()


async def test_a_retry_waits_for_a_store_that_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkeep.integrations.taskiq.broker._AGAIN_S", 0.001)
    full = [StoreFullError("full")] * 3
    monkeypatch.setattr(AsyncQueue, "put_prepared", failing(full, AsyncQueue.put_prepared))
    async with started(tmp_path / "s") as broker:
        with pytest.raises(StoreFullError):
            await broker.kick(message(1))
        await broker.kick(message(2, _retries=1))
        assert broker.queue().stats().waiting == 1


async def test_a_listener_goes_on_after_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamkeep.integrations.taskiq.broker._AGAIN_S", 0.001)
    full, broken = StoreFullError("the disk is full"), OSError(errno.EIO, "no disk")
    errors: list[Exception] = [*[full] * 3, *[broken] * 3]
    monkeypatch.setattr("streamkeep.integrations.taskiq.broker.atake", failing(errors, atake))
    async with started(tmp_path / "s") as broker:
        await broker.kick(message(1))
        assert await numbers(broker, 1) == [1]
        gone = failing([RecoveryNeededError("a sync failed")], atake)  # all must close the store
        monkeypatch.setattr("streamkeep.integrations.taskiq.broker.atake", gone)
        with pytest.raises(RecoveryNeededError):
            await numbers(broker, 1)
    assert caplog.text.count("cannot take messages") == 2


async def test_messages_that_are_held_and_not_begun_go_back_after_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a listener was about to return when it ended."""
    name = "streamkeep.integrations.taskiq.broker"
    monkeypatch.setattr(f"{name}.HELD_S", 0.1)
    returned = threading.Semaphore(0)
    ended = threading.Event()

    def return_slowly(job: Job) -> None:
        return_job(job)
        returned.release()
        ended.wait(PATIENCE_S)

    async with started(tmp_path / "s") as broker:
        for number in range(7):
            await broker.kick(message(number))
        monkeypatch.setattr(f"{name}.return_job", return_slowly)
        async with aclosing(broker.listen()) as slow:
            for most in (1, 3, 3, 7):  # 1, 2 and 4 are taken
                await anext(slow)
                assert broker.queue().stats().running <= most
            await asyncio.to_thread(returned.acquire)
            ended.set()
        assert broker.queue().stats().running == 4


async def test_a_listener_that_is_cancelled_leaves_nothing_taken(tmp_path: Path) -> None:
    async with started(tmp_path / "s") as broker:
        waiting = asyncio.create_task(anext(broker.listen()))
        await asyncio.sleep(0.01)
        kicked = asyncio.create_task(broker.kick(message(1)))
        waiting.cancel()
        await kicked
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await numbers(broker, 1) == [1]


async def test_labels_say_when_where_and_in_which_order(tmp_path: Path) -> None:
    async with started(tmp_path / "s", queues=["other"]) as broker:
        await broker.kick(message(1, priority="low"))
        await broker.kick(message(2))
        await broker.kick(message(3, priority=5))
        await broker.kick(message(4, delay="3600"))
        await broker.kick(message(5, delay="0.001", priority="high"))
        await broker.kick(message(6, queue_name="other"))
        await broker.kick(message(7, queue_name="nobody-listens"))
        assert broker.queue().stats().delayed >= 1
        found = await numbers(broker, 5)
        assert sorted(found) == [1, 2, 3, 5, 6]
        assert found.index(3) < found.index(2) < found.index(1)
        assert broker.queue("nobody-listens").stats().waiting == 1
        await broker.kick(message(8, order_key="a"))
        await broker.kick(message(9, order_key="a"))
        async with aclosing(broker.listen()) as messages:
            first = await anext(messages)
            assert broker.queue().stats().held == 1
            await ack(first)
            await ack(await anext(messages))
        for labels in ({"delay": "soon"}, {"delay": True}, {"priority": "urgent"}):
            with pytest.raises(ArgumentError, match=next(iter(labels))):
                await broker.kick(message(10, **labels))
        assert broker.queue().stats().waiting == 0


@pytest.mark.parametrize("label", ["_retries", "X-Taskiq-requeue"])
async def test_a_queue_that_is_full_takes_a_retry(tmp_path: Path, label: str) -> None:
    async with started(tmp_path / "s") as broker:
        await broker.kick(message(1))
        broker.queue().set_limits(max_length=1)
        await broker.kick(message(2, "work", **{label: 1}))
        assert broker.queue().stats().waiting == 2
        with pytest.raises(QueueFullError):
            await broker.kick(message(3))


async def test_a_message_waits_for_a_worker_that_has_its_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path / "s") as old:
        await old.kick(message(1, "added-later"))
        await old.kick(message(2))
        assert await numbers(old, 1) == [2]
        assert old.queue().stats().parked == 1
        assert "does not know" in caplog.text
        async with started(tmp_path / "s", "work", "added-later") as new:
            assert await numbers(new, 1) == [1]


async def test_results_are_missing_kept_taken_and_expire(tmp_path: Path) -> None:
    kept: StreamkeepResultBackend[int] = StreamkeepResultBackend(tmp_path / "s")
    taken: StreamkeepResultBackend[int] = StreamkeepResultBackend(
        tmp_path / "s", keep_results=False, prefix="other"
    )
    brief: StreamkeepResultBackend[int] = StreamkeepResultBackend(
        tmp_path / "s", result_ttl=0.001, prefix="brief"
    )
    for backend in (kept, taken, brief):
        await backend.startup()
    assert not await kept.is_result_ready("a")
    with pytest.raises(ResultIsMissingError, match="task a"):
        await kept.get_result("a")
    await kept.set_result("a", result(1))
    await kept.set_result("a", result(2))
    assert await kept.is_result_ready("a")
    assert not await taken.is_result_ready("a")
    assert (await kept.get_result("a")).log is None
    assert (await kept.get_result("a", with_logs=True)).return_value == 2
    await taken.set_result("a", result(3))
    assert (await taken.get_result("a")).return_value == 3
    with pytest.raises(ResultIsMissingError):
        await taken.get_result("a")
    await brief.set_result("a", result(4))
    while await brief.is_result_ready("a"):
        await asyncio.sleep(0.001)
    await brief.set_result("b" * 5000, result(5))  # removes the one that has expired
    with streamkeep.open(tmp_path / "s") as store:
        assert len(store.row_range("brief:results")) == 2
    assert await kept.get_progress("a") is None
    await kept.set_progress("a", TaskProgress(state=TaskState.STARTED, meta="half"))
    progress = await kept.get_progress("a")
    assert progress is not None
    assert (progress.state, progress.meta) == (TaskState.STARTED, "half")
    for backend in (kept, taken, brief):
        await backend.shutdown()


async def test_results_and_schedules_are_those_of_the_store_in_place_of_one_that_was_moved(
    tmp_path: Path,
) -> None:
    worker: StreamkeepResultBackend[int] = StreamkeepResultBackend(tmp_path / "s")
    caller: StreamkeepResultBackend[int] = StreamkeepResultBackend(tmp_path / "s")
    source = StreamkeepScheduleSource(tmp_path / "s")
    [nightly, hourly] = [
        ScheduledTask(task_name="t", labels={}, args=[], kwargs={}, cron=cron)
        for cron in ("0 3 * * *", "0 * * * *")
    ]
    await worker.set_result("a", result(1))
    await source.add_schedule(nightly)
    assert await caller.is_result_ready("a")
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    for call in (caller.is_result_ready("b"), source.get_schedules()):
        with pytest.raises(NotAStoreError):
            await call
    streamkeep.open(tmp_path / "s").close()
    assert not await caller.is_result_ready("b")
    await worker.set_result("b", result(2))
    await source.add_schedule(hourly)
    assert (await caller.get_result("b")).return_value == 2
    assert not await caller.is_result_ready("a")
    assert [one.cron for one in await source.get_schedules()] == ["0 * * * *"]
    for one in (worker, caller, source):
        await one.shutdown()


async def test_results_leave_a_store_that_must_be_recovered_closed(tmp_path: Path) -> None:
    backend: StreamkeepResultBackend[int] = StreamkeepResultBackend(tmp_path / "s")
    await backend.set_progress("a", TaskProgress(state=TaskState.STARTED, meta=1))
    other = streamkeep.open(tmp_path / "s")
    journal_of(other).control.poison()
    with pytest.raises(RecoveryNeededError):
        await backend.set_progress("a", TaskProgress(state=TaskState.STARTED, meta=2))
    with suppress(RecoveryNeededError):
        other.close()
    with streamkeep.open(tmp_path / "s") as other:
        other.xadd("a", {"f": "v"})  # it is recovered, because no other has it open
    await backend.set_progress("a", TaskProgress(state=TaskState.STARTED, meta=3))
    progress = await backend.get_progress("a")
    assert progress is not None
    assert progress.meta == 3
    await backend.shutdown()


async def test_a_result_whose_removal_is_tried_again_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, the removal may be in the store or not."""
    apply = AsyncStore.apply
    failures = [RecoveryNeededError("a sync failed")]

    async def fail(store: AsyncStore[Any], *args: Any, **options: Any) -> Any:
        found = await apply(store, *args, **options)
        if failures:
            raise failures.pop()
        return found

    backend: StreamkeepResultBackend[int] = StreamkeepResultBackend(
        tmp_path / "s", keep_results=False
    )
    await backend.set_result("a", result(1))
    monkeypatch.setattr(AsyncStore, "apply", fail)
    assert (await backend.get_result("a")).return_value == 1
    assert not await backend.is_result_ready("a")
    await backend.shutdown()


async def test_schedules_are_added_listed_sent_and_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = StreamkeepScheduleSource(tmp_path / "s")
    await source.startup()
    common: dict[str, Any] = {"task_name": "work", "labels": {}, "args": [1], "kwargs": {}}
    cron = ScheduledTask(**common, schedule_id="1", cron="* * * * *", cron_offset="UTC")
    every = ScheduledTask(**common, schedule_id="2", interval=datetime.timedelta(seconds=5))
    once = ScheduledTask(**common, schedule_id="3", time=datetime.datetime(2020, 1, 1))
    for schedule in (cron, every, once):
        await source.add_schedule(schedule)
    assert await source.get_schedules() == [cron, every, once]
    for schedule in (cron, every, once):
        await source.post_send(schedule)
    assert await source.get_schedules() == [cron, every]
    await source.delete_schedule("1")
    await source.delete_schedule("1")
    with streamkeep.open(tmp_path / "s") as store:
        store.row_put("taskiq:schedules", b"v0", b"\0" * 8 + b"of another version")
    assert await source.get_schedules() == [every]
    assert "cannot be read" in caplog.text
    await source.shutdown()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("redis://localhost:6379", "not a URL of a store"),
        ("streamkeep://localhost/jobs", "names a host"),
        ("streamkeep:///", "has no path"),
        ("streamkeep:////tmp/s?fsync=1", "unknown option 'fsync'"),
        ("streamkeep:////tmp/s?sync=often", "sync must be one of"),
        ("", "must be a text"),
        ("streamkeep:////tmp/%00", "null character"),
    ],
)
def test_a_wrong_url_is_refused_and_the_error_shows_a_right_one(path: str, problem: str) -> None:
    for kind in (StreamkeepBroker, StreamkeepResultBackend, StreamkeepScheduleSource):
        with pytest.raises(ArgumentError, match=problem):
            kind(path)
