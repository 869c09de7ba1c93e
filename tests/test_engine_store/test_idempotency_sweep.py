"""Expired messages of idempotent XADD are forgotten though no XADD comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import NOW_MS, assert_sound
from inside import context_of, environment_of, run_write
from patience import wait_until
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.store import idempotency_sweep
from streamkeep.engine.store.idempotency_sweep import BEGIN, sweep_step
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.txn.messages_due import MessagesDue
from tiers import slow_but

MODES = pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))


@pytest.fixture(autouse=True)
def _no_sweep() -> None:
    """Let the thread sweep here, unlike elsewhere."""


def tracked(store: Store[Any], key: str = "s") -> tuple[int, int]:
    """Return how many producers and messages are remembered."""
    info = store.xinfo_stream(key)
    return info["pids-tracked"], info["iids-tracked"]


def add_messages(store: Store[Any], key: str = "s", count: int = 6) -> None:
    store.xadd(key, {"n": "first"})
    store.xcfgset(key, idmp_duration=1)
    for number in range(count):
        store.xadd(key, {"n": number}, idmp=(f"p{number % 3}", f"m{number}"))


@MODES
def test_an_idle_store_forgets_what_has_expired(tmp_path: Path, sync: Sync) -> None:
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        add_messages(store)
        store.xadd("long", {"n": 1}, idmp=("p", "m"))
        wait_until(lambda: tracked(store) == (0, 0), "it is still counted")
        assert tracked(store, "long") == (1, 1)
        assert store.xinfo_stream("s")["iids-added"] == 6
        assert store.xlen("s") == 7
    assert_sound(tmp_path / "store")


@MODES
def test_a_thread_that_sleeps_wakes_when_a_message_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync
) -> None:
    monkeypatch.setattr(checkpointer, "IDLE_S", 0.05)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        add_messages(store)
        store.xcfgset("s", idmp_duration=3)
        store.xadd("s", {"n": 1}, idmp=("p", "m"))
        context = context_of(store)
        wait_until(lambda: not context.watched, "it never sleeps")
        wait_until(lambda: tracked(store) == (0, 0), "it is still counted")
    assert_sound(tmp_path / "store")


def test_ids_far_in_the_future_do_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "IDLE_S", 0.05)
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"n": 0}, id="1700000000000000-0")  # microseconds, say
        store.xadd("s", {"n": 1}, idmp=("p", "m"))
        environment = environment_of(store)
        assert environment.checkpointer is not None
        thread = environment.checkpointer._thread
        wait_until(lambda: not environment.context.watched, "it never sleeps")
        store.xadd("t", {"n": 1})
        wait_until(lambda: not environment.context.watched, "it never sleeps again")
        assert thread is not None
        assert thread.is_alive()
        assert environment.checkpointer._thread is thread
    assert_sound(tmp_path / "store")


def test_what_another_process_has_left_is_forgotten(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        add_messages(store)
        add_messages(store, "t")
        assert tracked(store)[1] + tracked(store, "t")[1] > 0
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("other", {"n": 1})
        wait_until(lambda: tracked(store) == tracked(store, "t") == (0, 0), "it is still counted")
    assert_sound(tmp_path / "store")


def test_maintain_forgets_at_once_and_says_how_many(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_sweep.Sweep, "__call__", lambda self: None)
    monkeypatch.setattr(idempotency_sweep, "PRODUCERS_AT_ONCE", 2)
    store = open_store()
    for number in range(10):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 5}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p3", "late"))
    store.xadd("renamed", {"n": 1}, idmp=("p", "m"))
    assert store.maintain().forgotten == 0
    clock.ms += 50_000
    store.rename("renamed", "t")
    assert store.maintain().forgotten == 10
    assert tracked(store) == (1, 1)
    clock.ms += 50_000
    assert store.maintain().forgotten == 2
    assert tracked(store) == tracked(store, "t") == (0, 0)
    assert store.maintain().forgotten == 0


def test_a_transaction_looks_at_a_bounded_number_of_producers_and_messages(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_sweep.Sweep, "__call__", lambda self: None)
    monkeypatch.setattr(idempotency_sweep, "PRODUCERS_AT_ONCE", 4)
    monkeypatch.setattr(idempotency_sweep, "_MESSAGES_AT_ONCE", 7)
    store = open_store()
    for number in range(60):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 6}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p1", "late"))
    clock.ms += 50_000
    context = context_of(store)
    counts = []
    place: Any = BEGIN
    while place is not None:
        assert context.messages_due.due(clock.ms) == [b"s"]
        count, place = run_write(store, sweep_step, b"s", place)
        counts.append(count)
    assert max(counts) <= 7
    assert sum(counts) == 60
    assert context.messages_due.due(clock.ms) == []
    assert context.messages_due.next_ms == NOW_MS + 50_000 + 100_000


def test_notes_are_looked_at_only_when_one_is_due() -> None:
    due = MessagesDue()
    assert due.due(1 << 62) == []
    due.note(b"a", 50)
    due.note(b"b", 40)
    due.note(b"b", 60)  # the earlier one counts
    assert (due.due(39), due.next_ms) == ([], 40)
    assert due.due(45) == [b"b"]
    due.drop(b"b")
    assert due.due(45) == []
    assert due.next_ms == 50
    due.rename(b"a", b"c")
    assert due.due(55) == [b"c"]


def test_no_note_is_passed_by_that_comes_during_a_look_at_all() -> None:
    due = MessagesDue()
    late: list[threading.Thread] = []

    looking = False

    class Time(int):
        def __lt__(self, other: int) -> bool:
            if looking and not late:
                late.append(threading.Thread(target=due.note, args=(b"late", 100), daemon=True))
                late[0].start()
                late[0].join(0.2)  # where it can be noted now
            return super().__lt__(other)

    due.note(b"a", Time(200))
    due.note(b"b", Time(300))
    due.next_ms = 0
    looking = True
    assert due.due(5) == []
    late[0].join()
    assert due.next_ms == 100
