"""Rows of CSV and JSON Lines files as entries to append.

Both readers yield `Row`s and keep no more than one row in memory. Anything that is not as it should
be raises `RowError` with the number of the line; nothing is guessed and nothing is skipped but
empty lines.

CSV: the first line names the fields, every other one has as many cells. Text is UTF-8 with or
without BOM; bytes that are not UTF-8 are kept as they are, since a stream can hold them. Where the
first columns are `stream` and `id`, it is what `streamkeep dump` wrote: an entry of that stream
with that ID in each line, whose fields are the other columns that are not empty. An entry has a
field, so where all of them are empty, they are fields with an empty value.

JSON Lines: each line is an object, whose members become fields. Strings are taken as they are;
numbers, true, false and null as they are written, so that no digit is lost; nested values as
compact JSON. A line with `"type": "entry"` and `fields` is one that `streamkeep range --json`
printed: ID, order, duplicate fields and binary values are restored, and with `key`, as `streamkeep
read --json` prints it, it is known of which stream it is. Its `summary` is passed over.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from operator import itemgetter
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.json_form import from_json
from streamkeep.tools.base.output import count_text
from streamkeep.tools.base.times import TimeUnit, parse_time
from streamkeep.tools.transfer.dump_table import ID_COLUMN, KEY_COLUMN
from streamkeep.tools.transfer.text_lines import RowError, TextLines, bounded_lines

Format = Literal["jsonl", "csv", "tsv"]
FORMATS: Final = ("jsonl", "csv", "tsv")
SUFFIXES: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}
DELIMITERS: Final = {"csv": ",", "tsv": "\t"}

_BUFFER: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_FULL_ID: Final = re.compile(r"[0-9]+-[0-9]+")
_BOM: Final = b"\xef\xbb\xbf"
_BOMS_OF_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


Fields = dict[bytes, bytes] | list[tuple[bytes, bytes]]  # a list where a field stands twice


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
    """Which columns or members say what the ID is."""

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
        """The column that is looked up, if there is one."""
        return self.time if self.time is not None else self.id


FlatRow = tuple[int, bytes, int, int, list[bytes]]  # line, key, ms, seq, [field, value, ...]


def row_of(line: int, key: bytes | None, ms: int, seq: int, flat: list[bytes]) -> Row:
    """Return a row with its fields as pairs."""
    return Row(line, list(zip(flat[0::2], flat[1::2], strict=True)), ms, seq, key)


def parse_full_id(text: str) -> tuple[int, int]:
    """Parse a complete entry ID; raise ValueError."""
    if not _FULL_ID.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a complete ID such as 1718004800000-0")
    try:
        ms, seq = StreamId.parse(text.strip())
    except InvalidIdError:
        raise ValueError(f"{text!r} is beyond the highest ID") from None
    return ms, seq


# --- the file -----------------------------------------------------------------------------------


class CountingReader(io.RawIOBase):
    """A file that knows how many bytes were read of it, for the progress bar."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._read = getattr(source, "read1", source.read)  # what a pipe has, without waiting
        self.done = 0

    def file(self) -> BinaryIO:
        """Return the file itself."""
        return self._source

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read what is there into `buffer`."""
        view = memoryview(buffer)  # type: ignore[arg-type]  # any writable buffer
        data: bytes = self._read(len(view))
        view[: len(data)] = data
        self.done += len(data)
        return len(data)


def open_rows(source: CountingReader) -> io.BufferedReader[Any]:
    """Return the contents of a file, decompressed when its first bytes are those of gzip."""
    buffered: io.BufferedReader[Any] = io.BufferedReader(source, _BUFFER)
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        return io.BufferedReader(gzip.GzipFile(fileobj=buffered), _BUFFER)
    return buffered


def read_rows(
    stream: io.BufferedReader[Any],
    kind: Format,
    columns: Columns,
    max_line: int,
    *,
    drop_empty: bool = False,
) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        max_line: how many bytes a line may have.
        drop_empty: leave out empty CSV cells, and rows that have no others.

    Raises:
        RowError: a line is not as the format says, or the file is damaged there.
    """
    line = 0
    try:
        rows = (
            read_jsonl(stream, columns, max_line)
            if kind == "jsonl"
            else read_csv(stream, DELIMITERS[kind], columns, max_line, drop_empty=drop_empty)
        )
        for row in rows:
            line = row.line
            yield row
    except DAMAGED as error:
        raise RowError(line + 1, f"the gzip file is damaged or cut off here: {error}") from None


# --- CSV ----------------------------------------------------------------------------------------


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
    repeats = len(set(fields)) < len(fields)  # a field stands twice
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
        raise RowError(1, problem, hint="streamkeep load STORE KEY FILE takes any table")
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
                flat += (field, _data(cell))
        yield line, _data(cells[0]), ms, seq, flat or empty


def _csv_lines(
    stream: io.BufferedReader[Any], delimiter: str, max_line: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty, the one with names first."""
    if stream.peek(2)[:2] in _BOMS_OF_UTF_16:
        raise RowError(1, "UTF-16 text", hint="iconv -f utf-16 -t utf-8 FILE")
    csv.field_size_limit(max_line)  # which `text` sees to before
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
    """Return where the column stands that gives the ID."""
    if wanted is None:
        return None
    found = [index for index, name in enumerate(names) if name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise RowError(1, f"{len(found)} columns are called {wanted!r}")
    raise RowError(1, f"no column {wanted!r}; there are {', '.join(names)}")


# --- JSON Lines ---------------------------------------------------------------------------------


class _Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


class _Object(list[tuple[str, object]]):
    """A JSON object: its members in order, duplicates kept."""


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_refuse_constant,
).decode


def read_jsonl(stream: io.BufferedReader[Any], columns: Columns, max_line: int) -> Iterator[Row]:
    """Yield the rows of a JSON Lines file."""
    for number, data in enumerate(bounded_lines(stream, max_line), 1):
        if number == 1:
            if data[:2] in _BOMS_OF_UTF_16:
                raise RowError(1, "UTF-16 text", hint="iconv -f utf-16 -t utf-8 FILE")
            data = data.removeprefix(_BOM)
        if data.isspace() or not data:
            continue
        row = _json_row(number, _parse(number, data), columns)
        if row is not None:
            yield row


def _parse(line: int, data: bytes) -> _Object:
    """Return the object on a line."""
    try:
        value = _decode(data.decode())
    except UnicodeDecodeError as error:
        raise RowError(line, f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = ""
        if line == 1 and data.strip() in (b"{", b"["):
            hint = (
                "one object per line is expected; `jq -c . FILE` writes them so, or `jq -c '.[]'`"
            )
        raise RowError(line, f"not JSON: {error.msg} at column {error.colno}", hint=hint) from None
    except RecursionError:
        raise RowError(line, "nested too deeply") from None
    except ValueError as error:
        raise RowError(line, str(error)) from None
    if isinstance(value, _Object):
        return value
    hint = "`jq -c '.[]' FILE` writes an array as lines" if isinstance(value, list) else ""
    raise RowError(line, f"{_kind(value)}, but an object is expected", hint=hint)


def _kind(value: object) -> str:
    if isinstance(value, _Number):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "null" if value is None else "true or false"


def _json_row(line: int, members: _Object, columns: Columns) -> Row | None:
    """Return the entry that an object stands for; None for a summary line."""
    known = dict(members)
    if known.get("type") == "entry" and isinstance(known.get("fields"), list):
        return _lossless_row(line, known)
    if known.get("type") == "summary" and "command" in known and "entries" in known:
        return None
    if not members:
        raise RowError(line, "an object without members; an entry has at least one field")
    text = None
    if columns.name is not None:
        if columns.name not in known:
            raise RowError(line, f"no member {columns.name!r}; there are {', '.join(known)}")
        value = known[columns.name]
        if not isinstance(value, str):
            raise RowError(line, f"member {columns.name!r} is {_kind(value)}")
        text = value
    ms, seq = columns.place(line, text)
    pairs = [(_encoded(line, name), _encoded(line, _text(value))) for name, value in members]
    return Row(line, dict(pairs) if len(known) == len(pairs) else pairs, ms, seq)


def _text(value: object) -> str:
    """Return a JSON value as text: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else _compact(value)


def _compact(value: object) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, _Object):
        members = (f"{_compact(name)}:{_compact(item)}" for name, item in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]  # type: ignore[index]


def _encoded(line: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RowError(line, "a string holds half of a surrogate pair, which is no text") from None


def _lossless_row(line: int, known: dict[str, object]) -> Row:
    """Return an entry as `streamkeep range --json` prints it."""
    entry_id, fields = known.get("id"), known["fields"]
    key = _lossless(line, known["key"]) if "key" in known else None
    if type(entry_id) is not str:
        raise RowError(line, "an entry whose 'id' is not a string")
    try:
        ms, seq = parse_full_id(entry_id)
    except ValueError as error:
        raise RowError(line, f"id: {error}") from None
    if type(fields) is not list or set(map(type, fields)) != {list} or set(map(len, fields)) != {2}:
        raise RowError(line, "an entry whose 'fields' are not [field, value] pairs, at least one")
    if set(map(type, chain.from_iterable(fields))) == {str}:  # nearly always
        with suppress(UnicodeEncodeError):
            pairs = [(field.encode(), value.encode()) for field, value in fields]
            return Row(line, pairs, ms, seq, key)
    pairs = [(_lossless(line, field), _lossless(line, value)) for field, value in fields]
    return Row(line, pairs, ms, seq, key)


def _lossless(line: int, value: object) -> bytes:
    """Return the bytes of a string, or of a `{"base64": "..."}`."""
    if type(value) is str:
        return _encoded(line, value)
    try:
        return from_json(dict(value) if isinstance(value, _Object) else value)
    except ValueError as error:
        raise RowError(line, f"a key, field or value: {error}") from None
