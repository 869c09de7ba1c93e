"""KEEPREF, DELREF and ACKED: how the deletion of an entry affects the groups of its stream.

Redis keeps an index from entries to the groups that have them pending. We ask each group instead,
which costs O(log n) per group: groups are few, and the index would be one more row per pending
entry.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn

KEEPREF: Final = 0  # deletes entries, leaves pending entries as they are
DELREF: Final = 1  # deletes entries, and their pending entries
ACKED: Final = 2  # deletes entries that every group has read and acknowledged


class References:
    """The groups of a stream, asked about its entries by one command."""

    def __init__(self, txn: WriteTxn, stream: Stream) -> None:
        self.groups: list[Group] = groups_of(txn, stream)

    def held(self, ms: int, seq: int) -> bool:
        """Return whether a group has not read an entry, or has it pending."""
        for group in self.groups:
            if (ms, seq) > group.last_id() or group.pel.get(ms, seq) is not None:
                return True
        return False

    def drop(self, ms: int, seq: int) -> None:
        """Remove an entry from the pending entries of all groups."""
        for group in self.groups:
            group.ack(ms, seq)
