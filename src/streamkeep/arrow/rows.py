"""Rows of Arrow data as entries: the way back from a frame.

Each column is a field of its name; `field.NAME` is the field NAME. A null is a field that the entry
does not have. Text and bytes are stored as they are, numbers as `xadd` stores them, booleans as
`true` and `false`, times in ISO 8601. A list of (field, value) pairs in the column `fields` is the
entry itself, repeated fields included.

One column may hold the IDs. The columns `ts`, `ms`, `seq` and `stream` of a frame then say the same
as they do, which is checked, and are no fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamkeep.arrow.frames import FIELD
from streamkeep.arrow.keys import key_text
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, InvalidIdError
from streamkeep.format.core.id_codec import unpack_id

STEP: Final = 10_000  # rows that are converted at once
_WHOLE: Final = "fields"
_PAIRS: Final = (["field", "value"], ["key", "value"])  # the second is what a map becomes
_TEXT_ID: Final = re.compile(rb"\d{1,20}(-\d{1,20})?")
_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}

Pairs = list[tuple[bytes, bytes]]
Values = list[bytes | None]


def reader_of(data: Any) -> pa.RecordBatchReader:
    """Return a reader of anything that has Arrow's interface, or of a DataFrame of pandas.

    Raises:
        ArgumentError: it is something else.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    package = type(data).__module__.partition(".")[0]
    try:
        if package == "pandas" and hasattr(data, "columns"):
            data = pa.Table.from_pandas(data, preserve_index=False)
        if isinstance(data, pa.Table):
            return data.to_reader()
        if package == "polars" and "Object" in map(str, getattr(data, "dtypes", ())):
            raise TypeError("Polars has only addresses for a column of type Object")
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (TypeError, ValueError, NotImplementedError) as error:  # of Arrow, too
        raise ArgumentError(f"data has a column that Arrow cannot take: {error}") from None
    raise ArgumentError(
        "data must be a table, batch or reader of pyarrow, a DataFrame of pandas or Polars, or "
        f"another object with __arrow_c_stream__, not {type(data).__name__}"
    )


class RowReader:
    """Makes entries of the rows of a reader.

    Args:
        columns: those that become fields; None for all.
        id_column: the column of the IDs; None if there is none.
        key: of the stream, which a column `stream` must name.

    Raises:
        ArgumentError: a column is missing, or cannot become a field.
    """

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        columns: Sequence[str] | None,
        id_column: str | None,
        key: bytes,
    ) -> None:
        self._reader = reader
        self._id_column = id_column
        self._key = key
        names = reader.schema.names
        for name in [*(columns or ()), *([] if id_column is None else [id_column])]:
            if name not in names:
                raise ArgumentError(f"data has no column {name!r}, only {names}")
        chosen = [name for name in names if name != id_column] if columns is None else [*columns]
        self._derived: list[str] = []
        if columns is None and id_column is not None:
            self._derived = [one for one in chosen if one in ("ts", "ms", "seq", "stream")]
            chosen = [one for one in chosen if one not in self._derived]
        for name in [*chosen, *self._derived]:
            if names.count(name) > 1:
                raise ArgumentError(f"data has {names.count(name)} columns {name!r}")
        if not chosen:
            raise ArgumentError(f"data has no column that becomes a field, only {names}")
        self._whole = _WHOLE in chosen and is_pairs(reader.schema.field(_WHOLE).type)
        if self._whole and len(chosen) > 1:
            others = [one for one in chosen if one != _WHOLE]
            raise ArgumentError(
                f"data has the column 'fields', which holds whole entries, and also {others}; "
                "next: columns= chooses one or the other"
            )
        self._chosen = chosen
        self._fields = [name.removeprefix(FIELD).encode() for name in chosen]
        if not self._whole:
            self._converters = [_converter(one, reader.schema.field(one).type) for one in chosen]

    def __iter__(self) -> Iterator[tuple[list[Pairs], list[StreamId] | None]]:
        """Yield the pairs of some thousand rows, and their IDs; None without a column of IDs.

        ArgumentError names the row and the column.
        """
        first = 0
        for whole in self._reader:
            for start in range(0, len(whole), STEP):
                batch = whole.slice(start, STEP)
                ids = None
                if self._id_column is not None:
                    ids = _ids(batch.column(self._id_column), self._id_column, first)
                    for name in self._derived:
                        self._check_derived(batch.column(name), name, ids, first)
                entries = self._entries(batch)
                for at, pairs in enumerate(entries):
                    if not pairs:
                        raise ArgumentError(
                            f"row {first + at:,} has no field, since {', '.join(self._chosen)} "
                            "have no value; next: leave such rows out"
                        )
                yield entries, ids
                first += len(batch)

    def _entries(self, batch: pa.RecordBatch) -> list[Pairs]:
        if self._whole:
            try:
                flats = list(flat_rows(batch.column(_WHOLE)))
            except ValueError as error:
                raise ArgumentError(str(error)) from None
            return [list(zip(flat[0::2], flat[1::2], strict=True)) for flat in flats]
        values = [
            convert(batch.column(name))
            for name, convert in zip(self._chosen, self._converters, strict=True)
        ]
        return [
            [
                (field, value)
                for field, value in zip(self._fields, row, strict=True)
                if value is not None
            ]
            for row in zip(*values, strict=True)
        ]

    def _check_derived(self, column: Any, name: str, ids: list[StreamId], first: int) -> None:
        """Raise if a column of a frame does not say what the IDs say."""
        kind = column.type
        if name == "stream":
            found = column.cast(pa.binary()).to_pylist() if is_text(kind) else [None] * len(ids)
            key = self._key if "binary" in str(kind) else key_text(self._key).encode()
            expected: list[object] = [key] * len(ids)
        elif name == "ts":
            per_ms = _PER_MS.get(kind.unit) if pa.types.is_timestamp(kind) else None
            found = column.cast(pa.int64()).to_pylist() if per_ms else [None] * len(ids)
            expected = [one.ms * (per_ms or 1) for one in ids]
        else:
            found = column.to_pylist()
            expected = [getattr(one, name) for one in ids]
        if found != expected:
            at = next(at for at, one in enumerate(found) if one != expected[at])
            raise ArgumentError(
                f"row {first + at:,}: {name!r} is {column[at].as_py()!r}, which is not that of the "
                f"ID {ids[at]}; next: columns= names the columns that become fields"
            )


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def is_pairs(kind: pa.DataType) -> bool:
    """Say whether a column of a type holds whole entries."""
    if pa.types.is_map(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    return pa.types.is_struct(inner) and sorted(one.name for one in inner) in _PAIRS


def flat_rows(column: Any) -> Iterator[list[bytes]]:
    """Return field, value, field, value, ... of each row of the column `fields`.

    Raises:
        ValueError: it holds no pairs of texts, or some of it is null.
    """
    kind = column.type
    if not is_pairs(kind):
        raise ValueError(
            f"the column 'fields' is {kind}, not a list of structs of field and value, or a map"
        )
    if pa.types.is_map(kind):
        halves = [column.keys, column.items]
    else:
        # The order of the members says nothing: "field" and "key" are before "value" by name.
        at = sorted((one.name, place) for place, one in enumerate(kind.value_type))
        flattened = column.values.flatten()
        halves = [flattened[place] for _, place in at]
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    parts = [_as_binary(one.slice(first, last - first)) for one in halves]
    if column.null_count or any(one.null_count for one in parts):
        raise ValueError("a row of the column 'fields', or a field or value in it, is null")
    flat: list[Any] = [None] * (2 * (last - first))
    flat[0::2], flat[1::2] = (one.to_pylist() for one in parts)
    ends = [2 * (offset - first) for offset in offsets]
    return map(flat.__getitem__, map(slice, ends[:-1], ends[1:]))


def _as_binary(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_text(column.type):
        raise ValueError(f"the column 'fields' has {column.type}, which is neither text nor bytes")
    return column.cast(pa.binary())


def is_packed(data: bytes) -> bool:
    """Say whether bytes are both halves of an ID, and not its text, which may have 16 bytes too.

    As halves, a text would be an ID of more than a hundred million years from now.
    """
    return len(data) == 16 and not _TEXT_ID.fullmatch(data)


def _ids(column: Any, name: str, first: int) -> list[StreamId]:
    kind = column.type
    if not is_text(kind):
        raise ArgumentError(f"the column {name!r} of IDs is {kind}, not text or 16 bytes")
    found = column.cast(pa.binary()).to_pylist()
    packed = "binary" in str(kind) and all(one is None or is_packed(one) for one in found)
    ids: list[StreamId] = []
    for at, data in enumerate(found):
        try:
            if data is None or not (packed or b"-" in data):
                raise ValueError("null, or an ID without its second half")
            ids.append(StreamId(*unpack_id(data)) if packed else StreamId.parse(data))
        except (ValueError, InvalidIdError) as error:
            shown = "null" if data is None else repr(data)
            raise ArgumentError(
                f"row {first + at:,}: {name!r} is {shown}, which is not an ID ms-seq"
            ) from error
    return ids


def _converter(name: str, kind: pa.DataType) -> Callable[[Any], Values]:
    """Return the function that makes values as they are stored of a column."""
    types = pa.types
    if types.is_dictionary(kind):
        inside = _converter(name, kind.value_type)

        def each(column: Any) -> Values:
            values = inside(column.dictionary)
            return [None if at is None else values[at] for at in column.indices.to_pylist()]

        return each
    if types.is_null(kind):
        return lambda column: [None] * len(column)
    if is_text(kind):
        return lambda column: column.cast(pa.binary()).to_pylist()
    if types.is_floating(kind):
        return lambda column: [  # as `xadd` stores them; a half may be a number of NumPy
            None if one is None else repr(float(one)).encode() for one in column.to_pylist()
        ]
    if types.is_timestamp(kind) or types.is_date(kind):

        def checked(column: Any) -> Values:
            is_time = types.is_timestamp(kind)
            texts = _times(column) if is_time else column.cast(pa.string())
            at = beyond_calendar(texts)
            if at is not None:
                raise ArgumentError(
                    f"the column {name!r} has {column[at].value} as {kind}, which is in no "
                    "calendar; next: make it a number, or leave it out with columns="
                )
            found: Values = texts.cast(pa.binary()).to_pylist()
            return found

        return checked
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return lambda column: column.cast(pa.string()).cast(pa.binary()).to_pylist()
    if name == _WHOLE and types.is_nested(kind):
        raise ArgumentError(
            f"the column 'fields' is {kind}, not a list of structs of field and value, or a map; "
            "next: make it one of these, or leave it out with columns="
        )
    raise ArgumentError(
        f"the column {name!r} is {kind}, which is no text; next: make it text, such as with "
        "json.dumps, or leave it out with columns="
    )


def _times(column: Any) -> Any:
    """Return times in ISO 8601, those with a zone in UTC, with the digits that they need."""
    kind = column.type
    plain = column.cast(pa.timestamp(kind.unit, tz="UTC" if kind.tz else None))
    texts = pc.replace_substring(plain.cast(pa.string()), " ", "T")
    texts = pc.replace_substring_regex(texts, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1")


def beyond_calendar(texts: Any) -> int | None:
    """Return the place of the first date or time that Arrow has no text for; None without one.

    Arrow writes the number of such a one, with a remark, or hours that are no hours.
    """
    at = pc.index(pc.match_substring_regex(texts, r"^-?\d{4,5}-\d\d-\d\d([T ]\d\d:.*)?$"), False)
    return None if at.as_py() < 0 else int(at.as_py())
