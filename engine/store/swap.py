"""Replacing the files of a store with those that a compaction has prepared; see `compact`.

The caller holds the exclusive lock. Each step is on disk before the next one and may be repeated:
a moved file is no longer in `compact.ready`, and the checkpoints are copied again.
"""

from __future__ import annotations

import os
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.safe_files import Folder

NEW_FOLDER: Final = "compact.new"
READY_FOLDER: Final = "compact.ready"
DONE_FOLDER: Final = "compact.done"


def is_swapping(store: Folder) -> bool:
    """Return whether a compaction was interrupted after the step that decides it."""
    return store.has_folder(READY_FOLDER)


def finish_swap(store: Folder, lock: CheckpointFile) -> None:
    """Finish a compaction that was decided; remove the files of one that was not."""
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
