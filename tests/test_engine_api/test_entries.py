"""Entries: scanned, iterated, claimed; and those in which a field is repeated."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from stores import Open
from streamkeep import RepeatedFields, aio
from streamkeep.engine.api import read_commands
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import xrange
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.entry import ClaimedEntry, DeliveredEntry, Entry, StreamId
from streamkeep.format.core.errors import ArgumentError, StoreClosedError

DISTINCT = [("tag", "a"), ("tag", "b"), ("n", "1")]


@pytest.mark.parametrize("decode", [False, True])
def test_scanned_entries_equal_those_of_other_reads(
    open_store: Callable[..., Any], decode: bool
) -> None:
    store = open_store(decode_responses=decode)
    store.xadd("s", DISTINCT, id="5-7")
    listed = store.xrange("s")
    for reader in (store, store.snapshot(), store.using("none")):
        (scanned,) = reader.scan("s")
        assert scanned == listed[0]
        assert scanned.pairs == listed[0].pairs
        assert scanned.stream_id == StreamId(5, 7)
        assert [scanned.id] == [one.id for one in store.xrevrange("s")]
    with store.transaction() as txn:
        assert list(txn.scan("s")) == listed
        (scanned,) = txn.scan("s")
        entry_id, fields = scanned
        assert (entry_id, fields) == listed[0]
        assert scanned.delete()
    assert store.xlen("s") == 0


def test_a_scan_returns_what_comes_before_a_value_that_is_not_utf_8(
    open_store: Callable[..., Any],
) -> None:
    store = open_store(decode_responses=True)
    store.xadd_many("s", [{"n": 1}, {"n": 2}, {"n": b"\xff"}])
    entries = store.scan("s")
    assert [next(entries).fields, next(entries).fields] == [{"n": "1"}, {"n": "2"}]
    with pytest.raises(UnicodeDecodeError):
        next(entries)


def test_batches_of_a_scan_are_small_while_entries_are_big(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_commands, "_SCAN_BATCH", 8)
    store.xadd_many("s", [{"n": number} for number in range(50)])
    store.xadd_many("s", [{"n": number, "big": b"x" * 300_000} for number in range(50, 60)])
    sizes = []
    read = xrange.xrange

    def counted(*args: Any) -> Any:
        found = read(*args)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(xrange, "xrange", counted)
    for reverse in (False, True):
        sizes.clear()
        found = [int(entry.fields[b"n"]) for entry in store.scan("s", reverse=reverse)]
        assert found == sorted(range(60), reverse=reverse)
        assert sum(sizes) == 60
        assert max(sizes) == sizes[0] == 8
    assert sizes[1] < 8  # after the first, with big entries, whose size was unknown


def test_entries_of_a_scan_are_copied_without_their_store(store: Store) -> None:
    store.xadd("s", {"f": "v"}, id="1-1")
    (entry,) = store.scan("s")
    for other in (copy.copy(entry), pickle.loads(pickle.dumps(entry))):
        assert type(other) is Entry
        assert other == entry
    for number in range(40):  # more streams than classes are kept
        store.xadd(f"s{number}", {"f": "v"})
        (one,) = store.scan(f"s{number}")
        assert one.delete()
        assert store.xlen(f"s{number}") == 0
    assert entry.delete()


def test_a_scan_keeps_no_transaction_alive(store: Store) -> None:
    store.xadd("s", {"f": "v"})
    gc.disable()
    try:
        with store.transaction() as txn:
            (entry,) = txn.scan("s")
            assert txn.as_bytes().xlen("s") == 1
            seen = weakref.ref(txn)
        del txn
        assert seen() is None
        with pytest.raises(StoreClosedError, match="the transaction of this entry has ended"):
            entry.delete()
    finally:
        gc.enable()
    with store.transaction() as txn:
        (entry,) = txn.as_bytes().scan("s")
        (other,) = txn.scan("s")
        assert other.delete()
        assert not list(txn.scan("s"))


def test_consumed_entries_know_how_often_they_were_delivered(open_store: Open) -> None:
    clock = ManualClock(1_000_000)
    store = open_store(clock=clock)
    store.xgroup_create("s", "g", mkstream=True)
    store.xadd_many("s", [{"n": 1}, {"n": 2}], ["1-0", "2-0"])
    for turn in (1, 2, 3):
        found = list(store.consume("s", "g", "c", block=None))
        assert [one.delivery_count for one in found] == [turn, turn]
        assert found == store.xrange("s")
        counts = [one["times_delivered"] for one in store.xpending_range("s", "g", "-", "+", 9)]
        assert counts == [turn, turn]
    store.xadd("s", {"n": 3}, id="3-0")
    clock.ms += 5000
    taken = list(store.consume("s", "g", "d", block=None, claim_min_idle_time=1000))
    assert [(one.id, one.delivery_count) for one in taken] == [
        (b"1-0", 4),
        (b"2-0", 4),
        (b"3-0", 1),
    ]
    store.xdel("s", "2-0")
    again = list(store.consume("s", "g", "d", block=None))
    assert [(one.fields, one.delivery_count > 1) for one in again][1] == ({}, True)
    assert "delivery_count=5" in repr(again[0])
    copied = pickle.loads(pickle.dumps(again[0]))
    assert (copied, copied.delivery_count) == (again[0], 5)
    assert isinstance(again[0], DeliveredEntry)


def test_claimed_entries_have_names_for_their_parts(store: Store) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    store.xadd("s", DISTINCT, id="1-0")
    store.xreadgroup("g", "c", {"s": ">"})
    ((_, entries),) = store.xreadgroup("g", "d", {"s": ">"}, claim_min_idle_time=0)
    (one,) = entries
    assert isinstance(one, ClaimedEntry)
    assert one.former_delivery_count == 1
    assert len(one) == 4
    assert one.pairs == [(b"tag", b"a"), (b"tag", b"b"), (b"n", b"1")]
    assert one == (b"1-0", {b"tag": b"b", b"n": b"1"}, one.former_idle_ms, 1)


def test_a_store_contains_its_keys(store: Store) -> None:
    assert (len(store), list(store), bool(store)) == (0, [], True)
    store.xadd("b", {"n": 1})
    store.xadd(b"\xff" * 600, {"n": 1})
    with store.transaction() as txn, store.snapshot() as snapshot:
        txn.xadd("a", {"n": 1})
        assert (len(txn), len(snapshot), "a" in txn, "a" in snapshot) == (3, 2, True, False)
    assert list(store) == store.keys()
    assert (len(store), "b" in store, b"c" in store) == (3, True, False)
    store.delete("b")
    assert (len(store), "b" in store) == (2, False)
    with pytest.raises(ArgumentError):
        assert None in store
    assert len(store.pipeline().xlen("a")) == 1


async def test_a_store_of_tasks_is_iterated_but_never_asked_without_await(tmp_path: Path) -> None:
    async with await streamkeep.aio.open(tmp_path / "s") as store:
        await store.xadd("a", {"n": 1})
        await store.xadd("b", {"n": 1})
        assert [key async for key in store] == [b"a", b"b"]
        (entry,) = [entry async for entry in store.scan("a")]
        assert entry == Entry(entry.id, {b"n": b"1"})
        assert await entry.delete()
        with pytest.raises(TypeError):
            assert "a" in store  # type: ignore[operator]
        await store.xgroup_create("b", "g", 0)
        async for one in store.consume("b", "g", "c", block=None):
            assert one.delivery_count == 1


# --- entries in which a field is repeated: every way to read them gives all pairs -----------------


PAIRS = [("f", "1"), ("g", "2"), ("f", "3"), ("", ""), ("f", "1")]
FIELDS = {"f": "1", "g": "2", "": ""}
PLAIN = [("f", "1"), ("g", "2")]


@pytest.fixture(params=[{}, {"node_max_entries": 2}], ids=["one node", "two nodes"])
def text_store(open_store: Open, request: pytest.FixtureRequest) -> Store[Any]:
    """A store with a stream of three entries and a group; two of them repeat a field."""
    store: Store[Any] = open_store(decode_responses=True, **request.param)
    store.xadd("s", PAIRS, "1-0")
    store.xadd("s", PAIRS, "2-0")  # the same fields as the first of its node
    store.xadd("s", PLAIN, "3-0")
    store.xgroup_create("s", "g", "0")
    return store


def claimed(store: Any) -> Any:
    store.xreadgroup("g", "c", {"s": ">"})
    return store


def in_transaction(store: Any, read: Callable[[Any], Any]) -> Any:
    with store.transaction() as txn:
        return read(txn)


# Ways to read all three entries.
READS: dict[str, Callable[[Any], Any]] = {
    "xrange": lambda s: s.xrange("s"),
    "xrevrange": lambda s: s.xrevrange("s")[::-1],
    "history": lambda s: s.xrange("s", history=True),
    "xread": lambda s: s.xread({"s": 0})[0][1],
    "xread by size": lambda s: s.xread({"s": 0}, max_size=10_000)[0][1],
    "xread that may wait": lambda s: s.xread({"s": 0}, block=10)[0][1],
    "xreadgroup": lambda s: s.xreadgroup("g", "c", {"s": ">"})[0][1],
    "history of a consumer": lambda s: claimed(s).xreadgroup("g", "c", {"s": 0})[0][1],
    "xclaim": lambda s: claimed(s).xclaim("s", "g", "d", 0, ["1-0", "2-0", "3-0"]),
    "xautoclaim": lambda s: claimed(s).xautoclaim("s", "g", "d", 0)[1],
    "follow": lambda s: list(s.follow("s", "0", block=None)),
    "consume": lambda s: list(s.consume("s", "g", "c", block=None)),
    "scan": lambda s: list(s.scan("s")),
    "a transaction": lambda s: in_transaction(s, lambda txn: txn.xrange("s")),
    "a pipeline": lambda s: s.pipeline().xrange("s").execute()[0],
    "xread of a pipeline": lambda s: s.pipeline().xread({"s": 0}).execute()[0][0][1],
    "xreadgroup of one": lambda s: s.pipeline().xreadgroup("g", "c", {"s": ">"}).execute()[0][0][1],
}
# Here entries are no `Entry`; their fields know the pairs.
OTHERS: dict[str, Callable[[Any], Any]] = {
    "claim": lambda s: [
        one[1] for one in claimed(s).xreadgroup("g", "d", {"s": ">"}, claim_min_idle_time=0)[0][1]
    ],
    "xinfo full": lambda s: list(s.xinfo_stream("s", full=True)["entries"].values()),
}


@pytest.mark.parametrize("way", READS)
def test_every_read_gives_all_pairs(text_store: Store[Any], way: str) -> None:
    first, second, plain = READS[way](text_store)
    assert first.pairs == second.pairs == PAIRS
    assert plain.pairs == PLAIN
    assert first.fields == FIELDS
    assert type(plain.fields) is dict


@pytest.mark.parametrize("way", OTHERS)
def test_fields_without_an_entry_know_the_pairs(text_store: Store[Any], way: str) -> None:
    first, second, plain = OTHERS[way](text_store)
    assert first.pairs == second.pairs == PAIRS
    assert first == FIELDS
    assert plain == dict(PLAIN)


def test_pairs_are_bytes_without_decoding(store: Store) -> None:
    store.xadd("s", PAIRS, "1-0")
    pairs = [(field.encode(), value.encode()) for field, value in PAIRS]
    (entry,) = store.xrange("s")
    assert entry.pairs == pairs
    assert store.xread({"s": 0}, max_size=100)[0][1][0].pairs == pairs
    assert store.xinfo_stream("s")["first-entry"].pairs == pairs
    with store.pipeline() as pipeline:
        assert pipeline.xrange("s").execute()[0][0].pairs == pairs
    with store.transaction() as txn:
        assert txn.xrange("s")[0].pairs == pairs


async def test_coroutines_give_all_pairs(text_store: Store[Any]) -> None:
    path = text_store.path
    async with await aio.open(path, decode_responses=True) as store:
        assert (await store.xrange("s"))[0].pairs == PAIRS
        async for entry in store.follow("s", "0", block=None):
            assert entry.pairs == (PLAIN if entry.id == "3-0" else PAIRS)


def test_an_entry_equals_that_of_redis_py(text_store: Store[Any]) -> None:
    entry = text_store.xrange("s")[0]
    assert entry == ("1-0", FIELDS)
    assert repr(entry) == repr(Entry("1-0", FIELDS))
    assert json.loads(json.dumps(entry)) == ["1-0", FIELDS]


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_keeps_the_pairs(text_store: Store[Any], twin: Callable[[Any], Any]) -> None:
    entry = twin(text_store.xrange("s")[0])
    assert isinstance(entry.fields, RepeatedFields)
    assert (entry.pairs, entry.fields) == (PAIRS, FIELDS)


def test_pairs_can_be_added_again(text_store: Store[Any]) -> None:
    text_store.xadd("copy", text_store.xrange("s")[0].pairs, "9-0")
    text_store.xadd_many("copy", [entry.pairs for entry in text_store.xrange("s")])
    assert [entry.pairs for entry in text_store.xrange("copy")] == [PAIRS, PAIRS, PAIRS, PLAIN]
