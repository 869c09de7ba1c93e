"""Which of two checkpoints counts; files of the journal that outlived their end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

import streamkeep
from crash.losses import in_child, small_journal
from crash.power import another_boot
from inside import checkpoint_file_of, checkpoint_now, flush_each_commit
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.journal import control_file
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, journal_files, read_header
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, RecoveryNeededError, StoreError
from streamkeep.format.journal.checkpoint import SLOT_SIZE
from streamkeep.recovery.salvage.repair import repair


def test_a_point_made_again_in_another_boot_is_the_newer(path: Path) -> None:
    """In either slot; otherwise later processes would wait for a recovery that is over."""
    for commits in range(4):
        with streamkeep.open(path, sync="none") as store:
            store.xadd("s", {"n": str(commits)})
        with another_boot(1000 + commits), streamkeep.open(path, sync="none") as store:
            lock = checkpoint_file_of(store)
            store.xadd("s", {"later": "boot"})
            slot = lock.newest()
            assert slot is not None
            assert slot.boot_id == (1000 + commits).to_bytes(16, "big")


def test_a_young_store_with_a_damaged_point_is_not_taken_for_unfinished(
    path: Path, tmp_path: Path
) -> None:
    def write_and_die() -> None:
        store = streamkeep.open(path)
        store.xadd_many("s", [{"f": "v" * 100}] * 500)
        os.kill(os.getpid(), 9)

    assert not in_child(write_and_die)
    checkpoint_file = bytearray((path / CHECKPOINT_FILE).read_bytes())
    checkpoint_file[SLOT_SIZE + 20] ^= 1
    (path / CHECKPOINT_FILE).write_bytes(bytes(checkpoint_file))
    size = (path / "data.mdb").stat().st_size
    for readonly in (False, True):
        with pytest.raises(CorruptionError):
            streamkeep.open(path, readonly=readonly)
    assert (path / "data.mdb").stat().st_size == size
    assert any(one.code == "SK020" for one in recovery.check(path))
    repair(path, tmp_path / "repaired")
    with streamkeep.open(tmp_path / "repaired") as store:
        assert store.xlen("s") == 500


def test_a_recovery_that_cannot_be_leaves_the_store_as_it_is(path: Path) -> None:
    """Its checkpoint is damaged, and its newest commit may be: the machine has stopped since."""

    def write_and_die() -> None:
        store = streamkeep.open(path)
        flush_each_commit(store)  # so that LMDB has the newest commit
        store.xadd_many("s", [{"f": "v" * 100}] * 500)
        checkpoint_now(store)
        store.xadd_many("s", [{"f": "v" * 100}] * 500)
        os.kill(os.getpid(), 9)

    assert not in_child(write_and_die)
    lock = CheckpointFile(Folder(path), readonly=True)
    slot = lock.newest()
    lock.close()
    assert slot is not None
    meta = slot.meta()
    assert meta.main_root is not None
    with (path / "data.mdb").open("r+b") as file:
        file.seek(meta.main_root * meta.page_size + 16)
        file.write(b"damage")
    before = (path / CHECKPOINT_FILE).read_bytes(), (path / "data.mdb").read_bytes()
    with another_boot():
        for force in (None, "checkpoint"):
            with pytest.raises(CorruptionError, match="is not the root of commit"):
                streamkeep.open(path, force_recovery=force)
        with pytest.raises(RecoveryNeededError, match=r"cannot be kept .* the machine"):
            streamkeep.open(path, force_recovery="data.mdb")
        with pytest.raises(RecoveryNeededError, match="the machine stopped"):
            streamkeep.open(path, readonly=True)
    assert ((path / CHECKPOINT_FILE).read_bytes(), (path / "data.mdb").read_bytes()) == before
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == 1000
    with streamkeep.open(path) as store:  # in the same boot, the kernel has every page
        assert store.xlen("s") == 1000
    assert list(recovery.check(path)) == []


def test_a_store_that_was_moved_is_left_alone(path: Path, tmp_path: Path) -> None:
    old = streamkeep.open(path)
    old.xadd("s", {"of": "the old"})
    path.rename(tmp_path / "aside")
    with streamkeep.open(path) as new:
        new.xadd("s", {"of": "the new"})
        with pytest.raises(StoreError, match="moved"):
            old.xadd("s", {"of": "the old"})
        with pytest.raises(StoreError, match="moved"):
            old.close()
        new.xadd("s", {"of": "the new"})
        assert new.xlen("s") == 2


@pytest.mark.parametrize("where", ["journal", "folder"])
def test_without_descriptors_nothing_is_known_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"f": "v"})

        name = "sync_data" if where == "journal" else "sync_folder"
        call: Callable[[], object] = (
            (lambda: store.xadd("s", {"f": "v"}))
            if where == "journal"
            else lambda: checkpoint_now(store)
        )
        with monkeypatch.context() as patch:
            patch.setattr(files, name, Mock(side_effect=OSError(24, "Too many open files")))
            with pytest.raises(StoreError, match="Too many open files"):
                call()
        store.xadd("s", {"f": "v"})
    control = control_file.read_control_file(Folder(tmp_path / "store" / "journal"))
    assert control is not None
    assert not control.poisoned


# --- A file of the journal that outlived the end of the one before it is never followed again -----


def recycled(tmp_path: Path) -> tuple[int, int, int]:
    """Make a store of which a power loss spared the last file of the journal, and nothing between.

    Returns its newest commit, the number of that file, and the commit it begins with.
    """
    with streamkeep.open(tmp_path / "one", sync="none") as store:
        store.xadd("s", {"f": "v"})
        last = store.durability().last_commit
    shutil.copytree(tmp_path / "one", tmp_path / "lost")
    with streamkeep.open(tmp_path / "one", sync="none") as store:
        while len(journal_files(Folder(store.path / JOURNAL_FOLDER))) == 1:
            store.xadd("s", {"f": "x" * 2500})
        journal = Folder(store.path / JOURNAL_FOLDER)
        number, name = max(journal_files(journal).items())
        header = read_header(journal, name)
        assert header is not None
        stale = journal.read(name)
    path = tmp_path / "lost" / JOURNAL_FOLDER / name
    assert not path.exists()
    path.write_bytes(stale)
    assert header.first_commit - last in range(2, 10)
    return last, number, header.first_commit


@pytest.mark.parametrize("boot", [another_boot, nullcontext])
def test_a_later_file_says_that_commits_were_lost_and_follows_no_others(
    tmp_path: Path, boot: Callable[[], AbstractContextManager[None]]
) -> None:
    """Their numbers are given again in another epoch, so no reader mistakes the new for the old."""
    with small_journal():
        last, number, first = recycled(tmp_path)
        with streamkeep.open(tmp_path / "one") as store:
            epoch = store.durability().epoch
        with boot(), streamkeep.open(tmp_path / "lost") as store:
            assert store.durability().epoch == epoch + 1
            recovered = store.durability().last_recovery
            assert recovered is not None
            assert (recovered.checkpoint_commit, recovered.replayed) == (last, 0)
            assert number not in journal_files(Folder(store.path / JOURNAL_FOLDER))
            assert store.xlen("s") == 1
            while store.durability().last_commit < first - 1:
                store.xadd("s", {"other": "commit"})
            expected = store.xlen("s")
        with another_boot(9), streamkeep.open(tmp_path / "lost") as store:
            assert store.xlen("s") == expected
        assert [str(finding) for finding in recovery.check(tmp_path / "lost")] == []


def test_what_a_killed_opening_was_making_is_removed(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"f": "v"})
    left = tmp_path / "store" / JOURNAL_FOLDER / control_file.NEW_CONTROL_FILE
    left.write_bytes(bytes(100))
    assert [str(one) for one in recovery.check(tmp_path / "store")] == []
    with streamkeep.open(tmp_path / "store"):
        assert not left.exists()
