"""Files that the processes of a store share, so that a full disk is an error and not a signal.

Each process maps such a file for reading, and sees at once what others write. How it writes
depends on the file system (`moves_blocks`):

- Where an overwritten block stays where it is, it writes through the map, unless there is much to
  write. The blocks were reserved before, so no write through it can fail.
- Where an overwritten block may move, as on btrfs, and on XFS after `cp --reflink`, there may be no
  room for the new block. A write through the map then ends the process with SIGBUS. If that
  happens in LMDB's lock, the system cannot release the lock either. So the process writes by
  pwrite(2), which raises OSError.

LMDB itself writes `lock.mdb` through a map; see `lock_file`. A word of 8 bytes, at a multiple of 8,
is copied at once in both ways, so no reader sees a half of it. Compiled by mypyc.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
from contextlib import suppress
from typing import Final

from streamkeep.engine.system import files
from streamkeep.engine.system.boot_id import file_system_of

# File systems of Linux that overwrite blocks in place and cannot share them between files.
_IN_PLACE: Final = frozenset(("ext2", "ext3", "ext4", "tmpfs", "ramfs"))
_GET_FLAGS: Final = 0x80086601  # ioctl numbers and flag of Linux's chattr +C
_SET_FLAGS: Final = 0x40086602
_NO_COPY_ON_WRITE: Final = 0x00800000
_LARGE: Final = 1 << 15  # bytes that pwrite(2) copies faster than faults, one for each page
_word: Final = struct.Struct("=Q").pack


def moves_blocks(handle: int) -> bool:
    """Return whether the file system of an open file may need a new block to overwrite one."""
    return file_system_of(handle) not in _IN_PLACE


def keep_in_place(handle: int) -> None:
    """Have an empty file, or new files in a folder, overwritten in place, if the system can.

    On btrfs this is `chattr +C`: no copies on write, and so no checksums of the file system.
    """
    with suppress(OSError):
        data = bytearray(8)
        fcntl.ioctl(handle, _GET_FLAGS, data)
        flags = int.from_bytes(data[:4], "little")
        fcntl.ioctl(handle, _SET_FLAGS, (flags | _NO_COPY_ON_WRITE).to_bytes(8, "little"))


class SharedFile:
    """A mapped file of fixed size. The caller has opened the file and keeps it open.

    Args:
        size: bytes to map, if the layout has a size; what follows in the file is ignored. 0 for the
            whole file, as long as it is.

    Attributes:
        data: its bytes, for reading.
    """

    def __init__(self, handle: int, size: int = 0) -> None:
        self.handle = handle
        self._writes = moves_blocks(handle)
        self.data = mmap.mmap(handle, size)
        # See `files.read_nothing_ahead`.
        self.data.madvise(mmap.MADV_RANDOM)

    def write(self, offset: int, data: bytes, *, through_map: bool = True) -> None:
        """Overwrite bytes, which other processes then see; raise OSError if there is no room.

        Args:
            through_map: where that is safe and fast.
        """
        if self._writes or not through_map or len(data) >= _LARGE:
            files.write_at(self.handle, data, offset)
        else:
            self.data[offset : offset + len(data)] = data

    def overwrite(self, offset: int, data: bytes) -> None:
        """Overwrite bytes as `write` does; where a full disk refuses it, try for a while."""
        if self._writes:
            files.overwrite(self.handle, data, offset)
        else:
            self.write(offset, data)

    def set_word(self, index: int, value: int, *, insist: bool = False) -> None:
        """Overwrite the u64 at a multiple of 8 bytes, in the machine's byte order."""
        if insist:
            self.overwrite(8 * index, _word(value))
        else:
            self.write(8 * index, _word(value))

    def close(self) -> None:
        self.data.close()
