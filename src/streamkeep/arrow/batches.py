"""Macro nodes as Arrow record batches of a given schema.

The schema decides what is decoded. Its columns are

    name                 types                                    content
    -------------------  ---------------------------------------  ---------------------------------
    store                string                                   UUID of its store
    stream               string, binary                           key of the stream; `keys` says how
                                                                  one that is not UTF-8 is a string
    incarnation          bigint                                   number of the stream in its store
    id                   string, binary                           `ms-seq`; or 16 bytes, big-endian,
                                                                  which sort as IDs do
    ms, seq              bigint, unsigned, decimal(20,0) or wider the two halves of the ID
    ts                   timestamp, timestamp_ntz                 ms as a time, UTC
    fields               array<struct<field,value>>, map<...>,    all fields in order; a map keeps
                         of binary or string                      the last value of a repeated field
    field.NAME           see below                                the field NAME
    any other            see below                                the field of that name

A field with a column of its own is *promoted*: its value, which is text in the store, is converted
to string, binary, boolean, a number, decimal, date or timestamp; a value that is JSON, to a struct,
a list or a map. An entry without the field gives null. A value that is not of the type also gives
null and is counted, or is an error in the mode FAILFAST. Fields that are not in the schema are not
decoded and cost nothing.

IDs are unsigned 64-bit numbers, and a bigint is signed. An ID above 2^63-1 in a bigint column is an
error in either mode.

Batches have exactly the requested schema, as Spark requires: order, nullability, and names inside
nested types. This module needs pyarrow, but neither Spark nor LMDB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamkeep.arrow import FAILFAST, PERMISSIVE
from streamkeep.arrow.arrays import (
    binary,
    id_at,
    id_texts,
    last_of_each,
    numbers_as,
    packed_ids,
    plain,
    texts_of,
)
from streamkeep.arrow.casts import TIMESTAMP, cast_each, converter
from streamkeep.arrow.columns import FULL, Columns, ColumnWriter, CopiedNode
from streamkeep.arrow.keys import key_text
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError, ValueMismatchError

BATCH_ENTRIES: Final = 65_536
BATCH_BYTES: Final = 8 << 20
SYSTEM_COLUMNS: Final = ("store", "stream", "incarnation", "id", "ms", "seq", "ts", "fields")
_FIELD_PREFIX: Final = "field."
_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}
_LAST_MS: Final = 253_402_300_799_999  # the end of 9999, the last time of most programs
_PAIR: Final = pa.struct([pa.field("field", pa.binary()), pa.field("value", pa.binary())])

# Exactly the Arrow form of the source's default schema in Spark.
DEFAULT_SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("id", pa.string()),
        pa.field("ms", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ts", TIMESTAMP),
        pa.field("fields", pa.list_(pa.field("element", _PAIR))),
    ]
)

Maker = Callable[[Columns, str], Any]
Beyond = Literal["raise", "null", "wrap"]


class SchemaError(StreamkeepError):
    """A schema has a column that entries cannot fill."""


class IdRangeError(StreamkeepError):
    """An entry ID does not fit into the type of a column."""


class Terms(NamedTuple):
    """The words of the program that reads, for messages.

    Attributes:
        type_name: returns what it calls a type.
        make_null: how it asks for nulls in place of errors.
        choose: where it gives columns their types.
        any_text: what it calls fields as bytes.
    """

    type_name: Callable[[pa.DataType], str]
    make_null: str
    choose: str
    any_text: str


TERMS: Final = Terms(
    str,
    "errors='null' makes it null, and types= takes another type, such as bytes",
    "from columns=",
    "types={'fields': bytes}",
)


class RowShape:
    """The form of the batches of one read; made once, used for every batch.

    Args:
        schema: of the batches.
        key: of the stream that the entries belong to.
        store: UUID of their store, for the column `store`.
        number: of their stream, for the column `incarnation`.
        beyond: what half of an ID is that its column cannot hold, and its time. "raise": an error.
            "null". "wrap", for a lake: half of an ID above 2^63-1 is the negative number with the
            same bits, and a time after 9999, which most programs do not have, is null.
        mode: PERMISSIVE makes a promoted value that is not of its type null; FAILFAST raises
            ValueMismatchError.
        system: the columns that do not hold the field of their name.

    Attributes:
        mismatched: for each promoted column, the number of values that were made null.

    Raises:
        SchemaError: entries cannot fill a column; the message names the possible types.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: bytes,
        mode: str = PERMISSIVE,
        *,
        store: str = "",
        number: int = 0,
        beyond: Beyond = "raise",
        system: Sequence[str] = SYSTEM_COLUMNS,
        terms: Terms = TERMS,
    ) -> None:
        self._store = store
        self._terms = terms
        self._number = number
        self._beyond = beyond
        self.schema = schema
        self.key = key
        self.strict = mode == FAILFAST
        self.mismatched: Counter[str] = Counter()
        self.texts: list[bytes] = []  # the promoted fields that are decoded as text, and as numbers
        self.numbers: list[bytes] = []
        self.pairs = False
        self._makers: list[Maker] = [
            self._maker(field)
            if field.name in system
            else self._promoted_maker(field.name, field.type)
            for field in schema
        ]

    def writer(self, max_entries: int, max_bytes: int) -> ColumnWriter:
        return ColumnWriter(self.texts, self.numbers, self.pairs, max_entries, max_bytes)

    def batch(self, columns: Columns) -> pa.RecordBatch:
        arrays = []
        for field, make in zip(self.schema, self._makers, strict=True):
            made = make(columns, field.name)
            if not field.nullable and made.null_count:
                raise ValueMismatchError(
                    f"column {field.name!r} is declared NOT NULL, but {made.null_count} entries "
                    "have no value for it; next: make the column nullable"
                )
            arrays.append(made)
        if not arrays:  # count(*) needs rows without columns
            return pa.RecordBatch.from_struct_array(pa.array([{}] * columns.entries, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # --- one maker per column ---------------------------------------------------------------

    def _maker(self, field: pa.Field) -> Maker:
        kind = field.type
        match field.name:
            case "store":
                return self._constant_maker("store", kind, pa.string(), self._store)
            case "incarnation":
                return self._constant_maker("incarnation", kind, pa.int64(), self._number)
            case "stream":
                return self._stream_maker(kind)
            case "id":
                return self._id_maker(kind)
            case "ms" | "seq":
                return self._half_maker(field.name, kind)
            case "ts":
                return self._time_maker(kind)
        return self._fields_maker(kind)

    def _stream_maker(self, kind: pa.DataType) -> Maker:
        if pa.types.is_binary(kind):
            value = pa.scalar(self.key, kind)
        elif pa.types.is_string(kind):
            value = pa.scalar(key_text(self.key), kind)
        else:
            raise self._no_such_type("stream", kind, "string or binary")
        return lambda columns, _: pa.repeat(value, columns.entries)

    def _constant_maker(self, name: str, kind: pa.DataType, only: pa.DataType, value: Any) -> Maker:
        if kind != only:
            raise self._no_such_type(name, kind, self._terms.type_name(only))
        constant = pa.scalar(value, kind)
        return lambda columns, _: pa.repeat(constant, columns.entries)

    def _id_maker(self, kind: pa.DataType) -> Maker:
        if pa.types.is_binary(kind):
            return lambda columns, _: packed_ids(columns, kind)
        if pa.types.is_string(kind):
            return lambda columns, _: id_texts(columns)
        raise self._no_such_type("id", kind, "string or binary")

    def _half_maker(self, name: str, kind: pa.DataType) -> Maker:
        def numbers(columns: Columns) -> Any:
            return plain(columns.ms if name == "ms" else columns.seq, columns.entries, pa.uint64())

        if pa.types.is_decimal(kind) and kind.scale == 0 and kind.precision >= 20:
            return lambda columns, _: numbers(columns).cast(kind)
        if pa.types.is_uint64(kind):
            return lambda columns, _: numbers(columns)
        if not pa.types.is_int64(kind):
            raise self._no_such_type(name, kind, "bigint or decimal(20,0)")

        def signed(columns: Columns, _: str) -> Any:
            array = numbers(columns).view(pa.int64())
            if columns.beyond_i64 is not None and self._beyond == "raise":
                self._refuse_below_zero(columns, array, name, "decimal(20,0)")
            if columns.beyond_i64 is not None and self._beyond == "null":
                return self._without(array, pc.less(array, 0), name)
            return array

        return signed

    def _time_maker(self, kind: pa.DataType) -> Maker:
        if not pa.types.is_timestamp(kind):
            raise self._no_such_type("ts", kind, "timestamp or timestamp_ntz")

        factor = _PER_MS.get(kind.unit)
        if factor is None:
            raise self._no_such_type("ts", kind, "timestamp of ms, us or ns")
        latest = ((1 << 63) - 1) // factor

        def times(columns: Columns, name: str) -> Any:
            ms = plain(columns.ms, columns.entries, pa.int64())
            if self._beyond != "raise":
                last = min(_LAST_MS, latest) if self._beyond == "wrap" else latest
                ms = self._without(ms, pc.or_(pc.less(ms, 0), pc.greater(ms, last)), name)
            elif columns.beyond_i64 is not None:
                self._refuse_below_zero(columns, ms, "ts", None)
            try:
                return pc.multiply_checked(ms, factor).view(kind)
            except pa.ArrowInvalid:
                at = pc.index(pc.greater(ms, latest), True).as_py()
                raise self._too_large(columns, at, "ts", None) from None

        return times

    def _without(self, array: Any, gone: Any, name: str) -> Any:
        """Return the array with null where `gone` is true, and count these."""
        count = pc.sum(gone).as_py()
        if not count:
            return array
        self.mismatched[name] += count
        return pc.if_else(gone, pa.scalar(None, array.type), array)

    def _fields_maker(self, kind: pa.DataType) -> Maker:
        self.pairs = True
        expected = "array<struct<field,value>> or map, of binary or string"
        if pa.types.is_map(kind):
            name_type, value_type = kind.key_type, kind.item_type
            inner = pa.struct([kind.key_field, kind.item_field])
        elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            inner = kind.value_type
            if [part.name for part in inner] != ["field", "value"]:
                raise self._no_such_type("fields", kind, expected)
            name_type, value_type = inner[0].type, inner[1].type
        else:
            raise self._no_such_type("fields", kind, expected)
        for one in (name_type, value_type):
            if not (pa.types.is_binary(one) or pa.types.is_string(one)):
                raise self._no_such_type("fields", kind, expected)

        def pairs(columns: Columns, _: str) -> Any:
            names = binary(columns.names)
            values = binary(columns.values)
            offsets = columns.pair_offsets
            if pa.types.is_map(kind) and columns.repeated:
                names, values, offsets = last_of_each(names, values, offsets)
            parts = [
                self._text(columns, offsets, array, one)
                for array, one in ((names, name_type), (values, value_type))
            ]
            children = pa.StructArray.from_buffers(inner, len(names), [None], children=parts)
            buffers = [None, pa.py_buffer(offsets)]
            return pa.Array.from_buffers(kind, columns.entries, buffers, children=[children])

        return pairs

    def _text(self, columns: Columns, offsets: bytes, array: Any, kind: pa.DataType) -> Any:
        """Return the names or the values of all pairs as binary or string."""
        if pa.types.is_binary(kind):
            return array
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            bad = cast_each(array, kind)[1]
        ends = plain(offsets[4:], len(offsets) // 4 - 1, pa.int32()).to_pylist()
        at = next(entry for entry, end in enumerate(ends) if bad[0] < end)
        raise ValueMismatchError(
            f"{self._entry(columns, at)}: {array[bad[0]].as_py()!r} is not UTF-8, which column "
            f"'fields' needs; next: use {self._terms.any_text}"
        )

    # --- promoted fields --------------------------------------------------------------------

    def _promoted_maker(self, name: str, kind: pa.DataType) -> Maker:
        field = name.removeprefix(_FIELD_PREFIX).encode()
        convert = converter(kind)
        if convert is None:
            raise self._no_such_type(
                name,
                kind,
                "string, binary, boolean, a number, decimal, date, timestamp, or, for JSON, a "
                "struct, an array or a map",
            )
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        fields = self.numbers if numeric else self.texts
        if field not in fields:
            fields.append(field)
        index = fields.index(field)

        def promoted(columns: Columns, name: str) -> Any:
            if numeric:
                array, wrong = numbers_as(columns.numbers[index], kind, convert)
            else:
                raw = binary(columns.texts[index])
                array = convert(raw)
                wrong = array.null_count - raw.null_count
            if wrong and self.strict:
                raw = texts_of(columns.numbers[index]) if numeric else raw
                at = pc.index(pc.and_(pc.is_valid(raw), pc.is_null(array)), True).as_py()
                raise ValueMismatchError(
                    f"{self._entry(columns, at)}: field {field.decode()!r} is {raw[at].as_py()!r}, "
                    f"which is not of the type {self._terms.type_name(kind)}; "
                    f"next: {self._terms.make_null}"
                )
            if wrong:
                self.mismatched[name] += wrong
            return array

        return promoted

    # --- errors -----------------------------------------------------------------------------

    def _no_such_type(self, name: str, kind: pa.DataType, expected: str) -> SchemaError:
        shown = self._terms.type_name(kind)
        return SchemaError(f"column {name!r} cannot be {shown}, expected {expected}")

    def _entry(self, columns: Columns, at: int) -> str:
        return f"stream {self.key!r} entry {id_at(columns, at)}"

    def _refuse_below_zero(
        self, columns: Columns, array: Any, name: str, instead: str | None
    ) -> None:
        """Raise for the first number that is negative as a bigint."""
        at = pc.index(pc.less(array, 0), True).as_py()
        if at >= 0:
            raise self._too_large(columns, at, name, instead)

    def _too_large(self, columns: Columns, at: int, name: str, instead: str | None) -> IdRangeError:
        advice = f"give it the type {instead}, or leave it out" if instead else "leave it out"
        return IdRangeError(
            f"{self._entry(columns, at)}: the ID is too large for column {name!r}; next: {advice} "
            f"{self._terms.choose}"
        )


def record_batches(
    shape: RowShape,
    chunks: Iterable[list[CopiedNode]],
    start: StreamId = MIN_ID,
    end: StreamId = MAX_ID,
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of ascending nodes as record batches, bounded in rows and bytes.

    Args:
        chunks: of the nodes of one stream.
        start, end: IDs, both included.
    """
    parts = ((start, chunk) for chunk in chunks)
    for columns in decode(lambda: shape.writer(BATCH_ENTRIES, BATCH_BYTES), parts, end):
        yield shape.batch(columns)


def decode(
    new_writer: Callable[[], ColumnWriter],
    parts: Iterable[tuple[tuple[int, int], list[CopiedNode]]],
    end: tuple[int, int],
) -> Iterator[Columns]:
    """Yield the entries of ascending nodes as columns; each time as many as a writer holds.

    All parts are taken, also where the last one goes past `end`: after the last one, the reader
    compares what came with what was planned.

    Args:
        parts: the first ID that is wanted of some nodes, and these nodes; all of one stream.
        end: the last ID, included.
    """
    writer = new_writer()
    for start, chunk in parts:
        low = start
        at = 0
        while writer.add_nodes(chunk, at, *low, *end) == FULL:
            at, low = writer.next_node, (writer.next_ms, writer.next_seq)
            yield writer.finish()
            writer = new_writer()
    if writer.entries:
        yield writer.finish()
