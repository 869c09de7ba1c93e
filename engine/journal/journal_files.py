"""The files of the journal: how one is begun, recycled, retired and wiped.

A file has its full size on disk before the first record is written. When a checkpoint has made a
file needless, it becomes the recycled one, unless there is one already. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from streamkeep.engine.journal.control_file import CONTROL_FILE
from streamkeep.engine.journal.reader import END, file_name, is_file_name
from streamkeep.engine.journal.syncs import LOCK_FILE
from streamkeep.engine.journal.write_lock import LOCK_FILE as WRITE_FILE
from streamkeep.engine.journal.write_lock import TURN_FILE
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder

RECYCLED: Final = "spare"
NEW_RECYCLED: Final = "spare.new"  # with a random suffix, while it is made
_NEW: Final = "new"
RECYCLED_NAMES: Final = (RECYCLED, _NEW)


def is_journal_name(name: str) -> bool:
    """Return whether a name in `journal/` is one that the journal uses."""
    return (
        name in (CONTROL_FILE, RECYCLED, _NEW, LOCK_FILE, WRITE_FILE, TURN_FILE)
        or name.startswith(f"{NEW_RECYCLED}.")
        or is_file_name(name)
    )


def begin_file(
    folder: Folder, number: int, header: bytes, usual: int, size: int, *, fill: bool
) -> None:
    """Begin the file with a number, in the recycled file if there is one.

    Args:
        usual: bytes that it gets, unless the disk is nearly full.
        size: bytes of the record that a caller waits to write.
        fill: fill a new file with zeros; see `prepare_recycled`.
    """
    least = len(header) + size + len(END)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(RECYCLED, _NEW)
    handle = folder.open(_NEW, os.O_RDWR | os.O_CREAT)
    failpoints.hit("journal:unnamed")
    try:
        new = os.fstat(handle).st_size == 0
        _reserve(handle, max(usual, least), least)
        if new and fill:
            files.fill(handle)
        files.write_at(handle, header + END, 0)
    except OSError:
        folder.remove(_NEW)
        raise
    finally:
        os.close(handle)
    # Named only with its header: by an old header, another process would retire the file.
    folder.rename(_NEW, file_name(number))


def prepare_recycled(folder: Folder, file_size: int, *, fill: bool) -> None:
    """Prepare a file for later, unless the disk is nearly full.

    Args:
        fill: fill it with zeros, so that one sync in ten need not also write the block map.
            Without syncs, that would only double what the disk writes.
    """
    # A random name: another process may be preparing one, too, and a finished one is used at once.
    name = f"{NEW_RECYCLED}.{os.urandom(8).hex()}"
    try:
        handle = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            files.reserve(handle, file_size)
            if fill:
                files.fill(handle)
        finally:
            os.close(handle)
        failpoints.hit("journal:new-recycled")
        folder.rename(name, RECYCLED)
    except OSError:  # the next file will be a smaller one
        folder.remove(name)


def wipe_recycled(folder: Folder) -> None:
    """Remove the files that a new one could reuse: they hold old records."""
    for name in RECYCLED_NAMES:
        wipe_file(folder, name)


def retire_file(folder: Folder, name: str, file_size: int) -> None:
    """Keep a file for reuse, or remove it."""
    if folder.size(name) == file_size and not folder.exists(RECYCLED):
        with contextlib.suppress(FileNotFoundError):  # another process has retired it
            folder.rename(name, RECYCLED)
    else:
        folder.remove(name)


def wipe_file(folder: Folder, name: str) -> None:
    """Overwrite a file with zeros on disk, then remove it.

    The old bytes are gone only if the file system overwrites in place. Another process that has
    the file mapped reads zeros.
    """
    try:
        handle = folder.open(name, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        files.write_zeros(handle, 0, os.fstat(handle).st_size)
        files.sync_data(handle)
    finally:
        os.close(handle)
    folder.remove(name)


def _reserve(handle: int, size: int, least: int) -> None:
    """Reserve `size` bytes on disk, or `least` if the disk is nearly full."""
    try:
        files.reserve(handle, size)
    except OSError:
        if size == least:
            raise
        os.ftruncate(handle, 0)
        files.reserve(handle, least)
