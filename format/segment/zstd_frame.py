"""The maximum content of a zstd frame, found without decompressing it.

A frame states the size of its content, and zstd allocates that much memory, so a few bytes can
claim gigabytes. But the content is in blocks of at most 128 KiB. Each has a header of three bytes
(little-endian): the lowest bit marks the last block, the next two are its kind, the other 21 its
size.
"""

from __future__ import annotations

from typing import Final

import zstandard

_MAX_BLOCK: Final = 128 << 10
_HEADER_SIZE: Final = 3
_RAW: Final = 0
_REPEATED: Final = 1  # a single byte, repeated `size` times

MAX_RATIO: Final = _MAX_BLOCK // (_HEADER_SIZE + 1)


def max_content(frame: bytes) -> int:
    """Return the maximum number of bytes that a zstd frame can decompress to.

    Raises:
        ZstdError: this is not a zstd frame.
    """
    total = 0
    at = zstandard.frame_header_size(frame)
    last = False
    while not last and at + _HEADER_SIZE <= len(frame):
        header = int.from_bytes(frame[at : at + _HEADER_SIZE], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        total += min(size, _MAX_BLOCK) if kind in (_RAW, _REPEATED) else _MAX_BLOCK
        at += _HEADER_SIZE + (1 if kind == _REPEATED else size)
    return total
