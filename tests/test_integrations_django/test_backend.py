"""The backend: what is enqueued, when, and what results say."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from failing import failing
from patience import PATIENCE_S, thread_of, wait_until
from stopped import child_of, status_of
from streamkeep.format.core.errors import StoreFullError
from streamkeep.integrations.django import interface, queues, records
from streamkeep.jobs import JobFailedError, PayloadError, Queue, QueueFullError
from streamkeep.jobs.running import execute
from test_integrations_django import shop_tasks
from test_integrations_django.conftest import BACKEND, QueueWith


def test_coroutines_enqueue_and_run_and_a_task_may_take_its_context(backend: Any) -> None:
    result = asyncio.run(shop_tasks.add_later.aenqueue(1, 2))
    looked = shop_tasks.look.enqueue("hello")
    backend.queue("default").run_until_idle()
    assert asyncio.run(backend.aget_result(result.id)).return_value == 3
    looked.refresh()
    assert looked.return_value == [looked.id, "RUNNING", 1, ["hello"], "hello"]


def test_a_task_of_a_transaction_is_enqueued_with_its_commit(backend: Any, database: None) -> None:
    sent: list[Any] = []

    def note(sender: Any, task_result: Any, **rest: Any) -> None:
        sent.append(task_result.id)

    interface.task_enqueued.connect(note)
    try:
        with transaction.atomic():
            kept = shop_tasks.add.enqueue(1)
            assert (kept.enqueued_at, sent) == (None, [])
        assert sent == [kept.id]
    finally:
        interface.task_enqueued.disconnect(note)
    assert kept.enqueued_at is not None
    assert backend.get_result(kept.id) == kept


def test_a_full_queue_refuses_a_task_before_the_commit_and_none_after_it(
    backend: Any, database: None
) -> None:
    queue = backend.queue("default")
    queue.set_limits(max_length=1)
    with transaction.atomic():
        kept = [shop_tasks.add.enqueue(number) for number in range(3)]
    assert [backend.get_result(one.id) for one in kept] == kept
    with pytest.raises(QueueFullError), transaction.atomic():
        shop_tasks.add.enqueue(3)
    assert queue.stats().waiting == 3


def test_a_forked_child_enqueues_where_its_parent_has_enqueued(backend: Any) -> None:
    shop_tasks.add.enqueue(1)
    assert status_of(child_of(lambda: shop_tasks.add.enqueue(2))) == 0
    shop_tasks.add.enqueue(3)
    assert backend.queue("default").stats().waiting == 3


def test_arguments_that_cannot_be_kept_are_refused_by_enqueue(queue_with: QueueWith) -> None:
    with queue_with(max_result_bytes=100) as queue:
        with pytest.raises(PayloadError, match="at most 100"):
            shop_tasks.fail.enqueue("x" * 200)
        result = shop_tasks.return_much.enqueue(98)  # with its quotes, as large as it may be
        queue.run_until_idle()
        result.refresh()
        assert (result.status, len(result.return_value)) == ("SUCCESSFUL", 98)


@pytest.mark.parametrize(
    ("task", "args", "kind"),
    [
        (shop_tasks.leave, (), "builtins.SystemExit"),
        (shop_tasks.raise_bare_retry, (), "test_integrations_django.shop_tasks.BareRetry"),
        (shop_tasks.return_object, (), "builtins.TypeError"),
        (shop_tasks.return_much, (1 << 20,), "streamkeep.jobs.PayloadError"),
        (shop_tasks.add, (), "builtins.TypeError"),  # of a version with another signature
    ],
)
def test_what_cannot_be_a_result_is_a_failure(
    backend: Any, task: Any, args: tuple[Any, ...], kind: str
) -> None:
    result = task.enqueue(*args)
    backend.queue("default").run_until_idle()
    result.refresh()
    assert result.status == "FAILED"
    assert [one.exception_class_path for one in result.errors] == [kind]


def test_a_failure_that_a_full_store_takes_later_is_one_error(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backend.queue("default")
    result = shop_tasks.fail.enqueue("busy")
    full = [StoreFullError("the disk is full")] * 3
    monkeypatch.setattr(queues, "save_record", failing(full, records.save))
    assert execute(queue.get(), None, lambda error: 0).state == "failed"
    result.refresh()
    assert (result.status, len(result.errors)) == ("FAILED", 1)


def test_an_import_that_fails_after_the_limit_of_its_task_ends_no_worker(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop_tasks.add.enqueue(1)
    job = backend.queue("default").get(0)

    def fail_late(path: str) -> None:
        job.fail("it ran longer than max_runtime")  # as the thread that watches does
        raise ImportError(path)

    monkeypatch.setattr(queues, "task_at", fail_late)
    assert execute(job).state == "done"


def test_a_running_task_says_so(backend: Any) -> None:
    queue = backend.queue("default")
    result = shop_tasks.add.enqueue(1)
    job = queue.get()
    result.refresh()
    assert (result.status, result.args, result.attempts) == ("RUNNING", [1], 1)
    assert result.worker_ids == [queue.consumer.decode()]
    assert result.started_at is not None
    job.give_back()
    result.refresh()
    assert result.status == "READY"


def test_attempts_that_others_than_the_handler_ended_are_told_of(queue_with: QueueWith) -> None:
    errors = [TimeoutError, ValueError, JobFailedError]
    with queue_with(retries=2, backoff="1ms") as queue:
        found = shop_tasks.fail.enqueue("once")
        queue.get().end_attempt(("builtins.TimeoutError", "it ran too long", ""))
        for attempts in (1, 2):
            found.refresh()
            assert (found.status, found.attempts) == ("READY", attempts)
            assert [one.exception_class for one in found.errors] == errors[:attempts]
            if attempts == 1:
                wait_until(lambda: queue.run_until_idle(1) == 1)
        queue.get(PATIENCE_S).fail("3 workers died")  # as another worker does that finds it
        found.refresh()
        assert (found.status, found.args, found.attempts) == ("FAILED", ["once"], 3)
        assert [one.exception_class for one in found.errors] == errors
        assert "3 workers died" in found.errors[2].traceback
        assert found.started_at <= found.last_attempted_at <= found.finished_at
        queue.drop_dead()
        found.refresh()
        assert found.last_attempted_at <= found.finished_at


def test_a_cancelled_task_has_failed(backend: Any) -> None:
    result = shop_tasks.add.enqueue(5)
    queue = backend.queue("default")
    queue.purge()
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class_path == "streamkeep.jobs.JobCancelledError"


def test_a_dead_letter_is_ready_again(backend: Any) -> None:
    queue = backend.queue("default")
    result = shop_tasks.fail.using(priority=3).enqueue("once")
    queue.run_until_idle()
    assert Queue(queue.store).requeue() == 1  # as the command line does, which knows no Django
    result.refresh()
    assert (result.status, len(result.errors), result.finished_at) == ("READY", 1, None)
    queue.run_until_idle()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 2)
    queue.requeue()
    queue.get(0).fail("too late")
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)


def test_records_of_tasks_that_no_handler_ended_are_forgotten_too(queue_with: QueueWith) -> None:
    with queue_with(result_ttl=0) as queue:
        later = shop_tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1))
        for number in range(9):
            shop_tasks.add.enqueue(number)
        queue.purge()
        waiting = later.enqueue(1)
        shop_tasks.add.enqueue(9)
        queue.get().fail("2 workers died")  # as another worker does that finds it

        def are_forgotten() -> bool:
            shop_tasks.add.enqueue(1)
            queue.run_until_idle()
            return len(queue.store.row_range("django")) == 1

        wait_until(are_forgotten)
        waiting.refresh()
        assert waiting.status == "READY"


def test_effects_in_the_store_happen_with_the_result(backend: Any) -> None:
    result = shop_tasks.append_with_result.enqueue("ann")
    queue = backend.queue("default")
    queue.run_until_idle()
    assert [entry.fields for entry in queue.store.xrange("names")] == [{b"name": b"ann"}]
    assert backend.get_result(result.id).return_value == "ann"


def test_a_task_that_this_program_does_not_have_is_left_for_one_that_has(backend: Any) -> None:
    queue = backend.queue("default")
    shop_tasks.add.enqueue(1)
    store = queue.store
    [entry] = store.xrange("default")
    fields = {**entry.fields, b"task": b"shop.later.send"}
    with store.transaction() as txn:
        txn.xdel("default", entry.id)
        txn.xadd("default", fields)
    for _ in range(3):
        queue.run_until_idle()
    assert queue.stats().parked == 1
    shop_tasks.add.enqueue(1)
    assert queue.run_until_idle() == 1
    queue.core.possible.failed.clear()  # another process, with another version
    queue.core.tasks[b"shop.later.send"] = next(iter(queue.core.tasks.values()))
    assert queue.run_until_idle() == 1
    assert queue.stats().parked == 0


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for options, text in (
        ({}, "must have 'path'"),
        ({"path": ""}, "must have 'path'"),
        ({"path": tmp_path, "retrys": 3}, "unknown retrys"),
        ({"path": tmp_path, "retries": -1}, "retries must be"),
        ({"path": tmp_path, "backoff": "soon"}, "soon"),
    ):
        with (
            override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}),
            pytest.raises(ImproperlyConfigured, match=text),
        ):
            _ = interface.task_backends["default"].path


def test_a_path_that_is_no_store_is_a_finding_of_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    options = {"path": tmp_path / "file"}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        [found] = interface.task_backends["default"].check()
        assert found.id == "streamkeep.E001"
        assert str(tmp_path / "file") in found.msg


def test_wrong_tasks_are_refused(backend: Any) -> None:
    with pytest.raises(interface.InvalidTask):
        shop_tasks.add.using(queue_name="mails")
    with pytest.raises(TypeError):
        shop_tasks.add.enqueue(object())
    for wrong in ("", "123", "x" * 1000, "\udcff"):
        with pytest.raises(interface.TaskResultDoesNotExist):
            backend.get_result(wrong)


def test_it_runs_what_is_due(backend: Any) -> None:
    results = [shop_tasks.add.enqueue(1, 2), shop_tasks.add_later.enqueue(3, 4)]
    call_command("streamkeep_worker", "--until-idle")
    for result in results:
        result.refresh()
    assert [one.return_value for one in results] == [3, 7]
    with pytest.raises(CommandError, match="one job after the other"):
        call_command("streamkeep_worker", "--until-idle", "--processes")


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_signal_stops_it_after_the_tasks_that_run(backend: Any, mode: str) -> None:
    result = shop_tasks.nap.enqueue(0.05)
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]

    def stop() -> None:
        wait_until(lambda: backend.get_result(result.id).status != "READY")
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = thread_of(stop)
    try:
        call_command("streamkeep_worker", f"--{mode}", "-c", "2")
    finally:
        stopper.join()
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    result.refresh()
    assert result.status == "SUCCESSFUL"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--backend", "mails"], "TASKS has no backend 'mails'; it has default"),
        (["--queues", "mails"], "has no queue mails; it has default"),
        (["--grace", "soon"], "soon"),
        (["-c", "0"], "concurrency"),
        (["--reload", "--processes"], "does not go with"),
    ],
)
def test_wrong_options_of_the_worker_are_refused(backend: Any, args: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("streamkeep_worker", *args, stderr=StringIO())


def test_a_backend_of_another_kind_is_refused() -> None:
    module = type(shop_tasks.add).__module__.partition(".base")[0]
    dummy = {"BACKEND": f"{module}.backends.dummy.DummyBackend"}
    with (
        override_settings(TASKS={"default": dummy}),
        pytest.raises(CommandError, match="is a DummyBackend"),
    ):
        call_command("streamkeep_worker")
