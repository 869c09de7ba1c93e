"""Sessions as introductions to Redis Streams show them, line by line: fruit, sensors, two workers.

IDs, times and replies are those that the introductions print. Where replies have grown since, the
lines of the old ones must still be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError, IdTooSmallError

HOUR_MS: Final = 3_600_000
KEY: Final = "mystream"
GROUP: Final = "mygroup"

FRUIT: Final = {
    "1526569495631-0": "apple",
    "1526569498055-0": "orange",
    "1526569506935-0": "strawberry",
    "1526569535168-0": "apricot",
    "1526569544280-0": "banana",
}
APPLE, ORANGE, STRAWBERRY, APRICOT, BANANA = FRUIT

Said = list[tuple[str, dict[str, str]]]


def said(*ids: str) -> Said:
    """Return entries of fruit as a reply lists them."""
    return [(one, {"message": FRUIT[one]}) for one in ids]


def append_at(store: Store[Any], clock: ManualClock, entry_id: str, fields: Any) -> None:
    """XADD with `*` in the millisecond that gives this ID."""
    clock.ms = int(entry_id.split("-")[0])
    assert store.xadd(KEY, fields) == entry_id


@pytest.fixture
def store(open_store: Any) -> Iterator[Store[str]]:
    """An empty store that answers with text."""
    with open_store(decode_responses=True) as store:
        yield store


@pytest.fixture
def fruit(store: Store[str], clock: ManualClock) -> Store[str]:
    """The group was made on an empty stream, then came five messages."""
    assert store.xgroup_create(KEY, GROUP, "$", mkstream=True)
    for entry_id, name in FRUIT.items():
        append_at(store, clock, entry_id, {"message": name})
    return store


@pytest.fixture
def two_workers(fruit: Store[str]) -> Store[str]:
    """Alice has done the apple; Bob has two messages, and has not been heard of since."""
    fruit.xreadgroup(GROUP, "Alice", {KEY: ">"}, count=1)
    fruit.xack(KEY, GROUP, APPLE)
    fruit.xreadgroup(GROUP, "Bob", {KEY: ">"}, count=2)
    return fruit


# --- a stream alone -----------------------------------------------------------------------------


def test_ids_that_are_given_must_rise(store: Store[str]) -> None:
    assert store.xadd("somestream", {"field": "value"}, id="0-1") == "0-1"
    assert store.xadd("somestream", {"foo": "bar"}, id="0-2") == "0-2"
    with pytest.raises(IdTooSmallError) as refused:
        store.xadd("somestream", {"foo": "bar"}, id="0-1")
    assert refused.value.redis_error == (
        "ERR The ID specified in XADD is equal or smaller than the target stream top item"
    )
    assert store.xadd("somestream", {"baz": "qux"}, id="0-*") == "0-3"


def test_a_range_of_time_finds_a_measurement(store: Store[str], clock: ManualClock) -> None:
    first = {"sensor-id": "1234", "temperature": "19.8"}
    append_at(store, clock, "1518951480106-0", first)
    append_at(store, clock, "1518951482479-0", {"sensor-id": "9999", "temperature": "18.2"})
    assert store.xlen(KEY) == 2
    assert store.xrange(KEY, 1518951480106, 1518951480107) == [("1518951480106-0", first)]


def test_a_stream_keeps_its_newest_two(store: Store[str], clock: ManualClock) -> None:
    for number, ms in enumerate((1526654998691, 1526654999635, 1526655000369), start=1):
        clock.ms = ms
        added = store.xadd(KEY, {"value": number}, maxlen=2, approximate=False)
        assert added == f"{ms}-0"
    assert store.xlen(KEY) == 2
    second, third = ("1526654999635-0", {"value": "2"}), ("1526655000369-0", {"value": "3"})
    assert store.xrange(KEY) == [second, third]
    assert store.xdel(KEY, "1526654999635-0") == 1
    assert store.xrange(KEY, count=2) == [third]


@pytest.mark.parametrize(("approximate", "left"), [(False, 10), (True, 13)])
def test_trimming_to_ten(store: Store[str], approximate: bool, left: int) -> None:
    """`~` leaves more: one node holds all thirteen, and it goes whole or not at all."""
    store.xadd_many(KEY, [{"n": number} for number in range(13)])
    assert store.xtrim(KEY, maxlen=10, approximate=approximate) == 13 - left
    assert store.xlen(KEY) == left


def test_a_stream_without_entries_keeps_its_groups(fruit: Store[str]) -> None:
    assert fruit.xdel(KEY, *FRUIT) == 5
    assert fruit.exists(KEY) == 1
    assert [group["name"] for group in fruit.xinfo_groups(KEY)] == [GROUP]
    assert fruit.xtrim(KEY, maxlen=0) == 0


# --- two workers --------------------------------------------------------------------------------


def test_a_group_needs_a_stream_unless_it_may_make_one(store: Store[str]) -> None:
    with pytest.raises(CommandError, match="requires the key to exist"):
        store.xgroup_create("newstream", GROUP, "$")
    assert store.xgroup_create("newstream", GROUP, "$", mkstream=True)
    assert store.xlen("newstream") == 0


def test_workers_share_the_messages(fruit: Store[str]) -> None:
    assert fruit.xreadgroup(GROUP, "Alice", {KEY: ">"}, count=1) == [[KEY, said(APPLE)]]
    assert fruit.xreadgroup(GROUP, "Alice", {KEY: "0"}) == [[KEY, said(APPLE)]]
    assert fruit.xack(KEY, GROUP, APPLE) == 1
    assert fruit.xreadgroup(GROUP, "Alice", {KEY: "0"}) == [[KEY, []]]
    reply = fruit.xreadgroup(GROUP, "Bob", {KEY: ">"}, count=2)
    assert reply == [[KEY, said(ORANGE, STRAWBERRY)]]


def test_seven_messages_go_round_three_workers(store: Store[str]) -> None:
    store.xadd_many(KEY, [{"n": number} for number in range(1, 8)])
    store.xgroup_create(KEY, GROUP, "0")
    got: dict[str, list[str]] = {"C1": [], "C2": [], "C3": []}
    while store.xinfo_groups(KEY)[0]["lag"]:
        for worker, numbers in got.items():
            for _, entries in store.xreadgroup(GROUP, worker, {KEY: ">"}, count=1):
                numbers += [entry.fields["n"] for entry in entries]
    assert got == {"C1": ["1", "4", "7"], "C2": ["2", "5"], "C3": ["3", "6"]}


def test_what_is_pending_shows_who_has_it(two_workers: Store[str], clock: ManualClock) -> None:
    assert two_workers.xpending(KEY, GROUP) == {
        "pending": 2,
        "min": ORANGE,
        "max": STRAWBERRY,
        "consumers": [{"name": "Bob", "pending": 2}],
    }
    clock.ms += 74_170_458  # more than twenty hours
    assert two_workers.xpending_range(KEY, GROUP, "-", "+", 10) == [
        {
            "message_id": entry_id,
            "consumer": "Bob",
            "time_since_delivered": 74_170_458,
            "times_delivered": 1,
        }
        for entry_id in (ORANGE, STRAWBERRY)
    ]
    assert two_workers.xrange(KEY, ORANGE, ORANGE) == said(ORANGE)


def test_of_two_who_claim_a_message_one_gets_it(
    two_workers: Store[str], clock: ManualClock
) -> None:
    clock.ms += 74_170_458
    assert two_workers.xclaim(KEY, GROUP, "Alice", HOUR_MS, [ORANGE]) == said(ORANGE)
    assert two_workers.xclaim(KEY, GROUP, "Lora", HOUR_MS, [ORANGE]) == []
    (row,) = two_workers.xpending_range(KEY, GROUP, ORANGE, ORANGE, 1)
    assert (row["consumer"], row["time_since_delivered"], row["times_delivered"]) == ("Alice", 0, 2)
    assert two_workers.xclaim(KEY, GROUP, "Lora", HOUR_MS, [STRAWBERRY], justid=True) == [
        STRAWBERRY
    ]


def test_messages_are_claimed_one_by_one(two_workers: Store[str], clock: ManualClock) -> None:
    """The introductions print the ID just claimed as the cursor; Redis hands out the next pending
    one. Going on from either claims the same.
    """
    clock.ms += 74_170_458
    cursor, claimed, gone = two_workers.xautoclaim(KEY, GROUP, "Alice", HOUR_MS, "0-0", count=1)
    assert (cursor, claimed, gone) == (STRAWBERRY, said(ORANGE), [])
    reply = two_workers.xautoclaim(KEY, GROUP, "Lora", HOUR_MS, ORANGE, count=1)
    assert reply == ["0-0", said(STRAWBERRY), []]


def test_a_message_that_fails_too_often_is_put_aside(
    two_workers: Store[str], clock: ManualClock
) -> None:
    """Each claim and each look at the history counts as a delivery."""
    for worker in ("Alice", "Lora", "Bob"):
        clock.ms += HOUR_MS
        two_workers.xclaim(KEY, GROUP, worker, HOUR_MS, [ORANGE])
    two_workers.xreadgroup(GROUP, "Bob", {KEY: "0"})
    with two_workers.transaction() as txn:
        for row in txn.xpending_range(KEY, GROUP, "-", "+", 10):
            if row["times_delivered"] > 3:
                (entry,) = txn.xrange(KEY, row["message_id"], row["message_id"])
                txn.xadd("dead", entry.fields)
                txn.xack(KEY, GROUP, row["message_id"])
    assert [entry.fields for entry in two_workers.xrange("dead")] == [{"message": "orange"}]
    assert two_workers.xpending(KEY, GROUP)["min"] == STRAWBERRY


def test_everything_can_be_observed(two_workers: Store[str], clock: ManualClock) -> None:
    two_workers.xgroup_create(KEY, "some-other-group", "$")
    two_workers.xgroup_createconsumer(KEY, "some-other-group", "Carol")
    stream = two_workers.xinfo_stream(KEY)
    assert (stream["length"], stream["radix-tree-keys"], stream["groups"]) == (5, 1, 2)
    assert [stream["first-entry"], stream["last-entry"]] == said(APPLE, BANANA)
    shown = ["name", "consumers", "pending", "last-delivered-id"]
    assert [[group[name] for name in shown] for group in two_workers.xinfo_groups(KEY)] == [
        [GROUP, 2, 2, STRAWBERRY],
        ["some-other-group", 1, 0, BANANA],
    ]
    clock.ms += 74_737_355
    two_workers.xclaim(KEY, GROUP, "Alice", HOUR_MS, [ORANGE])
    clock.ms += 9_104_628
    shown = ["name", "pending", "idle"]
    consumers = two_workers.xinfo_consumers(KEY, GROUP)
    assert [[consumer[name] for name in shown] for consumer in consumers] == [
        ["Alice", 1, 9_104_628],
        ["Bob", 1, 83_841_983],
    ]
    assert any("CONSUMERS" in line for line in two_workers.xinfo_help())


# --- the worker that recovers its history first -------------------------------------------------


class Crash(Exception):
    """The worker's process ends."""


def work(store: Store[str], worker: str, *, most: int, crash_at: str = "") -> list[str]:
    """Run a worker until it finds nothing; return the fruit that it has processed.

    It first reads what was delivered to it before, in case it crashed, going on from the last ID.
    When that comes back empty it asks for new messages.
    """
    processed: list[str] = []
    last_id, recovering = "0-0", True
    while True:
        reply = store.xreadgroup(GROUP, worker, {KEY: last_id if recovering else ">"}, count=most)
        if not reply:
            return processed
        ((_, entries),) = reply
        recovering = recovering and bool(entries)
        for entry in entries:
            if entry.fields["message"] == crash_at:
                raise Crash
            processed.append(entry.fields["message"])
            store.xack(KEY, GROUP, entry.id)
            last_id = entry.id


def test_a_worker_that_crashed_first_does_what_it_left(fruit: Store[str]) -> None:
    with pytest.raises(Crash):
        work(fruit, "Alice", most=3, crash_at="orange")
    assert fruit.xpending(KEY, GROUP)["consumers"] == [{"name": "Alice", "pending": 2}]
    assert work(fruit, "Bob", most=1) == ["apricot", "banana"]
    append = fruit.xadd(KEY, {"message": "cherry"})
    assert work(fruit, "Alice", most=10) == ["orange", "strawberry", "cherry"]
    assert fruit.xpending(KEY, GROUP)["pending"] == 0
    assert fruit.xinfo_groups(KEY)[0]["last-delivered-id"] == append
