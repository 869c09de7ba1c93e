"""Frames: the schema that a program asks for, and the entries of a stream in batches of it.

A frame has a column for each field, and columns of the ID:

    name      type                    content
    --------  ----------------------  -------------------------------------------------------------
    id        string                  `ms-seq`; or binary: 16 bytes that sort as IDs do
    ts        timestamp of ms, UTC    the time in the ID; another unit by `types`
    ms, seq   uint64                  the two halves of the ID
    stream    string                  the key
    fields    list of (field, value)  all fields in their order, repeated ones included; binary
    NAME      string                  the field NAME
    field.ts  string                  the field of a name that a column above has

A field that an entry does not have is null, and an empty value is "". Nothing else becomes null,
and no value is left out, unless the program asks for it: a value that is not of its type, or that
a column cannot hold beside another one of the same field, is an error that names the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from streamkeep.arrow import FAILFAST, PERMISSIVE
from streamkeep.arrow.batches import RowShape, SchemaError, decode
from streamkeep.arrow.casts import NAMED, arrow_type
from streamkeep.arrow.columns import Columns, CopiedNode
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, ValueMismatchError
from streamkeep.format.core.values import as_given, utf8

log = logging.getLogger("streamkeep")

Errors = Literal["raise", "null"]
Repeated = Literal["raise", "last"]
Parts = Iterable[tuple[tuple[int, int], list[CopiedNode]]]

MOST_COLUMNS: Final = 1000  # that are made of the names of fields
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 << 20
_MOST_CELLS: Final = 4 << 20  # of a batch
FIELD: Final = "field."

_PAIR_OF: Final = {
    kind: pa.list_(pa.struct([pa.field("field", kind), pa.field("value", kind)]))
    for kind in (pa.binary(), pa.string())
}
SYSTEM: Final[dict[str, pa.DataType]] = {
    "id": pa.string(),
    "ts": pa.timestamp("ms", tz="UTC"),
    "ms": pa.uint64(),
    "seq": pa.uint64(),
    "stream": pa.string(),
    "fields": _PAIR_OF[pa.binary()],
}


def column_of(name: bytes) -> str:
    """Return the column of a field; raise ValueMismatchError for a name that is not UTF-8."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ValueMismatchError(
            f"field {name!r} is not UTF-8, and so cannot name a column; next: columns= chooses "
            "columns, of which 'fields' holds every field"
        ) from None
    return f"{FIELD}{text}" if text in SYSTEM or text.startswith(FIELD) else text


def given_types(types: object) -> Mapping[Any, object]:
    """Return the types that a program gives to columns."""
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise ArgumentError(f"types must be a dict of columns and types, not {as_given(types)}")
    return types


def frame_schema(columns: Sequence[object], types: Mapping[Any, object]) -> pa.Schema:
    """Return the schema of the columns that a program asks for.

    Raises:
        ArgumentError: a column is named twice or is not text, or a type does not exist.
    """
    names: list[str] = []
    for column in columns:
        name = _text(column)
        if name in names:
            raise ArgumentError(f"columns names {name!r} twice")
        names.append(name)
    chosen = dict(SYSTEM)
    for column, given in types.items():
        name = _text(column)
        if name not in names:
            raise ArgumentError(f"types has {name!r}, which is not one of columns={names}")
        try:
            kind = arrow_type(given)
        except ValueError as error:
            raise ArgumentError(f"types[{name!r}]: {error}") from None
        chosen[name] = _PAIR_OF.get(kind, kind) if name == "fields" else kind
    return pa.schema([pa.field(name, chosen.get(name, pa.string())) for name in names])


def _text(column: object) -> str:
    if isinstance(column, bytes):
        try:
            return column.decode()
        except UnicodeDecodeError:
            raise ArgumentError(f"column {column!r} is not UTF-8; 'fields' has any field") from None
    return utf8(column, "a column").decode()


def found_columns(names: Iterable[bytes], types: Mapping[Any, object]) -> list[str]:
    """Return the columns of a frame without a choice: id, ts, the fields found, and those typed."""
    found = dict.fromkeys(["id", "ts", *map(column_of, names), *map(_text, types)])
    if len(found) > MOST_COLUMNS:
        raise ArgumentError(
            f"the entries have {len(found):,} names of fields, more than the {MOST_COLUMNS:,} that "
            "become columns by themselves; next: columns= chooses, and 'fields' holds every field"
        )
    return list(found)


class FrameReader:
    """Makes the batches of one read.

    Args:
        key: of the stream.
        errors: "raise" or "null": what a value that is not of its type is.
        repeated: "raise" or "last": what a field that occurs more than once in an entry is.

    Raises:
        ArgumentError: a column cannot have its type, or an option has a wrong value.
    """

    def __init__(
        self, schema: pa.Schema, key: bytes, errors: Errors, repeated: Repeated, rows: int
    ) -> None:
        _check("errors", errors, ("raise", "null"))
        _check("repeated", repeated, ("raise", "last"))
        self._key = key
        self._repeated = repeated
        self._rows = max(1, min(rows, _MOST_CELLS // max(1, len(schema))))
        try:
            self._shape = RowShape(
                schema,
                key,
                FAILFAST if errors == "raise" else PERMISSIVE,
                beyond=errors,
                system=tuple(SYSTEM),
            )
        except SchemaError as error:
            raise ArgumentError(f"{error}; next: types= takes {NAMED}") from None

    def batches(self, parts: Parts, end: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of ascending nodes; log how many values became null."""
        shape = self._shape
        try:
            for columns in decode(lambda: shape.writer(self._rows, BATCH_BYTES), parts, end):
                if columns.twice is not None and self._repeated == "raise":
                    raise self._twice(columns)
                yield shape.batch(columns)
        finally:
            for column, count in shape.mismatched.items():
                log.warning(
                    "stream %r: %d values of column %r are not of its type and became null",
                    self._key,
                    count,
                    column,
                )

    def _twice(self, columns: Columns) -> ValueMismatchError:
        assert columns.twice is not None
        ms, seq, field = columns.twice
        return ValueMismatchError(
            f"stream {self._key!r} entry {StreamId(ms, seq)}: field {field.decode()!r} occurs more "
            "than once, and a column has room for one value; next: repeated='last' takes the last "
            "one, as redis-py does, and the column 'fields' has all"
        )


class FrameStream:
    """A frame that is read again each time it is asked for: Arrow's stream interface.

    DuckDB, Polars, pandas and pyarrow take an object with `__arrow_c_stream__`.

    Attributes:
        schema: of the batches.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self._read = read

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self._read())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)


def pandas_types(pandas: Any) -> dict[pa.DataType, Any]:
    """Return the types of pandas for the types whose NumPy form cannot be null."""
    found = {pa.bool_(): pandas.BooleanDtype()}
    for bits in (8, 16, 32, 64):
        found[pa.type_for_alias(f"int{bits}")] = getattr(pandas, f"Int{bits}Dtype")()
        found[pa.type_for_alias(f"uint{bits}")] = getattr(pandas, f"UInt{bits}Dtype")()
    return found


def _check(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
