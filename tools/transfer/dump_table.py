"""Entries as tables: CSV for spreadsheets, Parquet for everything that computes.

CSV has a line per entry and a column per field, behind the columns `stream` and `id`. It loses what
tells an empty value from a field that is not there, the order of fields, all but the last of fields
with one name, groups and counters.

Parquet has the columns of the Spark data source: stream, id, ms, seq, ts, and fields as a list of
pairs in their order, duplicates included. It loses groups and counters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from streamkeep.tools.base.command import Failure
from streamkeep.tools.transfer.dump_source import Source

if TYPE_CHECKING:
    import pyarrow

KEY_COLUMN: Final = "stream"
ID_COLUMN: Final = "id"
MOST_COLUMNS: Final = 16_384  # what spreadsheets take
_LINES: Final = 500  # written at once
_special: Final = re.compile('[\r\n"]').search
_quotes: Final = re.compile('[\r\n",]').search
_ROW_GROUP_BYTES: Final = 64 << 20


# --- CSV ----------------------------------------------------------------------------------------


def write_csv(source: Source, fields: list[bytes] | None, write: Callable[[bytes], object]) -> None:
    """Write CSV.

    Args:
        fields: which become columns; None for all, for which the entries are read twice.
    """
    if fields is None:
        moved, source.moved = source.moved, lambda entries: None
        fields = list(_names(source))
        source.moved, source.streams, source.entries = moved, 0, 0
    fields = list(dict.fromkeys(fields))  # who asks twice gets one column
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
                raise Failure(
                    f"more than {MOST_COLUMNS:,} names of fields: that is no table",
                    hint="--field NAME chooses columns; --format jsonl takes any entry",
                )
    return names


# --- Parquet ------------------------------------------------------------------------------------


def arrow() -> Any:
    """Return pyarrow with what is needed of it; raise Failure where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Failure("Parquet needs pyarrow", hint="pip install 'streamkeep[parquet]'") from None
    return pyarrow


def write_parquet(source: Source, out: BinaryIO) -> None:
    """Write Parquet."""
    pa = arrow()
    from streamkeep.pipeline.arrow import RowShape, record_batches

    schema = _schema(pa, source)
    with pa.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for stream in source:
            shape = RowShape(schema, stream.name)
            left = source.limits.most
            limits = (source.limits.start, source.limits.end)
            gathered: list[pyarrow.RecordBatch] = []
            nodes = ([node] for node in source.nodes(stream))
            for batch in record_batches(shape, nodes, *limits):
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= len(batch)
                gathered.append(batch)
                source.count_rows(len(batch))
                if sum(one.nbytes for one in gathered) > _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(gathered, schema))
                    gathered = []
                if left == 0:
                    break
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))


def _schema(pa: Any, source: Source) -> Any:
    """Return the schema; keys are binary where one of them is not UTF-8."""
    from streamkeep.pipeline.arrow import DEFAULT_SCHEMA

    try:
        for name in source.names():
            name.decode()
    except UnicodeDecodeError:
        return DEFAULT_SCHEMA.set(0, pa.field(KEY_COLUMN, pa.binary()))
    return DEFAULT_SCHEMA


def read_parquet(file: BinaryIO, name: str) -> Iterator[tuple[bytes | None, int, int, list[bytes]]]:
    """Yield (key or None, ms, seq, [field, value, ...]) of each row; raise Failure.

    Needed are the column `fields`, a list of pairs or a map, and the ID as `id` or `ms` and `seq`.
    """
    pa = arrow()
    try:
        table = pa.parquet.ParquetFile(file)
        columns = table.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Failure(f"{name}: not a Parquet file: {error}") from None
    if "fields" not in columns or not ("id" in columns or {"ms", "seq"} <= set(columns)):
        raise Failure(f"{name}: columns 'id' and 'fields' are needed; there are {columns}")
    wanted = [one for one in ("stream", "id", "ms", "seq", "fields") if one in columns]
    if "id" in wanted:
        wanted = [one for one in wanted if one not in ("ms", "seq")]
    twice = [one for one in wanted if columns.count(one) > 1]
    if twice:
        raise Failure(f"{name}: two columns {twice[0]!r}; there are {columns}")
    row = 0
    try:
        for batch in table.iter_batches(batch_size=10_000, columns=wanted):
            keys = batch.column("stream").to_pylist() if "stream" in wanted else None
            ids = _ids(pa, batch)
            for place, flat in enumerate(_flat_fields(pa, batch.column("fields"))):
                key = None if keys is None else _data(keys[place])
                yield key, *next(ids), flat
                row += 1
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise Failure(f"{name}: behind row {row}: {error}") from error


def _ids(pa: Any, batch: Any) -> Iterator[tuple[int, int]]:
    """Yield the ID of each row, from a column of texts or two of numbers."""
    from streamkeep.tools.transfer.rows import parse_full_id

    if "id" in batch.schema.names:
        for text in batch.column("id").to_pylist():
            if not isinstance(text, str):
                raise ValueError(f"the ID {text!r} is no text")
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


def _flat_fields(pa: Any, column: Any) -> Iterator[list[bytes]]:
    """Yield field, value, field, value, ... of each row of a column of pairs or maps."""
    if pa.types.is_map(column.type):
        names, values = column.keys, column.items
    elif _is_list(pa, column.type) and column.type.value_type.num_fields == 2:
        names, values = column.values.field(0), column.values.field(1)
    else:
        raise ValueError(f"the column 'fields' is {column.type}, not a list of pairs or a map")
    if column.null_count or names.null_count or values.null_count:
        raise ValueError("a field or value is null")
    pairs = [[_data(one) for one in half.to_pylist()] for half in (names, values)]
    for start, end in pairwise(column.offsets.to_pylist()):
        flat = [b""] * (2 * (end - start))
        flat[0::2] = pairs[0][start:end]
        flat[1::2] = pairs[1][start:end]
        yield flat


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _data(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"{value!r} is neither text nor bytes")
