"""Stores of every format version open today, and answer what they answered when they were written.

They are the base of every upgrade: once the format has changed, they are upgraded or refused by
name, and never written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import pytest

import golden_stores
import streamkeep
from raw_store import raw_store
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.keys import META, UNUSED_TABLES
from streamkeep.format.core.versions import STORE_VERSION
from streamkeep.format.rows.records import decode_number
from streamkeep.recovery.salvage.repair import repair
from tiers import slow_but

DAILY = ("closed", "torn", "closed-2", "killed-3", "killed-4")
LAST_MS = 1_718_004_802_065  # of the clock, when the last command ran


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden_stores.FOLDER / "expected.json").read_text())
    return found


@pytest.mark.parametrize("name", slow_but(golden_stores.NAMES, *DAILY))
def test_a_golden_store_answers_what_it_answered_when_it_was_written(
    tmp_path: Path, name: str, expected: dict[str, Any]
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with Store(path, clock=ManualClock(LAST_MS)) as store:
        found = json.loads(json.dumps(golden_stores.describe(store)))
    assert found["streams"].keys() == expected["streams"].keys()
    for key, stream in expected["streams"].items():
        assert found["streams"][key] == stream, key
    assert found["archive"] == expected["archive"]
    assert [str(one) for one in recovery.check(path)] == []


@pytest.mark.parametrize("name", slow_but(golden_stores.NAMES, *DAILY))
def test_a_golden_store_takes_new_entries_through_the_public_door(
    tmp_path: Path, name: str
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with streamkeep.open(path) as store:
        length = store.xlen("orders")
        store.xadd("orders", {"new": 1})
        assert store.xlen("orders") == length + 1 == 618
        assert store.xack("orders", "mail", *_pending(store)) == 255
    assert [str(one) for one in recovery.check(path)] == []


@pytest.mark.parametrize(("name", "version"), [("closed", 1), ("closed-2", 2), ("closed-3", 3)])
def test_a_golden_store_keeps_its_version_and_tables_until_it_is_repaired(
    tmp_path: Path, name: str, version: int
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with streamkeep.open(path) as store:
        store.xadd("orders", {"new": 1})
    recovery.compact(path)
    assert (_version(path), _unused(path)) == (version, list(UNUSED_TABLES) if version == 1 else [])
    assert [str(one) for one in recovery.check(path)] == []
    copy = tmp_path / "backup"
    recovery.backup(path, copy)
    assert (_version(copy), _unused(copy)) == (_version(path), _unused(path))
    repaired = tmp_path / "repaired"
    repair(path, repaired)
    assert (_version(repaired), _unused(repaired)) == (STORE_VERSION, [])
    assert [str(one) for one in recovery.check(repaired)] == []


@pytest.mark.parametrize(("name", "version"), [("closed", 1), ("closed-2", 2)])
def test_a_golden_store_has_no_leases_and_keeps_its_version(
    tmp_path: Path, name: str, version: int
) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with streamkeep.open(path) as store:
        assert len(store.xautoclaim("orders", "mail", "eve", 0, count=250)[1]) > 0
        states = {one["lease"] for one in store.xinfo_consumers("orders", "mail", leases=True)}
        assert states == {"unknown"}
        claimed = store.xautoclaim("orders", "mail", "bob", 0, count=250, justid=True, dead=True)
        assert claimed == []
    assert _version(path) == version
    assert not (path / "leases").exists()
    assert [str(one) for one in recovery.check(path)] == []


@pytest.mark.parametrize("name", slow_but(("closed-3", "killed-3", "torn-3"), "torn-3"))
def test_a_golden_store_of_format_3_has_its_rows(tmp_path: Path, name: str) -> None:
    path = golden_stores.unpack(name, tmp_path)
    with streamkeep.open(path) as store:
        rows = store.row_range("counters")
        assert rows == [
            (b"%04d" % number, b"value %d" % number * 20) for number in range(300) if number != 7
        ]
        assert store.row_get("settings \xff", b"\0") == b""
    assert _version(path) == 3


def _version(path: Path) -> int:
    with raw_store(path) as raw:
        return decode_number(raw.body(META, b"format_version"), "test")


def _unused(path: Path) -> list[str]:
    """Return the tables that only format 1 has and that the store has, too."""
    with lmdb.open(str(path), readonly=True, lock=False) as raw, raw.begin() as txn:
        return [name for name in UNUSED_TABLES if txn.get(name.encode()) is not None]


def _pending(store: Store[bytes]) -> list[Any]:
    return [row["message_id"] for row in store.xpending_range("orders", "mail", "-", "+", 1000)]
