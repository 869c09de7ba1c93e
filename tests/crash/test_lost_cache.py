"""Pages that were lost without a reboot: every acknowledged change comes back.

A file system that is mounted again after an error, a volume that is detached, a snapshot of a disk
and `cp` leave what was on disk, and the boot ID does not tell.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import lmdb
import pytest

import streamkeep
from crash.losses import in_child, small_journal
from crash.power import another_boot, copy_store
from crash.test_damaged_journal import slot_of
from inside import checkpoint_now, flush_each_commit, flush_now
from stopped import die_at
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint import read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.system import boot_id, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import RecoveryNeededError
from streamkeep.format.journal.checkpoint import NO_BOOT
from streamkeep.format.journal.position import POSITION_KEY

PAGE = 4096
COUNT = 40


def killed(
    path: Path,
    *,
    old: Path | None = None,
    early: Path | None = None,
    at: str = "",
    shown: bool = True,
) -> None:
    """Add entries in a process that is killed, all but the first after a checkpoint.

    Args:
        shown: LMDB has them; otherwise only the journal does.
        old: gets what was on disk of `data.mdb` at the checkpoint.
        early: gets `journal/head` as it was then.
        at: die at this failpoint of one more command.
    """

    def work() -> None:
        store = streamkeep.open(path)
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        if old is not None:
            shutil.copyfile(path / "data.mdb", old)
        if early is not None:
            shutil.copyfile(path / "journal" / "head", early)
        for number in range(1, COUNT):
            store.xadd("s", {"n": number})
        if shown:
            flush_now(store)
        if at:
            die_at(at, 1)
            store.xadd("s", {"n": COUNT})
        os.kill(os.getpid(), signal.SIGKILL)

    with small_journal():
        assert not in_child(work)


def assert_recovers(path: Path, reason: str, count: int = COUNT) -> None:
    """A read-only open says why it cannot be; opened for writing, everything is there."""
    with pytest.raises(RecoveryNeededError, match=reason):
        streamkeep.open(path, readonly=True)
    assert_holds(path, count, recovered=True)


def assert_shows(path: Path, count: int) -> None:
    """A process that only reads follows the journal, as far as it is published."""
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == len(store.xrange("s")) == count


def assert_holds(path: Path, count: int, *, recovered: bool) -> None:
    with streamkeep.open(path) as store:
        assert [entry.fields[b"n"] for entry in store.xrange("s")] == [
            b"%d" % number for number in range(count)
        ]
        assert (store.durability().last_recovery is not None) == recovered
        store.xadd("s", {"n": "after"})
    assert [str(one) for one in recovery.check(path)] == []
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == count + 1


def test_acknowledged_commits_are_replayed_after_the_page_cache_was_lost(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(path, old=tmp_path / "old.mdb")
    (tmp_path / "old.mdb").replace(path / "data.mdb")
    before = {one.name: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    found = {one.code: one.problem for one in recovery.check(path)}
    assert set(found) == {"SK022", "SK026"}
    assert found["SK026"] == f"lacks {COUNT - 1} commits that the journal has"
    assert {one.name: one.read_bytes() for one in path.rglob("*") if one.is_file()} == before
    assert_shows(path, COUNT)
    with caplog.at_level(logging.INFO):
        assert_holds(path, COUNT, recovered=True)
    assert f"{COUNT - 1} commits that data.mdb lacks" in caplog.text


def test_a_store_of_killed_processes_opens_for_reading_and_is_recovered_for_writing(
    path: Path,
) -> None:
    killed(path)
    assert list(recovery.check(path)) == []
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == COUNT
    assert_holds(path, COUNT, recovered=True)


@pytest.mark.parametrize("at", ["", "commit:journaled", "commit:made"])
def test_commits_that_only_the_journal_has_are_shown_and_replayed(path: Path, at: str) -> None:
    killed(path, at=at, shown=False)
    codes = [one.code for one in recovery.check(path)]
    assert codes == ["SK022", "SK026"]
    assert_shows(path, COUNT + (at == "commit:made"))
    assert_holds(path, COUNT + (at != ""), recovered=True)


def test_a_commit_whose_meta_page_is_lost_comes_from_the_journal(path: Path) -> None:
    """The system has lost LMDB's newest meta page, and only that."""
    killed(path)
    handle = os.open(path / "data.mdb", os.O_RDWR)
    newest = read_meta_pages(handle)[-1].commit_number
    os.pwrite(handle, bytes(PAGE), newest % 2 * PAGE)
    os.close(handle)
    assert_recovers(path, "that data.mdb lacks")


def test_pages_that_were_lost_under_a_new_meta_page_are_noticed_by_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = tmp_path / "store", tmp_path / "old.mdb"
    killed(path, old=old)
    now = (path / "data.mdb").read_bytes()
    pages = old.read_bytes().ljust(len(now), b"\0")
    assert now[2 * PAGE :] != pages[2 * PAGE :]
    (path / "data.mdb").write_bytes(now[: 2 * PAGE] + pages[2 * PAGE :])
    here = boot_id.mount_id(path)
    monkeypatch.setattr(boot_id, "mount_id", lambda path: here + 1)
    assert_recovers(path, "mounted again")


def test_an_error_that_the_kernel_reports_to_a_reader_is_not_forgotten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first sync after the error reports it."""
    killed(path)
    sync_data = files.sync_data
    reported: list[int] = []

    def sync_once(handle: int) -> None:
        if not reported and os.readlink(f"/proc/self/fd/{handle}").endswith("data.mdb"):
            reported.append(handle)
            raise OSError(errno.EIO, "simulated")
        sync_data(handle)

    monkeypatch.setattr(files, "sync_data", sync_once)
    with pytest.raises(RecoveryNeededError, match=r"writing data\.mdb had failed"):
        streamkeep.open(path, readonly=True)
    assert reported
    assert_recovers(path, "a sync to the disk had failed")


@pytest.mark.parametrize("seed", range(3))
def test_pages_that_the_disk_refused_in_the_same_boot_come_from_the_journal(
    tmp_path: Path, seed: int
) -> None:
    """The kernel has forgotten the error and the pages; nothing tells the opening of that."""
    path, old = tmp_path / "store", tmp_path / "old.mdb"
    killed(path, old=old)
    now = (path / "data.mdb").read_bytes()
    before = old.read_bytes().ljust(len(now), b"\0")
    chance = random.Random(seed)
    pages = [
        chance.choice((now, before))[start : start + PAGE]
        for start in range(2 * PAGE, len(now), PAGE)
    ]
    (path / "data.mdb").write_bytes(now[: 2 * PAGE] + b"".join(pages))
    assert_holds(path, COUNT, recovered=True)


@pytest.mark.parametrize("left", [None, b"", bytes(PAGE)], ids=["missing", "empty", "zeros"])
def test_a_head_that_was_not_written_shows_that_pages_were_lost(
    path: Path, left: bytes | None
) -> None:
    killed(path)
    control = path / "journal" / "head"
    if left is None:
        control.unlink()
    else:
        control.write_bytes(left)
    assert_recovers(path, "mounted again")


def test_a_head_that_is_older_than_the_newest_commit_shows_that_pages_were_lost(
    tmp_path: Path,
) -> None:
    """The system has kept LMDB's meta pages, of the others what was there at the checkpoint."""
    path, old, early = tmp_path / "store", tmp_path / "old.mdb", tmp_path / "early"
    killed(path, old=old, early=early)
    now = (path / "data.mdb").read_bytes()
    pages = old.read_bytes().ljust(len(now), b"\0")
    (path / "data.mdb").write_bytes(now[: 2 * PAGE] + pages[2 * PAGE :])
    shutil.copyfile(early, path / "journal" / "head")
    newest = slot_of(path).commit_number + COUNT - 1
    assert_recovers(path, f"journal/head is older than commit {newest}|data.mdb is damaged")


def test_a_copy_of_a_store_in_use_misses_no_commit_of_its_journal(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        copy.mkdir()
        shutil.copyfile(path / "data.mdb", copy / "data.mdb")
        for number in range(1, 9):
            store.xadd("s", {"n": number})
        shutil.copyfile(path / "steady", copy / "steady")
        shutil.copytree(path / "journal", copy / "journal")
    assert_recovers(copy, "holds 8 commits that data.mdb lacks", 9)


def test_a_forced_recovery_still_needs_no_reason(path: Path) -> None:
    killed(path)
    with streamkeep.open(path, force_recovery="checkpoint") as store:
        assert store.xlen("s") == COUNT
        assert store.durability().last_recovery is not None


def test_a_read_only_open_says_that_the_machine_has_stopped(path: Path) -> None:
    killed(path)
    with another_boot():
        assert_recovers(path, "the machine stopped while the store was in use")


def test_a_read_only_open_says_that_a_recovery_was_cut_off(path: Path) -> None:
    killed(path)
    steady = CheckpointFile(Folder(path), readonly=False)
    slot = steady.newest()
    assert slot is not None
    steady.write(slot._replace(boot_id=NO_BOOT))  # as a recovery begins
    steady.close()
    assert_recovers(path, "a recovery was cut off")


def test_each_mount_has_a_number_of_its_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "file").write_text("")
    if os.geteuid() or subprocess.run(["mount", "--bind", one, other], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert (other / "file").exists()
        if boot_id.mount_id(one) == 0:
            pytest.skip("the kernel gives no unique numbers of mounts")
        assert boot_id.mount_id(one) == boot_id.mount_id(tmp_path)
        assert boot_id.mount_id(other) not in (0, boot_id.mount_id(one))
    finally:
        subprocess.run(["umount", "-l", other], check=True)
    assert boot_id.mount_id(tmp_path / "nothing") == 0


def test_a_store_whose_position_and_journal_were_lost_is_recovered(tmp_path: Path) -> None:
    """The newest meta page leads to old pages, and no record follows the checkpoint."""
    path, lost = tmp_path / "store", tmp_path / "lost"
    with streamkeep.open(path, sync="none") as store:
        flush_each_commit(store)
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        for number in range(3):
            store.xadd("s", {"n": number})
        copy_store(path, lost)
    with lmdb.open(str(lost), max_dbs=32) as raw, raw.begin(write=True) as txn:
        assert txn.delete(POSITION_KEY)
    for file in (lost / "journal").glob("*.skj"):
        os.truncate(file, 0)
    with pytest.raises(RecoveryNeededError, match="commits 3 to 5 were made and would be lost"):
        streamkeep.open(lost)
    with streamkeep.open(lost, force_recovery="checkpoint") as store:
        recovered = store.durability().last_recovery
        assert recovered is not None
        assert recovered.lost == 3
        assert store.xlen("s") == 1
