"""Reading a damaged segment: its sound nodes, without the index and from damaged blocks.

Index and trailer are at the end of the file and are lost when the file is truncated. The checksum
of a block does not tell which of its nodes are damaged. But blocks are zstd frames, which begin
with a magic number and can be decompressed up to the damage, and each envelope in them has its own
checksum. So `remains` searches the file for frames and yields every envelope that passes its check.

Memory is limited by `_MAX_RAW`, whatever size a frame states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import zstandard

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import Envelope, decode_envelope, envelope_length
from streamkeep.format.segment.index import DICTIONARY_MAGIC

ReadAt = Callable[[int, int], bytes]

_FRAME_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_RAW: Final = 64 << 20
_STEP: Final = 1 << 20
_PIECE: Final = 4 << 10  # small, because zstd returns nothing of a piece with damage in it
_MAX_HEADER: Final = 18


def remains(
    read_at: ReadAt, size: int, start: int = 0, end: int | None = None
) -> Iterator[Envelope]:
    """Yield every sound envelope in the blocks of a segment, in the order of the file.

    Args:
        read_at: reads (offset, size); may return less at the end, and may raise CorruptionError.
        size: size of the file in bytes.
        start, end: offsets; only blocks that begin between them are read.
    """
    dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
    at = _find(read_at, size, start, _FRAME_MAGIC)
    while at is not None and (end is None or at < end):
        raw, used = _decompress(read_at, size, at, dictionaries)
        place = 0
        while (length := envelope_length(raw, place)) and place + length <= len(raw):
            with suppress(CorruptionError):  # the length may be right and the next envelope sound
                yield decode_envelope(raw[place : place + length], "segment")
            place += length
        at = _find(read_at, size, at + max(used, 1), _FRAME_MAGIC)


def _find(read_at: ReadAt, size: int, at: int, wanted: bytes) -> int | None:
    """Return the offset of the next occurrence of `wanted`; None if there is none."""
    while at < size:
        try:
            piece = read_at(at, min(_STEP + len(wanted), size - at))
        except CorruptionError:
            piece = b""  # an unreadable sector: go on after it
        place = piece.find(wanted)
        if place >= 0:
            return at + place
        at += _STEP
    return None


def _decompress(
    read_at: ReadAt, size: int, at: int, dictionaries: dict[int, zstandard.ZstdCompressionDict]
) -> tuple[bytes, int]:
    """Return the content of a frame up to the damage, and its size; 0 if it is damaged."""
    raw: list[bytes] = []
    length = 0
    start = at
    try:
        header = read_at(at, min(_MAX_HEADER, size - at))
        identifier = zstandard.get_frame_parameters(header).dict_id
        dictionary = _dictionary(read_at, size, identifier, dictionaries)
        decompressor = zstandard.ZstdDecompressor(
            dict_data=dictionary, max_window_size=_MAX_RAW
        ).decompressobj()
        while at < size and length < _MAX_RAW:
            piece = read_at(at, min(_PIECE, size - at))
            raw.append(decompressor.decompress(piece))
            length += len(raw[-1])
            at += len(piece)
            if decompressor.eof:
                return b"".join(raw), at - len(decompressor.unused_data) - start
            if not piece:
                break
    except (zstandard.ZstdError, CorruptionError):
        pass
    return b"".join(raw), 0


def _dictionary(
    read_at: ReadAt, size: int, identifier: int, known: dict[int, zstandard.ZstdCompressionDict]
) -> zstandard.ZstdCompressionDict | None:
    """Return the dictionary that a frame needs; None if it needs none.

    The first call reads all dictionary frames of the file into `known`.
    """
    if not identifier:
        return None
    at = None if known else _find(read_at, size, 0, DICTIONARY_MAGIC)
    while at is not None:
        length = int.from_bytes(read_at(at + 4, 4), "little")
        if length <= size - at - 8:
            found = zstandard.ZstdCompressionDict(read_at(at + 8, length))
            known[found.dict_id()] = found
        at = _find(read_at, size, at + 1, DICTIONARY_MAGIC)
    if identifier not in known:
        raise CorruptionError("segment", f"dictionary {identifier} is not in the file")
    return known[identifier]
