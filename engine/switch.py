"""Taking the files that a compaction has prepared; see `compact`.

Every step may be repeated, and is on disk before the next: what has been moved is not in
`compact.ready` any more, and its steady points are copied again. Under the exclusive lock.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from streamkeep.engine import failpoints, files
from streamkeep.engine.journal_reader import JOURNAL_FOLDER
from streamkeep.engine.steady import DATA_FILE
from streamkeep.engine.steady_file import STEADY_FILE, SteadyFile

NEW_FOLDER: Final = "compact.new"
READY_FOLDER: Final = "compact.ready"
DONE_FOLDER: Final = "compact.done"


def is_switching(path: Path) -> bool:
    """Say whether a compaction was cut off behind the step that decides."""
    return (path / READY_FOLDER).is_dir()


def finish_switch(path: Path, lock: SteadyFile) -> None:
    """Finish a compaction that has been decided, and remove one that has not."""
    ready = path / READY_FOLDER
    if ready.is_dir():
        if (ready / JOURNAL_FOLDER).is_dir():
            if (path / JOURNAL_FOLDER).is_dir():
                shutil.rmtree(path / JOURNAL_FOLDER)
            failpoints.hit("compact:journal-gone")
            os.rename(ready / JOURNAL_FOLDER, path / JOURNAL_FOLDER)
            files.sync_folder(path)
            failpoints.hit("compact:journal-moved")
        if (ready / DATA_FILE).exists():
            os.rename(ready / DATA_FILE, path / DATA_FILE)
            files.sync_folder(path)
            files.sync_folder(ready)
            failpoints.hit("compact:data-moved")
        lock.take_over(ready / STEADY_FILE)
        failpoints.hit("compact:slots-written")
        os.rename(ready, path / DONE_FOLDER)
        files.sync_folder(path)
        failpoints.hit("compact:done")
    for name in (NEW_FOLDER, DONE_FOLDER):
        if (path / name).is_dir():
            shutil.rmtree(path / name)
            files.sync_folder(path)
