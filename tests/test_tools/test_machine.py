"""Checks of the machine, and `streamkeep doctor`, which makes a line of each and an exit status."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import lines, objects, run
from streamkeep.recovery import backup
from streamkeep.tools.commands import doctor_cmd as doctor


def states(place: Path) -> dict[str, str]:
    return {check.name: check.state for check in doctor.examine(place)}


def test_nothing_is_wrong_where_the_tests_run_and_nothing_remains(tmp_path: Path) -> None:
    place = tmp_path / "above" / "store"
    place.parent.mkdir()
    with streamkeep.open(place):
        pass
    before = sorted((tmp_path / "above").rglob("*"))
    assert "wrong" not in states(place).values()
    assert "wrong" not in states(tmp_path / "missing" / "too").values()
    assert sorted((tmp_path / "above").rglob("*")) == before


def test_other_pages_are_wrong() -> None:
    check = doctor.check_page_size(16384, 4096)
    told = "4,096 bytes; the store was made with pages of 16,384"
    assert (check.state, check.text) == ("wrong", told)
    assert "streamkeep dump" in check.next


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        ("ext4", "ok", "in place"),
        ("nfs4", "wrong", "network"),
        ("fuse.sshfs", "note", "is a program"),
        ("tmpfs", "note", "memory"),
        ("9p", "wrong", "not /mnt/c"),
        ("virtiofs", "note", "only, so no other guest"),
        ("overlay", "note", "mount a volume"),
        ("btrfs", "ok", "turns that off"),
        ("bcachefs", "note", "bcachefs: Streamkeep was not tried on it"),
        ("", "note", "unknown: "),
    ],
)
def test_what_is_known_of_a_file_system_is_said(kind: str, state: str, text: str) -> None:
    check = doctor.check_file_system(kind)
    assert check.state == state
    assert text in check.text


def test_the_file_system_is_that_of_the_mount_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 8:2 / {str(tmp_path).replace('-', chr(92) + '055')} rw shared:1 - xfs /dev/b rw\n"
        f"3 1 8:3 / {tmp_path}-not rw - btrfs /dev/c rw\n"
    )
    monkeypatch.setattr(doctor, "_MOUNTS", str(mounts))
    assert doctor.file_system_of(tmp_path) == "xfs"
    assert doctor.file_system_of(Path("/")) == "ext4"


@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_locks_that_keep_no_process_out_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr(fcntl, lock, lambda *args: None)
    check = doctor.check_sharing(tmp_path)
    assert check.state == "wrong"
    assert check.text == f"two processes hold the same lock at once ({lock})"


def test_a_map_that_is_not_shared_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes_nothing = doctor._OTHER.replace("data[100:105]", "_")
    monkeypatch.setattr(doctor, "_OTHER", writes_nothing)
    assert "does not see what another writes" in doctor.check_sharing(tmp_path).text
    monkeypatch.setattr(doctor, "_OTHER", "raise OSError('no maps here')")
    assert "no maps here" in doctor.check_sharing(tmp_path).text


def fails(number: int) -> Callable[..., Any]:
    """Return a function that fails as the system does."""

    return Mock(side_effect=OSError(number, os.strerror(number)))


def test_what_the_file_system_cannot_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fails(errno.EOPNOTSUPP))
    assert doctor.check_blocks(tmp_path).state == "wrong"
    monkeypatch.setattr(os, "link", fails(errno.EPERM))
    assert doctor.check_names(tmp_path).state == "note"
    monkeypatch.setattr(os, "replace", fails(errno.EIO))
    found = {check.name: check for check in doctor.examine(tmp_path)}
    assert (found["names"].state, found["names"].text) == ("wrong", os.strerror(errno.EIO))


def test_a_full_disk_needs_room_and_no_other_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fails(errno.ENOSPC))
    [check] = [one for one in doctor.examine(tmp_path) if one.name == "blocks"]
    assert (check.state, check.next[:21]) == ("wrong", "make room on the disk")


def test_slow_syncs_are_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 0.05)
    check = doctor.check_syncs(tmp_path)
    assert (check.state, check.text[:8]) == ("note", "50.00 ms")
    assert "interval" in check.next


def test_limits_of_the_process_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    most = {resource.RLIMIT_NOFILE: 64, resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_AS: -1}
    monkeypatch.setattr(resource, "getrlimit", lambda name: (most[name], -1))
    text = "the process is limited to 64 open files, 1,048,576 bytes of a file"
    assert doctor.check_limits()[1:3] == ("note", text)


def test_a_second_process_that_hangs_ends_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_OTHER", "import time; time.sleep(1000)")
    monkeypatch.setattr(doctor, "_CHILD_S", 0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        doctor.check_sharing(tmp_path)


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


def test_a_damaged_store_is_wrong_and_a_missing_folder_has_its_own_status() -> None:
    Path("s").mkdir()
    data = Path("s/data.mdb")
    ways: list[Callable[[], object]] = [data.mkdir, lambda: os.mkfifo(data)]
    ways += [lambda: data.symlink_to("nowhere"), lambda: data.write_bytes(b"x" * 5000)]
    for make in ways:
        make()
        assert objects("doctor", "s", status=8)[-1]["wrong"] == ["store"]
        data.rmdir() if data.is_dir() else data.unlink()
    assert objects("doctor", "s")[-1]["healthy"]
    Path("s/steady").touch()
    Path("file").touch()
    for place in ("s", "file"):
        assert objects("doctor", place, status=8)[-1]["wrong"] == ["store"]
    run("doctor", "nosuch/folder", status=6)
