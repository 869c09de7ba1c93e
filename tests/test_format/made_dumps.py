"""Streams and payloads for the tests of Redis's formats."""

from __future__ import annotations

import io
from collections.abc import Callable

from streamkeep.format.redis.rdb_values import crc64, put_string
from streamkeep.format.redis.stream_parts import Messages, Part

# DUMP of Redis 8.6.3: two live entries and a tombstone, a group with one pending entry.
REDIS_8_6 = bytes.fromhex(
    "1a011000000163837766ca0000000000000037404c4c000000190002010101020184"
    "6e616d6505816e0200010201000100018453617261050701050103010001010183426f6204c12c02050100011a01"
    "dfc9020101836d7367048268690306 01ff0281000001638377 66e40081000001638377 66ca3781000001638377"
    "66ca380301016781000001638377 66ca3781ffffffffffffffff01000001638377 66ca0000000000000037"
    "3e8973faa10100000101 01633e8973faa10100003e8973faa101000001000001638377 66ca0000000000000037"
    "40644064000000 0d00fafd509cb0e468f4".replace(" ", "")
)


def sealed(body: bytes) -> bytes:
    """Return a body with the checksum that belongs to it."""
    return body + crc64(body).to_bytes(8, "little")


def with_messages(parts: list[Part]) -> list[Part]:
    """Return parts with the messages that newer types always have."""
    if any(isinstance(part, Messages) for part in parts):
        return parts
    return [*parts, Messages(100, 100, [], 0, 0)]


def pieces(data: bytes, size: int) -> Callable[[int], bytes]:
    """Return a `read` that gives `size` bytes at a time."""
    stream = io.BytesIO(data)
    return lambda wanted: stream.read(min(wanted, size))


def string(text: bytes) -> bytes:
    out = bytearray()
    put_string(out, text)
    return bytes(out)
