"""How much of a reply XREAD and XREADGROUP may still write: MAXCOUNT and MAXSIZE.

MAXSIZE counts the bytes of the RESP2 encoding of what was written so far. The header of the list
of entries that is still being written is not counted yet, since its length is not known; the
header of the list of streams never is.
"""

from __future__ import annotations

from typing import Any

from model.values import Id, ModelError, Pairs, id_text


class ReplyBudget:
    """What one reply may still hold."""

    def __init__(self, maxcount: int | None, maxsize: int | None) -> None:
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.entries = 0
        self.written = 0

    def begin_stream(self, key: bytes) -> None:
        """Count the head of a stream."""
        self.written += len(b"*2\r\n") + resp_size(key)

    def admits_entry(self) -> bool:
        """Say whether one more entry may be written; the first of a reply always may."""
        if self.maxcount is not None and self.entries >= self.maxcount:
            return False
        return self.maxsize is None or self.entries == 0 or self.written < self.maxsize

    def add_entry(self, *parts: Any) -> None:
        """Count an entry: its ID, its pairs or None, and what CLAIM adds."""
        self.entries += 1
        self.written += len(b"*%d\r\n" % len(parts)) + sum(resp_size(part) for part in parts)

    def end_stream(self, entries: int) -> None:
        """Count the header of a list of entries that is now complete."""
        self.written += len(b"*%d\r\n" % entries)


def check_budget(count: int | None, maxcount: int | None, maxsize: int | None) -> None:
    """Raise unless COUNT, MAXCOUNT and MAXSIZE go together."""
    if maxcount is not None and maxcount <= 0:
        raise ModelError("ERR MAXCOUNT must be a positive integer")
    if maxsize is not None and maxsize <= 0:
        raise ModelError("ERR MAXSIZE must be a positive integer")
    if maxcount is not None and count is not None and count > 0 and maxcount < count:
        raise ModelError("ERR MAXCOUNT must be greater than or equal to COUNT")


def resp_size(value: bytes | int | Id | Pairs | None) -> int:
    """Return the size of a part of an entry in RESP2."""
    if value is None:
        return len(b"*-1\r\n")
    if isinstance(value, int):
        return len(b":%d\r\n" % value)
    if isinstance(value, bytes):
        return len(b"$%d\r\n\r\n" % len(value)) + len(value)
    if len(value) == 2 and isinstance(value[0], int):
        return resp_size(id_text((value[0], _number(value[1]))))
    texts = [text for pair in value if isinstance(pair, tuple) for text in pair]
    return len(b"*%d\r\n" % len(texts)) + sum(resp_size(text) for text in texts)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
