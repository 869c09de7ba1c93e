"""Entries in which a field is repeated: every way to read them gives all pairs."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from streamkeep import Entry, RepeatedFields, aio
from streamkeep.engine.api.store import Store

Open = Callable[..., Store]

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


def test_a_pipeline_and_a_transaction_that_decode_give_all_pairs(text_store: Store[Any]) -> None:
    with text_store.pipeline() as pipeline:
        pipeline.xrange("s")
        pipeline.xread({"s": 0})
        pipeline.xreadgroup("g", "c", {"s": ">"})
        ranged, read, delivered = pipeline.execute()
    for entries in (ranged, read[0][1], delivered[0][1]):
        assert entries[0].pairs == PAIRS
    with text_store.transaction() as txn:
        assert txn.xrange("s")[1].pairs == PAIRS


def test_coroutines_give_all_pairs(text_store: Store[Any]) -> None:
    path = text_store.path

    async def read() -> None:
        async with await aio.open(path, decode_responses=True) as store:
            assert (await store.xrange("s"))[0].pairs == PAIRS
            async for entry in store.follow("s", "0", block=None):
                assert entry.pairs == (PLAIN if entry.id == "3-0" else PAIRS)

    asyncio.run(read())


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
