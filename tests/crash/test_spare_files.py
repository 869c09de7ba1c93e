"""Spare files of the journal are made beside writers, in several processes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep
from crash.losses import small_journal
from crash.power import another_boot, copy_store
from inside import journal_of
from streamkeep.engine.journal.journal import NEW_RECYCLED, Journal
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder


def test_who_is_slow_to_make_one_does_not_write_to_a_file_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with small_journal(), streamkeep.open(path) as store:
        journal = journal_of(store)
        folder = Folder(path / JOURNAL_FOLDER)
        other = Journal(folder, journal.control, journal.store_uuid, journal.epoch)
        other.file_size = journal.file_size
        while journal.log.offset < journal.file_size // 4:
            store.xadd("s", {"pad": "x" * 300})
        other.log.go_to(*journal.log.position)
        other.syncs.wait_for(0)  # so that it fills what it makes
        fill = files.fill
        slow = [True]

        def fill_late(handle: int) -> None:
            """Wait until the store has made one as well, and uses it."""
            if slow.pop() if slow else False:
                journal.prepare_recycled()
                before = journal.log.number
                while journal.log.number == before:
                    store.xadd("s", {"pad": "y" * 300})
                for _ in range(5):
                    store.xadd("s", {"pad": "z" * 300})
            fill(handle)

        monkeypatch.setattr(files, "fill", fill_late)
        other.prepare_recycled()
        assert not slow
        expected = store.xlen("s")
        copy_store(path, tmp_path / "copy")
        other.close()
    with another_boot(), streamkeep.open(tmp_path / "copy") as copy:
        assert copy.xlen("s") == expected


def test_what_a_killed_process_was_making_is_removed(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"f": "v"})
    left = tmp_path / "store" / JOURNAL_FOLDER / f"{NEW_RECYCLED}.0123456789abcdef"
    left.write_bytes(bytes(100))
    with streamkeep.open(tmp_path / "store"):
        assert not left.exists()
