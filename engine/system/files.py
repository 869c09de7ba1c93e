"""Writing files and folders: private modes, room on the disk, and durable names.

The files of a store are opened by `safe_files`.

A new name is durable only when the folder that holds it was synced: a power cut may otherwise
take a store away whose data was safely on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_begin = getattr(os, "posix_fadvise", None)
_ZEROS: Final = bytes(1 << 20)
_ZERO_PAGE: Final = bytes(4096)

# sync_data(handle) returns when the contents of a file are on disk.
sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


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


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset; raise OSError when only a part can be."""
    written = os.pwrite(handle, data, offset)
    while written < len(data):
        written += os.pwrite(handle, memoryview(data)[written:], offset + written)


def write_zeros(handle: int, offset: int, size: int) -> None:
    """Overwrite a part of a file with zeros; raise OSError when that cannot be."""
    end = offset + size
    while offset < end:
        piece = min(end - offset, len(_ZEROS))
        write_at(handle, _ZEROS if piece == len(_ZEROS) else bytes(piece), offset)
        offset += piece


def fill(handle: int) -> None:
    """Overwrite all of a file with zeros, on disk, before small parts of it are synced often.

    The disk has granted blocks that were never written; whoever writes to one first has the file
    system note that, too, with the next sync. A page at a time: a file that is written in large
    pieces stands in memory in large pieces, and the sync of a few bytes writes one of them whole.
    """
    for offset in range(0, os.fstat(handle).st_size, len(_ZERO_PAGE)):
        write_at(handle, _ZERO_PAGE, offset)
    sync_data(handle)


def reserve(handle: int, size: int) -> None:
    """Have the disk grant a file `size` bytes; raise OSError when it does not."""
    if os.fstat(handle).st_size >= size:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        write_at(handle, bytes(size - os.fstat(handle).st_size), os.fstat(handle).st_size)


def begin_writing(handle: int, offset: int, size: int) -> None:
    """Have the disk begin to write a part of a file, where the system can; a sync is still needed.

    "Not needed" makes Linux write changed pages out at once; pages in use stay in memory.
    """
    if _begin is not None:
        _begin(handle, offset, size, os.POSIX_FADV_DONTNEED)


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written that gets its name, durably, when the block ends without an error.

    What has the name until then stays as it is. A device or a pipe is written as it comes.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb") as out:
            yield out
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as out:
            yield out
            out.flush()
            sync_data(out.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    sync_folder(path.absolute().parent)
