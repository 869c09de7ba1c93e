"""CRC-64 as Redis computes it, over DUMP payloads and RDB files ("Jones", reflected, from 0 on)."""

from __future__ import annotations

from typing import Final

from anycrc import Model

_MODEL: Final = Model("CRC64-REDIS")


def crc64(data: bytes, start: int = 0) -> int:
    """Return the checksum of `data` behind what has the checksum `start`."""
    value: int = _MODEL.calc(data, start)
    return value
