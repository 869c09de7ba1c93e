"""What is dumped: streams of one snapshot, whole or a range of each, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from streamkeep.engine.api import Snapshot
from streamkeep.engine.export import stream_parts
from streamkeep.engine.info import find_existing
from streamkeep.engine.keyspace import iter_keys
from streamkeep.engine.nodes import NodeWalk
from streamkeep.engine.scan import read_entries
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node import PAIRS, Range
from streamkeep.format.stream_parts import Part, Parts
from streamkeep.recovery.load import PREFIX

_BATCH: Final = 256
Entry = tuple[int, int, list[bytes]]  # ms, seq, [field, value, ...]


class Limits(NamedTuple):
    """Which entries of each stream are dumped; both ends are included."""

    start: StreamId = MIN_ID
    end: StreamId = MAX_ID
    most: int | None = None

    @property
    def whole(self) -> bool:
        """Say whether all entries are."""
        return self == Limits()


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
            find_existing(self.txn, key)

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
            yield find_existing(self.txn, name)

    def total(self) -> int:
        """Return how many entries there are at most, for the progress bar."""
        total = sum(find_existing(self.txn, name).record.length for name in self.names())
        return total if self.limits.most is None else min(total, self.limits.most)

    def read(self, stream: Stream) -> Iterator[Entry]:
        """Yield the entries of a stream that are wanted."""
        start, left = self.limits.start, self.limits.most
        while left is None or left > 0:
            most = _BATCH if left is None else min(_BATCH, left)
            out: list[Any] = []
            wanted = Range(*start, *self.limits.end, most, False, int(PAIRS))
            if stream.record.length and start <= self.limits.end:
                read_entries(self.txn, stream, wanted, out)
            if not out:
                return
            self._moved(len(out))
            yield from out
            last = StreamId(out[-1][0], out[-1][1])
            if last == MAX_ID:
                return
            start = last.next()
            left = None if left is None else left - len(out)

    def nodes(self, stream: Stream) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield macro nodes with entries that are wanted: ms, seq, listpack, no bitmap."""
        walk = NodeWalk(self.txn, stream)
        found = walk.seek(*self.limits.start)
        while found and (walk.ms, walk.seq) <= self.limits.end:
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
