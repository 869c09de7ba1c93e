"""What is dumped: streams of one snapshot, whole or a range of each, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.commands.dump import stream_parts
from streamkeep.engine.commands.history import Unreadable, history_nodes
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.model.existing import existing_stream
from streamkeep.engine.model.node_walk import NodeWalk
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node.node import PAIRS, Range, read_range
from streamkeep.format.redis.stream_parts import Part, Parts
from streamkeep.recovery.load import PREFIX
from streamkeep.tools.base.command import Exit, Failure

Entry = tuple[int, int, list[bytes]]  # ms, seq, [field, value, ...]


class Limits(NamedTuple):
    """Which entries of each stream are dumped; both ends are included."""

    start: StreamId = MIN_ID
    end: StreamId = MAX_ID
    most: int | None = None
    history: bool = False  # also what was trimmed while the stream archived

    @property
    def whole(self) -> bool:
        """Say whether all entries are."""
        return self[:3] == Limits()[:3]


class Source:
    """The streams of one snapshot that are dumped; `moved` is told of each batch of entries."""

    def __init__(self, snapshot: Snapshot[Any], key: bytes | None, limits: Limits) -> None:
        self.txn: Txn = snapshot.txn
        self.key = key
        self.limits = limits
        self.streams = 0
        self.entries = 0
        self.unnamed = 0  # streams that a load has not given a name yet, and are left out
        self.moved: Callable[[int], None] = lambda entries: None
        if key is not None:
            existing_stream(self.txn, key)

    def names(self) -> Iterator[bytes]:
        """Yield the keys."""
        if self.key is not None:
            yield self.key
        else:
            self.unnamed = 0
            for name, _ in iter_keys(self.txn):
                if name.startswith(PREFIX):
                    self.unnamed += 1
                else:
                    yield name

    def __iter__(self) -> Iterator[Stream]:
        for name in self.names():
            self.streams += 1
            yield existing_stream(self.txn, name)

    def total(self) -> int:
        """Return how many entries there are at most, for the progress bar."""
        total = sum(existing_stream(self.txn, name).record.length for name in self.names())
        return total if self.limits.most is None else min(total, self.limits.most)

    def read(self, stream: Stream) -> Iterator[Entry]:
        """Yield the entries of a stream that are wanted."""
        left = 1 << 62 if self.limits.most is None else self.limits.most
        for ms, seq, data, _ in self.nodes(stream):
            out: list[Any] = []
            wanted = Range(*self.limits.start, *self.limits.end, left, False, int(PAIRS))
            more = read_range(data, ms, seq, wanted, out)
            self._moved(len(out))
            yield from out
            left -= len(out)
            if not more or not left:
                return

    def nodes(self, stream: Stream) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield macro nodes with entries that are wanted: ms, seq, listpack, no bitmap."""
        limits = self.limits
        if limits.history:
            try:
                for ms, seq, data in history_nodes(self.txn, stream, limits.start, limits.end):
                    yield ms, seq, data, b""
            except Unreadable as error:
                hint = "run it again: a segment that was dropped meanwhile is no damage"
                raise Failure(str(error), hint=hint, status=Exit.DAMAGED) from error
            return
        walk = NodeWalk(self.txn, stream)
        found = walk.seek(*limits.start)
        while found and (walk.ms, walk.seq) <= limits.end:
            yield walk.ms, walk.seq, walk.load(), b""
            found = walk.next()

    def parts(self, stream: Stream) -> Parts:
        """Yield the parts of a whole stream."""
        for part in stream_parts(self.txn, stream):
            self._note(part)
            yield part

    def _note(self, part: Part) -> None:
        ids = getattr(part, "length", None)  # of the counters, which come behind the nodes
        if ids is not None:
            self._moved(ids)

    def _moved(self, entries: int) -> None:
        self.entries += entries
        self.moved(self.entries)

    def count_rows(self, entries: int) -> None:
        """Note entries that were read from `nodes`."""
        self._moved(entries)
