"""Rows of CSV files.

The first line names the fields, and every other line has as many cells. Text is UTF-8 with or
without a BOM; bytes that are not UTF-8 are kept as they are, since a stream can hold them.

Where the first columns are `stream` and `id`, a dump wrote the file: each line is an entry of that
stream with that ID, and its fields are the other columns that are not empty. An entry has at least
one field: where all of these columns are empty, they are fields with empty values.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from streamkeep.format.humanize import count_text
from streamkeep.transfer.formats import ID_COLUMN, KEY_COLUMN
from streamkeep.transfer.loading.rows import Columns, FlatRow, Row, parse_full_id, row_of
from streamkeep.transfer.loading.text_lines import BOMS_OF_UTF_16, RowError, TextLines


def read_csv(
    stream: io.BufferedReader[Any],
    delimiter: str,
    columns: Columns,
    max_line: int,
    *,
    drop_empty: bool,
) -> Iterator[Row]:
    """Yield the rows of a CSV file; the first line names the fields."""
    lines = _csv_lines(stream, delimiter, max_line)
    _, names = next(lines, (1, []))
    if _is_dump(names) and columns.time is None and columns.id in (None, ID_COLUMN):
        for one in _dump_rows(names, lines):
            yield row_of(*one)
        return
    fields = [_data(name) for name in names]
    repeats = len(set(fields)) < len(fields)
    place = _column(columns.name, names) if names else None
    for line, cells in lines:
        if drop_empty and not any(cells):
            continue
        ms, seq = columns.place(line, None if place is None else cells[place])
        values = [cell.encode("utf-8", "surrogateescape") for cell in cells]
        pairs = zip(fields, values, strict=True)
        kept = filter(itemgetter(1), pairs) if drop_empty else pairs
        yield Row(line, list(kept) if repeats else dict(kept), ms, seq)


def read_dump_csv(
    stream: io.BufferedReader[Any], delimiter: str, max_line: int
) -> Iterator[FlatRow]:
    """Yield the entries of what `streamkeep dump --format csv` wrote."""
    lines = _csv_lines(stream, delimiter, max_line)
    _, names = next(lines, (1, []))
    if not names:
        raise RowError(1, "an empty file")
    if not _is_dump(names):
        problem = f"the first columns are {', '.join(names[:2])}, not {KEY_COLUMN}, {ID_COLUMN}"
        raise RowError(1, problem, hint="key=KEY appends any table to the stream KEY")
    yield from _dump_rows(names, lines)


def _is_dump(names: list[str]) -> bool:
    return names[:2] == [KEY_COLUMN, ID_COLUMN]


def _dump_rows(names: list[str], lines: Iterator[tuple[int, list[str]]]) -> Iterator[FlatRow]:
    """Yield the entries of lines whose first cells are stream and ID."""
    fields = [_data(name) for name in names[2:]]
    empty = list(chain.from_iterable((field, b"") for field in fields))
    for line, cells in lines:
        try:
            ms, seq = parse_full_id(cells[1])
        except ValueError as error:
            raise RowError(line, str(error)) from None
        flat: list[bytes] = []
        for field, cell in zip(fields, islice(cells, 2, None), strict=True):
            if cell:
                flat += (field, cell.encode("utf-8", "surrogateescape"))
        yield line, _data(cells[0]), ms, seq, flat or empty


def _csv_lines(
    stream: io.BufferedReader[Any], delimiter: str, max_line: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty, the one with names first."""
    if stream.peek(2)[:2] in BOMS_OF_UTF_16:
        raise RowError(1, "UTF-16 text", hint="iconv -f utf-16 -t utf-8 FILE")
    csv.field_size_limit(max(max_line, csv.field_size_limit()))  # `TextLines` refuses longer ones
    text = TextLines(stream, max_line)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    width = 0
    line = 1
    try:
        for cells in reader:
            text.end_record()
            line, began = reader.line_num + 1, line
            if not cells:
                continue
            width = width or len(cells)
            if len(cells) != width:
                found = count_text(len(cells), "cell")
                raise RowError(began, f"{found}, but line 1 names {width}")
            yield began, cells
    except csv.Error as error:
        raise RowError(line, f"not CSV: {error}") from None


def _data(cell: str) -> bytes:
    return cell.encode("utf-8", "surrogateescape")


def _column(wanted: str | None, names: list[str]) -> int | None:
    """Return the place of the column that gives the ID."""
    if wanted is None:
        return None
    found = [index for index, name in enumerate(names) if name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise RowError(1, f"{len(found)} columns are called {wanted!r}")
    raise RowError(1, f"no column {wanted!r}; there are {', '.join(names)}")
