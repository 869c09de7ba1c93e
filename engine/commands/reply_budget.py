"""MAXCOUNT and MAXSIZE: how much one reply of XREAD or XREADGROUP may still hold.

MAXSIZE counts the bytes that the reply would take in RESP2, or in RESP3 for a client of a server
that speaks it. The header of the list of entries that is still being written is not counted, since
its length is not known yet; the header of the list of streams is never counted. The first entry of
a reply is always written. Measured on Redis 8.10.
"""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.commands.arguments import check_count
from streamkeep.format.core.entry import Entry, fields_of
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.id_codec import id_text
from streamkeep.format.node.node import ENTRY, TEXT
from streamkeep.format.node.ranges import MOST_SENT

Entries = list[Any]  # entries in the shape that was asked for
Found = list[list[Any]]  # a reply of XREAD: [name, its entries] of each stream

NO_LIMIT: Final = (1 << 62) - 1  # the largest number that compiled code handles fast


class SentEntries:
    """Entries in Redis's protocol, and their number: what the shape RESP makes of a list."""

    def __init__(self, count: int, data: bytes) -> None:
        self.count = count
        self.data = data


class ReplyBudget:
    """How much one reply may still hold; `max_count` and `max_size` 0 for no limit.

    Args:
        resp3: the reply is a map of RESP3, where a stream has no head of its own.
    """

    def __init__(self, max_count: int, max_size: int, resp3: bool = False) -> None:
        self.max_count = max_count
        self.max_size = max_size
        self.resp3 = resp3
        self.sent = 0  # bytes of entries in the shape RESP
        self._entries = 0
        self._written = 0

    def fresh(self) -> ReplyBudget:
        return ReplyBudget(self.max_count, self.max_size, self.resp3)

    @property
    def used_up(self) -> bool:
        """Whether no entry may follow; further streams are then not read.

        The first entry of a reply may always be written, even if empty histories took all room.
        """
        if (self.max_count and self._entries >= self.max_count) or self.sent >= MOST_SENT:
            return True
        return bool(self.max_size) and self._entries > 0 and self._written >= self.max_size

    def begin_stream(self, name: bytes) -> None:
        if not self.max_size:
            return
        self._written += bulk_size(name)
        if not self.resp3:
            self._written += len(b"*2\r\n")

    def end_stream(self, entries: int) -> None:
        """Count the header of a list of entries that is now complete."""
        if self.max_size:
            self._written += len(b"*%d\r\n" % entries)

    def left(self, most: int) -> int:
        """Return how many entries may follow as far as counts go, at most `most`."""
        return min(most, self.max_count - self._entries) if self.max_count else most

    def add(self, count: int) -> None:
        """Count entries whose size does not matter."""
        self._entries += count

    def add_entry(self, ms: int, seq: int, flat: list[bytes] | None, *extra: int) -> None:
        """Count one entry: its pairs (None if it is gone), and the numbers that CLAIM adds."""
        self._entries += 1
        self._written += len(b"*%d\r\n" % (2 + len(extra))) + bulk_size(id_text(ms, seq))
        if flat is None:
            self._written += len(b"*-1\r\n")
        else:
            self._written += len(b"*%d\r\n" % len(flat)) + sum(map(bulk_size, flat))
        self._written += sum(len(b":%d\r\n" % number) for number in extra)


def bulk_size(text: bytes) -> int:
    return len(b"$%d\r\n\r\n" % len(text)) + len(text)


def check_budget(command: str, count: object, max_count: object, max_size: object) -> ReplyBudget:
    """Check the three arguments as redis-py and Redis do."""
    if max_count is None and max_size is None:
        return ReplyBudget(0, 0)
    if isinstance(max_count, int) and isinstance(count, int) and 0 < max_count < count:
        raise ArgumentError(
            f"{command} max_count must be greater than or equal to count: "
            f"{max_count} is below {count}"
        )
    most = check_count(command, "max_count", max_count)
    return ReplyBudget(most, check_count(command, "max_size", max_size))


def shape_entry(ms: int, seq: int, flat: list[bytes], shape: int) -> tuple[object, ...]:
    """Return an entry, given as pairs, in a shape; with RESP, as pairs."""
    if shape == TEXT:
        return Entry(f"{ms}-{seq}", fields_of([text.decode() for text in flat]))
    if shape == ENTRY:
        return Entry(id_text(ms, seq), fields_of(flat))
    return ms, seq, flat
