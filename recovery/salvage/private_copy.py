"""A recovered copy of a store, for a repair after a power loss.

The newest commits of a store that needs recovery are only in the journal. Opening the copy replays
them. This is done in another process: LMDB trusts its file, and damage may crash that process. Then
the repair goes on without the commits of the journal.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.journal.control_file import CONTROL_FILE
from streamkeep.engine.journal.journal_files import is_journal_name
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder, copy_file

_LIMIT_S: Final = 60.0
_MIN_SPEED: Final = 1_000_000  # bytes of journal that are replayed per second, at least
_OPEN: Final = """
import sys
from streamkeep.engine.api.store import Store
Store(sys.argv[1], create=False, sync="none", force_recovery=True).close()
"""


def recovered_copy(store: Folder, parent: Folder, name: str) -> bool:
    """Copy a store that needs recovery and recover the copy; return whether that succeeded.

    Args:
        parent, name: folder and name of the copy, which replaces anything there.
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
            timeout=_LIMIT_S + size / _MIN_SPEED,
        )
    except subprocess.TimeoutExpired:
        return False  # damaged pages can make LMDB loop forever
    return done.returncode == 0
