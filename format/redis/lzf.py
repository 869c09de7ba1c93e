"""LZF, the compression of strings in RDB files and DUMP payloads: reading it.

    000lllll                       the next l + 1 bytes as they are
    LLLooooo oooooooo              L + 2 bytes from o + 1 bytes before the end of what there is
    111ooooo llllllll oooooooo     l + 9 bytes from there

The bytes copied may overlap those written. Nothing is compressed here: every Redis takes strings
as they are.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError

MOST_RATIO: Final = 88  # 3 bytes become 264 at most


def decompress(data: bytes, size: int, where: str) -> bytes:
    """Return the `size` bytes that `data` stands for; raise CorruptionError naming `where`."""
    if size > len(data) * MOST_RATIO:
        raise CorruptionError(where, f"{len(data)} bytes of LZF cannot become {size}")
    out = bytearray()
    end: i64 = len(data)
    wanted: i64 = i64(size)
    at: i64 = 0
    while at < end:
        control: i64 = i64(data[at])
        at += 1
        if control < 32:
            literal: i64 = control + 1
            if at + literal > end:
                raise CorruptionError(where, "LZF: literal bytes are cut off", offset=int(at))
            out += data[at : at + literal]
            at += literal
        else:
            length: i64 = control >> 5
            if at + (2 if length == 7 else 1) > end:
                raise CorruptionError(where, "LZF: a reference is cut off", offset=int(at))
            if length == 7:
                length += i64(data[at])
                at += 1
            length += 2
            distance: i64 = ((control & 31) << 8 | i64(data[at])) + 1
            at += 1
            start: i64 = len(out) - distance
            if start < 0:
                raise CorruptionError(where, "LZF: a reference before the start", offset=int(at))
            if distance >= length:
                out += out[start : start + length]
            else:
                piece = bytes(out[start:])
                out += (piece * int(length // distance + 1))[:length]
        if len(out) > wanted:
            break
    if len(out) != wanted:
        raise CorruptionError(where, f"LZF gives {len(out)} bytes or more, {size} expected")
    return bytes(out)
