"""CRC-64 of DUMP payloads and RDB files (Redis: "Jones" polynomial, reflected, initially 0)."""

from __future__ import annotations

from typing import Final

from anycrc import Model

_MODEL: Final = Model("CRC64-REDIS")


def crc64(data: bytes, start: int = 0) -> int:
    """Return the checksum of `data`; `start` is the checksum of the bytes before it."""
    value: int = _MODEL.calc(data, start)
    return value
