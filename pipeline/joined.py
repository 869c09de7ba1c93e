"""Live nodes, retired nodes and segments of one stream as one ascending sequence of nodes.

Trimming moves nodes from `nodes` to `retired`, and the archiver from there into segments, each in
one transaction. In a snapshot a node is in exactly one of the three, and their ranges never
overlap, so merging by key joins them without a gap or a duplicate. What a read shows of a node is
what history shows, its live and its trimmed slots; a read of live entries only takes `nodes` alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.manifest import overlapping
from streamkeep.engine.nodes import NodeWalk
from streamkeep.engine.segment_files import SegmentFiles
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.entry import StreamId
from streamkeep.format.envelope import decode_envelope
from streamkeep.format.errors import CorruptionError
from streamkeep.format.keys import NODES, RETIRED, SEGMENTS, node_key, pack_number, unpack_node_key
from streamkeep.format.manifest import SegmentRecord
from streamkeep.format.node import history_form
from streamkeep.pipeline.options import ARCHIVE, AUTO, LIVE

_PAGE: Final = 4096  # what a retired node takes, about


class Found(NamedTuple):
    """A node that may hold wanted entries: its key, and what gives its listpack."""

    ms: int
    seq: int
    load: Callable[[], bytes]


class Mark(NamedTuple):
    """A place where a read can be cut, and how much follows it."""

    id: StreamId
    size_bytes: int
    entries: int


def has_history(txn: Txn, number: int) -> bool:
    """Say whether anything of a stream has left `nodes` for the archive.

    A stream that is not archived has trimmed slots, too, in the node at the boundary, for as long
    as that is not rewritten; nobody is to see those.
    """
    prefix = pack_number(number)
    for table in (SEGMENTS, RETIRED):
        cursor = txn.cursor(table)
        if cursor.set_range(prefix) and cursor.key().startswith(prefix):
            return True
    return False


class SegmentTroubleError(CorruptionError):
    """A segment could not be read; it may just have been replaced.

    Attributes:
        record: its row of the manifest.
    """

    record: SegmentRecord


class JoinedStream:
    """One stream in one snapshot.

    Args:
        stream: None for one that was deleted, of which segments are left.
        source: which of it is read: `auto` for all, `live`, or `archive` for segments only.
    """

    def __init__(
        self, txn: Txn, files: SegmentFiles, number: int, stream: Stream | None, source: str
    ) -> None:
        self.txn = txn
        self.files = files
        self.number = number
        self.stream = stream
        self.source = LIVE if source == AUTO and not has_history(txn, number) else source

    # --- nodes ------------------------------------------------------------------------------

    def nodes(self, start: StreamId, end: StreamId, after: StreamId | None) -> Iterator[Found]:
        """Return the nodes that may hold entries from `start` to `end`, ascending.

        Args:
            after: leave out nodes up to this key.
        """
        parts: list[Iterator[Found]] = []
        if self.stream is not None and self.source != ARCHIVE:
            parts.append(self._live(start, end, after))
        if self.source == AUTO:
            parts.append(self._retired(start, end, after))
        if self.source != LIVE:
            parts.append(self._archived(start, end, after))
        return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_key_of)

    def _live(self, start: StreamId, end: StreamId, after: StreamId | None) -> Iterator[Found]:
        assert self.stream is not None
        walk = NodeWalk(self.txn, self.stream)
        history = self.source == AUTO

        def load() -> bytes:
            data = walk.load()
            return history_form(data, walk.ms, walk.seq, walk.trimmed) if history else data

        found = walk.seek(*start) if after is None else walk.above(*after)
        while found and (walk.ms, walk.seq) <= end:
            yield Found(walk.ms, walk.seq, load)
            found = walk.next()

    def _retired(self, start: StreamId, end: StreamId, after: StreamId | None) -> Iterator[Found]:
        cursor = self.txn.cursor(RETIRED)

        def load() -> bytes:
            _, ms, seq = unpack_node_key(cursor.key())
            where = f"retired node {ms}-{seq} of stream {self.number}"
            envelope = decode_envelope(cursor.value(), where)
            if (envelope.number, envelope.ms, envelope.seq) != (self.number, ms, seq):
                raise CorruptionError(where, "the envelope is of another node")
            return history_form(envelope.listpack, ms, seq, envelope.trimmed)

        for ms, seq in self._retired_keys(cursor, start, end, after):
            yield Found(ms, seq, load)

    def _retired_keys(
        self,
        cursor: lmdb.Cursor[bytes],
        start: StreamId,
        end: StreamId,
        after: StreamId | None,
    ) -> Iterator[tuple[int, int]]:
        """Step a cursor over the keys of retired nodes."""
        prefix = pack_number(self.number)
        first = node_key(self.number, *(start if after is None else after.next()))
        found = cursor.set_range(first)
        if after is None and not (found and cursor.key() == first):
            back = cursor.prev() if found else cursor.last()
            # The node before is the one that the start may lie in.
            found = (back and cursor.key().startswith(prefix)) or cursor.set_range(first)
        last = node_key(self.number, *end)
        while found and prefix <= cursor.key() <= last:
            _, ms, seq = unpack_node_key(cursor.key())
            if (ms, seq) != (0, 0):  # under which no node stands, but the name of a deleted stream
                yield ms, seq
            found = cursor.next()

    def _archived(self, start: StreamId, end: StreamId, after: StreamId | None) -> Iterator[Found]:
        first = start if after is None else max(start, after)
        for record in overlapping(self.txn, self.number, first, end):
            try:
                segment = self.files.open(record)
                at = segment.seek(*first)
                for number in range(at, len(segment.index.blocks)):
                    if segment.index.blocks[number].first_id > end:
                        break
                    for one in segment.block(number):
                        if after is None or (one.ms, one.seq) > after:
                            yield Found(one.ms, one.seq, lambda data=one.listpack: data)  # type: ignore[misc]
            except CorruptionError as error:
                trouble = SegmentTroubleError(error.where, error.problem, offset=error.offset)
                trouble.record = record
                raise trouble from error

    # --- sizes ------------------------------------------------------------------------------

    def marks(self, start: StreamId, end: StreamId, piece_bytes: int) -> Iterator[Mark]:
        """Return where a range can be cut, ascending, so that pieces can have `piece_bytes`."""
        parts: list[Iterator[Mark]] = []
        if self.stream is not None and self.source != ARCHIVE:
            parts.append(self._live_marks(start, end))
        if self.source == AUTO:
            parts.append(self._retired_marks(start, end))
        if self.source != LIVE:
            parts.append(self._archived_marks(start, end, piece_bytes))
        return parts[0] if len(parts) == 1 else heapq.merge(*parts)

    def _live_marks(self, start: StreamId, end: StreamId) -> Iterator[Mark]:
        stream = self.stream
        assert stream is not None
        nodes = stream.nodes()
        walk = NodeWalk(self.txn, stream)
        if not nodes or not walk.seek(*start):
            return
        size, entries = stream.node_bytes() // nodes, stream.record.length // nodes
        if not walk.on_tail:
            cursor = self.txn.cursor(NODES)
            found = cursor.set_range(node_key(stream.number, walk.ms, walk.seq))
            last = node_key(stream.number, *end)
            while found and (db_key := cursor.key()) <= last:
                yield Mark(StreamId(*unpack_node_key(db_key)[1:]), size, entries)
                found = cursor.next()
        if stream.has_tail() and (stream.tail_ms, stream.tail_seq) <= end:
            yield Mark(StreamId(stream.tail_ms, stream.tail_seq), size, entries)

    def _retired_marks(self, start: StreamId, end: StreamId) -> Iterator[Mark]:
        cursor = self.txn.cursor(RETIRED)
        for ms, seq in self._retired_keys(cursor, start, end, None):
            yield Mark(StreamId(ms, seq), _PAGE, 0)

    def _archived_marks(self, start: StreamId, end: StreamId, piece_bytes: int) -> Iterator[Mark]:
        for record in overlapping(self.txn, self.number, start, end):
            if record.raw_bytes <= piece_bytes:
                yield Mark(StreamId(*record.first_id), record.raw_bytes, record.entries)
                continue
            for block in self.files.open(record).index.blocks:
                if block.last_id >= start and block.first_id <= end:
                    yield Mark(StreamId(*block.first_id), block.raw_size, block.entries)

    def size_bytes(self, start: StreamId, end: StreamId) -> int:
        """Return how much there is to read in a range, about."""
        record = None if self.stream is None else self.stream.record
        if self.source == LIVE and self.stream is not None and record is not None:
            ends = (record.first_ms, record.first_seq), (record.last_live_ms, record.last_live_seq)
            if record.length and start <= ends[0] and end >= ends[1]:
                return self.stream.node_bytes()
        return sum(mark.size_bytes for mark in self.marks(start, end, 1 << 62))


def _key_of(found: Found) -> tuple[int, int]:
    return found.ms, found.seq
