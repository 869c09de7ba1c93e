"""A private copy of a store, brought to its newest commit: for a repair after a power loss.

A store that needs recovery holds its newest commits in the journal only. The copy is recovered by
opening it, in a process of its own: LMDB trusts its file, and damage may end that process, which
then only means that the commits of the journal cannot be had.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.journal.control_file import CONTROL_FILE
from streamkeep.engine.journal.journal import is_journal_name
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder, copy_file

_LIMIT_S: Final = 60.0
_SLOWEST: Final = 1_000_000  # bytes of journal that are replayed in a second, at least
_OPEN: Final = """
import sys
from streamkeep.engine.api.store import Store
Store(sys.argv[1], create=False, sync="none", force_recovery=True).close()
"""


def recovered_copy(store: Folder, parent: Folder, name: str) -> bool:
    """Copy a store that needs recovery, and recover the copy; say whether that worked.

    Args:
        parent, name: the place of the copy; what is there is removed.
    """
    size = 0
    try:
        parent.remove_folder(name)
        target = parent.make_folder(name)
        copy_file(store, DATA_FILE, target, DATA_FILE)
        copy_file(store, CHECKPOINT_FILE, target, CHECKPOINT_FILE)
        into = target.make_folder(JOURNAL_FOLDER)
        journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
        for one in filter(is_journal_name, journal.names()):
            if one != CONTROL_FILE:
                copy_file(journal, one, into, one)
                size += into.size(one)
    except OSError as error:
        raise translate_os(error) from error
    try:
        done = subprocess.run(
            [sys.executable, "-c", _OPEN, str(target.path)],
            capture_output=True,
            check=False,
            timeout=_LIMIT_S + size / _SLOWEST,
        )
    except subprocess.TimeoutExpired:
        return False  # damaged pages can also send LMDB round in circles
    return done.returncode == 0
