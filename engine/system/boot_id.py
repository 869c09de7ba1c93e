"""The current boot of the machine and the mount of a path.

While both are unchanged, the kernel still holds every page that was written, even if the page is
not on disk. So after a crash they show whether only processes died.
"""

from __future__ import annotations

import os
import struct
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamkeep.format.journal.checkpoint import NO_BOOT

if TYPE_CHECKING:
    import ctypes

_LINUX: Final = Path("/proc/sys/kernel/random/boot_id")

# Constants of Linux's statx(2).
_AT_FDCWD: Final = -100
_MNT_ID_UNIQUE: Final = 0x4000
_STATX_SIZE: Final = 256
_MASK: Final = struct.Struct("=I")
_MNT_ID: Final = struct.Struct("=Q")
_MNT_ID_AT: Final = 0x90


@cache
def boot_id() -> bytes:
    """Return 16 bytes that change with each boot; zeros if the system has no boot ID."""
    try:
        return uuid.UUID(_LINUX.read_text().strip()).bytes
    except (OSError, ValueError):
        return NO_BOOT


@cache  # each CDLL is a class of its own, which takes 30 us and more
def _c_library() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None)


def file_system_of(handle: int) -> str:
    """Return the type of the file system of an open file, as "ext4"; "" if it is unknown."""
    with suppress(OSError, StopIteration):
        with open(f"/proc/self/fdinfo/{handle}") as lines:
            mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            line = next(line for line in lines if line.split()[0] == mount)
        return line.partition(" - ")[2].split()[0]
    return ""


def mount_id(path: Path) -> int:
    """Return the number of the mount that holds a path. No other mount of this boot has it.

    Mount namespaces have different numbers for the same files and pages.

    Returns:
        0 if the system has no such number: Linux before 6.8, and other systems.
    """
    try:
        import ctypes  # takes milliseconds; only the first process that opens a store needs it

        statx = _c_library().statx
    except (ImportError, OSError, AttributeError):
        return 0
    found = ctypes.create_string_buffer(_STATX_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _MNT_ID_UNIQUE, found) != 0:
        return 0
    if not _MASK.unpack_from(found)[0] & _MNT_ID_UNIQUE:
        return 0
    return int(_MNT_ID.unpack_from(found, _MNT_ID_AT)[0])
