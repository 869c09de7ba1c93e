"""Waiting for entries above an ID in the history of a stream: segments, retired and live nodes."""

from __future__ import annotations

from streamkeep.engine.blocking.calls import ReadCall
from streamkeep.engine.commands import xread
from streamkeep.engine.commands.history import Unreadable, last_archived, read_history
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries, Found
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.id_codec import MAX, next_id
from streamkeep.format.node.ranges import Range


class HistoryCall(ReadCall):
    """A read of the entries above an ID in the history of one stream. It waits as XREAD does."""

    def __init__(self, name: bytes, after: xread.ReadId, count: int, shape: int) -> None:
        super().__init__([(name, after)], count, None, None, shape)
        self.reads_history = True  # here: the compiled base does not see attributes of this class
        self._name = name
        self._after = after

    def run(self, txn: Txn) -> Found:
        """Read the history above the ID, as far as `count` goes."""
        out = self._above(txn, self._count or NO_LIMIT)
        return [[self._name, out]] if out else []

    def pause(self, txn: Txn) -> int:
        """Return 0 if there is an entry, even if it was trimmed after it was added."""
        if super().pause(txn) == 0:
            return 0
        stream = txn.find_stream(self._name)
        if stream is None or last_archived(txn, stream.number) <= xread.resolve(
            stream, self._after
        ):
            return -1
        try:
            return 0 if self._above(txn, 1) else -1
        except Unreadable:
            return 0  # `run` raises it

    def _above(self, txn: Txn, limit: int) -> Entries:
        """Return entries of the history above the ID."""
        stream = txn.find_stream(self._name)
        after = xread.resolve(stream, self._after)
        start = next_id(*after)
        out: Entries = []
        if stream is not None and start > after:
            read_history(txn, stream, Range(*start, MAX, MAX, limit, False, self._shape), out)
        return out
