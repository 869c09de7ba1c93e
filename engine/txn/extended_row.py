"""Rows that records of other processes extend, many times before anybody reads them.

Compiled by mypyc.
"""

from __future__ import annotations

from librt.strings import BytesWriter

from streamkeep.engine.txn.table import LazyRow, encoded
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.journal.journal import ChangeReader


class ExtendedRow(LazyRow):
    """What EXTEND operations have made of a row, not put together yet.

    The bytes after the head only grow, and rows that follow each other share them.
    """

    def __init__(self, head: bytes, body: BytesWriter, size: int, end: bytes) -> None:
        self.head = head
        self.body = body
        self.size = size  # bytes of the body that belong to this row
        self._end = end  # the last byte before the checksum

    def encode(self) -> bytes:
        """Return the value of the row."""
        value = self.head + self.body.getvalue()[: self.size] + self._end
        return value + digest64(value)


def extended(old: bytes | LazyRow | None, change: ChangeReader) -> ExtendedRow:
    """Return the row after an EXTEND operation; raise CorruptionError if that does not fit."""
    head, kept, tail = change.head, change.kept, change.value
    if not tail:
        raise CorruptionError("journal", "an EXTEND that adds nothing")
    if not (
        isinstance(old, ExtendedRow)
        and len(old.head) == len(head)
        and old.size == kept == len(old.body)
    ):
        row = None if old is None else encoded(old)
        change.change().check(-1 if row is None else len(row))
        assert row is not None
        body = BytesWriter()
        body.write(row[len(head) : len(head) + kept])
    else:
        body = old.body
    body.write(tail[:-1])
    return ExtendedRow(head, body, len(body), tail[-1:])
