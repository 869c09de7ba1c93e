"""What a zstd frame can hold, told before it is decompressed.

A frame states the size of its content, and whoever decompresses it allocates as much. A frame of a
few bytes may state gigabytes. But its content stands in blocks of at most 128 KiB, each behind a
header of three bytes (little-endian): the lowest bit says that it is the last one, the next two are
its kind, the other 21 its size.
"""

from __future__ import annotations

from typing import Final

import zstandard

_MOST_BLOCK: Final = 128 << 10
_HEADER_SIZE: Final = 3
_RAW: Final = 0
_REPEATED: Final = 1  # one byte, as often as the size says

MOST_RATIO: Final = _MOST_BLOCK // (_HEADER_SIZE + 1)


def most_content(frame: bytes) -> int:
    """Return how many bytes a zstd frame may decompress to, by the headers of its blocks.

    Raises:
        ZstdError: this is no frame.
    """
    most = 0
    at = zstandard.frame_header_size(frame)
    last = False
    while not last and at + _HEADER_SIZE <= len(frame):
        header = int.from_bytes(frame[at : at + _HEADER_SIZE], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        most += min(size, _MOST_BLOCK) if kind in (_RAW, _REPEATED) else _MOST_BLOCK
        at += _HEADER_SIZE + (1 if kind == _REPEATED else size)
    return most
