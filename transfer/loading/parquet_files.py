"""Rows of Parquet files: those that a dump wrote, and others with an ID and fields."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO

from streamkeep.transfer.formats import arrow
from streamkeep.transfer.loading.rows import FlatRow, parse_full_id
from streamkeep.transfer.loading.text_lines import RowError


def read_parquet(file: BinaryIO) -> Iterator[FlatRow]:
    """Yield row number, key or None, ms, seq and [field, value, ...] of each row.

    The file needs the column `fields`, a list of pairs or a map, and the ID as `id` or `ms` and
    `seq`.

    Raises:
        RowError: the file is not such a Parquet file, or a row holds no ID or no fields.
    """
    pa = arrow()
    try:
        table = pa.parquet.ParquetFile(file)
        columns = table.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RowError(None, f"not a Parquet file: {error}") from None
    if "fields" not in columns or not ("id" in columns or {"ms", "seq"} <= set(columns)):
        raise RowError(None, f"columns 'id' and 'fields' are needed; there are {columns}")
    wanted = [one for one in ("stream", "id", "ms", "seq", "fields") if one in columns]
    if "id" in wanted:
        wanted = [one for one in wanted if one not in ("ms", "seq")]
    twice = [one for one in wanted if columns.count(one) > 1]
    if twice:
        raise RowError(None, f"two columns {twice[0]!r}; there are {columns}")
    row = 0
    try:
        for batch in table.iter_batches(batch_size=10_000, columns=wanted):
            keys = batch.column("stream").to_pylist() if "stream" in wanted else None
            ids = _ids(pa, batch)
            for place, flat in enumerate(_flat_fields(pa, batch.column("fields"))):
                key = None if keys is None else _data(keys[place])
                ms, seq = next(ids)
                row += 1
                yield row, key, ms, seq, flat
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
