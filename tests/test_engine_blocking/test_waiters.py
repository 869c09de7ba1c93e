"""Blocking reads inside one process: what wakes them, in which order, and how they end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from blocked import BLOCKED, Callers, tickets
from inside import wait_table_of, waiters_of
from patience import PATIENCE_S, handles_below, wait_until
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters
from streamkeep.engine.blocking.calls import GroupCall, ReadCall, Wait
from streamkeep.engine.commands.xreadgroup import Delivery
from streamkeep.engine.notify.notifier import Bell, Notifier
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.system.clock import Clock, ManualClock
from streamkeep.engine.system.safe_files import Folder

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

Open = Callable[..., Store]
NEW = {"s": ">"}


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lost wake-up a failure: no reader looks again after a second."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)


def ids(result: Any) -> list[bytes]:
    return [entry[0] for _, entries in result for entry in entries]


def bells(store: Store) -> list[str]:
    return [name for name in os.listdir(store.path / "waiters") if name != "board"]


# --- arguments and timeouts ---------------------------------------------------------------------


@pytest.mark.parametrize("block", [-1, "5", 1.5])
def test_a_block_that_is_no_number_of_milliseconds_is_refused(store: Store, block: Any) -> None:
    with pytest.raises(streamkeep.ArgumentError, match="XREAD block must be a non-negative"):
        store.xread({"s": "$"}, block=block)
    with pytest.raises(streamkeep.ArgumentError, match="XREADGROUP block must be a non-neg"):
        store.xreadgroup("g", "c", NEW, block=block)


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


def test_what_is_there_is_returned_without_waiting(store: Store, no_fallback: None) -> None:
    store.xadd("s", {"f": "v"}, id="1-1")
    store.xgroup_create("s", "g", id=0)
    assert ids(store.xread({"s": 0}, block=0)) == [b"1-1"]
    assert ids(store.xreadgroup("g", "c", NEW, block=0)) == [b"1-1"]
    assert store.xreadgroup("g", "other", {"s": 0}, block=0) == [[b"s", []]]  # a history


def test_a_missing_group_is_an_error_at_once(store: Store) -> None:
    with pytest.raises(streamkeep.NoSuchGroupError, match="in XREADGROUP with GROUP option"):
        store.xreadgroup("g", "c", NEW, block=0)


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


# --- what wakes ---------------------------------------------------------------------------------


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


GONE = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


@pytest.mark.parametrize(
    "remove",
    [
        lambda store: store.delete("s"),
        lambda store: store.rename("s", "elsewhere"),
        lambda store: store.xgroup_destroy("s", "g"),
        lambda store: store.rename("other", "s"),
    ],
    ids=["delete", "rename", "destroy", "replace"],
)
def test_consumers_raise_when_their_group_is_gone(
    store: Store, no_fallback: None, remove: Callable[[Store], Any]
) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    store.xgroup_create("other", "h", mkstream=True)
    callers = Callers(store)
    for consumer in "ab":
        callers.start(partial(store.xreadgroup, "g", consumer, NEW, block=0))
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    remove(store)
    *consumers, reader = callers.end()
    assert [str(error) for error in consumers] == [GONE, GONE]
    assert reader == BLOCKED


def test_a_stream_renamed_to_the_key_brings_its_group(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    store.xadd("t", {"f": "v"}, id="7-0")
    store.xgroup_create("t", "g", id=0)
    callers = Callers(store)
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
    store.rename("t", "s")
    assert [ids(result) for result in callers.end()] == [[b"7-0"]]


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


# --- seen times ---------------------------------------------------------------------------------


def seen_ms(store: Store) -> int:
    """Return when the only consumer was seen, as XINFO FULL says."""
    (group,) = store.xinfo_stream("s", full=True)["groups"]
    return int(group["consumers"][0]["seen-time"])


def test_who_is_woken_soon_has_committed_nothing_but_its_delivery(
    store: Store, monkeypatch: pytest.MonkeyPatch, no_fallback: None
) -> None:
    monkeypatch.setattr(waiters, "SEEN_WITHIN_S", 3600.0)
    store.xgroup_create("s", "g", mkstream=True)
    store.xgroup_createconsumer("s", "g", "c")
    before = store.durability().last_commit
    callers = Callers(store)
    callers.start(partial(store.xreadgroup, "g", "c", NEW, block=0))
    assert store.durability().last_commit == before
    store.xadd("s", {"f": "v"}, id="1-1")
    callers.settle()
    assert store.durability().last_commit == before + 2
    assert ids(callers.end()[0]) == [b"1-1"]


def test_who_waits_for_long_is_seen_and_keeps_its_place(
    open_store: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, no_fallback: None
) -> None:
    monkeypatch.setattr(waiters, "SEEN_WITHIN_S", 0.0)
    store = open_store()
    store.xgroup_create("s", "g", mkstream=True)
    store.xgroup_createconsumer("s", "g", "a")
    clock.ms += 50
    callers = Callers(store)
    callers.start(partial(store.xreadgroup, "g", "a", NEW, block=0))
    wait_until(lambda: seen_ms(store) == clock.now_ms())
    callers.start(partial(store.xreadgroup, "g", "b", NEW, block=0))
    store.xadd("s", {"f": "v"}, id="1-1")
    callers.settle()
    assert callers.finished == [0]
    callers.end()


def test_who_waits_in_vain_was_seen(store: Store, clock: ManualClock) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    store.xgroup_createconsumer("s", "g", "c")
    before = store.durability().last_commit
    clock.ms += 7
    assert store.xreadgroup("g", "c", NEW, block=5) == []
    assert store.durability().last_commit == before + 1
    assert seen_ms(store) == clock.now_ms()


def test_a_group_destroyed_before_the_note_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.xgroup_create("s", "g", mkstream=True)

    def destroy(*_: object) -> bool:
        store.xgroup_destroy("s", "g")
        return False

    monkeypatch.setattr(waiters, "_sleep", destroy)
    monkeypatch.setattr(waiters, "SEEN_WITHIN_S", 0.001)
    with pytest.raises(streamkeep.NoSuchGroupError):
        store.xreadgroup("g", "c", NEW, block=0)
    assert tickets(store) == 0


# --- order --------------------------------------------------------------------------------------


def test_two_hundred_consumers_are_served_in_the_order_they_came(
    store: Store, no_fallback: None
) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    for number in range(200):
        callers.start(partial(store.xreadgroup, "g", f"c{number}", NEW, block=0))
    for number in range(200):
        store.xadd("s", {"n": number}, id=f"1-{number + 1}")
        callers.settle()
    results = callers.end()
    assert callers.finished == list(range(200))
    assert [ids(result) for result in results] == [[b"1-%d" % (n + 1)] for n in range(200)]


def test_as_many_wake_as_there_is_work(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    for number in range(10):
        callers.start(partial(store.xreadgroup, "g", f"c{number}", NEW, count=1, block=0))
    store.xadd_many("s", [{"n": n} for n in range(4)])
    assert tickets(store) >= 6
    callers.settle()
    assert sorted(callers.finished) == [0, 1, 2, 3]
    callers.end()


def test_who_is_woken_in_vain_keeps_its_place(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    for name in "ab":
        callers.start(partial(store.xreadgroup, "g", name, NEW, block=0))
    store.xadd("s", {"f": "v"}, id="1-1", maxlen=0, approximate=False)
    callers.settle()
    store.xadd("s", {"f": "v"}, id="2-1")
    first, second = callers.end()
    assert ids(first) == [b"2-1"]
    assert second == BLOCKED


def test_who_does_not_use_its_ring_passes_it_on(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    waiters = waiters_of(store)
    waits = []
    for name in (b"a", b"b"):
        delivery = Delivery(b"g", name, 0, False, None, 0)
        call = GroupCall([(b"s", ">")], delivery, None, None)
        bell = waiters.take_bell()
        assert bell is not None
        steps = waiters.steps(Wait(call), bell, float("inf"), lambda: None)
        waits.append((steps, bell, next(steps)[0]))
    (first, bell, ticket), (second, next_door, next_ticket) = waits
    store.xadd("s", {"f": "v"})
    assert bell.notifications() == [ticket]
    assert next_door.notifications() == []
    first.close()  # as an interrupt does
    assert next_door.notifications() == [next_ticket]
    second.close()
    assert tickets(store) == 0


class InterruptedWait(Wait):
    """A wait that Ctrl-C ends when it is in the table, and the caller has not got the ticket."""

    def register(self, wait_table: WaitTable, bell: int) -> int:
        """Register, and be interrupted."""
        super().register(wait_table, bell)
        assert self.registered
        raise KeyboardInterrupt


def test_an_interrupt_right_after_the_registration_leaves_no_ticket(store: Store) -> None:
    waiters = waiters_of(store)
    wait = InterruptedWait(ReadCall([(b"s", (0, 0))], 0, None, None, 0))
    bell = waiters.take_bell()
    with pytest.raises(KeyboardInterrupt):
        next(waiters.steps(wait, bell, float("inf"), lambda: None))
    assert wait.registered
    assert tickets(store) == 0
    waiters.give_back(bell, keep=False)


# --- consumers that waited the last time --------------------------------------------------------


def _serve_after_a_wait(store: Store, callers: Callers) -> None:
    """Have consumer `c` wait once."""
    store.xgroup_create("s", "g", mkstream=True)
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
    store.xadd("s", {"f": "v"}, id="1-1")
    wait_until(lambda: callers.finished == [0])


def test_a_consumer_waits_again_without_the_write_lock(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    _serve_after_a_wait(store, callers)
    with store.transaction() as txn:
        callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
        assert tickets(store) == 1
        txn.xadd("s", {"f": "v"}, id="2-1")
    wait_until(lambda: callers.finished == [0, 1])
    first, second = callers.end()
    assert (ids(first), ids(second)) == ([b"1-1"], [b"2-1"])


def test_what_came_meanwhile_is_delivered_at_once(store: Store, no_fallback: None) -> None:
    callers = Callers(store)
    _serve_after_a_wait(store, callers)
    for seq in range(2, 5):
        store.xadd("s", {"f": "v"}, id=f"{seq}-1")
        assert ids(store.xreadgroup("g", "c", NEW, block=0)) == [b"%d-1" % seq]
    assert tickets(store) == 0
    callers.end()


def test_a_consumer_that_waits_again_is_seen(store: Store) -> None:
    callers = Callers(store)
    _serve_after_a_wait(store, callers)
    store.xgroup_delconsumer("s", "g", "c")
    assert store.xreadgroup("g", "c", NEW, block=1) == []
    (consumer,) = store.xinfo_consumers("s", "g")
    assert (consumer["name"], consumer["pending"]) == (b"c", 0)
    callers.end()


def test_a_consumer_that_waited_is_told_that_its_group_is_gone(store: Store) -> None:
    callers = Callers(store)
    _serve_after_a_wait(store, callers)
    store.xgroup_destroy("s", "g")
    with pytest.raises(streamkeep.NoSuchGroupError):
        store.xreadgroup("g", "c", NEW, block=0)
    assert tickets(store) == 0
    callers.end()


# --- doors ----------------------------------------------------------------------------------------


def test_a_door_whose_reader_is_gone_is_removed_by_its_next_ring(tmp_path: Path) -> None:
    bell = Bell(Folder(tmp_path))
    bells = Notifier(Folder(tmp_path))
    assert bells.notify(bell.number, 7)
    assert bells.notify(bell.number, 8)
    assert bell.notifications() == [7, 8]
    bell.abandon()  # as when its process is killed
    assert not bells.notify(bell.number, 9)
    assert not (tmp_path / bell.name).exists()
    assert not bells.notify(bell.number, 9)
    bells.close()


def test_few_doors_are_kept_open(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    made = [Bell(folder) for _ in range(200)]
    before = len(handles_below(tmp_path))
    bells = Notifier(folder)
    for number, bell in enumerate(made, start=1):
        assert bells.notify(bell.number, number)
    assert len(handles_below(tmp_path)) <= before + 64
    assert [bell.notifications() for bell in made] == [[number] for number in range(1, 201)]
    bells.close()
    assert len(handles_below(tmp_path)) == before
    for bell in made:
        bell.close()


# --- how a wait ends ----------------------------------------------------------------------------


def test_closing_the_store_ends_its_waits(open_store: Open, no_fallback: None) -> None:
    store, other = open_store(), open_store()
    other.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
    assert callers.end() == [BLOCKED, BLOCKED]
    wait_until(lambda: tickets(other) == 0)
    other.xadd("s", {"f": "v"})
    other.close()
    assert bells(other) == []


def test_an_interrupt_leaves_nothing(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    calls: list[Callable[[], Any]] = [
        lambda: store.xread({"s": "$"}, block=0),
        lambda: store.xreadgroup("g", "c", NEW, block=0),
    ]
    for call in calls:
        helper = threading.Thread(target=_interrupt, args=(store,))
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            call()
        helper.join()
        assert tickets(store) == 0
        assert bells(store) == []
    store.xadd("s", {"f": "v"})


def _interrupt(store: Store) -> None:
    wait_until(lambda: tickets(store) == 1)
    while tickets(store):  # one that comes just before the system call is seen only after it
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_no_door_is_left_behind(open_store: Open) -> None:
    store = open_store()
    callers = Callers(store)
    for _ in range(20):
        callers.start(lambda: store.xread({"s": "$"}, block=0))
    assert len(bells(store)) == 20
    store.xadd("s", {"f": "v"})
    wait_until(lambda: len(callers.finished) == 20)
    store.close()
    assert bells(store) == []


# --- without a board ----------------------------------------------------------------------------


def refuse(*_: object) -> None:
    raise PermissionError


@pytest.mark.parametrize("missing", ["board", "pipes", "rows"])
def test_without_a_board_the_store_is_asked_again_and_again(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, no_fallback: None, missing: str
) -> None:
    if missing == "board":
        monkeypatch.setattr(waiters, "WaitTable", refuse)
    elif missing == "pipes":
        monkeypatch.delattr(os, "mkfifo")
    store = open_store()
    if missing == "rows":
        many = [(b"%d" % number, b"", 0) for number in range(6_340)]
        assert wait_table_of(store).register(1, many)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(store.xread({"s": "0"}, block=0)))
    thread.start()
    store.xadd("s", {"f": "v"}, id="1-1")
    thread.join(PATIENCE_S)
    assert ids(found[0]) == [b"1-1"]
    assert store.xread({"s": "$"}, block=20) == []


def test_a_store_that_is_only_read_waits_too(open_store: Open) -> None:
    open_store().close()
    reader = open_store(readonly=True)
    assert reader.xread({"s": "$"}, block=20) == []
    with pytest.raises(streamkeep.StoreError, match="readonly"):
        reader.xreadgroup("g", "c", NEW, block=20)


def test_a_board_that_somebody_left_in_disorder_is_counted_anew(
    store: Store, no_fallback: None
) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    words = wait_table_of(store).words
    for word in range(512, 1024):
        words[word] = 7
    words[2] = 1  # a process died while it changed the board
    assert tickets(store) == 1
    assert sum(words[word] for word in range(512, 1024)) == 1
    store.xadd("s", {"f": "v"})
    wait_until(lambda: len(callers.finished) == 1)


# --- under stress -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_wake_up_is_lost(open_store: Open, no_fallback: None, seed: int) -> None:
    store = open_store()
    store.xgroup_create("s", "g", mkstream=True)
    total = 1500
    taken: list[bytes] = []
    seen: list[list[bytes]] = [[], []]
    done = threading.Event()

    def consume(name: str) -> None:
        count = random.Random(f"{seed} {name}").choice([1, 1, 5])
        stop = partial(done.wait, 0)
        taken.extend(one.id for one in store.consume("s", "g", name, count=count, stop=stop))

    def follow(into: list[bytes]) -> None:
        for entry in store.follow("s", "0", block=20_000):
            into.append(entry.id)
            if len(into) == total:
                return

    def produce(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        left = total // 3
        while left:
            some = min(left, rng.choice([1, 1, 1, 2, 7]))
            if some == 1:
                store.xadd("s", {"f": "v"})
            else:
                store.xadd_many("s", [{"f": "v"}] * some)
            left -= some
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.001)

    threads = [threading.Thread(target=consume, args=(f"c{n}",)) for n in range(4)]
    threads += [threading.Thread(target=follow, args=(into,)) for into in seen]
    threads += [threading.Thread(target=produce, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(taken) == total)  # no reader looks by itself: each must be woken
    done.set()
    waiters_of(store).alarm()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    everything = [entry.id for entry in store.xrange("s")]
    assert sorted(taken) == sorted(everything)
    assert seen == [everything, everything]
    assert tickets(store) == 0


# --- iterators ----------------------------------------------------------------------------------


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


def test_consume_shows_pending_entries_that_were_deleted(store: Store) -> None:
    store.xadd("s", {"f": "v"}, id="1-1")
    store.xgroup_create("s", "g", id=0)
    store.xreadgroup("g", "c", NEW)
    store.xdel("s", "1-1")
    assert list(store.consume("s", "g", "c", block=None)) == [(b"1-1", {})]


def test_consume_takes_over_what_others_left(open_store: Open) -> None:
    store: Store[Any] = open_store(clock=Clock(), decode_responses=True)
    store.xadd("s", {"f": "v"}, id="1-1")
    store.xgroup_create("s", "g", id=0)
    store.xreadgroup("g", "dead", NEW)
    mine = store.consume("s", "g", "c", claim_min_idle_time=30)
    assert next(mine) == ("1-1", {"f": "v"})
    assert store.xpending("s", "g")["consumers"] == [{"name": "c", "pending": 1}]


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


def test_a_crowd_leaves_few_doors(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_MOST_SPARE", 2)
    threads = [
        threading.Thread(target=store.xread, args=({"k": "$"},), kwargs={"block": 0})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: tickets(store) == 8)
    store.xadd("k", {"f": "v"})
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(waiters_of(store)._spare) <= 2


def test_the_memory_of_who_waited_forgets_those_who_called_longest_ago(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed full of consumers that never called again."""
    monkeypatch.setattr(waiters, "_MOST_WAITERS", 3)
    waiting = waiters_of(store)

    def ends(name: bytes, *, waited: bool) -> None:
        waiting._expect((b"g", name, b"s"), waited)

    def known() -> list[bytes]:
        return [waiter[1] for waiter in waiting._waited]

    for name in (b"a", b"b", b"c", b"d"):
        ends(name, waited=True)
    assert known() == [b"b", b"c", b"d"]
    ends(b"b", waited=True)
    assert known() == [b"c", b"d", b"b"]
    ends(b"c", waited=False)
    assert known() == [b"d", b"b"]
