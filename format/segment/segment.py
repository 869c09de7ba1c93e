"""Archive segments: files with the compressed macro nodes of one stream.

    block, block, ...   one zstd frame each: whole envelopes, back to back, ascending
    dictionary frame    skippable frame 0x184D2A50 around a zstd dictionary; often absent
    index frame         skippable frame 0x184D2A51: store, stream, then a row for each block
    trailer frame       skippable frame 0x184D2A52 of fixed size
    seek table          skippable frame 0x184D2A5E of zstd's seekable format

Everything after the blocks is in skippable frames, so the file is an ordinary zstd stream:
`zstd -d` prints the envelopes (with `-D` if there is a dictionary), and tools that know the
seekable format can seek in it. The dictionary is in the file, so a segment needs no other file.

A node is stored in its history form: live and trimmed slots, all marked as live, without
tombstones, bitmap and record. So entries that were deleted before are not in the archive, and the
code that reads other nodes also reads these.

Checksums form a tree. The index row of a block has the XXH3-64 of its compressed bytes; the index
ends with its own checksum; the trailer has those of index and dictionary and ends with its own,
which the manifest contains. That one covers every byte of the file. To verify a block, a reader
needs only that block and the index. The seek table adds nothing and is compared with the index.

A reader allocates only what the index states, and refuses sizes that a zstd frame of that length
cannot have. All functions are pure; files are read through `read_at(offset, size)`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final
from urllib.parse import quote

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import ChecksumError, CorruptionError, StoreError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import Envelope, split_block
from streamkeep.format.node.ranges import find_entries
from streamkeep.format.segment import index as parts

SUFFIX: Final = ".seg"
MAX_BLOCK_BYTES: Final = 64 << 20  # default limit for an uncompressed block of a foreign file

_TAIL_BYTES: Final = 16 << 10  # read at once from the end: contains the index of a 60 MB file

ReadAt = Callable[[int, int], bytes]  # (offset, size) -> bytes; fewer at the end of the file


def segment_path(number: int, key: bytes, first: Id, last: Id, epoch: int, file_number: int) -> str:
    """Return the path of a new segment, relative to `archive/`; no store uses a path twice.

    The folder is named after the stream's number and, for people, the beginning of its key.
    """
    quoted = quote(key[:40], safe="")  # at most three characters per byte
    folder = f"{number}-{quoted}"
    return f"{folder}/{first[0]}-{first[1]}_{last[0]}-{last[1]}.{epoch}-{file_number}{SUFFIX}"


class Segment:
    """An open segment. Caches no blocks; several threads may use it at the same time.

    Attributes:
        where: names the segment in errors, such as its path.
        size: size of the file in bytes.
        read_at: function that reads the file.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size: int,
        where: str,
        trailer: parts.Trailer,
        index: parts.Index,
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
        self._idle: list[zstandard.ZstdDecompressor] = []  # each serves one thread at a time

    @classmethod
    def open(
        cls, read_at: ReadAt, size: int, where: str, max_block_bytes: int | None = None
    ) -> Segment:
        """Read trailer, index and seek table. Blocks are checked when they are read.

        Args:
            max_block_bytes: refuse blocks that are larger than this when decompressed. A few
                kilobytes can become gigabytes, so set it for files from elsewhere.

        Raises:
            CorruptionError: the file is truncated, damaged or not a segment.
            FormatVersionError: a newer version of Streamkeep wrote it.
        """
        if size < parts.SMALLEST:
            problem = (
                f"{size} bytes, expected at least {parts.SMALLEST}: truncated, or not a segment"
            )
            raise CorruptionError(where, problem)
        tail_at = max(0, size - _TAIL_BYTES)
        tail = read_exactly(read_at, tail_at, size - tail_at, where)
        frames, _, magic = parts.SEEK_FOOTER.unpack_from(tail, len(tail) - parts.SEEK_FOOTER.size)
        table_size = parts.seek_table_size(frames)
        trailer_at = size - table_size - parts.TRAILER.size
        if magic != parts.SEEK_MAGIC or trailer_at < 0:
            problem = "does not end with a seek table: truncated, or not a segment"
            raise CorruptionError(where, problem, offset=size - parts.SEEK_FOOTER.size)

        def part(offset: int, length: int) -> bytes:
            if offset >= tail_at:
                return tail[offset - tail_at : offset - tail_at + length]
            return read_exactly(read_at, offset, length, where)

        trailer = parts.decode_trailer(part(trailer_at, parts.TRAILER.size), where)
        index_at = trailer.blocks_size + trailer.dictionary_size
        described = index_at + trailer.index_size + parts.TRAILER.size + table_size
        if described != size:
            problem = f"{size} bytes, the trailer describes a segment of {described} bytes"
            raise CorruptionError(where, problem, offset=trailer_at)
        index = parts.decode_index(part(index_at, trailer.index_size), trailer, where)
        if part(size - table_size, table_size) != parts.seek_table(trailer, index.blocks):
            problem = "the seek table differs from the index"
            raise CorruptionError(where, problem, offset=size - table_size)
        return cls(read_at, size, where, trailer, index, max_block_bytes)

    @property
    def checksum(self) -> int:
        """The checksum of the trailer, which covers the whole file; the manifest contains it."""
        return self.trailer.checksum

    def seek(self, ms: int, seq: int) -> int:
        """Return the first block with an entry at or after `ms-seq`; len(blocks) if none has."""
        return bisect_left(self._lasts, (ms, seq))

    def seek_last(self, ms: int, seq: int) -> int:
        """Return the last block with an entry at or before `ms-seq`; -1 if none has."""
        return bisect_right(self._firsts, (ms, seq)) - 1

    def block(self, number: int) -> list[Envelope]:
        """Read a block and return its nodes, after checking the checksum and key of each.

        Raises:
            CorruptionError: the block is damaged; the error names it.
            StoreError: the block is larger than `max_block_bytes`, or there is too little memory.
        """
        with self._memory_for(number):
            block = self.index.blocks[number]
            raw = self.raw_block(number)
            where = self._block_where(number)
            nodes = split_block(raw, self.index.stream_number, block.last_id, where)
            if len(nodes) != block.nodes:
                raise CorruptionError(where, f"{len(nodes)} nodes, expected {block.nodes}")
            return nodes

    def those_of(self, ids: Iterable[Id]) -> list[Id]:
        """Return those of some ascending IDs that are in the segment; raises what `block` does."""
        found: dict[Id, object] = {}
        for number, some in groupby(ids, lambda one: self.seek(*one)):
            here = list(some)
            for node in self.block(number) if number < len(self.index.blocks) else []:
                start = bisect_left(here, (node.ms, node.seq))
                find_entries(node.listpack, node.ms, node.seq, here, start, -1, found)
        return list(found)

    def raw_block(self, number: int) -> bytes:
        """Read a block and return its envelopes back to back; raises the errors of `block`."""
        block = self.index.blocks[number]
        where = self._block_where(number)
        limit = self._max_block_bytes
        if limit is not None and block.raw_size > limit:
            problem = f"needs {block.raw_size:,} bytes of memory, max_block_bytes is {limit:,}"
            advice = "if you trust the file, raise max_block_bytes (--max-block-bytes)"
            raise StoreError(f"{where}: {problem}; {advice}")
        data = self.compressed_block(number)
        try:
            content = zstandard.frame_content_size(data)
            possible = parts.max_content(data)
        except zstandard.ZstdError as error:
            raise CorruptionError(where, f"not a zstd frame: {error}") from None
        if content != block.raw_size:
            problem = f"the frame states {content} bytes, the index {block.raw_size}"
            raise CorruptionError(where, problem)
        if content > possible:  # zstd allocates this memory before it decompresses
            problem = f"the frame states {content} bytes, but contains at most {possible}"
            raise CorruptionError(where, problem)
        decompressor = self._decompressor()
        try:
            with self._memory_for(number):
                raw = decompressor.decompress(data, block.raw_size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptionError(where, f"zstd cannot decompress it: {error}") from None
        self._idle.append(decompressor)
        if len(raw) != block.raw_size:
            raise CorruptionError(where, f"{len(raw)} bytes, expected {block.raw_size}")
        return raw

    @contextmanager
    def _memory_for(self, number: int) -> Iterator[None]:
        """Raise StoreError instead of MemoryError."""
        try:
            yield
        except MemoryError:
            size = self.index.blocks[number].raw_size
            problem = f"not enough memory for its {size:,} bytes"
            raise StoreError(f"{self._block_where(number)}: {problem}") from None

    def compressed_block(self, number: int) -> bytes:
        """Read a block and return its compressed bytes, after checking the checksum."""
        block = self.index.blocks[number]
        data = read_exactly(self.read_at, block.offset, block.size, self.where)
        if parts.number_of(digest64(data)) != block.checksum:
            problem = f"the checksum of its {block.size} bytes does not match"
            raise ChecksumError(self._block_where(number), problem, offset=block.offset)
        return data

    def dictionary(self) -> bytes:
        """Return the zstd dictionary of the blocks; b"" if there is none."""
        trailer = self.trailer
        if not trailer.dictionary_size:
            return b""
        where = f"dictionary of {self.where}"
        at = trailer.blocks_size
        frame = read_exactly(self.read_at, at, trailer.dictionary_size, self.where)
        if parts.number_of(digest64(frame)) != trailer.dictionary_checksum:
            problem = f"the checksum of its {len(frame)} bytes does not match"
            raise ChecksumError(where, problem, offset=at)
        return parts.open_dictionary_frame(frame, where, at)

    def check(self) -> Iterator[CorruptionError]:
        """Check all bytes that `open` did not check; yield at most one error per block."""
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
        """Check every byte of a block, and its row of the index."""
        block = self.index.blocks[number]
        where = self._block_where(number)
        entries = 0
        first: Id | None = None
        last: Id = (0, 0)
        for node in self.block(number):
            ids = validate(node.listpack, node.ms, node.seq)
            if ids.deleted:
                raise CorruptionError(where, f"node {node.ms}-{node.seq} has tombstones")
            if first is None:
                first = ids.first_live
            elif ids.first_live <= last:
                raise CorruptionError(where, f"ID {parts.text_of(ids.first_live)} is out of order")
            last = ids.last_live
            entries += int(ids.live)
        if (first, last, entries) != (block.first_id, block.last_id, block.entries):
            found = f"{entries} entries up to {parts.text_of(last)}"
            first_id, last_id = map(parts.text_of, (block.first_id, block.last_id))
            expected = f"{block.entries} from {first_id} to {last_id}"
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
    """Return `size` bytes of a file; raise CorruptionError if it ends before."""
    data = read_at(offset, size)
    if len(data) != size:
        raise CorruptionError(where, f"{len(data)} bytes, expected {size}", offset=offset)
    return data
