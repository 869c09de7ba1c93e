"""Which boot of the machine this is: processes that died, or a power loss?"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from streamkeep.format.steady import NO_BOOT

_LINUX: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return 16 bytes that are another after each boot; zeros where the system does not say."""
    try:
        return uuid.UUID(_LINUX.read_text().strip()).bytes
    except (OSError, ValueError):
        return NO_BOOT
