"""Single cases that random commands found, or are unlikely to find, each against Redis's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model import ModelStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CommandError, InvalidIdError
from test_properties.test_stream import stored_nodes

pytestmark = pytest.mark.both_modes


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    """A store with nodes of at most four entries."""
    return open_store(clock=ManualClock(5), node_max_entries=4)


FIELDS = {"f": "v"}
BEYOND = 1 << 64


def fill(store: Store, count: int) -> None:
    store.xadd_many("s", [FIELDS] * count, ids=[f"0-{seq}" for seq in range(1, count + 1)])


def test_rewriting_a_node_shows_in_nothing_but_nodes(store: Store) -> None:
    """In Redis the first node stays full of tombstones, so that 0-6 begins a second one."""
    models = ModelStore(4096, 4), ModelStore(4096, 4, rewrites=True)
    fill(store, 5)
    store.xdel("s", "0-1", "0-2", "0-3")  # leaves one live entry of four: rewritten
    store.xdel("s", "0-5")  # the newest node goes, the rewritten one is open again
    store.xadd("s", FIELDS, id="0-6")
    for model in models:
        for seq in range(1, 6):
            model.xadd(b"s", ((b"f", b"v"),), (0, seq), now_ms=5)
        model.xdel(b"s", (0, 1), (0, 2), (0, 3))
        model.xdel(b"s", (0, 5))
        model.xadd(b"s", ((b"f", b"v"),), (0, 6), now_ms=5)
    redis, ours = (model.xinfo_stream(b"s") for model in models)
    assert (redis.pop("radix-tree-keys"), ours.pop("radix-tree-keys")) == (2, 1)
    assert redis == ours
    assert store.xinfo_stream("s")["radix-tree-keys"] == 1
    approximate = [model.xtrim(b"s", maxlen=1, approximate=True) for model in models]
    assert approximate == [1, 0]
    assert store.xtrim("s", maxlen=1) == 0


def test_a_node_is_rewritten_once_for_all_that_a_command_deletes(
    open_store: Callable[..., Store],
) -> None:
    """One by one, 0-4 would go after the others, and leave a tombstone that takes room."""
    store = open_store(clock=ManualClock(5), node_max_entries=5)
    model = ModelStore(4096, 5, rewrites=True)
    fill(store, 6)
    store.xdelex("s", "0-1", "0-2", "0-3", "0-4")
    store.xdel("s", "0-6")  # the newest node goes, the rewritten one is open again
    for seq in range(1, 7):
        model.xadd(b"s", ((b"f", b"v"),), (0, seq), now_ms=5)
    assert model.xdelex(b"s", *[(0, seq) for seq in (1, 2, 3, 4, 4, 9)]) == [1, 1, 1, 1, -1, -1]
    model.xdel(b"s", (0, 6))
    for seq in range(7, 11):
        store.xadd("s", FIELDS, id=f"0-{seq}")
        model.xadd(b"s", ((b"f", b"v"),), (0, seq), now_ms=5)
    assert store.xinfo_stream("s")["radix-tree-keys"] == 1
    assert model.xinfo_stream(b"s")["radix-tree-keys"] == 1


def test_a_node_goes_with_its_last_live_entry_also_when_trimming(store: Store) -> None:
    """The tombstone 0-3 is not below MINID, so that the node may not go whole."""
    fill(store, 3)
    store.xdel("s", "0-3")
    assert store.xtrim("s", minid="0-3", approximate=False) == 2
    assert stored_nodes(store, b"s") == []
    store.xadd("s", FIELDS, id="0-4")
    info = store.xinfo_stream("s")
    assert info["radix-tree-keys"] == 1
    assert info["recorded-first-entry-id"] == b"0-4"


@pytest.mark.parametrize(
    "call",
    [
        lambda store, one: store.xadd("s", FIELDS, id=one),
        lambda store, one: store.xadd("s", FIELDS, minid=one),
        lambda store, one: store.xdel("s", one),
        lambda store, one: store.xrange("s", min=one),
        lambda store, one: store.xrevrange("s", max=one),
        lambda store, one: store.xread({"s": one}),
        lambda store, one: store.xsetid("s", one),
        lambda store, one: store.xsetid("s", "9-9", max_deleted_id=one),
        lambda store, one: store.xtrim("s", minid=one),
    ],
    ids=["xadd", "minid", "xdel", "xrange", "xrevrange", "xread", "xsetid", "deleted", "xtrim"],
)
def test_an_id_that_does_not_fit_64_bits_is_refused(
    store: Store, call: Callable[[Store, StreamId], Any]
) -> None:
    fill(store, 2)
    before = store.xinfo_stream("s")
    for one in (StreamId(BEYOND, 0), StreamId(0, BEYOND), StreamId(-1, 0), StreamId(5, -1)):
        with pytest.raises(InvalidIdError, match="Invalid stream ID specified"):
            call(store, one)
        assert store.xinfo_stream("s") == before


@pytest.mark.parametrize(
    "call",
    [
        lambda store, number: store.xrange("s", count=number),
        lambda store, number: store.xrevrange("s", count=number),
        lambda store, number: store.xread({"s": "0"}, count=number),
        lambda store, number: store.xinfo_stream("s", full=True, count=number),
        lambda store, number: store.xtrim("s", maxlen=number),
        lambda store, number: store.xtrim("s", maxlen=1, limit=number),
        lambda store, number: store.xadd("s", FIELDS, maxlen=number),
        lambda store, number: store.xsetid("s", "9-9", entries_added=number),
    ],
    ids=["xrange", "xrevrange", "xread", "full", "maxlen", "limit", "xadd", "entries_added"],
)
def test_a_number_that_does_not_fit_63_bits_is_refused(
    store: Store, call: Callable[[Store, int], Any]
) -> None:
    """A server reads all of these as signed 64-bit numbers."""
    fill(store, 2)
    before = store.xinfo_stream("s")
    for number in (1 << 63, BEYOND, BEYOND + 1, 1 << 70):
        with pytest.raises(CommandError, match="value is not an integer or out of range"):
            call(store, number)
        assert store.xinfo_stream("s") == before


def test_a_scan_in_a_transaction_goes_on_in_what_the_transaction_made(store: Store) -> None:
    """More entries than one batch of the iterator, so that it comes back for more."""
    fill(store, 1000)
    with store.transaction() as txn:
        scan = txn.scan("s")
        assert next(scan).id == b"0-1"
        assert txn.xdel("s", "0-1000") == 1
        assert [entry.stream_id.seq for entry in scan] == list(range(2, 1000))
    assert store.xlen("s") == 999


def test_a_scan_outside_a_transaction_shows_what_was_there_when_it_began(store: Store) -> None:
    fill(store, 1000)
    scan = store.scan("s")
    assert next(scan).id == b"0-1"
    assert store.xtrim("s", maxlen=10, approximate=False) == 990
    assert sum(1 for _ in scan) == 999
    assert store.xlen("s") == 10
