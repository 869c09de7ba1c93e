"""The nodes of a stream for Spark: its history, its live entries or its archive, and where to cut.

As in `engine/commands/history`, each node is in exactly one source in any snapshot: live, retired
or in a segment. This module iterates over nodes instead of entries, so that they can be decoded to
columns. It also returns the sizes of ranges, by which the work is distributed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkeep.arrow.columns import CopiedNode, count_entries
from streamkeep.engine.commands import history
from streamkeep.engine.commands.keys import names_from
from streamkeep.engine.tables.manifest import overlapping
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.node.envelope import PAGE_VALUE
from streamkeep.format.node.node import live_ids
from streamkeep.pipeline.options import ARCHIVE, AUTO, LIVE, TAIL
from streamkeep.pipeline.source.slices import Count


class Found(NamedTuple):
    """A node that may hold wanted entries: its key, and a function that returns its listpack.

    `load` is valid until the next node is requested. It returns b"" for a node without visible
    entries.
    """

    ms: int
    seq: int
    load: Callable[[], bytes]


def stream_numbered(txn: Txn, number: int, key: bytes) -> Stream | None:
    """Return the stream with a number; None if it was deleted.

    Args:
        key: that it had when its number was noted; RENAME may have given it another one.
    """
    stream = txn.find_stream(key)
    if stream is not None and stream.number == number:
        return stream
    found = next(names_from(txn, number), None)
    return None if found is None or found[0] != number else txn.load_numbered(*found)


class Tally:
    """Counts the entries in a range, and the nodes that have some of them.

    Nodes come in ascending order, and their ranges never overlap. So all but the first and the last
    one are in the range whole, and their headers have their number of entries.
    """

    def __init__(self, start: StreamId, end: StreamId) -> None:
        self._start = start
        self._end = end
        self._entries = self._nodes = 0
        self._last: CopiedNode | None = None

    def add(self, nodes: list[CopiedNode]) -> None:
        """Add the next nodes; those after the range are left out."""
        if nodes and nodes[-1][:2] > self._end:
            nodes = [one for one in nodes if one[:2] <= self._end]
        if not nodes:
            return
        last = self._last
        whole = nodes[:-1] if last is None else [last, *nodes[:-1]]
        while whole and whole[0][:2] < self._start:
            self._look(whole.pop(0))
        entries, filled = count_entries(whole)
        self._entries += entries
        self._nodes += filled
        self._last = nodes[-1]

    def result(self) -> Count:
        if self._last is not None:
            self._look(self._last)
            self._last = None
        return Count(self._entries, self._nodes)

    def _look(self, node: CopiedNode) -> None:
        """Count a node of which some entries may be outside of the range."""
        ms, seq, data = node
        if data:
            inside = sum(self._start <= one <= self._end for one in live_ids(data, ms, seq))
            self._entries += inside
            self._nodes += inside > 0


_MARKS: Final = 16  # of live nodes for a piece, so that pieces have about the size that is asked


class Mark(NamedTuple):
    """An ID where a read can be cut, and the size of the part that begins there."""

    id: StreamId
    size_bytes: int
    entries: int


class StreamNodes:
    """The nodes of one stream in one snapshot.

    Args:
        stream: None for a deleted stream, of which only segments remain.
        source: what to read: `auto` for everything, `live`, `archive` for segments only, or `tail`
            for everything else.
    """

    def __init__(self, txn: Txn, number: int, stream: Stream | None, source: str) -> None:
        self.txn = txn
        self.number = number
        self.stream = stream
        self.source = source

    # --- nodes ------------------------------------------------------------------------------

    def nodes(self, start: StreamId, end: StreamId, after: StreamId | None) -> Iterator[Found]:
        """Return the nodes that may hold entries from `start` to `end`, ascending.

        Args:
            after: leave out nodes up to this key.

        Raises:
            Unreadable: a segment cannot be read; a newer manifest may no longer name it.
        """
        parts = [_upwards(source, start, end, after) for source in self._sources()]
        return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_key)

    def chunks(
        self, start: StreamId, end: StreamId, after: StreamId | None, size: int
    ) -> Iterator[list[CopiedNode]]:
        """Return copies of the same nodes, about `size` bytes at a time.

        A node without visible entries gives b"".
        """
        sources = [one for one in self._sources() if _begin(one, start, after) and _key(one) <= end]
        return history.copied_nodes(sources, end, size)

    def _sources(self) -> Iterator[history.Source]:
        stream = self.stream
        if stream is not None and stream.record.length and self.source != ARCHIVE:
            kind = history.LiveOnly if self.source == LIVE else history.Live
            yield kind(self.txn, stream)
        if self.source in (AUTO, TAIL):
            yield history.Retired(self.txn, self.number)
        if self.source not in (LIVE, TAIL):
            yield history.Archived(self.txn, self.number, self._files())

    def _files(self) -> SegmentFiles:
        files = self.txn.context.segment_files
        assert isinstance(files, SegmentFiles)
        return files

    # --- sizes ------------------------------------------------------------------------------

    def marks(self, start: StreamId, end: StreamId, piece_bytes: int) -> Iterator[Mark]:
        """Return where a range can be cut into pieces of about `piece_bytes`, ascending."""
        parts: list[Iterator[Mark]] = []
        if self.stream is not None and self.source != ARCHIVE:
            parts.append(self._live_marks(self.stream, start, end, piece_bytes))
        parts += self._other_marks(start, end, piece_bytes)
        return parts[0] if len(parts) == 1 else heapq.merge(*parts)

    def _other_marks(
        self, start: StreamId, end: StreamId, piece_bytes: int
    ) -> Iterator[Iterator[Mark]]:
        """Yield the marks of retired nodes, and those of segments."""
        if self.source in (AUTO, TAIL):
            retired = _upwards(history.Retired(self.txn, self.number), start, end, None)
            yield (Mark(StreamId(one.ms, one.seq), PAGE_VALUE, 0) for one in retired)
        if self.source not in (LIVE, TAIL):
            yield self._archived_marks(start, end, piece_bytes)

    def _live_marks(
        self, stream: Stream, start: StreamId, end: StreamId, piece_bytes: int
    ) -> Iterator[Mark]:
        """Yield the keys of live nodes, without reading the nodes; several nodes to a piece."""
        nodes = stream.nodes()
        walk = NodeWalk(self.txn, stream)
        if not nodes or not walk.seek(*start):
            return
        size, entries = stream.node_bytes() // nodes, stream.record.length // nodes
        together = max(1, piece_bytes // (_MARKS * max(1, size)))
        for ms, seq, count in walk.groups(end, together):
            yield Mark(StreamId(ms, seq), count * size, count * entries)

    def _archived_marks(self, start: StreamId, end: StreamId, piece_bytes: int) -> Iterator[Mark]:
        """Yield the segments of the manifest; large ones are opened and give their blocks."""
        for record in overlapping(self.txn, self.number, start, end):
            if record.raw_bytes <= piece_bytes:
                yield Mark(StreamId(*record.first_id), record.raw_bytes, record.entries)
                continue
            for block in self._files().open(record).index.blocks:
                if block.last_id >= start and block.first_id <= end:
                    yield Mark(StreamId(*block.first_id), block.raw_size, block.entries)

    def count(self, start: StreamId, end: StreamId) -> Count:
        """Return how many entries a read of a range returns, and of how many nodes.

        The driver pays about a microsecond per live node, and nothing for a whole segment.
        """
        entries = nodes = 0
        for source in self._sources():
            if isinstance(source, history.Live):
                found = source.count(start, end)
            elif isinstance(source, history.Retired):
                tally = Tally(start, end)
                for ms, seq, load in _upwards(source, start, end, None):
                    tally.add([(ms, seq, load())])
                found = tally.result()
            else:
                continue
            entries, nodes = entries + found[0], nodes + found[1]
        if self.source in (LIVE, TAIL):
            return Count(entries, nodes)
        for record in overlapping(self.txn, self.number, start, end):
            if start <= record.first_id and record.last_id <= end:
                entries, nodes = entries + record.entries, nodes + record.nodes
                continue
            segment = self._files().open(record)
            for number, block in enumerate(segment.index.blocks):
                if start <= block.first_id and block.last_id <= end:
                    entries, nodes = entries + block.entries, nodes + block.nodes
                elif block.last_id >= start and block.first_id <= end:
                    tally = Tally(start, end)
                    tally.add([(one.ms, one.seq, one.listpack) for one in segment.block(number)])
                    found = tally.result()
                    entries, nodes = entries + found[0], nodes + found[1]
        return Count(entries, nodes)

    def size_bytes(self, start: StreamId, end: StreamId) -> int:
        """Return about how many bytes a read of a range takes."""
        if self.source == ARCHIVE or self.stream is None or not self.stream.record.length:
            return sum(mark.size_bytes for mark in self.marks(start, end, 1 << 62))
        record = self.stream.record
        first = (record.first_ms, record.first_seq)
        if start <= first and end >= (record.last_live_ms, record.last_live_seq):
            live = self.stream.node_bytes()  # of all nodes, known without iterating over them
        else:
            live = sum(
                mark.size_bytes for mark in self._live_marks(self.stream, start, end, 1 << 62)
            )
        others = self._other_marks(start, end, 1 << 62)
        return live + sum(mark.size_bytes for part in others for mark in part)


def _upwards(
    source: history.Source, start: StreamId, end: StreamId, after: StreamId | None
) -> Iterator[Found]:
    found = _begin(source, start, after)
    load = source.load
    while found and (source.ms, source.seq) <= end:
        yield Found(source.ms, source.seq, load)
        found = source.next()


def _begin(source: history.Source, start: StreamId, after: StreamId | None) -> bool:
    """Move to the first node above `after` that may hold entries from `start` on."""
    found = source.seek(*(start if after is None else after))
    while found and after is not None and (source.ms, source.seq) <= after:
        found = source.next()
    return found


def _key(node: history.Source | Found) -> tuple[int, int]:
    return node.ms, node.seq
