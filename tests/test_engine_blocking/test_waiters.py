"""Blocking reads inside one process: their arguments, what wakes them, and iterators."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import streamkeep
from blocked import BLOCKED, Callers, bells, ids, tickets
from inside import waiters_of
from patience import wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import Clock, ManualClock

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

NEW = {"s": ">"}


def test_a_block_beyond_the_end_of_time_is_refused(store: Store) -> None:
    with pytest.raises(streamkeep.CommandError, match="not an integer or out of range"):
        store.xread({"s": "$"}, block=1 << 63)
    with pytest.raises(streamkeep.CommandError, match="timeout is out of range"):
        store.xread({"s": "$"}, block=(1 << 63) - 1)


def test_time_is_up(store: Store) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    calls: list[Callable[[], Any]] = [
        lambda: store.xread({"s": "$", "t": 0}, block=20),
        lambda: store.xreadgroup("g", "c", NEW, block=20),
    ]
    for call in calls:
        began = time.monotonic()
        assert call() == []
        assert time.monotonic() - began >= 0.02
    assert tickets(store) == 0
    assert bells(store) == []


def test_timeouts_follow_the_monotonic_clock(open_store: Open, clock: ManualClock) -> None:
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 1000.0
        return now

    clock.monotonic = monotonic
    assert open_store().xread({"s": "$"}, block=1_500_000) == []
    assert now < 10_000


def test_a_consumer_is_created_before_it_waits(store: Store) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    store.xreadgroup("g", "c", NEW, block=1)
    assert [one["name"] for one in store.xinfo_consumers("s", "g")] == [b"c"]


def test_transactions_pipelines_and_snapshots_never_wait(store: Store) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    with store.transaction() as txn:
        assert txn.xread({"s": "$"}, block=0) == []
        assert txn.xreadgroup("g", "c", NEW, block=0) == []
    with store.pipeline() as pipeline:
        pipeline.xread({"s": "$"}, block=0)
        pipeline.xreadgroup("g", "c", NEW, block=0)
        assert pipeline.execute() == [[], []]
    with store.snapshot() as snapshot:
        assert snapshot.xread({"s": "$"}, block=0) == []


def test_waiting_inside_ones_own_transaction_is_refused(store: Store) -> None:
    with store.transaction(), pytest.raises(streamkeep.StoreError, match="a transaction open"):
        store.xread({"s": "$"}, block=0)


def test_another_sync_mode_waits_as_well(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    view = store.using("commit")
    assert view.xread({"s": "$"}, block=10) == []
    callers = Callers(store)
    callers.start(lambda: view.xread({"s": "$"}, block=0))
    callers.start(lambda: view.xreadgroup("g", "c", NEW, block=0))
    view.xadd("s", {"f": "v"}, id="1-1")
    assert [ids(result) for result in callers.end()] == [[b"1-1"], [b"1-1"]]


def test_plus_is_looked_up_again_when_woken(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "+"}, block=0))
    with store.transaction() as txn:
        txn.xadd("s", {"f": "v"}, id="1-1")
        txn.xadd("s", {"f": "v"}, id="2-1")
    assert [ids(result) for result in callers.end()] == [[b"2-1"]]


def test_the_whole_command_runs_again(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"t": "$", "s": "$"}, block=0))
    with store.transaction() as txn:
        txn.xadd("s", {"f": "v"}, id="1-1")
        txn.xadd("t", {"f": "v"}, id="2-1")
    (result,) = callers.end()
    assert [name for name, _ in result] == [b"t", b"s"]


def test_many_ways_to_add_wake(store: Store, no_fallback: None) -> None:
    for add in (
        lambda: store.xadd("s", {"f": "v"}, maxlen=5),
        lambda: store.xadd("s", {"f": "v"}, idmp=("p", "1")),
        lambda: store.xadd_many("s", [{"f": "v"}] * 3),
        lambda: store.pipeline().xadd("s", {"f": "v"}).execute(),
    ):
        callers = Callers(store)
        callers.start(lambda: store.xread({"s": "$"}, block=0))
        add()
        wait_until(lambda callers=callers: len(callers.finished) == 1)  # type: ignore[misc]


def test_nothing_is_rung_by_what_was_undone(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.xadd("s", {"f": "v"})
        raise ZeroDivisionError
    assert tickets(store) == 1
    assert callers.end() == [BLOCKED]


def test_an_entry_that_is_trimmed_at_once_serves_nobody(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    store.xadd("s", {"f": "v"}, id="1-1", maxlen=0, approximate=False)
    assert callers.results() == [BLOCKED]
    store.xadd("s", {"f": "v"}, id="2-1")
    assert [ids(result) for result in callers.end()] == [[b"2-1"]]


def test_a_nack_wakes_one_that_claims(store: Store, no_fallback: None) -> None:
    store.xadd("s", {"f": "v"}, id="1-1")
    store.xgroup_create("s", "g", id=0)
    store.xreadgroup("g", "owner", NEW)
    callers = Callers(store)
    hour = 3_600_000
    callers.start(lambda: store.xreadgroup("g", "a", NEW, block=0))
    for name in "bc":
        claim = partial(store.xreadgroup, "g", name, NEW, claim_min_idle_time=hour)
        callers.start(partial(claim, block=0))
    store.xnack("s", "g", "FAIL", "1-1")
    first, second, third = callers.end()
    assert (first, third) == (BLOCKED, BLOCKED)
    assert ids(second) == [b"1-1"]


def test_a_claim_comes_true_by_itself(open_store: Open, no_fallback: None) -> None:
    store = open_store(clock=Clock())
    store.xadd_many("s", [{"f": "gone"}, {"f": "v"}], ids=["1-1", "2-1"])
    store.xgroup_create("s", "g", id=0)
    store.xreadgroup("g", "owner", NEW)
    store.xdel("s", "1-1")  # stays pending, and is nothing to wake up for
    ((_, entries),) = store.xreadgroup("g", "c", NEW, block=0, claim_min_idle_time=80)
    (only,) = entries
    assert only[0] == b"2-1"
    assert only[2] >= 80


def test_a_claim_waits_for_what_others_are_given(open_store: Open, no_fallback: None) -> None:
    store = open_store(clock=Clock())
    store.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    callers.start(lambda: store.xreadgroup("g", "first", NEW, block=0))
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0, claim_min_idle_time=60))
    store.xadd("s", {"f": "v"}, id="1-1")
    wait_until(lambda: len(callers.finished) == 2)
    first, second = callers.end()
    assert ids(first) == ids(second) == [b"1-1"]


def test_follow_begins_where_it_was_called(store: Store, no_fallback: None) -> None:
    store.xadd("s", {"n": 1}, id="1-1")
    newer = store.follow("s", block=20)
    store.xadd("s", {"n": 2}, id="2-1")
    assert [entry.id for entry in newer] == [b"2-1"]
    assert [entry.id for entry in store.follow("s", 0, block=None, count=1)] == [b"1-1", b"2-1"]
    assert [entry.id for entry in store.follow("s", "+", block=1)] == [b"2-1"]
    assert list(store.follow("none", block=None)) == []


def test_follow_ends_when_told(store: Store) -> None:
    stop = threading.Event()
    got: list[bytes] = []
    callers = Callers(store)
    callers.start(lambda: got.extend(one.id for one in store.follow("s", stop=stop.is_set)))
    store.xadd("s", {"f": "v"}, id="1-1")
    callers.settle()
    stop.set()
    waiters_of(store).alarm()
    wait_until(lambda: len(callers.finished) == 1)
    assert got == [b"1-1"]


def test_follow_can_be_left(store: Store) -> None:
    store.xadd_many("s", [{"n": n} for n in range(10)], ids=[f"1-{n + 1}" for n in range(10)])
    entries = store.follow("s", 0)
    assert next(entries).id == b"1-1"
    entries.close()  # type: ignore[attr-defined]
    assert tickets(store) == 0


def test_consume_begins_with_what_is_pending(store: Store) -> None:
    store.xadd_many("s", [{"n": n} for n in range(6)], ids=[f"1-{n + 1}" for n in range(6)])
    store.xgroup_create("s", "g", id=0)
    for number, entry in enumerate(store.consume("s", "g", "c", count=2)):
        if number == 3:
            break  # in the middle: 1-4 is not done
        store.xack("s", "g", entry.id)
    store.xdel("s", "1-5")
    again = [entry.id for entry in store.consume("s", "g", "c", block=1)]
    assert again == [b"1-4", b"1-6"]
    rest = store.consume("s", "g", "c", block=None)
    assert [entry.id for entry in rest] == [b"1-4", b"1-6"]


def test_consume_needs_a_group(store: Store) -> None:
    with pytest.raises(streamkeep.NoSuchGroupError):
        next(store.consume("s", "g", "c"))
    with pytest.raises(streamkeep.ArgumentError):
        store.consume("s", "g", "c", count=0)


def test_a_consumer_that_waited_reads_its_history_at_once(store: Store) -> None:
    store.xgroup_create("k", "g", id="0", mkstream=True)
    store.xadd("k", {"f": "v"})
    store.xreadgroup("g", "c", {"k": ">"})
    assert store.xreadgroup("g", "c", {"k": ">"}, block=1) == []
    ((_, entries),) = store.xreadgroup("g", "c", {"k": "0"}, block=0)
    assert len(entries) == 1


def test_a_follower_of_history_sees_what_was_trimmed_before_it_slept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.xadd("k", {"n": "0"})
    store.set_retention("k", archive=True)
    waiters = waiters_of(store)
    take_bell = waiters.take_bell
    came = iter([True])

    def trimmed_meanwhile() -> object:
        """Another process adds and trims between the first look and the row on the board."""
        if next(came, False):
            store.xadd("k", {"n": "1"})
            store.xtrim("k", maxlen=0, approximate=False)
        return take_bell()

    monkeypatch.setattr(waiters, "take_bell", trimmed_meanwhile)
    entries = store.follow("k", "$", history=True, block=0)
    assert next(iter(entries)).fields == {b"n": b"1"}
