"""Where a group continues to read: the node of its last delivery, kept decoded between calls.

Consumers that take few entries at a time read the same node many times. Finding it, checking it and
skipping the entries that were read before costs more than the rest of a delivery. So a group keeps
a cursor after the last entry that it delivered. The cursor is valid as long as

- the group continues there, or further on if other processes have read for it;
- and the node is unchanged up to the cursor. A sealed node is unchanged as long as the stream is
  the same object and no sealed node was changed (`Stream.sealed_changes`). A tail grows with each
  append and is eventually sealed, and another process may change both. Then the bytes up
  to the cursor are compared.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.node import SlotCursor, read_header
from streamkeep.format.node.ranges import Range, read_slots, resume_cursor

_LARGEST_NODE: Final = 1 << 16  # that is kept in memory for each group


class ReadCursor:
    """A cursor after the last entry that a group delivered."""

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
        self._cursor = None  # in case a damaged node ends this in the middle
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
        """Go to the node after the kept one: the next, or a distant one (XGROUP SETID)."""
        if wanted.ids:
            return walk.above(self._ms, self._seq)
        found = walk.seek(*wanted.start())
        return found and ((walk.ms, walk.seq) != (self._ms, self._seq) or walk.next())

    def _find(self, stream: Stream, after: Id) -> SlotCursor | None:
        """Return the cursor to continue with; None if there is no valid one."""
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
        """Continue in the node of a walk: at the place of a former cursor, or at its start."""
        data = walk.load()
        same = former is not None and (walk.ms, walk.seq) == (self._ms, self._seq)
        self._stream = stream
        self._changes = stream.sealed_changes
        self._sealed = not walk.on_tail
        self._ms = walk.ms
        self._seq = walk.seq
        cursor = resume_cursor(former, data) if same and former is not None else None
        return cursor or SlotCursor(read_header(data, walk.ms, walk.seq))
