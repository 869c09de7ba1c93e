"""Consumer groups as part of a store: time, reopening, transactions, and who may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lmdb
import pytest

from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError, StoreError
from streamkeep.format.rows.nacks import PAGE_NACKS

pytestmark = pytest.mark.both_modes

Open = Callable[..., Store]

FIELDS: Final = {"f": "v"}
NEW: Final = {"s": ">"}


def prepare(store: Store, count: int) -> list[bytes]:
    """Make a stream `s` with a group `g` of which `ann` has `count` entries pending."""
    ids = store.xadd_many("s", [FIELDS] * count)
    store.xgroup_create("s", "g", 0)
    store.xreadgroup("g", "ann", NEW)
    return ids


def by_id(store: Store) -> list[tuple[bytes, bytes, int]]:
    """Return ID, consumer and delivery count of what is pending, by ID."""
    return [
        (row["message_id"], row["consumer"], row["times_delivered"])
        for row in store.xpending_range("s", "g", "-", "+", 1_000_000)
    ]


def by_delivery(store: Store) -> list[bytes]:
    """Return the IDs of what is pending in the order of delivery, which only CLAIM shows."""
    with store.transaction() as txn:
        reply = txn.xreadgroup("g", "ann", NEW, claim_min_idle_time=0)
        txn.abort()
    return [entry_id for _, entries in reply for entry_id, *_ in entries]


# --- time ---------------------------------------------------------------------------------------


def test_idle_is_what_the_clock_says(store: Store, clock: ManualClock) -> None:
    (one,) = prepare(store, 1)
    clock.ms += 999
    assert store.xclaim("s", "g", "bob", 1000, [one]) == []
    assert store.xautoclaim("s", "g", "bob", 1000)[1] == []
    assert store.xreadgroup("g", "bob", NEW, claim_min_idle_time=1000) == []
    assert store.xpending_range("s", "g", "-", "+", 9, idle=1000) == []
    clock.ms += 1
    assert store.xpending_range("s", "g", "-", "+", 9, idle=1000)[0]["time_since_delivered"] == 1000
    ((_, (taken,)),) = store.xreadgroup("g", "bob", NEW, claim_min_idle_time=1000)
    assert taken == (one, {b"f": b"v"}, 1000, 1)
    assert store.xpending_range("s", "g", "-", "+", 9)[0]["time_since_delivered"] == 0


def test_consumers_are_seen_and_active_at_the_time_of_the_clock(
    store: Store, clock: ManualClock
) -> None:
    began = clock.ms
    prepare(store, 1)
    clock.ms += 10
    store.xreadgroup("g", "ann", NEW)  # nothing new: seen, not active
    store.xgroup_createconsumer("s", "g", "bob")
    clock.ms += 5
    ann, bob = store.xinfo_consumers("s", "g")
    assert (ann["idle"], ann["inactive"]) == (5, 15)
    assert (bob["idle"], bob["inactive"]) == (5, -1)
    (full,) = store.xinfo_stream("s", full=True)["groups"]
    assert [one["seen-time"] for one in full["consumers"]] == [began + 10, began + 10]
    assert [one["active-time"] for one in full["consumers"]] == [began, -1]


def test_a_clock_that_was_set_back_leaves_nothing_out_of_reach(
    store: Store, clock: ManualClock
) -> None:
    """What seems to be delivered in the future is idle for no time, and not for less."""
    first, second = prepare(store, 2)
    clock.ms -= 1000
    assert [row["time_since_delivered"] for row in store.xpending_range("s", "g", "-", "+", 9)] == [
        0,
        0,
    ]
    assert store.xclaim("s", "g", "bob", 1, [first]) == []
    assert store.xclaim("s", "g", "bob", 0, [first], justid=True) == [first]
    assert by_delivery(store) == [second, first]
    assert store.xautoclaim("s", "g", "cy", 0, justid=True) == [first, second]


def test_all_commands_of_a_transaction_have_one_time(store: Store, clock: ManualClock) -> None:
    with store.transaction() as txn:
        txn.xadd("s", FIELDS)
        clock.ms += 1000
        txn.xgroup_create("s", "g", 0)
        txn.xreadgroup("g", "ann", NEW)
    (row,) = store.xpending_range("s", "g", "-", "+", 9)
    assert row["time_since_delivered"] == 1000


def test_a_message_is_known_for_as_long_as_the_stream_says(
    store: Store, clock: ManualClock
) -> None:
    """Then it is forgotten: that of the producer who comes back, and of others in turn."""
    store.xadd("s", FIELDS)
    store.xcfgset("s", idmp_duration=1)
    first = store.xadd("s", FIELDS, idmp=("p", "1"))
    store.xadd("s", FIELDS, idmp=("q", "1"))
    clock.ms += 999
    assert store.xadd("s", FIELDS, idmp=("p", "1")) == first
    clock.ms += 1
    again = store.xadd("s", FIELDS, idmp=("p", "1"))
    assert again != first
    assert store.xadd("s", FIELDS, idmp=("p", "1")) == again
    info = store.xinfo_stream("s")
    names = ("pids-tracked", "iids-tracked", "iids-added", "iids-duplicates")
    assert [info[name] for name in names] == [1, 1, 3, 2]


def test_counters_end_where_a_signed_number_does(store: Store) -> None:
    most = (1 << 63) - 1
    store.xadd("s", FIELDS)
    store.xgroup_create("s", "g", 0)
    store.xsetid("s", "9999999999999-0", entries_added=most)
    for new in (2, 1):
        store.xadd("s", FIELDS)
        assert len(store.xreadgroup("g", "ann", NEW)[0][1]) == new
        (group,) = store.xinfo_groups("s")
        assert (group["entries-read"], group["lag"]) == (most, 0)
    assert store.xinfo_stream("s")["entries-added"] == most


def test_xsetid_leaves_no_group_with_more_read_than_was_added(store: Store) -> None:
    """Exactly as Redis since the summer of 2026; such a group had a negative lag."""
    for number in range(1, 11):
        store.xadd("s", FIELDS, id=f"1-{number}")
    store.xgroup_create("s", "all", 0)
    store.xreadgroup("all", "ann", NEW, count=10)
    store.xgroup_create("s", "one", 0)
    store.xreadgroup("one", "ann", NEW, count=1)
    store.xgroup_create("s", "unknown", "1-5")
    store.xtrim("s", maxlen=2, approximate=False)
    with store.pipeline() as pipe:
        pipe.xgroup_create("s", "new", "1-10", entries_read=10)
        pipe.xsetid("s", "1-10", entries_added=2)
        pipe.execute()
    groups = store.xinfo_groups("s")
    assert [group["entries-read"] for group in groups] == [2, 2, 1, None]
    assert groups[0]["lag"] == 0


# --- reopening ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, PAGE_NACKS, 5 * PAGE_NACKS])
def test_both_orders_survive_reopening(open_store: Open, clock: ManualClock, count: int) -> None:
    with open_store() as store:
        ids = prepare(store, count)
        given_back, last, sorted_in = ids[1], ids[0], ids[2]
        clock.ms += 10
        store.xclaim("s", "g", "bob", 0, [last])
        store.xnack("s", "g", "FAIL", given_back)
        store.xclaim("s", "g", "bob", 0, [sorted_in], idle=5)
        expected = [given_back, *ids[3:], sorted_in, last]
        assert by_delivery(store) == expected
        pending = by_id(store)
        assert [entry_id for entry_id, _, _ in pending] == ids
        shown = store.xinfo_stream("s", full=True, count=0)
    with open_store() as store:
        assert by_id(store) == pending
        assert by_delivery(store) == expected
        assert store.xinfo_stream("s", full=True, count=0) == shown
        clock.ms += 1
        store.xnack("s", "g", "FAIL", last)  # after the one that was returned before
        assert by_delivery(store)[:2] == [given_back, last]


# --- transactions -------------------------------------------------------------------------------


class Interrupted(Exception):
    """What ends a transaction half-way."""


def process(store: Store, *, fails: bool) -> None:
    """Read from a group, append what comes out of it elsewhere, and acknowledge: at once."""
    with store.transaction() as txn:
        for _, entries in txn.xreadgroup("g", "bob", NEW, count=2):
            for entry in entries:
                txn.xadd("results", {"of": entry.id})
                txn.xack("s", "g", entry.id)
        if fails:
            raise Interrupted


def test_processing_happens_exactly_once(store: Store, clock: ManualClock) -> None:
    ids = store.xadd_many("s", [FIELDS] * 5)
    store.xgroup_create("s", "g", 0)
    store.xreadgroup("g", "ann", NEW, count=1)
    before = store.xinfo_stream("s", full=True), store.keys()
    with pytest.raises(Interrupted):
        process(store, fails=True)
    assert (store.xinfo_stream("s", full=True), store.keys()) == before
    process(store, fails=False)
    process(store, fails=False)
    assert [entry.fields[b"of"] for entry in store.xrange("results")] == ids[1:]
    assert by_id(store) == [(ids[0], b"ann", 1)]


@pytest.mark.parametrize("count", [1, 3 * PAGE_NACKS])
def test_an_exception_rolls_back_every_kind_of_change(
    store: Store, clock: ManualClock, count: int
) -> None:
    ids = prepare(store, count)
    before, order = store.xinfo_stream("s", full=True, count=0), by_delivery(store)
    clock.ms += 10
    with pytest.raises(Interrupted), store.transaction() as txn:
        txn.xclaim("s", "g", "bob", 0, ids)
        txn.xnack("s", "g", "FATAL", ids[0])
        txn.xackdel("s", "g", *ids[::2], ref_policy="DELREF")
        txn.xgroup_delconsumer("s", "g", "bob")
        txn.xgroup_destroy("s", "g")
        txn.xgroup_create("s", "g")
        txn.xgroup_create("s", "other", 0, mkstream=True)
        txn.rename("s", "t")
        raise Interrupted
    assert store.xinfo_stream("s", full=True, count=0) == before
    assert by_delivery(store) == order
    assert list(recovery.check(store)) == []


def test_a_command_that_runs_again_counts_from_the_start(store: Store) -> None:
    """When LMDB cannot go on, it is opened again, and the command that met that starts again."""
    store.xadd_many("s", [FIELDS] * 20_000)
    store.xgroup_create("s", "g", 0)
    met = []

    def fail() -> None:
        failpoints.disarm()
        met.append(1)
        raise lmdb.PanicError("mdb_txn_begin")

    failpoints.arm("commit:journaled", fail)
    ((_, entries),) = store.xreadgroup("g", "ann", NEW, max_count=15_000)
    assert met == [1]
    assert len(entries) == store.xpending("s", "g")["pending"] == 15_000


# --- who may write ------------------------------------------------------------------------------

WRITES: Final[dict[str, Callable[[Any], object]]] = {
    "xgroup_create": lambda target: target.xgroup_create("s", "h"),
    "xgroup_setid": lambda target: target.xgroup_setid("s", "g", 0),
    "xgroup_destroy": lambda target: target.xgroup_destroy("s", "g"),
    "xgroup_createconsumer": lambda target: target.xgroup_createconsumer("s", "g", "c"),
    "xgroup_delconsumer": lambda target: target.xgroup_delconsumer("s", "g", "ann"),
    "xreadgroup": lambda target: target.xreadgroup("g", "ann", {"s": "0"}),
    "xack": lambda target: target.xack("s", "g", "1-1"),
    "xackdel": lambda target: target.xackdel("s", "g", "1-1"),
    "xdelex": lambda target: target.xdelex("s", "1-1"),
    "xnack": lambda target: target.xnack("s", "g", "FAIL", "1-1"),
    "xclaim": lambda target: target.xclaim("s", "g", "ann", 0, ["1-1"]),
    "xautoclaim": lambda target: target.xautoclaim("s", "g", "ann", 0),
    "xcfgset": lambda target: target.xcfgset("s", idmp_duration=7),
    "xidmprecord": lambda target: target.xidmprecord("s", "p", "i", "1-1"),
    "xadd": lambda target: target.xadd("s", FIELDS),
}


@pytest.mark.parametrize("name", WRITES)
def test_who_only_reads_changes_nothing(open_store: Open, name: str) -> None:
    with open_store() as store:
        prepare(store, 20)
        before = store.xinfo_stream("s", full=True, count=0)
        with store.snapshot() as snapshot, pytest.raises(StoreError, match="only reads"):
            WRITES[name](snapshot)
    with open_store(readonly=True) as store:
        with pytest.raises(StoreError, match="readonly=True"):
            WRITES[name](store)
        assert store.xinfo_stream("s", full=True, count=0) == before
        assert len(by_id(store)) == 20


def test_a_snapshot_shows_what_was_pending(store: Store) -> None:
    ids = prepare(store, 3 * PAGE_NACKS)
    with store.snapshot() as snapshot:
        store.xack("s", "g", *ids)
        store.xgroup_destroy("s", "g")
        assert snapshot.xpending("s", "g")["pending"] == len(ids)
        assert [
            row["message_id"] for row in snapshot.xpending_range("s", "g", "-", "+", 999)
        ] == ids
        assert snapshot.xinfo_groups("s")[0]["pending"] == len(ids)


@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
def test_the_entry_with_the_highest_id_can_be_trimmed(store: Store, policy: Any) -> None:
    highest = f"{2**64 - 1}-{2**64 - 1}"
    store.xgroup_create("s", "g", mkstream=True)
    store.xadd("s", {"f": "v"}, id=highest)
    store.xreadgroup("g", "ann", {"s": ">"})
    store.xack("s", "g", highest)
    assert store.xtrim("s", maxlen=0, approximate=False, ref_policy=policy) == 1
    assert store.xlen("s") == 0


def test_whether_a_group_exists_is_asked_without_an_error(store: Store) -> None:
    assert not store.xgroup_exists("k", "g")
    store.xadd("k", {"f": "v"})
    assert not store.xgroup_exists("k", "g")
    store.xgroup_create("k", "g")
    assert store.xgroup_exists("k", "g")


def test_an_error_line_has_the_bytes_of_names(store: Store) -> None:
    store.xadd("k", {"f": "v"})
    with pytest.raises(CommandError) as refused:
        store.xpending("k", b"\xff")
    line = b"NOGROUP No such key 'k' or consumer group '\xff'"
    assert refused.value.redis_line == line
    assert refused.value.redis_error == line.decode("utf-8", "replace")
