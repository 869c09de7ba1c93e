"""LMDB's lock file on file systems where its blocks may be shared with a copy.

LMDB writes `lock.mdb` through a map whenever a transaction begins or ends. If `cp --reflink` or a
snapshot has shared a block of the file, such a write needs a new block, and on a full disk it ends
the process with SIGBUS. So where blocks move (`shared_file`), LMDB's environment is wrapped: before
a transaction begins, the file gets blocks of its own again. For that each process holds a few
blocks in a file without a name, which no copy shares.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from typing import Any, Final, cast

import lmdb

from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place, moves_blocks

LOCK_FILE: Final = "lock.mdb"  # the name is LMDB's
_READER_SIZE: Final = 64  # bytes per reader; the header takes as many as three readers
# Between two looks. A disk does not become full so soon after a copy.
_EVERY_S: Final = 0.01
_PAGE: Final = 4096
_UNUSED: Final = 120  # offset of 8 bytes that LMDB uses in no page of the file, and leaves zero
# Enough for all pages of the file, and for what a file system adds to each.
_RESERVE: Final = 256 << 10
# Linux's ioctl that returns where the blocks of a file are.
_FS_IOC_FIEMAP: Final = 0xC020660B
_FIEMAP: Final = struct.Struct("=QQIIII")  # start, length, flags, found, room for, reserved
_EXTENT: Final = struct.Struct("=QQQQQI12x")  # ..., flags
_EXTENTS: Final = 64
_SHARED: Final = 0x2000
_QUESTION: Final = _FIEMAP.pack(0, (1 << 64) - 1, 0, 0, _EXTENTS, 0) + bytes(
    _EXTENT.size * _EXTENTS
)


def reserve_lock_file(folder: Folder, max_readers: int) -> None:
    """Give LMDB's lock file all its blocks on disk; no process has the store open.

    A missing block would be a signal and not an error. Where blocks move, an old file may share
    its blocks with a copy, so it is replaced.
    """
    folder.make_file(LOCK_FILE)
    handle = folder.open(LOCK_FILE, os.O_RDWR)
    try:
        size = os.fstat(handle).st_size
        if size and moves_blocks(handle):
            os.close(handle)
            folder.remove(LOCK_FILE)
            handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            size = 0
        if not size:
            keep_in_place(handle)
        files.reserve(handle, _READER_SIZE * (max_readers + 2))
    finally:
        os.close(handle)


def guard(raw: lmdb.Environment, folder: Folder) -> lmdb.Environment:
    """Return an environment that was just opened, wrapped if blocks of its lock file may move."""
    if not moves_blocks(folder.handle):
        return raw
    try:
        return cast(lmdb.Environment, _Guarded(raw, folder))
    except BaseException:
        raw.close()  # the caller does not have it yet
        raise


def is_shared(handle: int) -> bool:
    """Return whether a file shares blocks with another one; False if the system does not say."""
    data = bytearray(_QUESTION)
    try:
        fcntl.ioctl(handle, _FS_IOC_FIEMAP, data)
    except OSError:
        return False
    found = _FIEMAP.unpack_from(data)[3]
    places = range(_FIEMAP.size, _FIEMAP.size + found * _EXTENT.size, _EXTENT.size)
    return any(_EXTENT.unpack_from(data, at)[5] & _SHARED for at in places)


class _Guarded:
    """An environment of LMDB that looks at its lock file before each transaction."""

    def __init__(self, raw: lmdb.Environment, folder: Folder) -> None:
        self._raw = raw
        self._looked = 0.0
        # Open as long as LMDB uses the file: closing any descriptor would release LMDB's locks.
        self._handle = folder.open(LOCK_FILE, os.O_RDWR)
        self._reserve = -1
        with suppress(OSError):  # no room, or a file system that has no files without names
            flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
            self._reserve = os.open(".", flags, 0o600, dir_fd=folder.handle)
            files.reserve(self._reserve, _RESERVE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def begin(self, *args: Any, **options: Any) -> lmdb.Transaction[bytes]:
        """Begin a transaction; raise StoreFullError if the lock file cannot be written."""
        now = time.monotonic()
        if now - self._looked >= _EVERY_S:
            self._make_own()
            self._looked = now
        return self._raw.begin(*args, **options)

    def close(self) -> None:
        """Close the environment, which writes the lock file."""
        self._make_own()
        self._raw.close()
        for handle in (self._handle, self._reserve):
            if handle >= 0:
                os.close(handle)
        self._handle = self._reserve = -1

    def _make_own(self) -> None:
        """Give the lock file blocks of its own if it shares some."""
        if self._handle < 0 or not is_shared(self._handle):
            return
        try:
            self._overwrite()
        except OSError as error:
            if self._reserve < 0:
                raise translate_os(error) from error
            os.ftruncate(self._reserve, 0)
            try:
                self._overwrite()
            except OSError as second:
                raise translate_os(second) from second
            finally:
                with suppress(OSError):
                    files.reserve(self._reserve, _RESERVE)

    def _overwrite(self) -> None:
        """Write a few unused bytes of each page, so that the page gets a block of its own."""
        for at in range(_UNUSED, os.fstat(self._handle).st_size, _PAGE):
            files.write_at(self._handle, bytes(8), at)
        files.sync_data(self._handle)
