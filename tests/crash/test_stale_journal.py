"""A file of the journal that outlived the end of the one before it is never followed again."""

from __future__ import annotations

import shutil
from pathlib import Path

from crash.losses import small_journal
from streamkeep import recovery
from streamkeep.engine.api import Store
from streamkeep.engine.journal_reader import JOURNAL_FOLDER, journal_files, read_header


def test_a_later_file_does_not_follow_other_commits(tmp_path: Path) -> None:
    with small_journal():
        with Store(tmp_path / "one", sync="none") as store:
            store.xadd("s", {"f": "v"})
            last = store.durability().last_commit
        shutil.copytree(tmp_path / "one", tmp_path / "lost")
        with Store(tmp_path / "one", sync="none") as store:
            while len(journal_files(store.path / JOURNAL_FOLDER)) == 1:
                store.xadd("s", {"f": "x" * 2500})
            number, path = max(journal_files(store.path / JOURNAL_FOLDER).items())
            header = read_header(path)
            assert header is not None
            stale = path.read_bytes()
        # The power went: of all that, the disk has this file only.
        path = tmp_path / "lost" / JOURNAL_FOLDER / path.name
        assert not path.exists()
        path.write_bytes(stale)
        assert header.first_commit - last in range(2, 10)
        with Store(tmp_path / "lost") as store:
            for _ in range(header.first_commit - 1 - last):
                store.xadd("s", {"other": "commit"})
            assert store.durability().last_commit == header.first_commit - 1
            assert number not in journal_files(store.path / JOURNAL_FOLDER)
        assert [str(finding) for finding in recovery.check(tmp_path / "lost")] == []
