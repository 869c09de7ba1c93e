"""Where a group goes on reading: the node of its last delivery, kept decoded between calls.

Consumers that take few entries at a time read the same node again and again. To find it, check it
and step over what was read before cost more than everything else in a delivery. So a group keeps
a cursor behind the last entry that it delivered. The cursor is good as long as

- the group reads on from there, or from further on, where other processes read for it, too;
- and the node is what it was up to there. A sealed node is, as long as the stream is the object
  that it was, and no sealed node was changed (`Stream.sealed_changes`). A tail grows with each
  append, and becomes a sealed node at some time, and another process may have changed either:
  then the bytes up to the cursor are compared.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.model.node_walk import NodeWalk
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.node.node import Range, SlotCursor, read_header, read_slots, resume_cursor

_LARGEST_NODE: Final = 1 << 16  # that is kept in memory for each group

Id = tuple[int, int]


class ReadCursor:
    """A cursor behind the last entry that a group delivered."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._changes = 0
        self._cursor: SlotCursor | None = None
        self._sealed = False
        self._ms = 0  # key of the node
        self._seq = 0
        self._after: Id = (0, 0)

    def read(self, txn: Txn, stream: Stream, after: Id, wanted: Range, out: list[object]) -> None:
        """Append to `out` the entries that are `wanted`, all of them above `after`.

        `wanted.ids` gets their IDs.
        """
        former = self._cursor
        cursor = self._find(stream, after)
        self._cursor = None  # should a damaged node end this in the middle
        walk: NodeWalk | None = None
        if cursor is None:
            walk = NodeWalk(txn, stream)
            if not walk.seek(*wanted.start()):
                return
            cursor = self._enter(stream, walk, former if after >= self._after else None)
        while read_slots(cursor, wanted, out):
            if not self._sealed:
                break
            if walk is None:
                walk = NodeWalk(txn, stream)
                if not self._leave(walk, wanted):
                    break
            elif not walk.next():
                break
            cursor = self._enter(stream, walk, None)
        ids = wanted.ids
        self._after = ids[-1] if ids else after
        self._cursor = cursor if len(cursor.data) <= _LARGEST_NODE else None

    def _leave(self, walk: NodeWalk, wanted: Range) -> bool:
        """Go to the node behind the one that was kept: the next, or far away (XGROUP SETID)."""
        if wanted.ids:
            return walk.above(self._ms, self._seq)
        found = walk.seek(*wanted.start())
        return found and ((walk.ms, walk.seq) != (self._ms, self._seq) or walk.next())

    def _find(self, stream: Stream, after: Id) -> SlotCursor | None:
        """Return the cursor to go on with; None where there is none that is good."""
        cursor = self._cursor
        if cursor is None or after < self._after:
            return None
        if self._sealed:
            same = self._stream is stream and self._changes == stream.sealed_changes
            return cursor if same else None
        if (stream.tail_ms, stream.tail_seq) != (self._ms, self._seq):
            return None
        self._stream = stream
        return resume_cursor(cursor, stream.tail_data())

    def _enter(self, stream: Stream, walk: NodeWalk, former: SlotCursor | None) -> SlotCursor:
        """Go on in the node that a walk stands on: where a former cursor was, or at its start."""
        data = walk.load()
        same = former is not None and (walk.ms, walk.seq) == (self._ms, self._seq)
        self._stream = stream
        self._changes = stream.sealed_changes
        self._sealed = not walk.on_tail
        self._ms = walk.ms
        self._seq = walk.seq
        cursor = resume_cursor(former, data) if same and former is not None else None
        return cursor or SlotCursor(read_header(data, walk.ms, walk.seq))
