"""The only module that creates files and folders: private modes, and durable names.

A new name is durable only when the folder that holds it was synced: a power cut may otherwise
take a store away whose data was safely on disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def create_folder(path: Path) -> bool:
    """Create the folder `path` (and its parents); return False when it existed."""
    if path.is_dir():
        return False
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:  # another process was faster
            continue
        sync_folder(folder.parent)
    return True


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
