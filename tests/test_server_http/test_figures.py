"""Entries over time: exact where they are few, near the truth where they are many."""

from __future__ import annotations

import random
from itertools import pairwise

from http_client import Client
from streamkeep import Store
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.server.http import overview as module
from streamkeep.server.http.overview import bucket_edges, count_live

BEGIN = 1_718_000_000_000


def test_few_entries_are_counted(store: Store, client: Client) -> None:
    for second in (0, 1, 1, 5, 9):
        store.xadd("k", {"n": 1}, id=f"{BEGIN + 1000 * second}-*")
    path = f"/streams/k/figures?start_ms={BEGIN}&end_ms={BEGIN + 10_000}&buckets=10"
    found = client.get(path)
    assert found["live"] == [1, 2, 0, 0, 0, 1, 0, 0, 0, 1]
    assert found["exact"] is True
    empty = client.get("/streams/k/figures?start_ms=5&end_ms=9&buckets=240")
    assert empty["live"] == [0, 0, 0, 0]


def test_many_entries_are_estimated_from_keys_alone(store: Store) -> None:
    """A day with a quiet night and a busy noon, in which most nodes are not looked at."""
    chance = random.Random(7)
    minutes = [2 if minute < 480 else 40 if minute < 900 else 15 for minute in range(1440)]
    times = [
        BEGIN + 60_000 * minute + chance.randrange(60_000)
        for minute, count in enumerate(minutes)
        for _ in range(count)
    ]
    times.sort()
    ids = [f"{ms}-{number}" for number, ms in enumerate(times)]
    store.xadd_many("k", [{"n": 1}] * len(ids), ids)
    edges = bucket_edges(BEGIN, BEGIN + 86_400_000, 6)
    true = [sum(low <= ms < high for ms in times) for low, high in pairwise(edges)]
    with store.snapshot() as snapshot:
        stream = existing_stream(snapshot.txn, b"k")
        assert stream.nodes() > module._EXACT
        found = count_live(snapshot.txn, stream, edges)
    assert not found.exact
    for got, wanted in zip(found.entries, true, strict=True):
        assert abs(got - wanted) <= 0.15 * wanted + 170
    assert abs(sum(found.entries) - len(ids)) <= 0.1 * len(ids)


def test_archived_and_erased_entries_are_beside_live_ones(store: Store, client: Client) -> None:
    store.set_retention("k", archive=True)
    ids = [f"{BEGIN + 1000 * second}-0" for second in range(1000)]
    store.xadd_many("k", [{"n": 1}] * 1000, ids)
    store.xtrim("k", maxlen=300, approximate=False)
    waiting = client.get("/streams/k/figures?buckets=10")
    store.archive()
    found = client.get("/streams/k/figures?buckets=10")
    assert sum(found["live"]) == 300
    assert sum(found["archived"]) == found["archived_entries"]
    assert waiting["trimmed_entries"] == found["archived_entries"]
    assert abs(sum(waiting["trimmed"]) - sum(found["archived"])) <= 10  # of rounding
    assert waiting["archived"] == found["trimmed"] == [0] * 10
    assert 600 <= found["archived_entries"] <= 700
    assert found["archived"][:6] == [100] * 6
    assert found["first_live_ms"] == BEGIN + 700_000
    assert found["erased"] == [0] * 10
    store.erase("k", *ids[:60])
    after = client.get("/streams/k/figures?buckets=10")
    assert after["erased_entries"] == 60
    assert abs(sum(after["erased"]) - 60) <= 5  # of rounding
    assert after["archived_entries"] == found["archived_entries"] - 60


def test_an_empty_stream_has_figures(store: Store, client: Client) -> None:
    store.xgroup_create("k", "g", mkstream=True)
    assert client.get("/streams/k/figures")["live"] == [0]
    assert client.get("/streams?figures=1000")["streams"][0]["spark"] == [0] * 40
