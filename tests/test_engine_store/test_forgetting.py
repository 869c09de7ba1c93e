"""Expired messages of idempotent XADD: in no count, and forgotten in bounded transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inside import run_write
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import maintenance
from streamkeep.engine.system.clock import ManualClock


def tracked(store: Store[Any], key: str = "s") -> tuple[int, int]:
    """Return how many producers and messages are remembered."""
    info = store.xinfo_stream(key)
    return info["pids-tracked"], info["iids-tracked"]


def test_what_has_expired_is_not_counted_though_no_xadd_and_no_maintain_came(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store()
    for number in range(6):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 3}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p1", "late"))
    assert tracked(store) == (3, 7)
    clock.ms += 50_000
    assert tracked(store) == (1, 1)
    assert store.xinfo_stream("s", full=True)["iids-tracked"] == 1
    clock.ms += 50_000
    assert tracked(store) == (0, 0)
    assert store.xinfo_stream("s")["iids-added"] == 7
    store.xadd("s", {"n": 0}, idmp=("p0", "m0"))  # unknown again
    assert (store.xlen("s"), tracked(store)) == (8, (1, 1))


def test_maintain_forgets_at_once_and_says_how_many(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRODUCERS_AT_ONCE", 2)
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


def test_a_producer_with_more_lasting_messages_than_are_forgotten_at_once_is_passed(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MESSAGES_AT_ONCE", 7)
    store = open_store()
    for number in range(20):
        store.xadd("s", {"n": number}, idmp=("p", f"m{number}"))
    assert store.maintain().forgotten == 0
    assert tracked(store) == (1, 20)
    clock.ms += 101_000
    assert store.maintain().forgotten == 20


def test_a_transaction_looks_at_a_bounded_number_of_producers_and_messages(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRODUCERS_AT_ONCE", 4)
    monkeypatch.setattr(maintenance, "MESSAGES_AT_ONCE", 7)
    store = open_store()
    for number in range(60):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 6}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p1", "late"))
    clock.ms += 50_000
    counts = []
    place = 0
    while place >= 0:
        count, place = run_write(store, maintenance._forget_step, b"s", place)
        counts.append(count)
    assert max(counts) <= 7
    assert sum(counts) == 60
    assert tracked(store) == (1, 1)
