"""Compaction: `data.mdb` written anew without free pages, under the exclusive lock of the store.

Three files change together: `data.mdb`, the checkpoints that hold its meta page, and the
journal. They are prepared as a store of their own in `compact.new`. The rename of that folder to
`compact.ready` decides: before, whoever opens the store next removes it; after, whoever opens the
store next moves what is in it to its place, in steps that may be repeated, before it looks at
anything else. So a crash leaves the old store or the new one.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.admin.copying import Progress, copy_data, finish_copy
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.checkpoint.crash_recovery import needs_recovery
from streamkeep.engine.store.opening import open_environment
from streamkeep.engine.store.registry import registry
from streamkeep.engine.store.swap import NEW_FOLDER, READY_FOLDER, finish_swap
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError, StoreLockedError
from streamkeep.format.core.keys import TABLES

_MAX_READERS: Final = 512


class Compacted(NamedTuple):
    """What compaction did.

    Args:
        before_bytes, after_bytes: size of `data.mdb`.
        epoch: of the store from now on.
    """

    before_bytes: int
    after_bytes: int
    epoch: int


def compact(
    path: str | Path, progress: Progress | None = None, clock: Clock | None = None
) -> Compacted:
    """Rewrite the data file of a store that nobody has open, without its free pages.

    Atomic: a crash at any step leaves the store as it was, or compacted. Needs as much free room
    on the disk as the compacted file takes. Entries, IDs, groups and counters stay as they are.

    Args:
        progress: takes the bytes written so far.

    Raises:
        StoreLockedError: the store is open, in this process or another.
        StoreFullError: no room for the copy; nothing was changed.
    """
    path = Path(path).absolute()
    clock = clock or Clock()
    if registry.find(path) is not None:
        raise StoreLockedError(f"{path}: open in this process; close it to compact it")
    # Whatever is due (recovery, an earlier compaction) is done by opening it.
    open_environment(
        path,
        readonly=False,
        create=False,
        max_readers=_MAX_READERS,
        max_store_bytes=None,
        clock=clock,
    ).release()
    folder = Folder(path)
    lock = CheckpointFile(folder, readonly=False)
    try:
        if not lock.try_exclusive():
            raise StoreLockedError(f"{path}: open in another process; close it there to compact it")
        if needs_recovery(folder, lock):
            raise StoreError(f"{path}: the store was used meanwhile; compact it again")
        return _compact(folder, lock, progress, clock)
    except OSError as error:
        raise translate_os(error) from error
    finally:
        lock.close()


def _compact(
    folder: Folder, lock: CheckpointFile, progress: Progress | None, clock: Clock
) -> Compacted:
    before = folder.size(DATA_FILE)
    if folder.remove_folder(NEW_FOLDER):
        folder.sync()
    new = folder.make_folder(NEW_FOLDER)
    try:
        folder.check_file(DATA_FILE)
        path = str(folder.path)
        raw = lmdb.open(path, readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)
        try:
            copy_data(raw, None, new, lambda commit_number: {}, progress)
        finally:
            raw.close()
        epoch = finish_copy(new, clock)
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
