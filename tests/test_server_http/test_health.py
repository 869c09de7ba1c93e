"""Facts of the store, what is stuck, and checks from the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from http_client import Client
from patience import wait_until
from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Queue
from streamkeep.recovery import backup
from streamkeep.server.http.app import create_app
from streamkeep.server.http.overview import STUCK_MS


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
