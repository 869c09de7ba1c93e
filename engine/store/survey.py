"""A check of all files of a store before it is opened, so that a hostile store is left unchanged.

Each file is checked again when it is opened (`safe_files`). Segments of the archive, which may be
many and are only read, are checked only then. LMDB opens its two files by path, so for these this
is the only check. It opens no descriptor of them, because closing it would release LMDB's own
locks in this process.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from streamkeep.engine.blocking.waiters import WAITERS_FOLDER
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.journal.journal import is_journal_name
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.liveness.leases import LEASES_FOLDER
from streamkeep.engine.notify.notifier import is_bell_name
from streamkeep.engine.notify.wait_table import BOARD_FILE
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.lock_file import LOCK_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, ARCHIVE_LOCK

STAGING_FOLDER: Final = "staging"  # files that pipelines have written and not yet committed
CHECK_FILE: Final = "last_check"  # what fsck found; see `recovery/fsck/last_check.py`
NEW_FOLDER: Final = "compact.new"
READY_FOLDER: Final = "compact.ready"
DONE_FOLDER: Final = "compact.done"
STORE_NAMES: Final = frozenset(
    (
        CHECK_FILE,
        DATA_FILE,
        CHECKPOINT_FILE,
        JOURNAL_FOLDER,
        LOCK_FILE,
        STAGING_FOLDER,
        ARCHIVE_FOLDER,
        NEW_FOLDER,
        READY_FOLDER,
        DONE_FOLDER,
        WAITERS_FOLDER,
        LEASES_FOLDER,
    )
)


def check_files(store: Folder, *, readonly: bool) -> None:
    """Raise UntrustedFileError if a file or folder is not of the kind that a store has there."""
    flags = os.O_RDONLY if readonly else os.O_RDWR
    check_lmdb_files(store, readonly=readonly)
    store.check_file(CHECKPOINT_FILE, flags)
    for name in (STAGING_FOLDER, NEW_FOLDER, DONE_FOLDER):
        store.has_folder(name)
    _check_journal(store, flags)
    ready = store.folder(READY_FOLDER, missing_ok=True)  # its files will replace those of the store
    for name in (DATA_FILE, CHECKPOINT_FILE):
        ready.check_file(name, flags)
    _check_journal(ready, flags)
    waiters = store.folder(WAITERS_FOLDER, missing_ok=True)
    waiters.check_file(BOARD_FILE, os.O_RDWR)  # readers also register in it
    for name in filter(is_bell_name, waiters.names()):
        waiters.check_file(name, kind=stat.S_IFIFO)
    store.folder(LEASES_FOLDER, missing_ok=True)
    store.folder(ARCHIVE_FOLDER, missing_ok=True).check_file(ARCHIVE_LOCK, flags)


def check_lmdb_files(store: Folder, *, readonly: bool) -> None:
    """Raise UntrustedFileError unless LMDB may open its files by their paths."""
    store.check_file(DATA_FILE, os.O_RDONLY if readonly else os.O_RDWR)
    store.check_file(LOCK_FILE, os.O_RDWR)  # readers also write to it


def _check_journal(store: Folder, flags: int) -> None:
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    for name in filter(is_journal_name, journal.names()):
        journal.check_file(name, flags)


# --- files that a compaction has prepared -------------------------------------------------------


def is_swapping(store: Folder) -> bool:
    """Return whether a compaction was interrupted after the step that decides it."""
    return store.has_folder(READY_FOLDER)


def finish_swap(store: Folder, lock: CheckpointFile) -> None:
    """Finish a compaction that was decided; remove the files of one that was not.

    The caller holds the exclusive lock. Each step is on disk before the next one and may be
    repeated: a moved file is no longer in `compact.ready`, and the checkpoints are copied again.
    """
    if store.has_folder(READY_FOLDER):
        ready = store.folder(READY_FOLDER)
        if ready.has_folder(JOURNAL_FOLDER):
            store.remove_folder(JOURNAL_FOLDER)
            failpoints.hit("compact:journal-gone")
            store.rename(f"{READY_FOLDER}/{JOURNAL_FOLDER}", JOURNAL_FOLDER)
            store.sync()
            failpoints.hit("compact:journal-moved")
        if ready.exists(DATA_FILE):
            ready.check_file(DATA_FILE, os.O_RDWR)
            store.rename(f"{READY_FOLDER}/{DATA_FILE}", DATA_FILE)
            store.sync()
            ready.sync()
            failpoints.hit("compact:data-moved")
        lock.take_over(ready.read(CHECKPOINT_FILE))
        failpoints.hit("compact:slots-written")
        store.rename(READY_FOLDER, DONE_FOLDER)
        store.sync()
        failpoints.hit("compact:done")
    for name in (NEW_FOLDER, DONE_FOLDER):
        if store.remove_folder(name):
            store.sync()
