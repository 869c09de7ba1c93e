"""`streamkeep doctor`: a line for each check, what is next, and an exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, run
from patience import line_of
from streamkeep.engine.crash_recovery import stored_version
from streamkeep.engine.store import meta
from streamkeep.recovery import backup
from streamkeep.tools.base import machine as doctor

HOLD = """
import sys
with open(sys.argv[1] + "/data.mdb", "rb"):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_check_is_a_line_and_nothing_is_wrong_here() -> None:
    with streamkeep.open("s") as store:
        store.xadd("k", {"n": 1})
    found = lines("doctor", "s")
    assert all(line[:5].strip() in ("ok", "note", "") for line in found)
    assert any("backup: the store knows of none" in line for line in found)
    backup("s", "b")
    *checks, summary = objects("doctor", "s")
    named = {check["name"]: check for check in checks}
    assert list(named)[:3] == ["installation", "versions", "Spark"]
    assert list(named)[-4:] == ["users", "open by", "store", "backup"]
    assert "LMDB" in named["versions"]["text"]
    assert named["backup"]["state"] == "ok"
    assert named["store"]["text"] == "opens"
    assert (summary["healthy"], summary["wrong"]) == (True, [])


def test_what_is_wrong_has_a_next_line_and_status_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_system_of", lambda folder: "nfs")
    found = lines("doctor", status=8)
    at = found.index(next(line for line in found if line.startswith("wrong")))
    assert found[at + 1] == "       next: use a folder on a local file system, such as ext4 or XFS"
    assert objects("doctor", status=8)[-1]["wrong"] == ["file system"]


def test_processes_that_have_the_store_open_are_named() -> None:
    with streamkeep.open("s"):
        child = subprocess.Popen([sys.executable, "-c", HOLD, "s"], stdin=-1, stdout=-1)
        assert child.stdout is not None
        line_of(child)
        [found] = [one["text"] for one in objects("doctor", "s")[:-1] if one["name"] == "open by"]
        child.communicate()
    assert f"{child.pid} (python" in found


def test_a_store_of_a_newer_format_names_the_upgrade_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamkeep.open("s").close()
    for module in (meta, stored_version):
        monkeypatch.setattr(module, "STORE_VERSION", 0)
    found = {one["name"]: one for one in objects("doctor", "s", status=8)[:-1]}
    assert found["store"]["next"] == "upgrade Streamkeep"


def test_a_damaged_store_is_wrong_and_a_missing_folder_has_its_own_status() -> None:
    Path("s").mkdir()
    Path("s/data.mdb").write_bytes(b"x" * 5000)
    assert objects("doctor", "s", status=8)[-1]["wrong"] == ["store"]
    run("doctor", "nosuch/folder", status=6)
