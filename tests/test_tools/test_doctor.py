"""`streamkeep doctor`: a line for each check, what is next, and an exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, run
from streamkeep.recovery import backup, doctor


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_check_is_a_line_and_nothing_is_wrong_here() -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"n": 1})
    found = lines("doctor", "s")
    assert all(line[:5].strip() in ("ok", "note", "") for line in found)
    assert any("store: opens; it knows of no backup" in line for line in found)
    backup("s", "b")
    *checks, summary = objects("doctor", "s")
    assert [check["name"] for check in checks][-1] == "store"
    assert checks[-1]["state"] == "ok"
    assert (summary["healthy"], summary["wrong"]) == (True, [])


def test_what_is_wrong_has_a_next_line_and_status_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_system_of", lambda folder: "nfs")
    found = lines("doctor", status=8)
    at = found.index(next(line for line in found if line.startswith("wrong")))
    assert found[at + 1] == "       next: use a folder on a local file system, such as ext4 or XFS"
    assert objects("doctor", status=8)[-1]["wrong"] == ["file system"]


def test_a_damaged_store_is_wrong_and_a_missing_folder_has_its_own_status() -> None:
    Path("s").mkdir()
    Path("s/data.mdb").write_bytes(b"x" * 5000)
    assert objects("doctor", "s", status=8)[-1]["wrong"] == ["store"]
    run("doctor", "nosuch/folder", status=6)
