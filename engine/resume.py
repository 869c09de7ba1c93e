"""Where a group goes on reading: the node of its last delivery, kept decoded between calls.

Consumers that take few entries at a time read the same node again and again. To find it, check it
and step over what was read before cost more than everything else in a delivery. So a group keeps
a cursor behind the last entry that it delivered. The cursor is good as long as

- the group reads on from there: its last_delivered_id is the one that the cursor came to;
- and the node is what it was up to there. A sealed node is, as long as no sealed node of the
  stream was changed (`Stream.sealed_changes`; after a commit of another process the stream is
  read anew, or found to be the same). A tail grows with each append, and becomes a sealed node at
  some time: there the bytes up to the cursor are compared.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.nodes import NodeWalk
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.node import Range, SlotCursor, go_on, read_header, read_slots

_LARGEST_NODE: Final = 1 << 16  # that is kept in memory for each group

Id = tuple[int, int]


class Resume:
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
        cursor = self._find(stream, after)
        self._cursor = None  # should a damaged node end this in the middle
        walk: NodeWalk | None = None
        if cursor is None:
            walk = NodeWalk(txn, stream)
            if not walk.seek(*wanted.start()):
                return
            cursor = self._enter(stream, walk)
        while read_slots(cursor, wanted, out):
            if not self._sealed:
                break
            if walk is None:
                walk = NodeWalk(txn, stream)
                if not walk.above(self._ms, self._seq):
                    break
            elif not walk.next():
                break
            cursor = self._enter(stream, walk)
        ids = wanted.ids
        self._after = ids[-1] if ids else after
        self._cursor = cursor if len(cursor.data) <= _LARGEST_NODE else None

    def _find(self, stream: Stream, after: Id) -> SlotCursor | None:
        """Return the cursor to go on with; None where there is none that is good."""
        cursor = self._cursor
        if cursor is None or after != self._after:
            return None
        if self._sealed:
            same = self._stream is stream and self._changes == stream.sealed_changes
            return cursor if same else None
        if (stream.tail_ms, stream.tail_seq) != (self._ms, self._seq):
            return None
        self._stream = stream
        return go_on(cursor, stream.tail_data())

    def _enter(self, stream: Stream, walk: NodeWalk) -> SlotCursor:
        """Begin with the node that a walk stands on."""
        data = walk.load()
        self._stream = stream
        self._changes = stream.sealed_changes
        self._sealed = not walk.on_tail
        self._ms = walk.ms
        self._seq = walk.seq
        return SlotCursor(read_header(data, walk.ms, walk.seq))
