"""Entries as CSV, for spreadsheets: a line per entry, a column per field.

The columns `stream` and `id` come first. CSV does not tell an empty value from a field that is
missing; it loses the order of fields, all but the last of fields with one name, groups and
counters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from streamkeep.format.core.errors import TransferError
from streamkeep.transfer.dumping.source import Source
from streamkeep.transfer.formats import ID_COLUMN, KEY_COLUMN

MOST_COLUMNS: Final = 16_384  # what spreadsheets take
_LINES: Final = 500  # written at once
_special: Final = re.compile('[\r\n"]').search
_quotes: Final = re.compile('[\r\n",]').search


def write_csv(
    source: Source, fields: Sequence[bytes] | None, write: Callable[[bytes], object]
) -> None:
    """Write CSV.

    Args:
        fields: the fields that become columns; None for all, and then the entries are read twice.
    """
    if fields is None:
        moved, source.moved = source.moved, lambda entries: None
        fields = list(_names(source))
        source.moved, source.streams, source.entries = moved, 0, 0
    fields = list(dict.fromkeys(fields))  # a field that is named twice gets one column
    lines: list[str] = []
    places = {name: place for place, name in enumerate(fields)}
    empty = [""] * len(fields)

    def flush() -> None:
        write("".join(lines).encode("utf-8", "surrogateescape"))
        lines.clear()

    lines.append(_line([KEY_COLUMN, ID_COLUMN, *map(_cell, fields)]))
    for stream in source:
        key = _cell(stream.name)
        for ms, seq, flat in source.read(stream):
            cells = empty.copy()
            for name, value in zip(flat[0::2], flat[1::2], strict=True):
                place = places.get(name)
                if place is not None:
                    cells[place] = _cell(value)
            lines.append(_line([key, f"{ms}-{seq}", *cells]))
            if len(lines) >= _LINES:
                flush()
    flush()


def _line(cells: list[str]) -> str:
    """Return a line. Python's writer would leave a carriage return without quotes."""
    joined = ",".join(cells)
    if joined.count(",") == len(cells) - 1 and not _special(joined):
        return joined + "\n"
    quoted = ('"' + cell.replace('"', '""') + '"' if _quotes(cell) else cell for cell in cells)
    return ",".join(quoted) + "\n"


def _cell(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _names(source: Source) -> dict[bytes, None]:
    """Return the names of all fields, in the order in which they come."""
    names: dict[bytes, None] = {}
    for stream in source:
        for _, _, flat in source.read(stream):
            names.update(dict.fromkeys(flat[0::2]))
            if len(names) > MOST_COLUMNS:
                raise TransferError(
                    f"the entries have more than {MOST_COLUMNS:,} names of fields, which is more "
                    "columns than a table may have",
                    hint="fields=NAME chooses columns; format=jsonl takes any entry",
                )
    return names
