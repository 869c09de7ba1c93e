"""Golden stores open today, and answer what they answered when they were written."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import golden_stores
import streamkeep
from streamkeep import recovery
from streamkeep.engine.api.store import Store
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
