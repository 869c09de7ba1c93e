"""Sealed segments: copies of live entries in the object store of an archive.

They let readers elsewhere have all entries of a store although its streams keep theirs. The entries
stay in the store, and nothing in it names a sealed segment: the remote manifest does.

- A run of `seal` copies the entries above those that segments hold already. If the segment before
  is not larger than what it adds, both become one. So a stream has few sealed segments, and each
  entry is rewritten O(log n) times.
- When the entries of a sealed segment were archived, the segments of the archive replace it.
- An erasure rewrites sealed segments, as it does those of the archive. So does a removal of
  archived segments, for those of their entries that sealed ones still have.

Memory is bounded by the nodes of one segment. Snapshots last while these are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from streamkeep.engine.archive.iterate import cut_node, entries_of, has_pieces, nodes_of
from streamkeep.engine.commands.history import history_nodes
from streamkeep.engine.remote.object_store import put_bytes
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.manifest import erased_ids, take_file_number
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MAX_ID, StreamId
from streamkeep.format.core.errors import CorruptionError, MissingSegmentError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import STREAMS, pack_number
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.segment.index import Index
from streamkeep.format.segment.manifest import ARCHIVED, REWRITTEN, SegmentRecord, record_of
from streamkeep.format.segment.remote import (
    SEALED,
    Manifest,
    RemoteSegment,
    RemoteStream,
    Removed,
    outside,
    segment_name,
)
from streamkeep.format.segment.segment import Segment, segment_path
from streamkeep.format.segment.writer import SegmentWriter

_TARGET_BYTES: Final = 32 << 20  # of nodes in one sealed segment


class SealedSegments:
    """The sealed segments of a store during one publication.

    Attributes:
        segments: those that the next manifest will name.
        written: the number of segments that were written.
        new_entries: the number of entries in them that no segment had before.
    """

    def __init__(
        self,
        environment: Environment,
        remote: RemoteArchive,
        before: Manifest,
        archived: list[SegmentRecord],
    ) -> None:
        self._environment = environment
        self._remote = remote
        self._archived = _by_stream(archived)
        self._before = _by_stream(one.record for one in before.segments if not one.sealed)
        self.segments = [one for one in before.segments if one.sealed]
        self.written = 0
        self.new_entries = 0

    # --- those that are there ---------------------------------------------------------------

    def leave_out_removed(self, removed: Iterable[SegmentRecord], noted: Sequence[Removed]) -> None:
        """Rewrite the segments that hold entries which were removed.

        Args:
            removed: archived segments, which the last manifest may not have named; those that the
                archive still has are passed over.
            noted: ranges of IDs that left the store.
        """
        also = _by_stream(removed)
        kept = []
        for one in self.segments:
            record, number = one.record, one.record.stream_number
            now = _within(self._archived, record)
            paths = {each.path for each in now}
            parts = [(each.first, each.last) for each in noted if each.number == number]
            for gone in [*_within(self._before, record), *_within(also, record)]:
                if gone.path not in paths:
                    there = _within(self._archived, gone)
                    ranges = [(each.first_id, each.last_id) for each in there]
                    parts += outside(gone.first_id, gone.last_id, ranges)
            left = list(outside(record.first_id, record.last_id, sorted(parts)))
            if left == [(record.first_id, record.last_id)]:
                kept.append(one)
            elif (segment := self._open(record)) is not None:
                nodes = [node for low, high in left for node in nodes_of(segment, low, high)]
                if nodes:
                    kept.append(
                        self._write(number, record.key, nodes, record.origin, record.erased)
                    )
        self.segments = kept

    def drop_covered(self, missing: Collection[SegmentRecord]) -> None:
        """Drop the segments whose entries all were archived, or deleted.

        An entry within the range of an archived segment, which lacks it, was deleted before it was
        archived. But above all deleted ones, it was trimmed while its stream did not archive, and
        nothing else has it.

        Args:
            missing: archived segments that are nowhere.
        """
        self.segments = [one for one in self.segments if not self._is_covered(one.record, missing)]

    def _is_covered(self, record: SegmentRecord, missing: Collection[SegmentRecord]) -> bool:
        archived = [one for one in _within(self._archived, record) if one not in missing]
        ranges = [(one.first_id, one.last_id) for one in archived]
        if not ranges or ranges[-1][1] < record.last_id or ranges[0][0] > record.first_id:
            return False
        if {one.path for one in archived} == {one.path for one in _within(self._before, record)}:
            return False  # it was looked at then, and kept
        deleted = self._environment.read(_highest_deleted, record.stream_number)
        if len(ranges) == 1 and record.last_id <= deleted:
            return True
        segment = self._open(record)
        if segment is None:
            return next(outside(record.first_id, record.last_id, ranges), None) is None
        try:
            return self._have_all(archived, ranges, segment, deleted)
        except CorruptionError:  # of the copy that would stay, perhaps
            return False

    def _have_all(
        self,
        archived: list[SegmentRecord],
        ranges: list[tuple[StreamId, StreamId]],
        segment: Segment,
        deleted: Id,
    ) -> bool:
        """Return whether archived segments have the entries of a sealed one, but for deleted ones.

        Args:
            ranges: those of the archived segments.
            deleted: the highest ID that was deleted.
        """
        trailer = segment.trailer
        first, last = trailer.first_id, trailer.last_id
        erased = self._environment.read(erased_ids, segment.index.stream_number, first, last)
        held = (
            one
            for each in archived
            for one in _ids_of(self._environment.segments.open(each), max(first, deleted))
        )
        there = next(held, None)
        for block in range(len(segment.index.blocks)):
            ends = segment.index.blocks[block]
            in_one = _range_of(ranges, ends.first_id) == _range_of(ranges, ends.last_id) is not None
            if in_one and ends.last_id <= deleted:
                continue
            for one in _ids_in(segment, block):
                if _range_of(ranges, one) is None:
                    return False
                while there is not None and there < one:
                    there = next(held, None)
                if one > deleted and one != there and one not in erased:
                    return False
        return True

    def _open(self, record: SegmentRecord) -> Segment | None:
        """Open a sealed segment; None if its object is lost, so that no entry is in it."""
        try:
            return self._remote.open(record, sealed=True)
        except MissingSegmentError:
            return None

    def leave_out_erased(self) -> None:
        """Rewrite the segments that hold erased entries, without these."""
        kept = []
        for one in self.segments:
            record = one.record
            number, first, last = record.stream_number, record.first_id, record.last_id
            ids = sorted(self._environment.read(erased_ids, number, first, last))
            segment = self._open(record) if ids else None
            if segment is None or not has_pieces(segment, ids):
                kept.append(one)
                continue
            nodes = list(nodes_of(segment, without=ids))
            if nodes:
                erased = record.erased + len(ids)
                number, key = record.stream_number, record.key
                kept.append(self._write(number, key, nodes, REWRITTEN, erased))
        self.segments = kept

    # --- new ones ---------------------------------------------------------------------------

    def seal(self, streams: dict[int, RemoteStream]) -> dict[int, RemoteStream]:
        """Copy the entries that no segment has; return the streams with what is complete now."""
        found = dict(streams)
        for number, stream in streams.items():
            if stream.exists and stream.complete_to < MAX_ID:
                complete = self._seal_stream(stream)
                found[number] = stream._replace(complete_to=max(stream.complete_to, complete))
        return found

    def seal_again(
        self, streams: Mapping[int, RemoteStream], missing: Collection[SegmentRecord]
    ) -> list[SegmentRecord]:
        """Replace the segments whose objects are lost by what the store still has of them.

        Args:
            missing: archived segments that are nowhere.

        Returns:
            those of which it has fewer entries; the others may have been deleted.
        """
        objects = self._remote.objects
        listed = set(objects.names(self._remote.name(SEALED))) if self.segments else set()
        lost = [
            one
            for one in self.segments
            if (name := self._remote.name(one.name)) not in listed  # a listing may be old
            and objects.size(name) != one.record.size_bytes
        ]
        self.segments = [one for one in self.segments if one not in lost]
        short = []
        for record in (one.record for one in lost):
            start, last = record.first_id, record.last_id
            count = sum(
                last >= one >= start
                for each in _within(self._archived, record)
                if each not in missing
                for one in _ids_of(self._environment.segments.open(each), start)
            )
            stream = streams.get(record.stream_number)
            more = stream is not None and stream.exists
            while more:
                assert stream is not None
                nodes, end, more = self._environment.read(self._nodes_from, stream, start, last)
                if nodes:
                    again = self._write(stream.number, stream.key, nodes, ARCHIVED, 0)
                    self.segments.append(again)
                    count += again.record.entries
                start = end.next()
            if count < record.entries:
                short.append(record)
        return short

    def _seal_stream(self, stream: RemoteStream) -> StreamId:
        """Copy the entries of a stream above what is complete; return what is complete now."""
        start = stream.complete_to.next()
        while True:
            nodes, end, more = self._environment.read(self._nodes_from, stream, start, MAX_ID)
            if nodes:
                found = [decode_envelope(node, "node") for node in nodes]
                count = sum(int(end_ids(one.listpack, one.ms, one.seq).live) for one in found)
                size = sum(map(len, nodes))
                first: Id = (found[0].ms, found[0].seq)
                while (
                    (last := self._last_of(stream.number)) is not None
                    and last.record.last_id < first
                    and last.record.raw_bytes <= size
                    and last.record.raw_bytes + size <= _TARGET_BYTES
                ):
                    size, first = size + last.record.raw_bytes, last.record.first_id
                    before = self._remote.open(last.record, sealed=True)
                    nodes = [*nodes_of(before), *nodes]
                    self.segments.remove(last)
                self.segments.append(self._write(stream.number, stream.key, nodes, ARCHIVED, 0))
                self.new_entries += count
            if not more:
                return end
            start = end.next()

    def _nodes_from(
        self, txn: Txn, stream: RemoteStream, start: StreamId, last: StreamId
    ) -> tuple[list[bytes], StreamId, bool]:
        """Return nodes of a range as envelopes, the ID they reach, and whether more follow.

        A range that the archive holds, in the middle of live entries, is left out.
        """
        current = txn.find_stream(stream.key)
        if current is None or current.number != stream.number:
            return [], start.previous(), False
        reached = max(StreamId(*current.record.last_id()), start.previous())
        ranges: list[tuple[Id, Id]] = [
            (one.first_id, one.last_id) for one in self._archived.get(stream.number, ())
        ]
        nodes: list[bytes] = []
        size = 0
        for ms, seq, data in history_nodes(txn, current, start, last):
            ids = end_ids(data, ms, seq)
            if ids.last_live < start or _range_of(ranges, ids.first_live) is not None:
                continue
            if size >= _TARGET_BYTES:
                return nodes, StreamId(ms, seq).previous(), True
            parts = [(ms, seq, data)]
            # A node may have the field names of an entry that is gone, whose ID is its key.
            if not start <= (ms, seq) == ids.first_live or ids.last_live > last:
                parts = cut_node(ms, seq, data, start, last, set())
            for part_ms, part_seq, part in parts:
                nodes.append(
                    encode_envelope(
                        stream.number, part_ms, part_seq, txn.context.epoch, 0, b"", part, b""
                    )
                )
                size += len(part)
        return nodes, reached, False

    def _last_of(self, number: int) -> RemoteSegment | None:
        """Return the last sealed segment of a stream, if nothing archived is above it."""
        mine = [one for one in self.segments if one.record.stream_number == number]
        last = max(mine, key=lambda one: one.record.last_id, default=None)
        archived = self._archived.get(number)
        if last is None or (archived and archived[-1].last_id > last.record.first_id):
            return None
        return last

    def _write(
        self, number: int, key: bytes, nodes: list[bytes], origin: int, erased: int
    ) -> RemoteSegment:
        """Write a sealed segment, and read it back.

        Raises:
            CorruptionError: reading it back shows something else.
        """
        environment = self._environment
        file_number = environment.write(take_file_number, frees=True)
        epoch = environment.context.epoch
        writer = SegmentWriter(
            Index(environment.uuid.bytes, number, key, []),
            created_ms=environment.context.clock.now_ms(),
            epoch=epoch,
            file_number=file_number,
        )
        where = f"sealed segment of stream {number}"
        data = b"".join(writer.add(node, where) for node in nodes) + writer.finish()
        assert writer.first_id is not None
        assert writer.last_id is not None
        path = segment_path(number, key, writer.first_id, writer.last_id, epoch, file_number)
        name = self._remote.name(segment_name(path, sealed=True))
        put_bytes(self._remote.objects, name, data)
        failpoints.hit("publish:sealed")
        written = Segment.open(lambda at, size: data[at : at + size], len(data), where)
        record = record_of(written, path, origin)._replace(erased=erased)
        self._remote.verify(record, sealed=True)
        self.written += 1
        return RemoteSegment(record, True)


def _range_of(ranges: Sequence[tuple[Id, Id]], one: Id) -> int | None:
    """Return which range, of sorted ones that do not overlap, holds an ID; None if none does."""
    at = bisect_right(ranges, one, key=lambda range_: range_[0]) - 1
    return at if at >= 0 and one <= ranges[at][1] else None


def _by_stream(records: Iterable[SegmentRecord]) -> dict[int, list[SegmentRecord]]:
    found: dict[int, list[SegmentRecord]] = {}
    for record in sorted(records):
        found.setdefault(record.stream_number, []).append(record)
    return found


def _within(
    segments: Mapping[int, list[SegmentRecord]], record: SegmentRecord
) -> list[SegmentRecord]:
    """Return those of the stream of a segment whose ranges touch its range.

    Args:
        segments: of each stream, ascending and without overlaps.
    """
    mine = segments.get(record.stream_number, [])
    start = bisect_left(mine, record.first_id, key=lambda one: one.last_id)
    end = bisect_right(mine, record.last_id, key=lambda one: one.first_id)
    return mine[start:end]


def _highest_deleted(txn: Txn, number: int) -> Id:
    """Return the highest ID that was deleted from a stream; of a stream that is gone, any."""
    if txn.get(STREAMS, pack_number(number)) is None:
        return MAX_ID
    return txn.load_numbered(number, b"").record.max_deleted_id()


def _ids_of(segment: Segment, start: Id) -> Iterator[Id]:
    for block in range(segment.seek(*start), len(segment.index.blocks)):
        yield from _ids_in(segment, block)


def _ids_in(segment: Segment, block: int) -> Iterator[Id]:
    for node in segment.block(block):
        for ms, seq, _ in entries_of(node.ms, node.seq, node.listpack):
            yield ms, seq
