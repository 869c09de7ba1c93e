"""History: segments, retired nodes and live nodes of a stream as one ordered view.

All three places hold macro nodes, and the ranges of the nodes of a stream never overlap. So history
is read node by node in the order of keys, each node from its place; `tombstones.history_form`
returns the part of a node that history shows.

One snapshot says where each node is. Trims, archiving and erasures while it is open do not change
that, but may remove a file. The read then raises `Unreadable`. A caller that can take a newer
snapshot looks at the newest manifest: if it no longer names the file, the read begins again;
otherwise the file is really missing.

Finding a range takes one search in each of the three places, and one in the index of a segment.
Memory is bounded by one block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.commands.reply_budget import Entries
from streamkeep.engine.tables.manifest import find_segment, is_named, segments_from
from streamkeep.engine.tables.node_walk import NODE_OVERHEAD, NodeWalk
from streamkeep.engine.tables.scan import Row, neighbours
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id, next_id, previous_id
from streamkeep.format.core.keys import (
    ERASURES,
    NODES,
    RETIRED,
    node_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import Segment

_NOWHERE: Final = (MAX, MAX)


class Unreadable(Exception):
    """A segment in the manifest of the snapshot cannot be read; it may have been removed since."""

    def __init__(self, record: SegmentRecord, error: CorruptionError) -> None:
        super().__init__(str(error))
        self.record = record
        self.error = error

    def still_named(self, txn: Txn) -> bool:
        """Return whether a newer manifest also names the file."""
        return is_named(txn, self.record)


class Source:
    """One of the places that hold nodes of a stream: a position among its nodes.

    `ms-seq` is the key of the node at the position, while there is one.

    Attributes:
        origin: the UUID of the store that wrote the node, and the number of the stream there; None
            for the node of a stream of this store.
    """

    origin: tuple[bytes, int] | None = None

    def __init__(self) -> None:
        self.ms = 0
        self.seq = 0

    def seek(self, ms: int, seq: int) -> bool:
        """Go to the last node that begins at `ms-seq` or before, or to the first one after it."""
        raise NotImplementedError

    def at_or_below(self, ms: int, seq: int) -> bool:
        """Go to the last node that begins at `ms-seq` or before."""
        raise NotImplementedError

    def next(self) -> bool:
        """Go to the next newer node."""
        raise NotImplementedError

    def previous(self) -> bool:
        """Go to the next older node."""
        raise NotImplementedError

    def load(self) -> bytes:
        """Return the listpack of the node as history shows it; b"" if it shows nothing."""
        raise NotImplementedError

    def raw(self) -> bytes:
        """Return the listpack of the node as it is stored."""
        return self.load()

    def copy(self, end: Id, enough: int) -> tuple[list[CopiedNode], bool]:
        """Return this node and the following ones with keys up to `end`, and go to the next one.

        Args:
            enough: bytes after which it stops.

        Returns:
            the nodes, those that show nothing as b""; and whether there is a next node.
        """
        nodes: list[CopiedNode] = []
        size = 0
        more = True
        while more and size < enough and (self.ms, self.seq) <= end:
            data = self.load()
            nodes.append((self.ms, self.seq, data))
            size += len(data) + NODE_OVERHEAD
            more = self.next()
        return nodes, more


class Live(Source):
    """The live nodes."""

    with_trimmed = True  # their trimmed entries are shown

    def __init__(self, txn: Txn, stream: Stream) -> None:
        super().__init__()
        self._walk = NodeWalk(txn, stream)

    def seek(self, ms: int, seq: int) -> bool:
        return self._take(self._walk.seek(ms, seq))

    def at_or_below(self, ms: int, seq: int) -> bool:
        return self._take(self._walk.seek(ms, seq)) and (self.ms, self.seq) <= (ms, seq)

    def next(self) -> bool:
        return self._take(self._walk.next())

    def previous(self) -> bool:
        return self._take(self._walk.previous())

    def load(self) -> bytes:
        walk = self._walk
        data = walk.load()
        if self.with_trimmed:
            return history_form(data, walk.ms, walk.seq, walk.trimmed)
        return data

    def raw(self) -> bytes:
        return self._walk.load()

    def copy(self, end: Id, enough: int) -> tuple[list[CopiedNode], bool]:
        # Most nodes of most reads are these, so their loop is compiled.
        nodes = self._walk.copy(*end, enough, self.with_trimmed)
        return nodes, self._take(self._walk.more)

    def count(self, start: Id, end: Id) -> tuple[int, int]:
        """Return how many entries of a range are here, and in how many nodes."""
        return self._walk.count(start, end, self.with_trimmed)

    def _take(self, found: bool) -> bool:
        self.ms, self.seq = self._walk.ms, self._walk.seq
        return found


class LiveOnly(Live):
    """The live nodes, without the entries that were trimmed from them."""

    with_trimmed = False


class Retired(Source):
    """The retired nodes."""

    def __init__(self, txn: Txn, number: int) -> None:
        super().__init__()
        self._txn = txn
        self._number = number
        self._value = b""

    def seek(self, ms: int, seq: int) -> bool:
        return self.at_or_below(ms, seq) or self._from(ms, seq)

    def at_or_below(self, ms: int, seq: int) -> bool:
        return self._take(self._neighbours(node_key(self._number, ms, seq) + b"\0")[0])

    def next(self) -> bool:
        after = next_id(self.ms, self.seq)
        return after > (self.ms, self.seq) and self._from(*after)

    def previous(self) -> bool:
        return self._take(self._neighbours(node_key(self._number, self.ms, self.seq))[0])

    def load(self) -> bytes:
        found = self.envelope()
        return history_form(found.listpack, found.ms, found.seq, found.trimmed)

    def raw(self) -> bytes:
        return self.envelope().listpack

    def envelope(self) -> Envelope:
        where = f"retired node {self.ms}-{self.seq} of stream {self._number}"
        found = decode_envelope(self._value, where)
        if (found.number, found.ms, found.seq) != (self._number, self.ms, self.seq):
            place = f"{found.ms}-{found.seq} of stream {found.number}"
            raise CorruptionError(where, f"the envelope is of node {place}")
        return found

    def _from(self, ms: int, seq: int) -> bool:
        """Go to the first node that begins at `ms-seq` or after it."""
        # 0-0 is the row with the name of a deleted stream.
        after = node_key(self._number, *max((ms, seq), (0, 1)))
        return self._take(self._neighbours(after)[1])

    def _neighbours(self, db_key: bytes) -> tuple[Row | None, Row | None]:
        rows = neighbours(self._txn, RETIRED, db_key)
        for row in rows:  # a page of `nodes` would look like one of `retired`
            if row is not None and self._txn.get(NODES, row[0]) is not None:
                raise CorruptionError(f"row {row[0].hex()} of retired", "it is in `nodes` as well")
        return rows

    def _take(self, row: Row | None) -> bool:
        if row is None:
            return False
        number, ms, seq = unpack_node_key(row[0])
        if number != self._number or is_former_name(ms, seq):
            return False
        self.ms, self.seq, self._value = ms, seq, row[1]
        return True


class Archived(Source):
    """The nodes in segments, a block at a time."""

    def __init__(self, txn: Txn, number: int, segments: SegmentFiles) -> None:
        super().__init__()
        self._txn = txn
        self._number = number
        self._files = segments
        self._record: SegmentRecord | None = None
        self._segment: Segment | None = None
        self._block = 0
        self._nodes: list[Envelope] = []
        self._index = 0

    def seek(self, ms: int, seq: int) -> bool:
        record = find_segment(self._txn, self._number, ms, seq)
        if record is None or record.last_id < (ms, seq):
            return self._open_after(ms, seq)
        segment = self._open(record)
        self._read(segment, segment.seek(ms, seq))
        return self._stand(max(0, self._before(ms, seq)))

    def at_or_below(self, ms: int, seq: int) -> bool:
        record = find_segment(self._txn, self._number, ms, seq)
        if record is None:
            return False
        segment = self._open(record)
        self._read(segment, segment.seek_last(ms, seq))
        return self._stand(max(0, self._before(ms, seq)))

    def next(self) -> bool:
        segment, record = self._segment, self._record
        if segment is None or record is None:
            return False
        if self._index + 1 < len(self._nodes):
            return self._stand(self._index + 1)
        if self._block + 1 < len(segment.index.blocks):
            self._read(segment, self._block + 1)
            return self._stand(0)
        after = next_id(*record.last_id)
        return after > record.last_id and self._open_after(*after)

    def previous(self) -> bool:
        segment, record = self._segment, self._record
        if segment is None or record is None:
            return False
        if self._index > 0:
            return self._stand(self._index - 1)
        if self._block > 0:
            self._read(segment, self._block - 1)
            return self._stand(len(self._nodes) - 1)
        if record.first_id == (0, 0):
            return False
        before = find_segment(self._txn, self._number, *previous_id(*record.first_id))
        if before is None:
            return False
        segment = self._open(before)
        self._read(segment, len(segment.index.blocks) - 1)
        return self._stand(len(self._nodes) - 1)

    def load(self) -> bytes:
        return self._nodes[self._index].listpack

    def _open_after(self, ms: int, seq: int) -> bool:
        """Go to the first node of the first segment that begins at `ms-seq` or after it."""
        record = next(segments_from(self._txn, self._number, ms, seq), None)
        if record is None:
            return False
        self._read(self._open(record), 0)
        return self._stand(0)

    def _open(self, record: SegmentRecord) -> Segment:
        self._record = record
        try:
            segment = self._segment = self._files.open(record)
        except CorruptionError as error:
            raise Unreadable(record, error) from error
        self.origin = segment.index.store_uuid, segment.index.stream_number
        return segment

    def _read(self, segment: Segment, block: int) -> None:
        self._block = block
        try:
            self._nodes = segment.block(block)
        except CorruptionError as error:
            assert self._record is not None
            raise Unreadable(self._record, error) from error

    def _before(self, ms: int, seq: int) -> int:
        """Return the index of the last node of the block with a key not above `ms-seq`."""
        return bisect_right(self._nodes, (ms, seq), key=lambda node: (node.ms, node.seq)) - 1

    def _stand(self, index: int) -> bool:
        self._index = index
        node = self._nodes[index]
        self.ms, self.seq = node.ms, node.seq
        return True


# --- reading ------------------------------------------------------------------------------------


def read_history(txn: Txn, stream: Stream, wanted: Range, out: list[object]) -> None:
    """Append to `out` the entries of a stream's history that are `wanted`, in its order.

    Raises:
        Unreadable: see the module.
    """
    sources = _sources(txn, stream)
    if not wanted.newest_first:
        for source in ascending(sources, wanted.start(), wanted.end()):
            data = source.load()  # the few nodes before the range show nothing of it
            if data and not read_range(data, source.ms, source.seq, wanted, out):
                return
        return
    left = [source for source in sources if source.at_or_below(*wanted.end())]
    while left:  # until a node begins before the range
        source = max(left, key=_key)
        data = source.load()
        if data and not read_range(data, source.ms, source.seq, wanted, out):
            return
        if not source.previous():
            left.remove(source)


def history_nodes(txn: Txn, stream: Stream, start: Id, end: Id) -> Iterator[tuple[int, int, bytes]]:
    """Yield the nodes of a stream's history that may have IDs from `start` to `end`: key, listpack.

    Raises:
        Unreadable: see the module.
    """
    for source in ascending(_sources(txn, stream), start, end):
        data = source.load()
        if data:
            yield source.ms, source.seq, data


def ascending(sources: list[Source], start: Id, end: Id) -> Iterator[Source]:
    """Yield the source of each node that may have IDs from `start` to `end`, in their order."""
    left = _begun(sources, start)
    while left:
        source = min(left, key=_key)
        if _key(source) > end:
            return
        yield source
        if not source.next():
            left.remove(source)


def _begun(sources: list[Source], start: Id) -> list[Source]:
    """Go to the first node of each source that may have IDs from `start` on; leave out the others.

    Of the nodes that begin before `start` only the last one can, since nodes never overlap. Without
    that, a read in steps might read another one again in each step, and come to nothing else.
    """
    found = [source for source in sources if source.seek(*start)]
    first = max((_key(source) for source in found if _key(source) <= start), default=start)
    return [source for source in found if _key(source) >= first or source.next()]


def copied_nodes(sources: list[Source], end: Id, size: int) -> Iterator[list[CopiedNode]]:
    """Yield copies of the nodes of sources up to `end`, ascending, about `size` bytes at a time.

    Args:
        sources: each at its first node. A source is removed from the list when it has no more.
    """
    # Each source is read up to the next node of another one. Merging them node by node would
    # take longer than copying the nodes.
    while sources:
        sources.sort(key=_key)
        first = sources[0]
        last = end
        if len(sources) > 1 and _key(sources[1]) > _key(first):  # true in every sound store
            last = min(end, previous_id(*_key(sources[1])))
        nodes, more = first.copy(last, size)
        if not more or _key(first) > end:
            sources.remove(first)
        yield nodes


def copy_range(
    txn: Txn, name: bytes, start: Id, end: Id, size: int, whole_history: bool
) -> tuple[list[CopiedNode], Id | None]:
    """Return copies of the nodes of a stream that may hold IDs from `start` to `end`, ascending.

    Args:
        size: bytes after which it stops.

    Returns:
        the nodes, and the ID where the next call continues; None at the end of the range. Nodes of
        the next call may again hold entries below that ID.

    Raises:
        Unreadable: see the module.
    """
    stream = txn.find_stream(name)
    if stream is None:
        return [], None
    every: list[Source] = [LiveOnly(txn, stream)]
    if whole_history:
        every = _sources(txn, stream)
    left = [source for source in _begun(every, start) if _key(source) <= end]
    copied: list[CopiedNode] = []
    room = size
    for nodes in copied_nodes(left, end, size):
        copied += [node for node in nodes if node[2]]
        room -= sum(len(node[2]) + NODE_OVERHEAD for node in nodes)
        if room <= 0:
            break
    following = min((_key(source) for source in left), default=_NOWHERE)
    return copied, following if left and following <= end else None


def _sources(txn: Txn, stream: Stream) -> list[Source]:
    sources: list[Source] = [Retired(txn, stream.number)]
    if stream.record.length:
        sources.append(Live(txn, stream))
    return sources + archived_of(txn, stream.number)


def archived_of(txn: Txn, number: int) -> list[Source]:
    """Return the place that holds archived nodes of a stream, if it has any."""
    files = txn.context.segment_files
    return [Archived(txn, number, files)] if isinstance(files, SegmentFiles) else []


def _key(source: Source) -> Id:
    return source.ms, source.seq


def xrange(txn: Txn, name: bytes, wanted: Range) -> Entries:
    """Return the entries of the history of the stream `name`; [] when it is missing."""
    out: Entries = []
    stream = txn.find_stream(name)
    if stream is not None:
        read_history(txn, stream, wanted, out)
    return out


def last_archived(txn: Txn, stream: Stream) -> Id:
    """Return an ID that no entry of a stream's history, or erased one, is above; 0-0 for none."""
    highest, number = (0, 0), stream.number
    live = Live(txn, stream)
    if live.at_or_below(*_NOWHERE) and (data := live.load()):  # with trimmed slots
        highest = end_ids(data, live.ms, live.seq).last_live
    erased, _ = neighbours(txn, ERASURES, node_key(number, MAX, MAX) + b"\0")
    if erased is not None and erased[0].startswith(pack_number(number)):
        highest = max(highest, unpack_node_key(erased[0])[1:])
    record = find_segment(txn, number, *_NOWHERE)
    if record is not None:
        highest = max(highest, record.last_id)
    retired = Retired(txn, number)
    if retired.at_or_below(*_NOWHERE):
        # Trimmed or not, no entry may get an ID below the last slot of the row again.
        value = txn.get(RETIRED, node_key(number, retired.ms, retired.seq))
        assert value is not None
        node = decode_envelope(value, "retired node")
        highest = max(highest, end_ids(node.listpack, node.ms, node.seq).last_slot)
    return highest
