"""What can be read of a segment that is damaged: nodes without the index, and parts of blocks.

The index and the trailer stand at the end of the file, where a cut takes them away, and a checksum
tells only that a block is damaged, not which of its nodes. But blocks are zstd frames, which begin
with a magic number and can be decompressed up to the damage, and each envelope in them has a
checksum of its own. So the file is searched for frames, and of each frame every envelope is taken
that is whole. Nothing else is believed.

Memory is bounded by `_MOST_RAW`, whatever a frame promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import zstandard

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.segment.segment import DICTIONARY_MAGIC, envelope_length

ReadAt = Callable[[int, int], bytes]

_FRAME_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MOST_RAW: Final = 64 << 20
_STEP: Final = 1 << 20
_PIECE: Final = 4 << 10  # what zstd gives of a damaged piece is lost with it
_MOST_HEADER: Final = 18


def remains(
    read_at: ReadAt, size: int, start: int = 0, end: int | None = None
) -> Iterator[Envelope]:
    """Yield every whole envelope in the blocks of a segment, in the order of the file.

    Args:
        read_at: reads (offset, size); it may return less at the end, and raise CorruptionError.
        size: of the file.
        start, end: look only at blocks that begin between them.
    """
    dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
    at = _find(read_at, size, start, _FRAME_MAGIC)
    while at is not None and (end is None or at < end):
        raw, used = _decompress(read_at, size, at, dictionaries)
        yield from _envelopes(raw)
        at = _find(read_at, size, at + max(used, 1), _FRAME_MAGIC)


def _find(read_at: ReadAt, size: int, at: int, wanted: bytes) -> int | None:
    """Return the next place of some bytes."""
    while at < size:
        try:
            piece = read_at(at, min(_STEP + len(wanted), size - at))
        except CorruptionError:
            piece = b""  # a bad sector
        place = piece.find(wanted)
        if place >= 0:
            return at + place
        at += _STEP
    return None


def _decompress(
    read_at: ReadAt,
    size: int,
    at: int,
    dictionaries: dict[int, zstandard.ZstdCompressionDict],
) -> tuple[bytes, int]:
    """Return what a frame holds, up to damage, and the size of the frame; 0 for a damaged one."""
    raw: list[bytes] = []
    length = 0
    start = at
    try:
        header = read_at(at, min(_MOST_HEADER, size - at))
        identifier = zstandard.get_frame_parameters(header).dict_id
        dictionary = _dictionary(read_at, size, identifier, dictionaries)
        decompressor = zstandard.ZstdDecompressor(
            dict_data=dictionary, max_window_size=_MOST_RAW
        ).decompressobj()
        while at < size and length < _MOST_RAW:
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
    read_at: ReadAt,
    size: int,
    identifier: int,
    known: dict[int, zstandard.ZstdCompressionDict],
) -> zstandard.ZstdCompressionDict | None:
    """Return the dictionary that a frame needs; None when it needs none."""
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


def _envelopes(raw: bytes) -> Iterator[Envelope]:
    at = 0
    while (length := envelope_length(raw, at)) and at + length <= len(raw):
        with suppress(CorruptionError):  # the next one, where this one says it ends, may be whole
            yield decode_envelope(raw[at : at + length], "segment")
        at += length
