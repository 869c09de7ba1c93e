"""Which boot of the machine and which mount this is: did only processes die?

As long as both are the same, the system still has every page that was written, on disk or not.
"""

from __future__ import annotations

import os
import struct
import uuid
from pathlib import Path
from typing import Final

from streamkeep.format.log.checkpoint import NO_BOOT

_LINUX: Final = Path("/proc/sys/kernel/random/boot_id")

# Of Linux's statx(2).
_AT_FDCWD: Final = -100
_MNT_ID_UNIQUE: Final = 0x4000
_STATX_SIZE: Final = 256
_MASK: Final = struct.Struct("=I")
_MNT_ID: Final = struct.Struct("=Q")
_MNT_ID_AT: Final = 0x90


def boot_id() -> bytes:
    """Return 16 bytes that are another after each boot; zeros where the system does not say."""
    try:
        return uuid.UUID(_LINUX.read_text().strip()).bytes
    except (OSError, ValueError):
        return NO_BOOT


def mount_id(path: Path) -> int:
    """Return the number of the mount that a path is on, which no other mount of this boot gets.

    It differs from one mount namespace to the next, though the files and their pages are the same.

    Returns:
        0 where the system gives no such number: before Linux 6.8, and elsewhere.
    """
    try:
        import ctypes  # takes milliseconds, and only the first process to open a store needs it

        statx = ctypes.CDLL(None).statx
    except (ImportError, OSError, AttributeError):
        return 0
    found = ctypes.create_string_buffer(_STATX_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _MNT_ID_UNIQUE, found) != 0:
        return 0
    if not _MASK.unpack_from(found)[0] & _MNT_ID_UNIQUE:
        return 0
    return int(_MNT_ID.unpack_from(found, _MNT_ID_AT)[0])
