"""Removing an empty store: a command created it, failed, and stored nothing.

The store is removed together with the folder that was made for it, unless another process has it
open or it holds something.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.crash_recovery.extent import check_extent
from streamkeep.engine.store.survey import STAGING_FOLDER
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.keys import KEYS, TABLES


def missing_folders(path: Path) -> list[Path] | None:
    """Return the folder that creating a store at `path` makes, if it is missing.

    Returns:
        None if there is a store, which must not be removed.
    """
    if os.path.lexists(path / DATA_FILE):
        return None
    return [] if os.path.lexists(path) else [path]


def remove_empty(path: Path, made: list[Path]) -> bool:
    """Remove a store that holds nothing and that this process has closed; return whether it did.

    Another process may have written to the store since this one closed it, so the check is made
    under the exclusive lock. A process that waits for the lock in the meantime starts its opening
    again.

    Args:
        made: the result of `missing_folders` before the store was created.
    """
    store = Folder(path)
    lock = CheckpointFile(store, readonly=False)
    try:
        if not (lock.try_exclusive() and _holds_nothing(store)):
            return False
        os.truncate(lock.handle, 0)
        for name in store.names():
            if name != CHECKPOINT_FILE and (path in made or name != STAGING_FOLDER):
                store.remove_any(name)  # a pipeline may have staged files before the store was made
        if path in made:
            store.remove(CHECKPOINT_FILE)
        with suppress(OSError):  # another process may have added files to a folder
            for folder in made:
                folder.rmdir()
    finally:
        lock.close()
    return True


def _holds_nothing(store: Folder) -> bool:
    """Return whether a store that no process has open has no keys."""
    if not store.exists(DATA_FILE):
        return True
    check_extent(store)
    path = str(store.path)
    raw = lmdb.open(path, readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)
    try:
        keys = raw.open_db(TABLES[KEYS].name.encode(), create=False)
        with raw.begin() as txn:
            return int(txn.stat(keys)["entries"]) == 0
    finally:
        raw.close()
