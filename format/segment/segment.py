r"""Archive segments: one file of compressed macro nodes of one stream.

    block, block, ...   one zstd frame each: whole envelopes, back to back, ascending
    dictionary frame    skippable frame 0x184D2A50 around a zstd dictionary; often absent
    index frame         skippable frame 0x184D2A51: store, stream, then a row for each block
    trailer frame       skippable frame 0x184D2A52 of fixed size
    seek table          skippable frame 0x184D2A5E of zstd's seekable format

What follows the blocks stands in skippable frames, so the file is an ordinary zstd stream:
`zstd -d` gives the envelopes, and tools that know the seekable format can seek in it. With a
dictionary the blocks need it (`zstd -D`); it is in the file, so that each segment can be read
alone.

A node in a segment is what history shows of it: its live and its trimmed slots, all of them live,
without tombstones, bitmap and record. So what was deleted before the node was archived is not in
the archive, and a segment's nodes are read by the same code as any others.

Checksums form a tree. The index row of a block has the XXH3-64 of its compressed bytes, the index
ends with its own, the trailer has those of index and dictionary and ends with its own, and the
manifest names that one: it stands for every byte of the file. A block is proved by reading
it and the index, never the rest of the file; damage is named by block; and a rewritten segment may
take over blocks as they are. The seek table says nothing new and is compared with the index.

A reader allocates what the index promises and no more, and a promise that no zstd frame of that
size can keep is refused. All functions are pure; files are read through `read_at(offset, size)`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import quote

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import (
    ChecksumError,
    CorruptionError,
    FormatVersionError,
    StoreError,
)
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import (
    ENVELOPE,
    OVERHEAD,
    Envelope,
    decode_envelope,
)
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.segment.zstd_frame import MOST_RATIO, most_content

MAGIC: Final = b"SKSEG\r\n\x1a"  # a copy made in text mode breaks it
VERSION: Final = 1
SUFFIX: Final = ".seg"
MAX_BLOCK_BYTES: Final = 64 << 20  # of a block from elsewhere, uncompressed, unless told otherwise

_DICTIONARY_FRAME: Final = 0x184D2A50
_INDEX_FRAME: Final = 0x184D2A51
_TRAILER_FRAME: Final = 0x184D2A52
_SEEK_FRAME: Final = 0x184D2A5E
_SEEK_MAGIC: Final = 0x8F92EAB1
_FRAME: Final = struct.Struct("<II")  # magic, bytes that follow: zstd is little-endian
DICTIONARY_MAGIC: Final = _DICTIONARY_FRAME.to_bytes(4, "little")  # then its size, likewise
_LENGTH_AT: Final = ENVELOPE.offset("length")
_SEEK_ENTRY: Final = struct.Struct("<II")  # compressed and decompressed bytes of a frame
_SEEK_FOOTER: Final = struct.Struct("<IBI")  # number of frames, descriptor, magic
CHECKSUM_SIZE: Final = 8

_TAIL_BYTES: Final = 16 << 10  # read at once from the end: holds the index of 60 MB

TRAILER: Final = Layout(
    "segment trailer",
    (
        Field("frame", "8s", "skippable frame 0x184D2A52 and its size, both little-endian"),
        Field("first_ms", "Q", "ID of the first entry"),
        Field("first_seq", "Q", ""),
        Field("last_ms", "Q", "ID of the last entry"),
        Field("last_seq", "Q", ""),
        Field("entries", "Q", "entries, at least 1"),
        Field("nodes", "Q", "macro nodes"),
        Field("raw_size", "Q", "bytes of all envelopes"),
        Field("blocks_size", "Q", "bytes of all blocks: where the dictionary frame begins"),
        Field("dictionary_size", "I", "bytes of the dictionary frame; 0: there is none"),
        Field("index_size", "I", "bytes of the index frame behind it"),
        Field("dictionary_checksum", "Q", "XXH3-64 of the dictionary frame; 0 without one"),
        Field("index_checksum", "Q", "the checksum that ends the index"),
        Field("created_ms", "Q", "Unix time"),
        Field("file_number", "Q", "number of the file; its store gives none twice"),
        Field("epoch", "I", "epoch of the store when it was written"),
        Field("version", "I", "1; a reader refuses any higher one"),
        Field("checksum", "Q", "XXH3-64 of all fields above; stands for the whole file"),
        Field("magic", "8s", r'`"SKSEG\r\n\x1a"`'),
    ),
)
INDEX_HEADER: Final = Layout(
    "segment index header",
    (
        Field("frame", "8s", "skippable frame 0x184D2A51 and its size, both little-endian"),
        Field("store_uuid", "16s", "the store that wrote it"),
        Field("stream_number", "Q", "the stream there; that of every envelope"),
        Field("block_count", "I", "rows behind the key"),
        Field("key_size", "I", "bytes of the stream's whole key that follow"),
    ),
)
INDEX_ROW: Final = Layout(
    "segment index row",
    (
        Field("first_ms", "Q", "ID of the block's first entry"),
        Field("first_seq", "Q", ""),
        Field("last_ms", "Q", "ID of its last entry"),
        Field("last_seq", "Q", ""),
        Field("offset", "Q", "where the block begins in the file"),
        Field("size", "I", "bytes of the block"),
        Field("raw_size", "I", "bytes of its envelopes"),
        Field("nodes", "I", "macro nodes in it"),
        Field("entries", "I", "entries in it"),
        Field("checksum", "Q", "XXH3-64 of its compressed bytes"),
    ),
)
_SEALED: Final = TRAILER.offset("checksum")
_TRAILER_HEAD: Final = _FRAME.pack(_TRAILER_FRAME, TRAILER.size - _FRAME.size)
_SMALLEST: Final = TRAILER.size + _FRAME.size + _SEEK_FOOTER.size

Id = tuple[int, int]
ReadAt = Callable[[int, int], bytes]  # (offset, size) -> bytes; fewer where the file ends


class Trailer(NamedTuple):
    """What a segment says of itself; see `TRAILER`."""

    first_ms: int
    first_seq: int
    last_ms: int
    last_seq: int
    entries: int
    nodes: int
    raw_size: int
    blocks_size: int
    dictionary_size: int
    index_size: int
    dictionary_checksum: int
    index_checksum: int
    created_ms: int
    file_number: int
    epoch: int
    version: int

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
        """The checksum that stands for the whole file."""
        return number_of(self.encode()[_SEALED : _SEALED + CHECKSUM_SIZE])

    def encode(self) -> bytes:
        """Return the trailer's bytes."""
        sealed = TRAILER.struct.pack(_TRAILER_HEAD, *self, 0, MAGIC)[:_SEALED]
        return sealed + digest64(sealed) + MAGIC


class Block(NamedTuple):
    """One block of a segment; see `INDEX_ROW`."""

    first_ms: int
    first_seq: int
    last_ms: int
    last_seq: int
    offset: int
    size: int
    raw_size: int
    nodes: int
    entries: int
    checksum: int

    @property
    def first_id(self) -> Id:
        """ID of the first entry."""
        return self.first_ms, self.first_seq

    @property
    def last_id(self) -> Id:
        """ID of the last entry."""
        return self.last_ms, self.last_seq


class Index(NamedTuple):
    """Whose entries a segment holds, and its blocks."""

    store_uuid: bytes
    stream_number: int
    key: bytes
    blocks: list[Block]

    def encode(self) -> bytes:
        """Return the index frame, checksum included."""
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


def segment_path(number: int, key: bytes, first: Id, last: Id, epoch: int, file_number: int) -> str:
    """Return the path of a new segment below `archive/`; no store uses a path twice.

    The folder's name is for people: stream number and the beginning of the key.
    """
    quoted = quote(key[:40], safe="")  # a byte becomes three at most
    folder = f"{number}-{quoted}"
    return f"{folder}/{first[0]}-{first[1]}_{last[0]}-{last[1]}.{epoch}-{file_number}{SUFFIX}"


# --- parts --------------------------------------------------------------------------------------


def number_of(digest: bytes) -> int:
    """Return a big-endian number."""
    return int.from_bytes(digest, "big")


def text_of(one: Id) -> str:
    """Return an ID as text."""
    return f"{one[0]}-{one[1]}"


def dictionary_frame(dictionary: bytes) -> bytes:
    """Return the frame around a dictionary; b"" for none."""
    if not dictionary:
        return b""
    return _FRAME.pack(_DICTIONARY_FRAME, len(dictionary)) + dictionary


def seek_table(trailer: Trailer, blocks: list[Block]) -> bytes:
    """Return the seek table: every frame before it, the skippable ones with no content."""
    frames = [(block.size, block.raw_size) for block in blocks]
    if trailer.dictionary_size:
        frames.append((trailer.dictionary_size, 0))
    frames += [(trailer.index_size, 0), (TRAILER.size, 0)]
    rows = b"".join(_SEEK_ENTRY.pack(*frame) for frame in frames)
    head = _FRAME.pack(_SEEK_FRAME, len(rows) + _SEEK_FOOTER.size)
    return head + rows + _SEEK_FOOTER.pack(len(frames), 0, _SEEK_MAGIC)


# --- reading ------------------------------------------------------------------------------------


class Segment:
    """A segment to read from; nothing is kept of its blocks. Safe to share between threads.

    Attributes:
        where: the place for errors, such as the path.
        size: bytes of the file.
        read_at: what the file is read through.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size: int,
        where: str,
        trailer: Trailer,
        index: Index,
        max_block_bytes: int | None = None,
    ) -> None:
        """Use `open` instead."""
        self.where = where
        self.size = size
        self.trailer = trailer
        self.index = index
        self.read_at = read_at
        self._max_block_bytes = max_block_bytes
        self._firsts = [block.first_id for block in index.blocks]
        self._lasts = [block.last_id for block in index.blocks]
        self._dictionary: zstandard.ZstdCompressionDict | None = None
        self._idle: list[zstandard.ZstdDecompressor] = []  # one works for one thread at a time

    @classmethod
    def open(
        cls, read_at: ReadAt, size: int, where: str, max_block_bytes: int | None = None
    ) -> Segment:
        """Read trailer, index and seek table; the blocks are checked when they are read.

        Args:
            max_block_bytes: refuse to read a block that takes more when it is decompressed. A few
                kilobytes can become gigabytes, so set it for a file that comes from elsewhere.

        Raises:
            CorruptionError: this is no whole segment.
            FormatVersionError: a newer version of Streamkeep wrote it.
        """
        if size < _SMALLEST:
            raise CorruptionError(where, f"{size} bytes are not a segment, cut off or another file")
        tail_at = max(0, size - _TAIL_BYTES)
        tail = read_exactly(read_at, tail_at, size - tail_at, where)
        frames, _, magic = _SEEK_FOOTER.unpack_from(tail, len(tail) - _SEEK_FOOTER.size)
        table_size = _FRAME.size + frames * _SEEK_ENTRY.size + _SEEK_FOOTER.size
        trailer_at = size - table_size - TRAILER.size
        if magic != _SEEK_MAGIC or trailer_at < 0:
            problem = "does not end with a seek table: cut off, or not a segment"
            raise CorruptionError(where, problem, offset=size - _SEEK_FOOTER.size)

        def part(offset: int, length: int) -> bytes:
            if offset >= tail_at:
                return tail[offset - tail_at : offset - tail_at + length]
            return read_exactly(read_at, offset, length, where)

        trailer = decode_trailer(part(trailer_at, TRAILER.size), where)
        index_at = trailer.blocks_size + trailer.dictionary_size
        described = index_at + trailer.index_size + TRAILER.size + table_size
        if described != size:
            problem = f"{size} bytes, but its trailer describes a segment of {described}"
            raise CorruptionError(where, problem, offset=trailer_at)
        index = decode_index(part(index_at, trailer.index_size), trailer, where)
        if part(size - table_size, table_size) != seek_table(trailer, index.blocks):
            problem = "the seek table does not agree with the index"
            raise CorruptionError(where, problem, offset=size - table_size)
        return cls(read_at, size, where, trailer, index, max_block_bytes)

    @property
    def checksum(self) -> int:
        """The checksum that stands for the whole file, as the manifest has it."""
        return self.trailer.checksum

    def seek(self, ms: int, seq: int) -> int:
        """Return the first block with an entry not below `ms-seq`; len(blocks) without one."""
        return bisect_left(self._lasts, (ms, seq))

    def seek_last(self, ms: int, seq: int) -> int:
        """Return the last block with an entry not above `ms-seq`; -1 without one."""
        return bisect_right(self._firsts, (ms, seq)) - 1

    def block(self, number: int) -> list[Envelope]:
        """Read a block; return its nodes, with checksum and place of each checked.

        Raises:
            CorruptionError: naming the block.
            StoreError: it needs more memory than `max_block_bytes`, or than the system grants.
        """
        with self._memory_for(number):
            return self._nodes_of(number)

    def _nodes_of(self, number: int) -> list[Envelope]:
        block = self.index.blocks[number]
        raw = self.raw_block(number)
        where = self._block_where(number)
        nodes: list[Envelope] = []
        at = 0
        last: Id | None = None
        while at < len(raw):
            length = envelope_length(raw, at)
            if length < OVERHEAD or at + length > len(raw):
                raise CorruptionError(where, f"an envelope of {length} bytes", offset=at)
            found = decode_envelope(raw[at : at + length], where)
            key = (found.ms, found.seq)
            if found.number != self.index.stream_number or found.record or found.trimmed:
                problem = f"the envelope of node {text_of(key)} does not belong into a segment"
                raise CorruptionError(where, problem, offset=at)
            if key > block.last_id or (last is not None and key <= last):
                problem = f"node {text_of(key)} is not between the one before and the block's end"
                raise CorruptionError(where, problem, offset=at)
            last = key
            nodes.append(found)
            at += length
        if len(nodes) != block.nodes:
            raise CorruptionError(where, f"{len(nodes)} nodes, {block.nodes} expected")
        return nodes

    def raw_block(self, number: int) -> bytes:
        """Read a block; return its envelopes, back to back; errors are those of `block`."""
        block = self.index.blocks[number]
        where = self._block_where(number)
        most = self._max_block_bytes
        if most is not None and block.raw_size > most:
            problem = f"it takes {block.raw_size:,} bytes of memory, max_block_bytes is {most:,}"
            advice = "if you trust the file, raise max_block_bytes (--max-block-bytes)"
            raise StoreError(f"{where}: {problem}; {advice}")
        data = self.compressed_block(number)
        try:
            content = zstandard.frame_content_size(data)
            possible = most_content(data)
        except zstandard.ZstdError as error:
            raise CorruptionError(where, f"not a zstd frame: {error}") from None
        if content != block.raw_size:
            problem = f"the frame promises {content} bytes, the index {block.raw_size}"
            raise CorruptionError(where, problem)
        if content > possible:  # memory for the content is allocated before it is there
            problem = f"the frame promises {content} bytes, its blocks hold at most {possible}"
            raise CorruptionError(where, problem)
        decompressor = self._decompressor()
        try:
            with self._memory_for(number):
                raw = decompressor.decompress(data, block.raw_size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptionError(where, f"zstd cannot decompress it: {error}") from None
        self._idle.append(decompressor)
        if len(raw) != block.raw_size:
            raise CorruptionError(where, f"{len(raw)} bytes, {block.raw_size} expected")
        return raw

    @contextmanager
    def _memory_for(self, number: int) -> Iterator[None]:
        """Raise StoreError where the system grants no memory for a block."""
        try:
            yield
        except MemoryError:
            size = self.index.blocks[number].raw_size
            problem = f"its {size:,} bytes are more than the system grants memory for"
            raise StoreError(f"{self._block_where(number)}: {problem}") from None

    def compressed_block(self, number: int) -> bytes:
        """Read a block; return its bytes in the file, their checksum checked."""
        block = self.index.blocks[number]
        data = read_exactly(self.read_at, block.offset, block.size, self.where)
        if number_of(digest64(data)) != block.checksum:
            problem = f"checksum of {block.size} bytes does not match"
            raise ChecksumError(self._block_where(number), problem, offset=block.offset)
        return data

    def dictionary(self) -> bytes:
        """Return the dictionary that the blocks need; b"" when they need none."""
        trailer = self.trailer
        if not trailer.dictionary_size:
            return b""
        where = f"dictionary of {self.where}"
        at = trailer.blocks_size
        frame = read_exactly(self.read_at, at, trailer.dictionary_size, self.where)
        if number_of(digest64(frame)) != trailer.dictionary_checksum:
            raise ChecksumError(where, f"checksum of {len(frame)} bytes does not match", offset=at)
        if frame[: _FRAME.size] != _FRAME.pack(_DICTIONARY_FRAME, len(frame) - _FRAME.size):
            raise CorruptionError(where, "its frame has another kind or size", offset=at)
        return frame[_FRAME.size :]

    def check(self) -> Iterator[CorruptionError]:
        """Check every byte of the file that `open` has not; yield what is wrong, block by block."""
        try:
            self.dictionary()
        except CorruptionError as error:
            yield error
        for number in range(len(self.index.blocks)):
            try:
                self._check_block(number)
            except CorruptionError as error:
                yield error

    def _check_block(self, number: int) -> None:
        """Check each byte of a block, and its row of the index."""
        block = self.index.blocks[number]
        where = self._block_where(number)
        entries = 0
        first: Id | None = None
        last: Id = (0, 0)
        for node in self.block(number):
            ids = validate(node.listpack, node.ms, node.seq)
            if history_form(node.listpack, node.ms, node.seq, b"") is not node.listpack:
                raise CorruptionError(where, f"node {node.ms}-{node.seq} has tombstones")
            if first is None:
                first = ids.first_live
            elif ids.first_live <= last:
                raise CorruptionError(where, f"ID {text_of(ids.first_live)} does not rise")
            last = ids.last_live
            entries += int(ids.live)
        if (first, last, entries) != (block.first_id, block.last_id, block.entries):
            found = f"{entries} entries up to {text_of(last)}"
            expected = f"{block.entries} from {text_of(block.first_id)} to {text_of(block.last_id)}"
            raise CorruptionError(where, f"{found}, the index says {expected}")

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if not self.trailer.dictionary_size:
            return zstandard.ZstdDecompressor()
        if self._dictionary is None:
            self._dictionary = zstandard.ZstdCompressionDict(self.dictionary())
        return zstandard.ZstdDecompressor(dict_data=self._dictionary)

    def _block_where(self, number: int) -> str:
        return f"block {number} of {self.where}"


def read_exactly(read_at: ReadAt, offset: int, size: int, where: str) -> bytes:
    """Return `size` bytes of a file; raise CorruptionError when it ends before."""
    data = read_at(offset, size)
    if len(data) != size:
        raise CorruptionError(where, f"{len(data)} bytes, {size} expected", offset=offset)
    return data


def decode_trailer(data: bytes, where: str) -> Trailer:
    """Parse a trailer frame; raise CorruptionError, or FormatVersionError for a newer format."""
    _frame, *values, _checksum, magic = TRAILER.struct.unpack(data)
    if magic != MAGIC:
        problem = f"magic {magic!r}, expected {MAGIC!r}: not a segment"
        raise CorruptionError(f"trailer of {where}", problem)
    trailer = Trailer(*values)
    if trailer.version != VERSION:
        problem = f"segment format {trailer.version}, this version of Streamkeep reads {VERSION}"
        raise FormatVersionError(f"{where}: {problem}")
    if data != trailer.encode():
        raise ChecksumError(f"trailer of {where}", f"checksum of {len(data)} bytes does not match")
    return trailer


def decode_index(data: bytes, trailer: Trailer, where: str) -> Index:
    """Parse the index frame of the segment with this trailer; raise CorruptionError."""
    where = f"index of {where}"
    stored = data[-CHECKSUM_SIZE:]
    content = data[:-CHECKSUM_SIZE]
    if number_of(stored) != trailer.index_checksum or digest64(content) != stored:
        raise ChecksumError(where, f"checksum of {len(data)} bytes does not match")
    if len(content) < INDEX_HEADER.size:
        raise CorruptionError(where, f"{len(data)} bytes are no index")
    frame, store_uuid, number, count, key_size = INDEX_HEADER.struct.unpack_from(content)
    rows_at = INDEX_HEADER.size + key_size
    if (
        frame != _FRAME.pack(_INDEX_FRAME, len(data) - _FRAME.size)
        or rows_at + count * INDEX_ROW.size != len(content)
        or count == 0
    ):
        raise CorruptionError(where, f"{count} rows and {key_size} bytes of key do not add up")
    key = content[INDEX_HEADER.size : rows_at]
    blocks = [Block(*row) for row in INDEX_ROW.struct.iter_unpack(content[rows_at:])]
    _check_rows(blocks, trailer, where)
    return Index(store_uuid, number, key, blocks)


def _check_rows(blocks: list[Block], trailer: Trailer, where: str) -> None:
    """Check that blocks follow each other without gaps, and add up to what the trailer says."""
    offset = entries = nodes = raw_size = 0
    last: Id | None = None
    for number, block in enumerate(blocks):
        first = block.first_id
        if block.offset != offset or first > block.last_id or (last is not None and first <= last):
            raise CorruptionError(where, f"block {number} does not follow the one before")
        if (
            not 0 < block.nodes <= block.entries
            or block.raw_size < block.nodes * OVERHEAD
            or block.raw_size > block.size * MOST_RATIO
        ):
            sizes = f"{block.size} bytes for {block.raw_size}"
            counts = f"{block.nodes} nodes, {block.entries} entries"
            raise CorruptionError(
                where, f"block {number} promises the impossible: {sizes}, {counts}"
            )
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
        raise CorruptionError(where, "the blocks do not add up to what the trailer says")


def envelope_length(raw: bytes, at: int) -> int:
    """Return the length that the envelope at `at` states; 0 when it is cut off."""
    start = at + _LENGTH_AT
    return number_of(raw[start : start + 4]) if start + 4 <= len(raw) else 0
