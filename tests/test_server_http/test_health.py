"""Facts of the store, what is stuck, checks from the page, and entries over time."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from http_client import Client
from patience import wait_until
from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.jobs import Queue
from streamkeep.recovery import backup
from streamkeep.server.http import overview as module
from streamkeep.server.http.app import create_app
from streamkeep.server.http.overview import STUCK_MS, bucket_edges, count_live


def test_what_is_stuck_is_said(store: Store, clock: ManualClock, client: Client) -> None:
    for number in range(5):
        store.xadd("orders", {"n": number}, id=f"{number + 1}-0")
    store.xgroup_create("orders", "mail", id="0")
    store.xgroup_create("orders", "idle", id="0")
    store.xreadgroup("mail", "ann", {"orders": ">"}, count=2)
    calm = client.get("/store/survey")
    assert [(one["kind"], one["group"]) for one in calm["stuck"]] == [("unread", "idle")]
    clock.ms += 600_000
    found = client.get("/store/survey")
    assert [(one["kind"], one["group"]) for one in found["stuck"]] == [
        ("pending", "mail"),
        ("unread", "mail"),
        ("unread", "idle"),
    ]
    assert found["stuck"][0]["consumer"] == "ann"
    assert (found["entries"], found["pending"], found["groups"]) == (5, 2, 2)


def test_a_queue_is_stuck_for_reasons_of_its_own(
    store: Store, clock: ManualClock, client: Client
) -> None:
    queue = Queue(store, "mail", retries=0)

    def kinds() -> list[str]:
        return [one["kind"] for one in client.get("/store/survey")["stuck"]]

    queue.put(1, priority="low")
    queue.get(0)
    queue.put(2)
    clock.ms += STUCK_MS  # a worker has the first, however long it takes
    assert kinds() == []
    queue.pause()
    assert kinds() == ["paused"]
    queue.resume()
    queue.task(name="gone")(print).delay()
    queue.core.tasks.clear()
    queue.get(0).fail("no")
    queue.run_until_idle()
    queue.put(3)
    queue.put(4, delay="1h")
    stuck = client.get("/store/survey")["stuck"]
    waiting = {one["kind"]: one.get("waiting") for one in stuck}
    assert waiting == {"dead": None, "parked": 1}  # of two that wait
    other = Queue(store, "idle")
    other.put(1)
    clock.ms += STUCK_MS
    assert sorted(kinds()) == ["dead", "idle", "parked"]


def test_a_group_whose_lag_is_unknown_is_stuck_if_nobody_reads(
    store: Store, clock: ManualClock, client: Client
) -> None:
    store.xadd_many("k", [{"n": n} for n in range(9)], [f"{n}-1" for n in range(1, 10)])
    store.xgroup_create("k", "middle", id="4-1")
    store.xgroup_create("k", "read", id="4-1")
    store.xreadgroup("read", "ann", {"k": ">"}, noack=True)
    clock.ms += 3_600_000
    [one] = client.get("/store/survey")["stuck"]
    assert (one["group"], one["kind"], one["exact"]) == ("middle", "unread", False)
    assert 5 <= one["waiting"] <= 6  # those of the same millisecond count
    [row] = client.get("/streams")["streams"]
    assert (row["waiting"], row["exact_waiting"]) == (one["waiting"], False)
    lags = {
        one["name"]: (one["lag"], one["waiting"]) for one in client.get("/streams/k/info")["groups"]
    }
    assert lags == {"middle": (None, one["waiting"]), "read": (0, 0)}


def test_prometheus_reads_the_figures_of_store_and_server(store: Store, client: Client) -> None:
    store.xadd("orders", {"n": 1})
    reply = client("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.text.splitlines()
    assert any('key="orders"' in line or 'stream="orders"' in line for line in lines)
    assert "streamkeep_http_event_streams 0" in lines


def test_a_check_finds_nothing_in_a_sound_store(client: Client) -> None:
    assert client.get("/store")["check"] is None
    client.post("/store/check", status=202, json={"quick": False})
    wait_until(lambda: not client.get("/store")["check"]["running"])
    report = client.get("/store")["check"]
    assert (report["errors"], report["warnings"], report["findings"]) == (0, 0, [])
    assert report["failed"] is None
    client.post("/store/check", status=400, json={"quick": 1})


def test_the_age_of_the_last_backup_is_shown(store: Store, client: Client, tmp_path: Path) -> None:
    store.xadd("k", {"n": 1})
    assert client.get("/store")["backup"] is None
    backup(store, tmp_path / "backup")
    assert client.get("/store")["backup"]["commits_since"] == 0
    store.xadd("k", {"n": 2})
    assert client.get("/store")["backup"]["commits_since"] == 1


def test_a_store_that_decodes_is_refused(tmp_path: Path) -> None:
    import streamkeep

    with (
        streamkeep.open(tmp_path / "store", decode_responses=True) as store,
        pytest.raises(streamkeep.ArgumentError, match="without decode_responses"),
    ):
        create_app(store)  # type: ignore[arg-type]


def test_health_passes_over_what_load_balancers_add(client: Client) -> None:
    assert client.get("/health?t=1718004800") == {"status": "ok"}


# --- entries over time: exact where they are few, near the truth where they are many --------------

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
