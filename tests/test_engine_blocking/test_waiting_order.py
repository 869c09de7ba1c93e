"""Which of the calls that wait is served first, and what a consumer that waits has committed."""

from __future__ import annotations

from functools import partial

import pytest

import streamkeep
from blocked import BLOCKED, Callers, ids, tickets
from inside import waiters_of
from patience import wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters
from streamkeep.engine.blocking.calls import GroupCall, ReadCall, Wait
from streamkeep.engine.commands.xreadgroup import Delivery
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.system.clock import ManualClock

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

NEW = {"s": ">"}


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


def test_many_consumers_are_served_in_the_order_they_came(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    for number in range(60):
        callers.start(partial(store.xreadgroup, "g", f"c{number}", NEW, block=0))
    for number in range(60):
        store.xadd("s", {"n": number}, id=f"1-{number + 1}")
        callers.settle()
    results = callers.end()
    assert callers.finished == list(range(60))
    assert [ids(result) for result in results] == [[b"1-%d" % (n + 1)] for n in range(60)]


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
