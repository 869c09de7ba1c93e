"""Stores of every older format become stores of the present one, with all that they held."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

import golden_stores
import streamkeep
from cli_runner import lines, objects, run
from raw_store import raw_store
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.keys import META, TABLES, UNUSED_TABLES
from streamkeep.format.core.versions import HISTORY, STORE_VERSION
from streamkeep.format.rows.records import decode_number
from streamkeep.recovery.upgrade import STEPS, upgrade
from tiers import slow_but

OLDER = [name for name, version in golden_stores.VERSIONS.items() if version < STORE_VERSION]
LAST_MS = 1_718_004_802_065  # of the clock of the golden stores
POINTS = [
    "copy:written",
    *(one for one in failpoints.NAMES if one.startswith(("upgrade:", "compact:"))),
]


def contents(path: Path) -> dict[str, Any]:
    with Store(path, clock=ManualClock(LAST_MS)) as store:
        found: dict[str, Any] = json.loads(json.dumps(golden_stores.describe(store)))
    return found


def version_of(path: Path) -> int:
    with raw_store(path) as raw:
        return decode_number(raw.body(META, b"format_version"), "test")


def tables_of(path: Path) -> set[str]:
    with lmdb.open(str(path), readonly=True, lock=False) as raw, raw.begin() as txn:
        return {bytes(name).decode() for name, _ in txn.cursor() if bytes(name).islower()}


def assert_new(path: Path) -> None:
    assert version_of(path) == STORE_VERSION
    assert tables_of(path) >= {one.name for one in TABLES.values()}
    assert not tables_of(path) & set(UNUSED_TABLES)
    expected = json.loads((golden_stores.FOLDER / "expected.json").read_text())
    assert contents(path) == expected
    assert [str(one) for one in recovery.check(path)] == []
    with streamkeep.open(path) as store:  # what only the present format has
        store.row_put("space", b"key", b"value")


def test_each_format_has_a_step_to_the_next_one_and_a_golden_store() -> None:
    assert list(HISTORY) == [*STEPS, STORE_VERSION]
    assert set(golden_stores.VERSIONS.values()) == set(HISTORY), "write one with its first program"


@pytest.mark.parametrize("name", slow_but(OLDER, "closed", "closed-2"))
def test_golden_stores_of_every_format_become_stores_of_today(tmp_path: Path, name: str) -> None:
    path = golden_stores.unpack(name, tmp_path)
    seen = []
    done = upgrade(
        path,
        clock=ManualClock(LAST_MS),
        progress=lambda *state: seen.append(state),
    )
    assert (done.before, done.after) == (golden_stores.VERSIONS[name], STORE_VERSION)
    steps = [step for step, _, _ in seen]
    assert sorted(set(steps), key=steps.index)[-2:] == ["compare", "check"]
    assert all(now <= total for step, now, total in seen if step != "copy")
    assert_new(path)
    assert upgrade(path) == (
        STORE_VERSION,
        STORE_VERSION,
        *[os.stat(path / "data.mdb").st_size] * 2,
        0,
    )


@pytest.mark.crash
@pytest.mark.parametrize("point", slow_but(POINTS, "upgrade:checked", "compact:data-moved"))
def test_an_upgrade_that_was_killed_is_finished_by_the_next(tmp_path: Path, point: str) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    child = os.fork()
    if child == 0:
        failpoints.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        upgrade(path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, point
    between = contents(path)  # either store, whole
    assert version_of(path) in (1, STORE_VERSION)
    done = upgrade(path)
    assert done.after == STORE_VERSION
    assert between == contents(path)
    assert not [one for one in os.listdir(path) if one.startswith("compact")]
    assert_new(path)


def test_a_copy_that_is_not_the_original_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    before = (path / "data.mdb").read_bytes()

    whole = STEPS[2]

    def lose(raw: Any, txn: Any, table: str) -> None:
        whole(raw, txn)
        cursor = txn.cursor(raw.open_db(table.encode(), txn, create=False))
        cursor.first()
        cursor.delete()

    for table in ("nodes", "idempotency", "meta"):
        monkeypatch.setitem(STEPS, 2, partial(lose, table=table))
        with pytest.raises(streamkeep.CorruptionError, match=table):
            upgrade(path)
    monkeypatch.setattr(sys.modules[upgrade.__module__], "_compare", lambda *_: None)
    monkeypatch.setitem(STEPS, 2, partial(lose, table="nodes"))
    with pytest.raises(streamkeep.CorruptionError, match=r"SK.*next: `streamkeep repair`"):
        upgrade(path)
    monkeypatch.undo()
    assert (path / "data.mdb").read_bytes() == before
    assert not [one for one in os.listdir(path) if one.startswith("compact")]
    upgrade(path)
    assert_new(path)


def test_a_store_in_use_is_not_upgraded(tmp_path: Path) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    with streamkeep.open(path), pytest.raises(streamkeep.StoreLockedError, match="close it"):
        upgrade(path)
    assert version_of(path) == 1


def test_the_command_upgrades_and_says_from_where_to_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    assert f"from format 1 to format {STORE_VERSION}, verified" in lines("upgrade", path)[0]
    assert "nothing to do" in lines("upgrade", path)[0]
    [summary] = objects("upgrade", path)
    assert summary["before"] == summary["after"] == STORE_VERSION
    assert "no such store" in run("upgrade", tmp_path / "none", status=6).stderr
    assert "streamkeep upgrade" not in caplog.text, "it does what the warning advises"


def test_an_old_store_says_that_it_can_be_upgraded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = golden_stores.unpack("closed", tmp_path)
    for _ in range(2):
        streamkeep.open(path).close()
    told = [one.getMessage() for one in caplog.records if "store format" in one.getMessage()]
    assert told == [
        f"{path}: store format 1, and this version writes {STORE_VERSION}; next: run "
        "`streamkeep upgrade` when no process has it open"
    ]
    with (
        streamkeep.open(path) as store,
        pytest.raises(streamkeep.StoreError, match="streamkeep upgrade"),
    ):
        store.row_put("space", b"key", b"value")
