"""A private copy of a store, brought to its newest commit: for a repair after a power loss.

A store that needs recovery holds its newest commits in the journal only. The copy is recovered by
opening it, in a process of its own: LMDB trusts its file, and damage may end that process, which
then only means that the commits of the journal cannot be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from streamkeep.engine import files
from streamkeep.engine.journal_head import HEAD_FILE
from streamkeep.engine.journal_reader import JOURNAL_FOLDER
from streamkeep.engine.lmdb_errors import translate_os
from streamkeep.engine.steady import DATA_FILE
from streamkeep.engine.steady_file import STEADY_FILE

_PIECE: Final = 8 << 20
_LIMIT_S: Final = 60.0
_SLOWEST: Final = 1_000_000  # bytes of journal that are replayed in a second, at least
_OPEN: Final = """
import sys
from streamkeep.engine.api import Store
Store(sys.argv[1], create=False, sync="none", force_recovery=True).close()
"""


def recovered_copy(store: Path, target: Path) -> bool:
    """Copy a store that needs recovery to `target`, and recover it; say whether that worked."""
    try:
        if target.exists():
            shutil.rmtree(target)
        files.create_folder(target / JOURNAL_FOLDER)
        _copy_sparse(store / DATA_FILE, target / DATA_FILE)
        shutil.copyfile(store / STEADY_FILE, target / STEADY_FILE)
        journal = store / JOURNAL_FOLDER
        for path in journal.iterdir() if journal.exists() else ():
            if path.name != HEAD_FILE and path.is_file():
                shutil.copyfile(path, target / JOURNAL_FOLDER / path.name)
    except OSError as error:
        raise translate_os(error) from error
    size = sum(path.stat().st_size for path in (target / JOURNAL_FOLDER).iterdir())
    try:
        done = subprocess.run(
            [sys.executable, "-c", _OPEN, str(target)],
            capture_output=True,
            check=False,
            timeout=_LIMIT_S + size / _SLOWEST,
        )
    except subprocess.TimeoutExpired:
        return False  # damaged pages can also send LMDB round in circles
    return done.returncode == 0


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a file; where it is zero, the copy takes no room."""
    with source.open("rb") as reading, target.open("wb") as writing:
        while piece := reading.read(_PIECE):
            if any(piece):
                writing.write(piece)
            else:
                writing.seek(len(piece), os.SEEK_CUR)
        writing.truncate(reading.tell())
