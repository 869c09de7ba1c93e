"""The streams of one snapshot that a dump writes, whole or a range of each, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.commands.dump import stream_parts
from streamkeep.engine.commands.history import Unreadable, history_nodes
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.format.redis.stream_parts import Counters, Parts
from streamkeep.transfer.formats import UNNAMED

Entry = tuple[int, int, list[bytes]]  # ms, seq, [field, value, ...]


class Limits(NamedTuple):
    """The entries of each stream that a dump writes.

    Attributes:
        start, end: the first and the last ID, both included.
        most: how many entries of each stream at most; None for all.
        history: also the entries that were trimmed while the stream archived.
    """

    start: StreamId = MIN_ID
    end: StreamId = MAX_ID
    most: int | None = None
    history: bool = False

    @property
    def whole(self) -> bool:
        """Say whether all live entries are written."""
        return self[:3] == Limits()[:3]


class Source:
    """The streams of one snapshot that a dump writes.

    Attributes:
        streams, entries: how many were read so far.
        unnamed: streams of loads that have not ended, which the dump leaves out.
        moved: is called with `entries` after each batch.
    """

    def __init__(
        self, snapshot: Snapshot[Any], keys: Sequence[bytes] | None, limits: Limits
    ) -> None:
        """Choose streams; raise NoSuchKeyError where one of `keys`, each once, is missing."""
        self.txn: Txn = snapshot.txn
        self.keys = keys
        self.limits = limits
        self.streams = 0
        self.entries = 0
        self.unnamed = 0
        self.moved: Callable[[int], None] = lambda entries: None
        for key in self.keys or ():
            existing_stream(self.txn, key)

    def names(self) -> Iterator[bytes]:
        if self.keys is not None:
            yield from self.keys
        else:
            self.unnamed = 0
            for name, _ in iter_keys(self.txn):
                if name.startswith(UNNAMED):
                    self.unnamed += 1
                else:
                    yield name

    def __iter__(self) -> Iterator[Stream]:
        for name in self.names():
            self.streams += 1
            yield existing_stream(self.txn, name)

    def total(self) -> int:
        """Return how many entries there are at most, for the progress."""
        lengths = [existing_stream(self.txn, name).record.length for name in self.names()]
        most = self.limits.most
        return sum(lengths if most is None else (min(one, most) for one in lengths))

    def read(self, stream: Stream) -> Iterator[Entry]:
        left = 1 << 62 if self.limits.most is None else self.limits.most
        for ms, seq, data in self.nodes(stream):
            out: list[Any] = []
            wanted = Range(*self.limits.start, *self.limits.end, left, False, int(PAIRS))
            more = read_range(data, ms, seq, wanted, out)
            self.count(len(out))
            yield from out
            left -= len(out)
            if not more or not left:
                return

    def nodes(self, stream: Stream) -> Iterator[CopiedNode]:
        """Yield the macro nodes that hold these entries."""
        limits = self.limits
        if limits.history:
            try:
                yield from history_nodes(self.txn, stream, limits.start, limits.end)
            except Unreadable as error:
                gone = error.error
                gone.add_note("a segment may have been dropped since the dump began: run it again")
                raise gone from None
            return
        walk = NodeWalk(self.txn, stream)
        found = walk.seek(*limits.start)
        while found and (walk.ms, walk.seq) <= limits.end:
            yield walk.ms, walk.seq, walk.load()
            found = walk.next()

    def parts(self, stream: Stream) -> Parts:
        for part in stream_parts(self.txn, stream):
            if isinstance(part, Counters):  # which come after the nodes
                self.count(part.length)
            yield part

    def count(self, entries: int) -> None:
        self.entries += entries
        self.moved(self.entries)
