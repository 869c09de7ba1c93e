"""Rows of CSV, JSON Lines and Parquet files as entries to append.

Readers yield `Row`s and keep one at a time in memory, or one batch of Parquet. A line that is wrong
raises `RowError` with its number; the readers guess nothing, and skip only empty lines.

A line of text must fit into memory as a whole, and its parsed form takes up to forty times its
size. A compressed file of a few kilobytes may hold a line of gigabytes. The limit is therefore
below the size that an entry may have; a caller with such entries raises it.

*CSV*: the first line names the fields, and every other line has as many cells. Text is UTF-8 with
or without a BOM; bytes that are not UTF-8 are kept as they are, since a stream can hold them. Where
the first columns are `stream` and `id`, a dump wrote the file: each line is an entry of that stream
with that ID, and its fields are the other columns that are not empty. An entry has at least one
field: where all of these columns are empty, they are fields with empty values.

*JSON Lines*: each line is an object, whose members become fields. Strings are taken as they are;
numbers, true, false and null as they are written, so that no digit is lost; nested values as
compact JSON. A line with `"type": "entry"` and `fields` is one that `streamkeep range --json`
printed: ID, order, duplicate fields and binary values are restored. With `key`, the line also names
its stream. The reader skips the `summary`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO, Final, NamedTuple

from streamkeep.arrow.keys import key_of_text
from streamkeep.engine.commands.xadd import ANY_ID, AUTO_SEQ, EXPLICIT, NewId
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.json_form import from_json
from streamkeep.format.core.times import TimeUnit, parse_time
from streamkeep.format.humanize import count_text, size_text
from streamkeep.transfer.formats import DELIMITERS, ID_COLUMN, KEY_COLUMN, LoadFormat, arrow

# --- lines of text --------------------------------------------------------------------------------


MAX_LINE: Final = 16 << 20
BOM: Final = b"\xef\xbb\xbf"
BOMS_OF_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


class RowError(Exception):
    """A part of a file that cannot be loaded: which part, what is wrong, and what to do.

    `load` makes a LoadError of it, which also says how much is in the store.
    """

    def __init__(
        self, line: int | None, problem: str, *, hint: str = "", unit: str = "line"
    ) -> None:
        """Describe a problem.

        Args:
            line: the number of the line or row, from 1 on; None for the file as a whole.
            unit: "line" or "row".
        """
        super().__init__(problem)
        self.line = line
        self.hint = hint
        self.place = "" if line is None else f" {unit} {line}"  # behind the name of the file


def too_long(line: int, limit: int) -> RowError:
    hint = f"max_line={2 * limit} takes lines twice as long, and twice the memory"
    return RowError(line, f"longer than {size_text(limit)}, the limit of a line", hint=hint)


def bounded_lines(stream: BinaryIO, limit: int, start: bytes = b"") -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; raise RowError for one beyond the limit.

    The mark that some programs put before UTF-8 is left out.

    Args:
        start: what was already read of the first line.
    """
    number = 0
    while data := start + stream.readline(limit + 1 - len(start)):
        start = b""
        number += 1
        if len(data) > limit:
            raise too_long(number, limit)
        if number == 1 and data.startswith(BOMS_OF_UTF_16):
            raise RowError(1, "UTF-16 text", hint="iconv -f utf-16 -t utf-8 FILE")
        yield data.removeprefix(BOM) if number == 1 else data


class TextLines:
    """The lines of a stream as text, for the CSV reader; a record of several lines is bounded, too.

    A line ends with CR, LF, or both. Bytes that are not UTF-8 become surrogates.
    """

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.record = 0  # bytes since the last record ended
        self.number = 0
        self.began = 1
        self.ended = True  # by the end of a line

    def __iter__(self) -> Iterator[str]:
        for line in bounded_lines(self._stream, self._limit):
            if line.endswith(b"\n") and line.find(b"\r", 0, -2) < 0:
                yield self._taken(line)
                continue
            for part in line.splitlines(keepends=True) or [b""]:
                self.ended = part.endswith((b"\n", b"\r"))
                yield self._taken(part)

    def _taken(self, part: bytes) -> str:
        self.number += 1
        self.record += len(part)
        if self.record > self._limit:
            raise too_long(self.began, self._limit)
        return part.decode("utf-8", "surrogateescape")


# --- rows -----------------------------------------------------------------------------------------


_FULL_ID: Final = re.compile(r"[0-9]+-[0-9]+")


class Row(NamedTuple):
    """One entry to append.

    `ms` is None for an ID from the clock, and `seq` None for the next one in that millisecond.
    `stream` is None where the file does not say of which stream the entry is. `flat` is field,
    value, field, value, ...
    """

    line: int
    stream: bytes | None
    ms: int | None
    seq: int | None
    flat: list[bytes]

    @property
    def new_id(self) -> NewId:
        """The ID as XADD takes it."""
        if self.ms is None:
            return ANY_ID
        return NewId(AUTO_SEQ if self.seq is None else EXPLICIT, self.ms, self.seq or 0)


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
        return self.time if self.time is not None else self.id


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


# --- CSV ------------------------------------------------------------------------------------------

_OF_DUMP: Final = [KEY_COLUMN, ID_COLUMN]


def read_csv(
    stream: io.BufferedReader[Any], kind: LoadFormat, max_line: int, columns: Columns | None = None
) -> Iterator[Row]:
    """Yield the rows of a file of text.

    Args:
        columns: None for what `streamkeep dump --format csv` wrote, and nothing else.
    """
    lines = _csv_lines(stream, DELIMITERS[kind], max_line)
    _, names = next(lines, (1, []))
    is_dump = names[:2] == _OF_DUMP
    if columns is None and not is_dump:
        if not names:
            raise RowError(1, "an empty file")
        problem = f"the first columns are {', '.join(names[:2])}, not {KEY_COLUMN}, {ID_COLUMN}"
        raise RowError(1, problem, hint="key=KEY appends any table to the stream KEY")
    if columns is None or (is_dump and columns.time is None and columns.id in (None, ID_COLUMN)):
        yield from _dump_rows(names, lines)
        return
    fields = [_bytes(name) for name in names]
    place = _column(columns.name, names) if names else None
    for line, cells in lines:
        ms, seq = columns.place(line, None if place is None else cells[place])
        pairs = zip(fields, map(_bytes, cells), strict=True)
        yield Row(line, None, ms, seq, list(chain.from_iterable(pairs)))


def _dump_rows(names: list[str], lines: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    fields = [_bytes(name) for name in names[2:]]
    empty = list(chain.from_iterable((field, b"") for field in fields))
    for line, cells in lines:
        if not fields:
            raise RowError(line, "an entry without fields")
        try:
            ms, seq = parse_full_id(cells[1])
        except ValueError as error:
            raise RowError(line, str(error)) from None
        flat: list[bytes] = []
        for field, cell in zip(fields, islice(cells, 2, None), strict=True):
            if cell:
                flat += (field, _bytes(cell))
        yield Row(line, _bytes(cells[0]), ms, seq, flat or empty)


def _csv_lines(
    stream: io.BufferedReader[Any], delimiter: str, max_line: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty, the one with names first."""
    csv.field_size_limit(max(max_line, csv.field_size_limit()))  # `TextLines` refuses longer ones
    text = TextLines(stream, max_line)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    names: list[str] = []
    line = 1
    try:
        for cells in reader:
            text.record, text.began = 0, text.number + 1
            line, began = reader.line_num + 1, line
            if not cells:
                continue
            names = names or cells
            if len(cells) != len(names):
                found = count_text(len(cells), "cell")
                raise RowError(began, f"{found}, but line 1 names {len(names)}")
            if names[:2] == _OF_DUMP and not text.ended:
                hint = "if the file is whole, end its last line: echo >> FILE"
                raise RowError(began, "the dump is cut off: its last line has no end", hint=hint)
            yield began, cells
    except csv.Error as error:
        raise RowError(line, f"not CSV: {error}") from None


def _bytes(cell: str) -> bytes:
    return cell.encode("utf-8", "surrogateescape")


def _column(wanted: str | None, names: list[str]) -> int | None:
    if wanted is None:
        return None
    found = [index for index, name in enumerate(names) if name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise RowError(1, f"{len(found)} columns are called {wanted!r}")
    raise RowError(1, f"no column {wanted!r}; there are {', '.join(names)}")


# --- JSON Lines -----------------------------------------------------------------------------------


class Number(str):
    """The text of a number, such as 10.50 or 1e400, which a number of Python would change."""

    __slots__ = ()


class _Object(list[tuple[str, object]]):
    """A JSON object: its members in order, duplicates kept."""


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
).decode


def read_jsonl(stream: io.BufferedReader[Any], max_line: int, columns: Columns) -> Iterator[Row]:
    for number, data in enumerate(bounded_lines(stream, max_line), 1):
        if data.isspace() or not data:
            continue
        row = _json_row(number, _parse(number, data), columns)
        if row is not None:
            yield row


def _parse(line: int, data: bytes) -> _Object:
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
        raise RowError(line, _TOO_DEEP) from None
    except ValueError as error:
        raise RowError(line, str(error)) from None
    if isinstance(value, _Object):
        return value
    hint = "`jq -c '.[]' FILE` writes an array as lines" if isinstance(value, list) else ""
    raise RowError(line, f"{_kind(value)}, but an object is expected", hint=hint)


def _kind(value: object) -> str:
    if isinstance(value, Number):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "null" if value is None else "true or false"


def _json_row(line: int, members: _Object, columns: Columns) -> Row | None:
    """Return the entry that an object describes; None for a summary line."""
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
    texts = ((name, one if isinstance(one, str) else compact(one)) for name, one in members)
    try:
        return Row(line, None, ms, seq, [_encoded(line, one) for pair in texts for one in pair])
    except RecursionError:  # what `compact` cannot write, JSON's parser may have read
        raise RowError(line, _TOO_DEEP) from None


def compact(value: object) -> str:
    """Return a value as JSON without spaces, its numbers as they were written."""
    if isinstance(value, Number):
        return value
    if isinstance(value, (_Object, dict)):
        pairs = value.items() if isinstance(value, dict) else value
        return "{" + ",".join(f"{compact(name)}:{compact(one)}" for name, one in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


_TOO_DEEP: Final = "nested too deeply"
_HALF: Final = "a string holds half of a surrogate pair, which is no text"


def _encoded(line: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RowError(line, _HALF) from None


def _lossless_row(line: int, known: dict[str, object]) -> Row:
    """Return an entry as `streamkeep range --json` prints it."""
    entry_id, fields = known.get("id"), known["fields"]
    if type(entry_id) is not str:
        raise RowError(line, "an entry whose 'id' is not a string")
    try:
        ms, seq = parse_full_id(entry_id)
    except ValueError as error:
        raise RowError(line, f"id: {error}") from None
    try:
        key = None if "key" not in known else flat_fields([[known["key"], ""]])[0]
        return Row(line, key, ms, seq, flat_fields(fields))
    except UnicodeEncodeError:
        raise RowError(line, _HALF) from None
    except ValueError as error:
        raise RowError(line, str(error)) from None


def flat_fields(fields: object) -> list[bytes]:
    """Return field, value, field, value, ... of an entry in JSON; raise ValueError."""
    if type(fields) is not list or set(map(type, fields)) != {list} or set(map(len, fields)) != {2}:
        raise ValueError("an entry whose 'fields' are not [field, value] pairs, at least one")
    flat = chain.from_iterable(fields)
    return [one.encode() if type(one) is str else _of_base64(one) for one in flat]


def _of_base64(value: object) -> bytes:
    try:
        return from_json(dict(value) if isinstance(value, _Object) else value)
    except ValueError as error:
        raise ValueError(f"a key, field or value: {error}") from None


# --- Parquet --------------------------------------------------------------------------------------


def read_parquet(file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of a Parquet file.

    The file needs the column `fields`, a list of pairs or a map, and the ID as `id` or `ms` and
    `seq`.

    Raises:
        RowError: the file is not such a Parquet file, or a row holds no ID or no fields.
    """
    pa = arrow()
    from streamkeep.arrow.rows import flat_rows

    try:
        table = pa.parquet.ParquetFile(file)
        columns = table.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RowError(None, f"not a Parquet file: {error}") from None
    if "fields" not in columns or not ("id" in columns or {"ms", "seq"} <= set(columns)):
        raise RowError(None, f"columns 'id' and 'fields' are needed; there are {columns}")
    halves = ("id",) if "id" in columns else ("ms", "seq")
    wanted = [one for one in ("stream", *halves, "fields") if one in columns]
    twice = [one for one in wanted if columns.count(one) > 1]
    if twice:
        raise RowError(None, f"two columns {twice[0]!r}; there are {columns}")
    row = 0
    try:
        for batch in table.iter_batches(batch_size=10_000, columns=wanted):
            keys = batch.column("stream").to_pylist() if "stream" in wanted else None
            ids = _ids(pa, batch)
            for place, flat in enumerate(flat_rows(batch.column("fields"))):
                key = None if keys is None else _key(keys[place])
                if not flat:
                    raise ValueError("an entry without fields")
                ms, seq = next(ids)
                row += 1
                yield Row(row, key, ms, seq, flat)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise RowError(row + 1, str(error), unit="row") from error


def _ids(pa: Any, batch: Any) -> Iterator[tuple[int, int]]:
    """Yield the ID of each row, from a column of texts or two of numbers."""
    if "id" in batch.schema.names:
        for text in batch.column("id").to_pylist():
            if not isinstance(text, str):
                raise ValueError(f"the ID {text!r} is not text")
            yield parse_full_id(text)
        return
    for column in ("ms", "seq"):
        kind = batch.schema.field(column).type
        if not pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise ValueError(f"the column {column!r} is {kind}, not whole numbers")
    halves = (batch.column(column).to_pylist() for column in ("ms", "seq"))
    for ms, seq in zip(*halves, strict=True):
        if ms is None or seq is None or ms < 0 or seq < 0:
            raise ValueError(f"ms {ms} and seq {seq} are no ID")
        yield ms, seq


def _key(value: Any) -> bytes:
    if isinstance(value, str):
        return key_of_text(value)
    if isinstance(value, bytes):
        return value
    raise ValueError(f"{value!r} is neither text nor bytes")
