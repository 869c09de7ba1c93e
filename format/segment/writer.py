"""Writing segments from nodes. See `format/segment/segment.py` for the format.

Needs memory for one block and the index. The caller writes each block to the file as it is
returned; the file is a segment only after the bytes of `finish` have been written as well.
"""

from __future__ import annotations

from typing import Final

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.segment import index as parts

DEFAULT_LEVEL: Final = 3
DEFAULT_BLOCK_BYTES: Final = 256 << 10


class SegmentWriter:
    """Encodes a segment: the file is the results of all `add` calls, then that of `finish`.

    Attributes:
        size: bytes returned so far.
        entries: entries added so far.
        first_id, last_id: IDs of the first and the last of them; None before the first.
    """

    def __init__(
        self,
        of: parts.Index,
        *,
        created_ms: int,
        epoch: int,
        file_number: int,
        level: int = DEFAULT_LEVEL,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        dictionary: bytes | None = None,
    ) -> None:
        """Begin a segment.

        Args:
            of: the store, the stream and its whole key; the blocks in it do not count.
            file_number: number of the file in its store, as in `Trailer`.
            level: compression level of zstd, from negative (fast) to 22.
            block_bytes: maximum uncompressed size of a block; a larger node gets its own block.
            dictionary: a zstd dictionary, which is stored in the segment.
        """
        self.size = 0
        self.entries = 0
        self.first_id: Id | None = None
        self.last_id: Id | None = None
        self._index = of._replace(blocks=[])
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
        self._held: list[bytes] = []  # envelopes of the current block
        self._held_size = 0
        self._held_entries = 0
        self._held_first: Id = (0, 0)

    def add(self, envelope: bytes, where: str) -> bytes:
        """Add the history form of a row of `nodes` or `retired`; return the next bytes to write.

        A node whose entries were all deleted adds nothing.

        Args:
            where: names the node in errors.

        Raises:
            CorruptionError: the node is damaged, of another stream, or not above the last node.
                The writer is unchanged and can be used on.
        """
        found = decode_envelope(envelope, where)
        if found.number != self._index.stream_number:
            problem = f"a node of stream {found.number}, expected {self._index.stream_number}"
            raise CorruptionError(where, problem)
        data = history_form(found.listpack, found.ms, found.seq, found.trimmed)
        if not data:
            return b""
        ids = validate(data, found.ms, found.seq)
        if self.last_id is not None and (found.ms, found.seq) <= self.last_id:
            raise CorruptionError(where, f"the key is not above {parts.text_of(self.last_id)}")
        if data is not found.listpack or found.record or found.trimmed:
            envelope = encode_envelope(
                found.number, found.ms, found.seq, found.epoch, found.commit_number, b"", data, b""
            )
        out = b""
        if self._held and self._held_size + len(envelope) > self._block_bytes:
            out = self._end_block()
        if not self._held:
            self._held_first = ids.first_live
        self.first_id = self.first_id or ids.first_live
        live = int(ids.live)
        self._held.append(envelope)
        self._held_size += len(envelope)
        self._held_entries += live
        self.last_id = ids.last_live
        self.entries += live
        return out

    def finish(self) -> bytes:
        """Return the rest of the file: the last block, dictionary, index, trailer and seek table.

        Raises:
            ValueError: nothing was added; a segment has at least one entry.
        """
        if self.first_id is None or self.last_id is None:
            raise ValueError("a segment needs at least one entry")
        block = self._end_block() if self._held else b""
        dictionary = parts.dictionary_frame(self._dictionary)
        index = self._index.encode()
        blocks = self._index.blocks
        trailer = parts.Trailer(
            *self.first_id,
            *self.last_id,
            self.entries,
            sum(one.nodes for one in blocks),
            sum(one.raw_size for one in blocks),
            self.size,
            len(dictionary),
            len(index),
            parts.number_of(digest64(dictionary)) if dictionary else 0,
            parts.number_of(index[-parts.CHECKSUM_SIZE :]),
            self._created_ms,
            self._file_number,
            self._epoch,
            parts.VERSION,
        )
        rest = dictionary + index + trailer.encode() + parts.seek_table(trailer, blocks)
        self.size += len(rest)
        return block + rest

    def _end_block(self) -> bytes:
        """Compress the current block and return it."""
        assert self.last_id is not None
        data = self._compressor.compress(b"".join(self._held))
        block = parts.Block(
            *self._held_first,
            *self.last_id,
            self.size,
            len(data),
            self._held_size,
            len(self._held),
            self._held_entries,
            parts.number_of(digest64(data)),
        )
        self._index.blocks.append(block)
        self.size += len(data)
        self._held = []
        self._held_size = 0
        self._held_entries = 0
        return data
