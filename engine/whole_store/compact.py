"""Compaction: `data.mdb` is rewritten without free pages, under the exclusive lock of the store.

Three things change together: `data.mdb`, the checkpoints, which hold its meta page, and the
journal. They are prepared as a complete store in `compact.new`. The rename of that folder to
`compact.ready` decides. After a crash before the rename, the next opening removes the folder. After
a crash later, the next opening first moves its files into place, in steps that may be repeated. So
a crash leaves the old store or the new one.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery.recover import needs_recovery
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, NOWHERE
from streamkeep.engine.journal.slots import read_slots
from streamkeep.engine.store.opening import open_environment
from streamkeep.engine.store.registry import registry
from streamkeep.engine.store.survey import NEW_FOLDER, READY_FOLDER, finish_swap
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Advance
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.copying import copy_data, finish_copy
from streamkeep.format.core.errors import StoreError, StoreLockedError
from streamkeep.format.core.keys import TABLES


class Compacted(NamedTuple):
    """The result of a compaction.

    Attributes:
        before_bytes, after_bytes: the size of `data.mdb`.
        epoch: the new epoch of the store.
    """

    before_bytes: int
    after_bytes: int
    epoch: int


def compact(
    path: str | Path, progress: Advance | None = None, clock: Clock | None = None
) -> Compacted:
    """Rewrite the data file of a store without its free pages; no process may have it open.

    Atomic: a crash at any step leaves the store unchanged or compacted. It needs as much free disk
    space as the compacted file takes. Entries, IDs, groups and counters do not change.

    Args:
        progress: called with the number of bytes written so far.

    Raises:
        StoreLockedError: the store is open, in this process or another.
        StoreFullError: there is no room for the copy; nothing was changed.
    """
    path = path_of(path, "path").absolute()
    clock = clock or Clock()
    if registry.find(path) is not None:
        raise StoreLockedError(f"{path}: open in this process; next: close it, then try again")
    # Opening the store recovers it and finishes an earlier compaction, if that is due.
    open_environment(path, clock=clock).release()
    folder = Folder(path)
    lock = CheckpointFile(folder, readonly=False)
    with closing(lock), translated(system=True):
        if not lock.try_exclusive():
            raise StoreLockedError(
                f"{path}: open in another process; next: close it there, then try again"
            )
        if needs_recovery(folder, lock):
            raise StoreError(
                f"{path}: another process has used the store since this one began; next: try again"
            )
        return _rewrite(folder, lock, progress, clock)


def _rewrite(
    folder: Folder, lock: CheckpointFile, progress: Advance | None, clock: Clock
) -> Compacted:
    before = folder.size(DATA_FILE)
    if folder.remove_folder(NEW_FOLDER):
        folder.sync()
    new = folder.make_folder(NEW_FOLDER)
    try:
        folder.check_file(DATA_FILE)
        path = os.fsencode(folder.path)
        raw = lmdb.open(path, readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)
        try:
            copy_data(raw, None, new, lambda commit_number: {}, progress)
        finally:
            raw.close()
        epoch = finish_copy(new, clock)
        for slot in read_slots(folder.folder(JOURNAL_FOLDER)):  # its copy begins anew
            slot = slot._replace(epoch=0, position=NOWHERE)
            slot.write(new.folder(JOURNAL_FOLDER), durable=True)
        after = new.size(DATA_FILE)
        failpoints.hit("compact:prepared")
        folder.rename(NEW_FOLDER, READY_FOLDER)
    except BaseException:
        with suppress(OSError):
            folder.remove_folder(NEW_FOLDER)
        raise
    folder.sync()
    failpoints.hit("compact:ready")
    finish_swap(folder, lock)
    return Compacted(before, after, epoch)
