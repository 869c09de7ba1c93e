"""A file of the journal that outlived the end of the one before it is never followed again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import streamkeep
from crash.losses import small_journal
from crash.power import another_boot
from streamkeep import recovery
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, journal_files, read_header
from streamkeep.engine.system.safe_files import Folder


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
