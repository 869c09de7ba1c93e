"""Which entries a read wants by their fields: a condition that compiled code tests.

A condition names fields, and for each the values of which the entry must have one. All fields must
match; of a repeated field any value may. Values are compared as bytes, as they are stored: 7 and
"7" are the same value, and "07" is another. Compiled by mypyc.
"""

from __future__ import annotations

from streamkeep.format.node.node import SAME_FIELDS, SlotCursor


class Where:
    """A condition on the fields of an entry.

    Args:
        wanted: for each field the values of which the entry must have one.
        budget: how many entries one read may examine; 0 for any number.

    Attributes:
        left: how many entries the read may still examine; -1 for any number.
        last: the ID of the last entry that a read examined, if it stopped because of the budget.
    """

    def __init__(self, wanted: dict[bytes, list[bytes]], budget: int = 0) -> None:
        self.wanted = wanted
        self.left = budget or -1
        self.last: tuple[int, int] | None = None

    def examine(self, cursor: SlotCursor) -> bool:
        """Count an entry; return whether it matches. The cursor stays before its fields."""
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.last = cursor.id()
        return self.matches(cursor)

    def matches(self, cursor: SlotCursor) -> bool:
        """Return whether the entry of a slot matches. The cursor stays before its fields."""
        place = cursor.position
        met: list[bytes] = []
        if cursor.flags & SAME_FIELDS:
            for name in cursor.names:
                self._test(cursor, name, met)
        else:
            count = int(cursor.width)
            while count > 0:
                self._test(cursor, cursor.string(), met)
                count -= 1
        cursor.position = place
        return len(met) == len(self.wanted)

    def _test(self, cursor: SlotCursor, name: bytes, met: list[bytes]) -> None:
        """Read a value, and note its field if it is one that is wanted."""
        values = self.wanted.get(name)
        if values is None:
            cursor.skip()
        elif cursor.string() in values and name not in met:
            met.append(name)
