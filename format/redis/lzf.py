"""LZF decompression of strings in RDB files and DUMP payloads.

    000lllll                       the next l + 1 bytes, uncompressed
    LLLooooo oooooooo              L + 2 bytes, beginning o + 1 bytes before the end of the output
    111ooooo llllllll oooooooo     l + 9 bytes, beginning there

A copy may overlap its own output. There is no compressor, because every Redis reads uncompressed
strings.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError

MAX_RATIO: Final = 88  # 3 bytes become at most 264


def decompress(data: bytes, size: int, where: str) -> bytes:
    """Return the `size` bytes that `data` decompresses to; raise CorruptionError with `where`."""
    if size > len(data) * MAX_RATIO:
        problem = f"LZF: {len(data)} bytes cannot decompress to {size}"
        raise CorruptionError(where, problem)
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
                raise CorruptionError(where, "LZF: literal bytes are truncated", offset=int(at))
            out += data[at : at + literal]
            at += literal
        else:
            length: i64 = control >> 5
            if at + (2 if length == 7 else 1) > end:
                raise CorruptionError(where, "LZF: a reference is truncated", offset=int(at))
            if length == 7:
                length += i64(data[at])
                at += 1
            length += 2
            distance: i64 = ((control & 31) << 8 | i64(data[at])) + 1
            at += 1
            start: i64 = len(out) - distance
            if start < 0:
                problem = "LZF: a reference points before the start"
                raise CorruptionError(where, problem, offset=int(at))
            if distance >= length:
                out += out[start : start + length]
            else:
                piece = bytes(out[start:])
                out += (piece * int(length // distance + 1))[:length]
        if len(out) > wanted:
            break
    if len(out) != wanted:
        problem = f"LZF: decompressed to at least {len(out)} bytes, expected {size}"
        raise CorruptionError(where, problem)
    return bytes(out)
