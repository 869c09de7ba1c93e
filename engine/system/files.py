"""Writing files and folders: reserved disk space, and durable names.

`safe_files` opens the files of a store. A new name is durable only after its folder is synced:
otherwise a power loss may remove a store whose data is safely on disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from streamkeep.engine.system.modes import PRIVATE, Modes
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given

FLOCK: Final = struct.Struct("@hhqqi0q")  # struct flock of Linux: type, whence, start, length, pid
_ZEROS: Final = bytes(1 << 20)
PAGE: Final = 4096
_PIECE: Final = 1 << 20
_HANDLES: Final = "/proc/self/fd"
_POLL_S: Final = 0.005
_TRIES: Final = 100  # half a second; no process changes one page for so long (btrfs: 25 ms seen)

# sync_data(handle) returns after the contents of a file are on disk.
sync_data: Callable[[int], None] = os.fdatasync


def path_of(value: object, name: str) -> Path:
    """Return a path, which the system can have: not empty, and no bytes."""
    if isinstance(value, (str, os.PathLike)) and value != "":
        try:
            path = Path(value)
            if b"\0" not in os.fsencode(path):
                return path
        except (TypeError, UnicodeEncodeError):  # of bytes; or of characters that no path has
            pass
    raise ArgumentError(
        f"{name} must be the path of a folder or file, as text or a pathlib.Path, "
        f"not {as_given(value)}"
    )


def place_of(value: object, name: str) -> str:
    """Return a URI as it is, or a path, which the system can have."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return text if isinstance(text, str) and "://" in text else str(path_of(text, name))


def files_below(top: Path) -> Iterator[Path]:
    """Yield the path of each file in a folder and in those below it.

    Raises:
        OSError: a folder cannot be listed. `Path.rglob` leaves out one without permission, and from
            Python 3.13 on any other that fails.
    """

    def stop(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(top, onerror=stop):
        for name in names:
            yield Path(folder, name)


def create_folder(path: Path, modes: Modes | None = None, top: Path | None = None) -> bool:
    """Create the folder `path` and its parents; return False if it existed.

    Args:
        modes: those of the folders from `top` on; by default, and above, the umask decides.
    """
    if path.is_dir():
        return False
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        like = modes if top is not None and folder.is_relative_to(top) else None
        try:
            folder.mkdir(0o777 if like is None else PRIVATE.folder)
        except FileExistsError:  # another process was faster
            continue
        if like is not None:
            with _opened_folder(folder) as handle, suppress(OSError):
                like.set_folder(handle)  # a file system without modes refuses it
        _sync_folder_at(folder.parent)
    return True


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset; raise OSError if the disk takes only a part."""
    written = os.pwrite(handle, data, offset)
    while written < len(data):
        written += os.pwrite(handle, memoryview(data)[written:], offset + written)


def overwrite(handle: int, data: bytes, offset: int) -> None:
    """Overwrite bytes that must be written now; raise OSError if the disk refuses for a while.

    Where blocks move when they are overwritten, a full disk refuses even that, but often takes it
    a moment later: what commits and removals have freed, it can use only then.
    """
    for _ in range(_TRIES):
        try:
            write_at(handle, data, offset)
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(_POLL_S)
    write_at(handle, data, offset)


def write_zeros(handle: int, offset: int, size: int, most: int = len(_ZEROS)) -> None:
    """Overwrite a part of a file with zeros, in pieces; raise OSError if the disk refuses."""
    end = offset + size
    while offset < end:
        piece = min(end - offset, most)
        write_at(handle, _ZEROS if piece == len(_ZEROS) else bytes(piece), offset)
        offset += piece


def reserve(handle: int, size: int, start: int = 0) -> None:
    """Reserve `size` bytes on disk for a file; raise OSError if there is no room.

    It also gets the blocks that a copy lacks which has holes, as `rsync --sparse` makes them.

    Args:
        start: the bytes before are there.
    """
    there = os.fstat(handle)
    # Where a file system has no call for it, the C library writes into each block: others use them.
    if there.st_size < size or there.st_blocks * 512 < there.st_size:
        os.posix_fallocate(handle, start, size - start)


def begin_writing(handle: int, offset: int, size: int) -> None:
    """Start writing a part of a file to disk; a sync is still needed."""
    # DONTNEED starts the write of changed pages at once. Mapped pages stay in memory.
    os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)


def read_nothing_ahead(handle: int) -> None:
    """Have the kernel read nothing ahead of a file to which others append.

    Pages that are read ahead become large folios, of which a sync writes all for a few bytes.
    """
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)


def compare_with_disk(direct: int, handle: int, first: int, end: int | None, path: Path) -> None:
    """Raise OSError if the disk has other bytes of a part of a file than the memory.

    Args:
        direct: the file, opened with O_DIRECT.
        handle: the file. Other processes may write to it meanwhile.
        first: offset of the part; its page is compared as a whole.
        end: offset of its end, also of a page; None for the end of the file.
    """
    read_nothing_ahead(handle)
    end = -(-(os.fstat(handle).st_size if end is None else end) // PAGE) * PAGE
    for start in range(first // PAGE * PAGE, end, _PIECE):
        for page in _differing(direct, handle, start, min(end - start, _PIECE)):
            tries = 0
            while _differing(direct, handle, page, PAGE):
                tries += 1
                if tries == _TRIES:
                    raise OSError(errno.EIO, f"{path}: the disk has refused a page before")
                time.sleep(_POLL_S)


def _differing(direct: int, handle: int, start: int, size: int) -> list[int]:
    """Return the offsets of pages of which the disk and the memory of the system differ."""
    with mmap.mmap(-1, size) as data:  # at an address that such a read needs
        on_disk = data[: os.preadv(direct, [data], start)]
    cached = os.pread(handle, len(on_disk), start)
    if on_disk == cached:
        return []
    return [
        start + at
        for at in range(0, len(on_disk), PAGE)
        if on_disk[at : at + PAGE] != cached[at : at + PAGE]
    ]


def sync_folder(handle: int) -> None:
    """Return after the names in an open folder are on disk."""
    os.fsync(handle)


def _sync_folder_at(path: Path) -> None:
    with _opened_folder(path) as handle:
        sync_folder(handle)


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def create_whole(path: Path, data: bytes, modes: Modes | None = None) -> bool:
    """Write a file, durably and as a whole, unless the name exists; return whether it did."""
    try:
        with _named_at_end(path, os.link, modes) as out:
            out.write(data)
    except FileExistsError:
        return False
    return True


def behind_links(path: Path) -> Path:
    """Return what is to be replaced: of a link, the file that it names, as with tar and pg_dump.

    Raises:
        OSError: the links are circular, or the kernel refuses to follow one.
    """
    # The kernel follows no link of another user in a folder such as /tmp; `realpath` would.
    with suppress(FileNotFoundError):  # the file is to be made
        if not stat.S_ISREG(os.stat(path).st_mode):
            return path  # a device or a pipe
    return Path(os.path.realpath(path))


@contextmanager
def replacing(path: Path, modes: Modes | None = None) -> Iterator[BinaryIO]:
    """Write a file in a `with` block; it gets its name, durably, if the block raises no error.

    Until then an existing file of that name is unchanged. A device or a pipe is written directly.

    Args:
        modes: those of the file; by default the umask decides.
    """
    ordinary = path.is_file() or not path.exists()
    with _named_at_end(path, os.replace, modes) if ordinary else open(path, "wb") as out:
        yield out


@contextmanager
def _named_at_end(
    path: Path, give_name: Callable[[Path, Path], None], modes: Modes | None
) -> Iterator[BinaryIO]:
    """Write a file beside `path` in a `with` block, and then give it that name, durably."""
    # Two threads may write one file. Only a process that was killed can have left this one: in a
    # container, all have the same number.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.part")
    with suppress(FileNotFoundError):
        os.unlink(beside)
    writing, mode = os.O_WRONLY | os.O_CLOEXEC, 0o666 if modes is None else PRIVATE.file
    try:
        try:  # one without a name, of which a process that is killed leaves nothing
            os.stat(_HANDLES)  # by which it gets a name
            handle, named = os.open(path.parent, writing | os.O_TMPFILE, mode), False
        except OSError:  # not every file system has such files
            handle, named = os.open(beside, writing | os.O_CREAT | os.O_EXCL, mode), True
        with open(handle, "wb") as out:
            if modes is not None:
                with suppress(OSError):  # of a file system without modes or owners
                    modes.set_file(handle)
            yield out
            out.flush()
            sync_data(handle)
            if not named:
                os.link(f"{_HANDLES}/{handle}", beside, src_dir_fd=handle, follow_symlinks=True)
        give_name(beside, path)
    except OSError as error:
        if error.filename in (None, str(beside)):  # a full disk names no file
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            os.unlink(beside)
    _sync_folder_at(path.absolute().parent)
