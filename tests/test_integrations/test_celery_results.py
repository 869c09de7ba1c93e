"""The result backend of Celery."""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from celery import Celery, canvas
from celery.app.task import Context
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult

import streamkeep
from failing import failing
from patience import PATIENCE_S, thread_of, wait_until
from streamkeep.format.core.errors import (
    NotAStoreError,
    RecoveryNeededError,
    StoreError,
    StoreFullError,
)
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery import backend, stores
from streamkeep.integrations.values import Values
from test_integrations.celery_queues import poison


def test_a_result_wakes_its_callers(app: Celery) -> None:
    results = app.backend
    assert results.get_state("a") == "PENDING"
    with pytest.raises(CeleryTimeoutError):
        AsyncResult("a", app=app).get(timeout=0.01)
    caller: list[Any] = []
    thread = thread_of(lambda: caller.append(AsyncResult("a", app=app).get()))
    results.store_result("a", None, "STARTED")
    results.store_result("a", {"is": 7}, "SUCCESS")
    thread.join()
    assert caller == [{"is": 7}]
    results.store_result("b", ValueError("wrong"), "FAILURE")
    with pytest.raises(ValueError, match="wrong"):
        AsyncResult("b", app=app).get(timeout=PATIENCE_S)
    found = dict(results.get_many(["a", "b"], timeout=PATIENCE_S))
    assert {name: one["status"] for name, one in found.items()} == {"a": "SUCCESS", "b": "FAILURE"}
    with pytest.raises(CeleryTimeoutError):
        list(results.get_many(["a", "c"], timeout=0.01))
    results.forget("a")
    assert results.get_state("a") == "PENDING"


@pytest.mark.parametrize(("end", "value"), [("SUCCESS", 1), ("FAILURE", ValueError("last"))])
def test_a_retry_that_has_ended_stays_so_when_its_former_attempt_tells_of_it(
    app: Celery, monkeypatch: pytest.MonkeyPatch, end: str, value: Any
) -> None:
    results = app.backend
    look = results._get_task_meta_for

    def end_after_a_look(task_id: str) -> Any:
        found = look(task_id)
        monkeypatch.undo()
        results.store_result(task_id, value, end)
        return found

    monkeypatch.setattr(results, "_get_task_meta_for", end_after_a_look)
    results.store_result("a", ValueError("first"), "RETRY")
    assert results.get_state("a") == end


def test_a_caller_of_more_results_than_it_has_bells_for_gets_all(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_MOST_BELLS", 1)
    monkeypatch.setattr(backend, "_LOOK_S", 0.01)
    ids = [str(number) for number in range(8)]
    found: list[str] = []

    def follow() -> None:
        found.extend(name for name, _ in app.backend.get_many(ids, timeout=PATIENCE_S))

    thread = thread_of(follow)
    for number, one in enumerate(ids, 1):
        app.backend.store_result(one, None, "SUCCESS")
        wait_until(lambda: len(found) == number)  # noqa: B023
    thread.join()
    assert found == ids


def test_a_pickled_result_can_be_read(app: Celery) -> None:
    app.set_current()
    app.backend.store_result("a", 1, "SUCCESS")
    assert pickle.loads(pickle.dumps(app.AsyncResult("a"))).get(timeout=PATIENCE_S) == 1


def test_results_expire(app: Celery) -> None:
    app.conf.result_expires = 0.001
    app.backend.store_result("a", 1, "SUCCESS")
    wait_until(lambda: app.backend.get(app.backend.get_key_for_task("a")) is None)


def test_the_time_of_a_result_is_changed_and_an_expired_one_stays_gone(app: Celery) -> None:
    results = app.backend
    for name, seconds in (("a", 0.001), ("b", 3600)):
        results.set(name, "1")
        results.expire(name, seconds)
    wait_until(lambda: results.get("a") is None)
    results.expire("a", 3600)
    results.expire("b", 3601)
    results.expire("c", 3600)
    assert results.mget(["a", "b", "c"]) == [None, b"1", None]
    results.expire("b", None)  # without limit
    assert results.get("b") == b"1"


def returns(app: Celery, task_id: str) -> None:
    request = type("Request", (), {"group": "g", "id": task_id, "chord": {"task": "body"}})()
    app.backend.on_chord_part_return(request, "SUCCESS", 1)


def test_a_task_that_runs_twice_counts_once_for_its_chord(app: Celery) -> None:
    """The first one does while the last one sends the body, and the last one after that."""
    backend = app.backend
    sent = mock.Mock(side_effect=lambda *_: returns(app, "a"))
    GroupResult("g", [AsyncResult(one, app=app) for one in "ab"], app=app).save()
    backend.set_chord_size("g", 2)
    for one in "ab":
        backend.store_result(one, 1, "SUCCESS")
    delete = backend.delete

    def dies_at_the_chord(key: str) -> None:
        if key == backend.get_key_for_chord("g"):
            raise KeyboardInterrupt
        delete(key)

    with mock.patch.object(canvas.Signature, "delay", sent):
        returns(app, "a")
        with (
            mock.patch.object(backend, "delete", dies_at_the_chord),
            pytest.raises(KeyboardInterrupt),
        ):
            returns(app, "b")
        with mock.patch.object(backend, "chord_error_from_stack") as error:
            returns(app, "b")
    assert not error.called
    assert sent.call_count == 1


def test_a_task_of_a_chord_has_ended_only_when_that_has_counted_it(app: Celery) -> None:
    """Celery takes it for done, without the chord, if its child is killed in between."""
    backend = app.backend

    def ended() -> list[str]:
        return [one for one in "ab" if backend._get_task_meta_for(one)["status"] == "SUCCESS"]

    GroupResult("g", [AsyncResult(one, app=app) for one in "ab"], app=app).save()
    backend.set_chord_size("g", 2)
    for one in "ab":
        backend.store_result(one, 1, "SUCCESS", request=Context(id=one, group="g"))
    assert ended() == []
    returns(app, "a")
    assert ended() == ["a"]
    with mock.patch.object(canvas.Signature, "delay") as sent:
        returns(app, "b")
    assert sent.call_count == 1
    assert ended() == ["a", "b"]
    backend.store_result("c", 1, "SUCCESS", request=Context(id="c", group="no chord"))
    assert backend.get_task_meta("c")["status"] == "SUCCESS"


def test_what_a_chord_needs_is_kept_as_long_as_chords_are(app: Celery) -> None:
    app.conf.result_expires, app.conf.result_chord_expires = 60, 3600
    if not hasattr(app.backend, "chord_expires"):
        pytest.skip("Celery 5.6 has one time for all")
    app.backend.apply_chord(("g", [AsyncResult(one, app=app) for one in "ab"]), None)
    app.backend.set_chord_size("g", 2)
    app.backend.store_result("a", 1, "SUCCESS")
    returns(app, "a")
    opened = app.backend._use(lambda opened: opened)
    kept = opened.read(lambda one: Values("celery:results").between(one, "", "x", 10))
    assert len(kept) == 5
    assert all(expires_ms > (time.time() + 600) * 1000 for _, expires_ms, _ in kept)


def test_a_chord_with_a_group_in_its_group_ends_with_its_last_task(app: Celery) -> None:
    results = [AsyncResult(one, app=app) for one in ("a", "b", "c")]
    GroupResult("g", [results[0], GroupResult("inner", results[1:], app=app)], app=app).save()
    with mock.patch.object(canvas.Signature, "delay") as sent:
        for number, one in enumerate(results, 1):
            app.backend.store_result(one.id, number, "SUCCESS")
            returns(app, one.id)
            assert sent.call_count == (number == 3)
            app.backend.set_chord_size("g", 3)  # Celery knows it when it sends the last task


def test_a_result_goes_to_the_store_in_place_of_one_that_was_moved(app: Celery, url: str) -> None:
    app.backend.store_result("a", 1, "SUCCESS")
    path = parse_address(url).path
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(NotAStoreError):
        app.backend.store_result("b", 2, "SUCCESS")
    streamkeep.open(path).close()
    app.backend.store_result("b", 2, "SUCCESS")
    stores.close_all()
    assert app.backend.get_result("b") == 2
    assert app.backend.get_state("a") == "PENDING"


@pytest.mark.parametrize("error", [StoreFullError, RecoveryNeededError])
def test_a_result_is_stored_again_when_the_store_can_if_celery_is_to_retry(
    url: str, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    app = Celery("test", backend=url, set_as_current=False)
    app.conf.result_backend_always_retry = True
    app.conf.result_backend_base_sleep_between_retries_ms = 1
    monkeypatch.setattr(Values, "put", failing([error("the disk is full")] * 2, Values.put))
    app.backend.store_result("a", 1, "SUCCESS")
    assert app.backend.get_result("a") == 1
    app.close()


def test_after_a_failed_sync_a_store_is_connected_to_when_no_one_has_it_open(url: str) -> None:
    one = stores.shared(parse_address(url))
    one.connect()
    other = streamkeep.open(one.address.path)
    poison(one)
    for _ in range(2):
        with pytest.raises(RecoveryNeededError):
            one.connect()  # Kombu waits longer before each attempt
    assert one.opened.opened is None
    with suppress(RecoveryNeededError):
        other.close()
    one.connect()
    one.opened.apply(lambda txn: txn.xadd(b"a", {b"f": b"v"}))


def test_a_store_whose_journal_lacks_commits_is_not_connected_to(url: str) -> None:
    one = stores.shared(parse_address(url))
    one.opened.apply(lambda txn: txn.xadd(b"a", {b"f": b"v"}))
    control = one.opened.store._environment.context.control
    assert control is not None
    control.publish(control.newest() + 1)
    with pytest.raises(RecoveryNeededError):
        one.connect()
    assert one.opened.opened is None
