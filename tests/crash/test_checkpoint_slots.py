"""Which of two checkpoints counts, and what a damaged one costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from crash.losses import in_child
from crash.power import another_boot
from inside import checkpoint_file_of, checkpoint_now, flush_each_commit
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile, meta_of
from streamkeep.engine.journal import control_file
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, RecoveryNeededError, StoreError
from streamkeep.format.journal.checkpoint import SLOT_SIZE
from streamkeep.recovery.salvage.repair import repair


def test_a_point_made_again_in_another_boot_is_the_newer(tmp_path: Path) -> None:
    """In either slot; otherwise later processes would wait for a recovery that is over."""
    path = tmp_path / "store"
    for commits in range(4):
        with streamkeep.open(path, sync="none") as store:
            store.xadd("s", {"n": str(commits)})
        with another_boot(1000 + commits), streamkeep.open(path, sync="none") as store:
            lock = checkpoint_file_of(store)
            store.xadd("s", {"later": "boot"})
            slot = lock.newest()
            assert slot is not None
            assert slot.boot_id == (1000 + commits).to_bytes(16, "big")


def test_a_young_store_with_a_damaged_point_is_not_taken_for_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "store"

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


def test_a_recovery_that_cannot_be_leaves_the_store_as_it_is(tmp_path: Path) -> None:
    """Its checkpoint is damaged, and its newest commit may be: the machine has stopped since."""
    path = tmp_path / "store"

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
    meta = meta_of(slot)
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


def test_a_store_that_was_moved_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
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

        def none_left(*_: object) -> int:
            raise OSError(24, "Too many open files")

        name = "sync_data" if where == "journal" else "sync_folder"
        call: Callable[[], object] = (
            (lambda: store.xadd("s", {"f": "v"}))
            if where == "journal"
            else lambda: checkpoint_now(store)
        )
        with monkeypatch.context() as patch:
            patch.setattr(files, name, none_left)
            with pytest.raises(StoreError, match="Too many open files"):
                call()
        store.xadd("s", {"f": "v"})
    control = control_file.read_control_file(Folder(tmp_path / "store" / "journal"))
    assert control is not None
    assert not control.poisoned
