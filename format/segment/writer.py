"""Writing segments: nodes in, the bytes of a file out. See `format/segment/segment.py`.

Memory is bounded by one block and the index. Blocks come out as they fill, so a file can be written
while it grows; it is a segment only when `finish` was written behind them.
"""

from __future__ import annotations

from typing import Final

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.segment.segment import (
    CHECKSUM_SIZE,
    VERSION,
    Block,
    Id,
    Index,
    Trailer,
    dictionary_frame,
    number_of,
    seek_table,
    text_of,
)

DEFAULT_LEVEL: Final = 3
DEFAULT_BLOCK_BYTES: Final = 256 << 10


class SegmentWriter:
    """Makes the bytes of a segment: those of each `add`, then those of `finish`, in this order.

    Attributes:
        size: bytes handed out so far.
        raw_size, entries, nodes: what was added so far.
        trailer: of the finished segment.
    """

    def __init__(
        self,
        *,
        store_uuid: bytes,
        stream_number: int,
        key: bytes,
        created_ms: int,
        epoch: int,
        file_number: int,
        level: int = DEFAULT_LEVEL,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        dictionary: bytes | None = None,
    ) -> None:
        """Begin a segment.

        Args:
            key: the stream's whole key.
            file_number: as `Trailer` has it.
            level: zstd's, from negative (fast) to 22.
            block_bytes: a block ends before it would have more bytes uncompressed; a bigger node
                is a block alone.
            dictionary: a zstd dictionary; it is stored in the segment.
        """
        self.size = 0
        self.raw_size = 0
        self.entries = 0
        self.nodes = 0
        self.trailer: Trailer | None = None
        self._index = Index(store_uuid, stream_number, key, [])
        self._created_ms = created_ms
        self._epoch = epoch
        self._file_number = file_number
        self._block_bytes = block_bytes
        self._dictionary = dictionary or b""
        self._compressor = zstandard.ZstdCompressor(
            level=level,
            dict_data=None if not dictionary else zstandard.ZstdCompressionDict(dictionary),
            write_checksum=True,
            write_content_size=True,
        )
        self._held: list[bytes] = []  # envelopes of the block to come
        self._held_size = 0
        self._held_entries = 0
        self._held_first: Id = (0, 0)
        self._last: Id | None = None

    @property
    def first_id(self) -> Id | None:
        """ID of the first entry added; None before there is one."""
        blocks = self._index.blocks
        if blocks:
            return blocks[0].first_id
        return self._held_first if self._held else None

    @property
    def last_id(self) -> Id | None:
        """ID of the last entry added; None before there is one."""
        return self._last

    def add(self, envelope: bytes, where: str) -> bytes:
        """Add a node as it stands in `nodes` or `retired`; return what the file goes on with.

        Of the node only what history shows is kept; a node of which that leaves nothing adds
        nothing.

        Args:
            where: the place of the node, for errors.

        Raises:
            CorruptionError: the node is damaged, of another stream, or not above the last one.
                The writer goes on as if it had not been added.
        """
        found = decode_envelope(envelope, where)
        if found.number != self._index.stream_number:
            problem = f"a node of stream {found.number}, not {self._index.stream_number}"
            raise CorruptionError(where, problem)
        data = history_form(found.listpack, found.ms, found.seq, found.trimmed)
        if not data:
            return b""
        ids = validate(data, found.ms, found.seq)
        if self._last is not None and (found.ms, found.seq) <= self._last:
            raise CorruptionError(where, f"its key is not above {text_of(self._last)}")
        if data is not found.listpack or found.record or found.trimmed:
            envelope = encode_envelope(
                found.number,
                found.ms,
                found.seq,
                found.epoch,
                found.commit_number,
                b"",
                data,
                b"",
            )
        out = b""
        if self._held and self._held_size + len(envelope) > self._block_bytes:
            out = self._end_block()
        if not self._held:
            self._held_first = ids.first_live
        live = int(ids.live)
        self._held.append(envelope)
        self._held_size += len(envelope)
        self._held_entries += live
        self._last = ids.last_live
        self.raw_size += len(envelope)
        self.entries += live
        self.nodes += 1
        return out

    def finish(self) -> bytes:
        """Return the rest of the file.

        Raises:
            ValueError: nothing was added; there is no empty segment.
        """
        if self._last is None:
            raise ValueError("a segment holds at least one entry")
        block = self._end_block() if self._held else b""
        dictionary = dictionary_frame(self._dictionary)
        index = self._index.encode()
        first = self._index.blocks[0].first_id
        self.trailer = Trailer(
            *first,
            *self._last,
            self.entries,
            self.nodes,
            self.raw_size,
            self.size,
            len(dictionary),
            len(index),
            number_of(digest64(dictionary)) if dictionary else 0,
            number_of(index[-CHECKSUM_SIZE:]),
            self._created_ms,
            self._file_number,
            self._epoch,
            VERSION,
        )
        table = seek_table(self.trailer, self._index.blocks)
        rest = dictionary + index + self.trailer.encode() + table
        self.size += len(rest)
        return block + rest

    def _end_block(self) -> bytes:
        """Compress the envelopes held; return the block."""
        assert self._last is not None
        data = self._compressor.compress(b"".join(self._held))
        block = Block(
            *self._held_first,
            *self._last,
            self.size,
            len(data),
            self._held_size,
            len(self._held),
            self._held_entries,
            number_of(digest64(data)),
        )
        self._index.blocks.append(block)
        self.size += len(data)
        self._held = []
        self._held_size = 0
        self._held_entries = 0
        return data
