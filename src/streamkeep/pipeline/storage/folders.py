"""Folders of files that live as long as a job. Runs on the driver.

The name of a folder begins with the time when its job began, so that a later job can remove the
folders of jobs that died.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Final

import pyarrow.fs as pafs

from streamkeep.pipeline.storage.places import check, file_system

_STALE_S: Final = 7 * 24 * 3600


def new_folder(staging: str) -> str:
    """Return the name for the folder of a new job; the folder is made with its first file.

    Raises:
        StorageError: the bucket does not exist or cannot be reached.
    """
    check(staging)
    return f"{staging.rstrip('/')}/{time.time_ns() // 10**9:012d}-{uuid.uuid4().hex}"


def remove_folder(location: str) -> None:
    """Remove the folder of a job, including the files of failed attempts."""
    system, path = file_system(location)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


def sweep(staging: str, *, now_s: float | None = None) -> int:
    """Remove the folders of jobs that died more than a week ago; return their number."""
    system, path = file_system(staging)
    selector = pafs.FileSelector(path, allow_not_found=True)
    limit = (time.time() if now_s is None else now_s) - _STALE_S
    removed = 0
    for info in system.get_file_info(selector):
        began, dash, _ = info.base_name.partition("-")
        if dash and began.isdigit() and int(began) < limit:
            remove_folder(f"{staging.rstrip('/')}/{info.base_name}")
            removed += 1
    return removed
