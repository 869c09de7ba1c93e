"""Removing a store that was made in vain: a command created it, failed, and put nothing in.

It is gone as if it had never been, folders included that were made for it, unless somebody else
has opened it meanwhile, or it holds something.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from streamkeep.engine.safe_files import Folder
from streamkeep.engine.steady import DATA_FILE
from streamkeep.engine.steady_file import STEADY_FILE, SteadyFile


def missing_folders(path: Path) -> list[Path] | None:
    """Return which folders creating a store at `path` makes, the innermost first.

    None where there is a store, which is not to be removed.
    """
    if os.path.lexists(path / DATA_FILE):
        return None
    return [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]


def remove_empty(path: Path, made: list[Path]) -> bool:
    """Remove a store that holds nothing and that this process has closed; say whether.

    The folder had nothing in it when the store was created, or was not there. Who waits for the
    lock meanwhile finds no folder, or the same lock file without a store, and creates one.

    Args:
        made: what `missing_folders` returned before the store was created.
    """
    store = Folder(path)
    lock = SteadyFile(store, readonly=False)
    try:
        if not lock.try_exclusive():
            return False
        os.truncate(lock.handle, 0)
        for name in store.names():
            if name != STEADY_FILE:
                store.remove_any(name)
        if path in made:
            store.remove(STEADY_FILE)
        with suppress(OSError):  # others may have put something into a folder
            for folder in made:
                folder.rmdir()
    finally:
        lock.close()
    return True
