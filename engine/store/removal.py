"""Removing a store that was made in vain: a command created it, failed, and put nothing in.

It is gone as if it had never been, folders included that were made for it, unless somebody else
has opened it meanwhile, or it holds something.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.checkpoint.extent import check_extent
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.keys import KEYS, TABLES


def missing_folders(path: Path) -> list[Path] | None:
    """Return which folders creating a store at `path` makes, the innermost first.

    None where there is a store, which is not to be removed.
    """
    if os.path.lexists(path / DATA_FILE):
        return None
    return [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]


def remove_empty(path: Path, made: list[Path]) -> bool:
    """Remove a store that holds nothing and that this process has closed; say whether.

    The folder had nothing in it when the store was created, or was not there. Another process may
    have written to the store and closed it since this one looked into it; so that is looked at
    again, under the lock. A process that waits for the lock meanwhile finds the same lock file
    without a store, and creates one; where the folder goes, too, its opening fails.

    Args:
        made: what `missing_folders` returned before the store was created.
    """
    store = Folder(path)
    lock = CheckpointFile(store, readonly=False)
    try:
        if not (lock.try_exclusive() and _holds_nothing(store)):
            return False
        os.truncate(lock.handle, 0)
        for name in store.names():
            if name != CHECKPOINT_FILE:
                store.remove_any(name)
        if path in made:
            store.remove(CHECKPOINT_FILE)
        with suppress(OSError):  # others may have put something into a folder
            for folder in made:
                folder.rmdir()
    finally:
        lock.close()
    return True


def _holds_nothing(store: Folder) -> bool:
    """Say whether a store that nobody has open has no keys."""
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
