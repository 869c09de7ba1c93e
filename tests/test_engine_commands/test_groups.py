"""Consumer groups as part of a store: time, reopening, transactions, and who may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.glob import MOST_BYTES, Glob
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError, StoreError
from streamkeep.format.rows.nacks import PAGE_NACKS

pytestmark = pytest.mark.both_modes


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
    clock.ms += 1000
    later = store.xadd("s", FIELDS)
    assert store.xidmprecord("s", "p", "1", later) == b"OK"
    assert store.xadd("s", FIELDS, idmp=("p", "1")) == later


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

WRITES: Final[list[Callable[[Any], object]]] = [
    lambda target: target.xgroup_create("s", "h"),
    lambda target: target.xgroup_setid("s", "g", 0),
    lambda target: target.xgroup_destroy("s", "g"),
    lambda target: target.xgroup_createconsumer("s", "g", "c"),
    lambda target: target.xgroup_delconsumer("s", "g", "ann"),
    lambda target: target.xreadgroup("g", "ann", {"s": "0"}),
    lambda target: target.xack("s", "g", "1-1"),
    lambda target: target.xackdel("s", "g", "1-1"),
    lambda target: target.xdelex("s", "1-1"),
    lambda target: target.xnack("s", "g", "FAIL", "1-1"),
    lambda target: target.xclaim("s", "g", "ann", 0, ["1-1"]),
    lambda target: target.xautoclaim("s", "g", "ann", 0),
    lambda target: target.xcfgset("s", idmp_duration=7),
    lambda target: target.xidmprecord("s", "p", "i", "1-1"),
    lambda target: target.xadd("s", FIELDS),
]


def test_who_only_reads_changes_nothing(open_store: Open) -> None:
    with open_store() as store:
        prepare(store, 20)
        before = store.xinfo_stream("s", full=True, count=0)
        with store.snapshot() as snapshot:
            for write in WRITES:
                with pytest.raises(StoreError, match="only reads"):
                    write(snapshot)
    with open_store(readonly=True) as store:
        for write in WRITES:
            with pytest.raises(StoreError, match="readonly=True"):
                write(store)
        assert store.xinfo_stream("s", full=True, count=0) == before
        assert len(by_id(store)) == 20


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


# --- MAXSIZE of XREADGROUP over several streams, as Redis 8.10.2 was seen to answer ---------------

# Each entry below has 31 bytes in Redis's protocol, the head of a stream 11, the end of its list 4.

Position = dict[str, str]


@pytest.fixture
def filled(store: Store[Any]) -> Store[Any]:
    """Three streams of five entries, with a group each."""
    for name in "abe":
        for number in range(1, 6):
            store.xadd(name, {"f": "v"}, id=f"{number}-1")
        store.xgroup_create(name, "g", 0)
    return store


def read(store: Store[Any], streams: Position, size: int, count: int | None = None) -> Any:
    found = store.xreadgroup("g", "c", streams, max_size=size, count=count)
    return {name.decode(): len(entries) for name, entries in found}


def consumers(store: Store[Any], name: str) -> int:
    return len(store.xinfo_consumers(name, "g"))


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (57, 1), (58, 2), (88, 2), (89, 3)])
@pytest.mark.parametrize("histories", ["a", "ae"])
def test_empty_histories_leave_room_for_an_entry(
    filled: Store[Any], histories: str, size: int, expected: int
) -> None:
    most = size + 15 * (len(histories) - 1) if size > 1 else 1
    streams = {**dict.fromkeys(histories, "0"), "b": ">"}
    assert read(filled, streams, most) == {**dict.fromkeys(histories, 0), "b": expected}


@pytest.mark.parametrize("position", [">", "0"])
def test_no_consumer_comes_to_be_where_the_size_was_used_up_before(
    filled: Store[Any], position: str
) -> None:
    assert read(filled, {"a": ">", "b": position}, 77, 2) == {"a": 2}
    assert (consumers(filled, "a"), consumers(filled, "b")) == (1, 0)
    filled.xgroup_setid("a", "g", 0)
    assert read(filled, {"a": ">", "b": position}, 78, 2) == {"a": 2, "b": 0}
    assert consumers(filled, "b") == 1


def test_a_stream_whose_head_uses_up_the_size_is_there_without_entries(filled: Store[Any]) -> None:
    assert read(filled, {"a": ">", "b": ">"}, 78, 2) == {"a": 2, "b": 0}
    filled.xgroup_setid("a", "g", 0)
    assert read(filled, {"a": ">", "b": ">"}, 89, 2) == {"a": 2, "b": 1}


def test_a_message_that_is_recorded_counts_as_added(store: Store[Any]) -> None:
    added = store.xadd("s", {"f": "v"})  # now: of an old entry, a message has expired
    for _ in range(2):
        assert store.xidmprecord("s", "p", "i", added) == b"OK"
        info = store.xinfo_stream("s")
        assert (info["iids-tracked"], info["iids-added"], info["iids-duplicates"]) == (1, 1, 0)


# --- patterns of names, beside a matcher that tries every way -------------------------------------


@pytest.mark.parametrize("element", [b"a", b"?a", b"[ab]"])
def test_many_stars_take_no_longer(store: Store, element: bytes) -> None:
    """A matcher that tries every way takes years for this."""
    store.xadd(b"a" * 3000, {"f": "v"})
    pattern = (b"*" + element) * 300 + b"*b"
    assert store.keys(pattern) == []
    assert list(store.scan_iter(match=pattern)) == []
    assert store.keys((b"*" + element) * 300) == [b"a" * 3000]


def test_a_pattern_is_bounded(store: Store) -> None:
    store.xadd(b"a" * MOST_BYTES, {"f": "v"})
    assert store.keys(b"a" * MOST_BYTES) == [b"a" * MOST_BYTES]
    with pytest.raises(CommandError, match="a pattern has 4097 bytes, of 4096 at most"):
        store.keys(b"a" * (MOST_BYTES + 1))


@given(st.text(alphabet="ab*?[]^-\\", max_size=8), st.text(alphabet="ab-^]", max_size=4))
def test_any_text_is_a_pattern(pattern: str, name: str) -> None:
    Glob(pattern.encode()).matches(name.encode())
