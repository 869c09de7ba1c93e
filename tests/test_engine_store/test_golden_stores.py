"""Golden stores open today; expired messages are forgotten in bounded transactions."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import golden_stores
import streamkeep
from inside import run_write
from stores import Open
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import maintenance
from streamkeep.engine.system.clock import ManualClock
from streamkeep.recovery.salvage.repair import repair

LAST_MS = 1_718_004_802_065  # of the clock, when the last command ran


def described(path: Path) -> dict[str, Any]:
    with Store(path, clock=ManualClock(LAST_MS)) as store:
        return golden_stores.describe(store)


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_a_golden_store_answers_what_it_answered_when_it_was_written(
    tmp_path: Path, name: str
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    found = described(path)
    digests = json.loads((golden_stores.FOLDER / "digests.json").read_text())
    if golden_stores.digest(found) != digests[name]:
        writer = runpy.run_path(str(golden_stores.FOLDER / "write.py"))
        clock = ManualClock(writer["NOW_MS"])
        with Store(tmp_path / "filled now", clock=clock) as store:
            writer["fill_all"](store, clock)
            assert found == golden_stores.describe(store), "it answers what a new store does not"
        pytest.fail("it answers what a new store does, and not what it did when it was written")
    assert [str(one) for one in recovery.check(path)] == []


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_a_golden_store_takes_new_entries_through_the_public_door(
    tmp_path: Path, name: str
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with streamkeep.open(path) as store:
        length = store.xlen("orders")
        store.xadd("orders", {"new": 1})
        assert store.xlen("orders") == length + 1 == 618
        leases = store.xinfo_consumers("orders", "mail", leases=True)
        assert "alive" not in {one["lease"] for one in leases}  # no process has them any more
        assert store.xack("orders", "mail", *_pending(store)) == 255
        rows = store.row_range("counters")
        assert rows == [
            (b"%04d" % number, b"value %d" % number * 20) for number in range(300) if number != 7
        ]
        assert store.row_get("settings \xff", b"\0") == b""
    assert [str(one) for one in recovery.check(path)] == []


def test_a_golden_store_answers_the_same_after_compaction_backup_and_repair(tmp_path: Path) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    before = described(path)
    recovery.compact(path)
    recovery.backup(path, tmp_path / "backup")
    repair(tmp_path / "backup", tmp_path / "repaired")
    for one in (path, tmp_path / "backup", tmp_path / "repaired"):
        assert described(one) == before
        assert [str(found) for found in recovery.check(one)] == []


def _pending(store: Store[bytes]) -> list[Any]:
    return [row["message_id"] for row in store.xpending_range("orders", "mail", "-", "+", 1000)]


# --- expired messages of idempotent XADD: in no count, and forgotten in bounded transactions ------


def tracked(store: Store[Any], key: str = "s") -> tuple[int, int]:
    info = store.xinfo_stream(key)
    return info["pids-tracked"], info["iids-tracked"]


def test_what_has_expired_is_not_counted_though_no_xadd_and_no_maintain_came(
    store: Store, clock: ManualClock
) -> None:
    for number in range(6):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 3}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p1", "late"))
    assert tracked(store) == (3, 7)
    clock.ms += 50_000
    assert tracked(store) == (1, 1)
    assert store.xinfo_stream("s", full=True)["iids-tracked"] == 1
    clock.ms += 50_000
    assert tracked(store) == (0, 0)
    assert store.xinfo_stream("s")["iids-added"] == 7
    store.xadd("s", {"n": 0}, idmp=("p0", "m0"))  # unknown again
    assert (store.xlen("s"), tracked(store)) == (8, (1, 1))


def test_maintain_forgets_at_once_and_says_how_many(
    open_store: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRODUCERS_AT_ONCE", 2)
    store = open_store()
    for number in range(10):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 5}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p3", "late"))
    store.xadd("renamed", {"n": 1}, idmp=("p", "m"))
    assert store.maintain().forgotten == 0
    clock.ms += 50_000
    store.rename("renamed", "t")
    assert store.maintain().forgotten == 10
    assert tracked(store) == (1, 1)
    clock.ms += 50_000
    assert store.maintain().forgotten == 2
    assert tracked(store) == tracked(store, "t") == (0, 0)
    assert store.maintain().forgotten == 0


def test_a_producer_with_more_lasting_messages_than_are_forgotten_at_once_is_passed(
    open_store: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MESSAGES_AT_ONCE", 7)
    store = open_store()
    for number in range(20):
        store.xadd("s", {"n": number}, idmp=("p", f"m{number}"))
    assert store.maintain().forgotten == 0
    assert tracked(store) == (1, 20)
    clock.ms += 101_000
    assert store.maintain().forgotten == 20


def test_a_transaction_looks_at_a_bounded_number_of_producers_and_messages(
    open_store: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRODUCERS_AT_ONCE", 4)
    monkeypatch.setattr(maintenance, "MESSAGES_AT_ONCE", 7)
    store = open_store()
    for number in range(60):
        store.xadd("s", {"n": number}, idmp=(f"p{number % 6}", f"m{number}"))
    clock.ms += 50_000
    store.xadd("s", {"n": "late"}, idmp=("p1", "late"))
    clock.ms += 50_000
    counts = []
    place = 0
    while place >= 0:
        count, place = run_write(store, maintenance._forget_step, b"s", place)
        counts.append(count)
    assert max(counts) <= 7
    assert sum(counts) == 60
    assert tracked(store) == (1, 1)
