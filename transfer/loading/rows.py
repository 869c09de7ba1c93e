"""Rows of CSV, JSON Lines and Parquet files as entries to append.

Readers yield `Row`s and keep one at a time in memory, or one batch of Parquet. A line that is wrong
raises `RowError` with its number; the readers guess nothing, and skip only empty lines.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.times import TimeUnit, parse_time
from streamkeep.transfer.loading.text_lines import RowError

_FULL_ID: Final = re.compile(r"[0-9]+-[0-9]+")

RowFormat = Literal["jsonl", "csv", "tsv"]
Fields = dict[bytes, bytes] | list[tuple[bytes, bytes]]  # a list where a field comes twice


class Row(NamedTuple):
    """One entry to append.

    `ms` is None for an ID from the clock, and `seq` None for the next one in that millisecond.
    `stream` is None where the file does not say of which stream the entry is.
    """

    line: int
    fields: Fields
    ms: int | None
    seq: int | None
    stream: bytes | None = None

    @property
    def id_text(self) -> str:
        """The ID as XADD takes it."""
        if self.ms is None:
            return "*"
        return f"{self.ms}-{'*' if self.seq is None else self.seq}"


class Columns(NamedTuple):
    """The columns or members that hold the ID or the time of an entry."""

    time: str | None = None
    unit: TimeUnit = "auto"
    id: str | None = None

    def place(self, line: int, text: str | None) -> tuple[int | None, int | None]:
        """Return `ms` and `seq` of a row from the text in its time or ID column."""
        if text is None:
            return None, None
        try:
            if self.time is not None:
                return parse_time(text, self.unit), None
            return parse_full_id(text)
        except ValueError as error:
            where = f"column {self.time or self.id!r}"
            raise RowError(line, f"{where}: {error}") from None

    @property
    def name(self) -> str | None:
        """The name of that column, if there is one."""
        return self.time if self.time is not None else self.id


# Number of the line or row, key where it is known, ms, seq, [field, value, ...].
FlatRow = tuple[int, bytes | None, int, int, list[bytes]]


def row_of(line: int, key: bytes | None, ms: int, seq: int, flat: list[bytes]) -> Row:
    """Return a row with its fields as pairs."""
    return Row(line, list(zip(flat[0::2], flat[1::2], strict=True)), ms, seq, key)


def parse_full_id(text: str) -> tuple[int, int]:
    """Parse a complete entry ID; raise ValueError."""
    first, _, second = text.partition("-")
    usual = first.isdecimal() and second.isdecimal() and text.isascii()
    if usual and len(first) < 20 and len(second) < 20:  # at a third of the time
        return int(first), int(second)
    if not _FULL_ID.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a complete ID such as 1718004800000-0")
    try:
        ms, seq = StreamId.parse(text.strip())
    except InvalidIdError:
        raise ValueError(f"{text!r} is beyond the highest ID") from None
    return ms, seq
