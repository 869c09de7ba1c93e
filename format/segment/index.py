"""The parts of a segment after its blocks: dictionary frame, index, trailer and seek table.

`segment` describes the whole file.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import ChecksumError, CorruptionError, FormatVersionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.node.envelope import OVERHEAD

MAGIC: Final = b"SKSEG\r\n\x1a"  # a copy made in text mode breaks it
VERSION: Final = 1

# Skippable frames of zstd: magic and size, both little-endian, then the content.
_FRAME: Final = struct.Struct("<II")
_DICTIONARY_FRAME: Final = 0x184D2A50
_INDEX_FRAME: Final = 0x184D2A51
_TRAILER_FRAME: Final = 0x184D2A52
_SEEK_FRAME: Final = 0x184D2A5E
DICTIONARY_MAGIC: Final = _DICTIONARY_FRAME.to_bytes(4, "little")

SEEK_MAGIC: Final = 0x8F92EAB1
SEEK_FOOTER: Final = struct.Struct("<IBI")  # number of frames, descriptor, magic
_SEEK_ENTRY: Final = struct.Struct("<II")  # compressed and decompressed size of a frame
CHECKSUM_SIZE: Final = 8

INDEX_HEADER: Final = Layout(
    "segment index header",
    (
        Field("frame", "8s", "skippable frame 0x184D2A51 and its size, both little-endian"),
        Field("store_uuid", "16s", "the store that wrote it"),
        Field("stream_number", "Q", "number of the stream in that store and in every envelope"),
        Field("block_count", "I", "number of index rows after the key"),
        Field("key_size", "I", "bytes of the stream's whole key that follow"),
    ),
)


class Trailer(NamedTuple):
    """The trailer of a segment; see `TRAILER`."""

    first_ms: Annotated[int, "Q", "ID of the first entry"]
    first_seq: Annotated[int, "Q"]
    last_ms: Annotated[int, "Q", "ID of the last entry"]
    last_seq: Annotated[int, "Q"]
    entries: Annotated[int, "Q", "entries, at least 1"]
    nodes: Annotated[int, "Q", "macro nodes"]
    raw_size: Annotated[int, "Q", "bytes of all envelopes"]
    blocks_size: Annotated[int, "Q", "bytes of all blocks: the offset of the dictionary frame"]
    dictionary_size: Annotated[int, "I", "bytes of the dictionary frame; 0 if there is none"]
    index_size: Annotated[int, "I", "bytes of the index frame after it"]
    dictionary_checksum: Annotated[int, "Q", "XXH3-64 of the dictionary frame; 0 if there is none"]
    index_checksum: Annotated[int, "Q", "the checksum that ends the index"]
    created_ms: Annotated[int, "Q", "Unix time"]
    file_number: Annotated[int, "Q", "number of the file; the store uses it only once"]
    epoch: Annotated[int, "I", "epoch of the store when it was written"]
    version: Annotated[int, "I", "1; a reader refuses any higher one"]

    @property
    def first_id(self) -> Id:
        """ID of the first entry."""
        return self.first_ms, self.first_seq

    @property
    def last_id(self) -> Id:
        """ID of the last entry."""
        return self.last_ms, self.last_seq

    @property
    def checksum(self) -> int:
        """The checksum of the trailer, which covers the whole file."""
        return number_of(self.encode()[_SEALED : _SEALED + CHECKSUM_SIZE])

    def encode(self) -> bytes:
        sealed = TRAILER.struct.pack(_TRAILER_HEAD, *self, 0, MAGIC)[:_SEALED]
        return sealed + digest64(sealed) + MAGIC


TRAILER: Final = Layout.of(
    "segment trailer",
    Trailer,
    before=(Field("frame", "8s", "skippable frame 0x184D2A52 and its size, both little-endian"),),
    after=(
        Field("checksum", "Q", "XXH3-64 of all fields above; covers the whole file"),
        Field("magic", "8s", r'`"SKSEG\r\n\x1a"`'),
    ),
)
_SEALED: Final = TRAILER.offset("checksum")
_TRAILER_HEAD: Final = _FRAME.pack(_TRAILER_FRAME, TRAILER.size - _FRAME.size)
SMALLEST: Final = TRAILER.size + _FRAME.size + SEEK_FOOTER.size  # no segment is shorter


class Block(NamedTuple):
    """One block of a segment; see `INDEX_ROW`."""

    first_ms: Annotated[int, "Q", "ID of the block's first entry"]
    first_seq: Annotated[int, "Q"]
    last_ms: Annotated[int, "Q", "ID of its last entry"]
    last_seq: Annotated[int, "Q"]
    offset: Annotated[int, "Q", "offset of the block in the file"]
    size: Annotated[int, "I", "bytes of the block"]
    raw_size: Annotated[int, "I", "bytes of its envelopes"]
    nodes: Annotated[int, "I", "macro nodes in it"]
    entries: Annotated[int, "I", "entries in it"]
    checksum: Annotated[int, "Q", "XXH3-64 of its compressed bytes"]

    @property
    def first_id(self) -> Id:
        return self.first_ms, self.first_seq

    @property
    def last_id(self) -> Id:
        return self.last_ms, self.last_seq


INDEX_ROW: Final = Layout.of("segment index row", Block)


class Index(NamedTuple):
    """The index of a segment: store, stream, key, and a row for each block."""

    store_uuid: bytes
    stream_number: int
    key: bytes
    blocks: list[Block]

    def encode(self) -> bytes:
        rows = b"".join(INDEX_ROW.struct.pack(*block) for block in self.blocks)
        size = INDEX_HEADER.size + len(self.key) + len(rows) + CHECKSUM_SIZE - _FRAME.size
        head = INDEX_HEADER.struct.pack(
            _FRAME.pack(_INDEX_FRAME, size),
            self.store_uuid,
            self.stream_number,
            len(self.blocks),
            len(self.key),
        )
        content = head + self.key + rows
        return content + digest64(content)


def number_of(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def text_of(one: Id) -> str:
    return f"{one[0]}-{one[1]}"


def dictionary_frame(dictionary: bytes) -> bytes:
    """Return the frame around a dictionary; b"" for none."""
    if not dictionary:
        return b""
    return _FRAME.pack(_DICTIONARY_FRAME, len(dictionary)) + dictionary


def open_dictionary_frame(frame: bytes, where: str, offset: int) -> bytes:
    """Return the dictionary in a frame; raise CorruptionError, with the offset in the file."""
    if frame[: _FRAME.size] != _FRAME.pack(_DICTIONARY_FRAME, len(frame) - _FRAME.size):
        raise CorruptionError(where, "the frame header has another kind or size", offset=offset)
    return frame[_FRAME.size :]


def seek_table_size(frames: int) -> int:
    """Return the size in bytes of the seek table of that many frames."""
    return _FRAME.size + frames * _SEEK_ENTRY.size + SEEK_FOOTER.size


def seek_table(trailer: Trailer, blocks: list[Block]) -> bytes:
    """Return the seek table: a row for every frame before it; skippable frames have no content."""
    frames = [(block.size, block.raw_size) for block in blocks]
    if trailer.dictionary_size:
        frames.append((trailer.dictionary_size, 0))
    frames += [(trailer.index_size, 0), (TRAILER.size, 0)]
    rows = b"".join(_SEEK_ENTRY.pack(*frame) for frame in frames)
    head = _FRAME.pack(_SEEK_FRAME, len(rows) + SEEK_FOOTER.size)
    return head + rows + SEEK_FOOTER.pack(len(frames), 0, SEEK_MAGIC)


def decode_trailer(data: bytes, where: str) -> Trailer:
    """Parse a trailer frame; raise CorruptionError, or FormatVersionError for a newer format."""
    _frame, *values, _checksum, magic = TRAILER.struct.unpack(data)
    if magic != MAGIC:
        problem = f"magic {magic!r}, expected {MAGIC!r}: not a segment"
        raise CorruptionError(f"trailer of {where}", problem)
    trailer = Trailer(*values)
    if data != trailer.encode():  # first: a flipped bit in the version is damage
        problem = f"the checksum of its {len(data)} bytes does not match"
        raise ChecksumError(f"trailer of {where}", problem)
    if trailer.version != VERSION:
        problem = f"segment format {trailer.version}, this version of Streamkeep reads {VERSION}"
        raise FormatVersionError(f"{where}: {problem}")
    return trailer


def decode_index(data: bytes, trailer: Trailer, where: str) -> Index:
    """Parse the index frame of the segment with this trailer; raise CorruptionError."""
    where = f"index of {where}"
    stored = data[-CHECKSUM_SIZE:]
    content = data[:-CHECKSUM_SIZE]
    if number_of(stored) != trailer.index_checksum or digest64(content) != stored:
        raise ChecksumError(where, f"the checksum of its {len(data)} bytes does not match")
    if len(content) < INDEX_HEADER.size:
        least = INDEX_HEADER.size + CHECKSUM_SIZE
        raise CorruptionError(where, f"{len(data)} bytes, expected at least {least}")
    frame, store_uuid, number, count, key_size = INDEX_HEADER.struct.unpack_from(content)
    rows_at = INDEX_HEADER.size + key_size
    if (
        frame != _FRAME.pack(_INDEX_FRAME, len(data) - _FRAME.size)
        or rows_at + count * INDEX_ROW.size != len(content)
        or count == 0
    ):
        problem = f"{count} rows and a key of {key_size} bytes do not fit in {len(data)} bytes"
        raise CorruptionError(where, problem)
    key = content[INDEX_HEADER.size : rows_at]
    blocks = [Block(*row) for row in INDEX_ROW.struct.iter_unpack(content[rows_at:])]
    _check_rows(blocks, trailer, where)
    return Index(store_uuid, number, key, blocks)


def _check_rows(blocks: list[Block], trailer: Trailer, where: str) -> None:
    """Check that blocks follow each other without gaps and add up to the trailer's counts."""
    offset = entries = nodes = raw_size = 0
    last: Id | None = None
    for number, block in enumerate(blocks):
        first = block.first_id
        if block.offset != offset or first > block.last_id or (last is not None and first <= last):
            raise CorruptionError(where, f"block {number} does not follow block {number - 1}")
        if (
            not 0 < block.nodes <= block.entries
            or block.raw_size < block.nodes * OVERHEAD
            or block.raw_size > block.size * MAX_RATIO
        ):
            sizes = f"{block.size} bytes for {block.raw_size}"
            counts = f"{block.nodes} nodes, {block.entries} entries"
            raise CorruptionError(where, f"block {number} is not possible: {sizes}, {counts}")
        last = block.last_id
        offset += block.size
        entries += block.entries
        nodes += block.nodes
        raw_size += block.raw_size
    ends = (blocks[0].first_id, last)
    if (offset, entries, nodes, raw_size) != (
        trailer.blocks_size,
        trailer.entries,
        trailer.nodes,
        trailer.raw_size,
    ) or ends != (trailer.first_id, trailer.last_id):
        raise CorruptionError(where, "the blocks do not add up to the counts of the trailer")


# --- how much a frame of zstd may hold ------------------------------------------------------------

_MAX_BLOCK: Final = 128 << 10
_HEADER_SIZE: Final = 3
_RAW: Final = 0
_REPEATED: Final = 1  # a single byte, repeated `size` times

MAX_RATIO: Final = _MAX_BLOCK // (_HEADER_SIZE + 1)


def max_content(frame: bytes) -> int:
    """Return the maximum number of bytes that a zstd frame can decompress to.

    A frame states the size of its content, and zstd allocates that much memory, so a few bytes can
    claim gigabytes. But the content is in blocks of at most 128 KiB. Each has a header of three
    bytes (little-endian): the lowest bit marks the last block, the next two are its kind, the other
    21 its size.

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
