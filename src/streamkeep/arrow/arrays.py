"""Columns of the decoder as Arrow arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamkeep.arrow.casts import cast
from streamkeep.arrow.column_buffers import NumberColumn, TextColumn
from streamkeep.arrow.columns import Columns
from streamkeep.format.core.entry import StreamId


def plain(data: bytes, length: int, kind: pa.DataType) -> Any:
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(data)])


def binary(column: TextColumn) -> Any:
    offsets, values, missing = column.buffers()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    if missing:
        buffers[0] = pc.invert(marked(missing)).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) // 4 - 1, buffers)


def marked(marks: bytes) -> Any:
    return plain(marks, len(marks), pa.uint8()).cast(pa.bool_())


def numbers_as(
    column: NumberColumn, kind: pa.DataType, convert: Callable[[Any], Any]
) -> tuple[Any, int]:
    """Return a number column as `kind`, and the number of values that are not of that type."""
    numbers, others = column.buffers()
    array = plain(numbers, len(numbers) // 8, pa.int64())
    texts = binary(column.texts)
    if len(texts) == len(array):
        array = convert(texts)
    else:
        array = fitting(array, kind)
        if others:
            array = pc.replace_with_mask(array, marked(others), convert(texts))
    return array, array.null_count - texts.null_count


def fitting(numbers: Any, kind: pa.DataType) -> Any:
    """Return int64 as another numeric type; null where the number does not fit."""
    if pa.types.is_floating(kind):
        return numbers.cast(kind, safe=False)  # rounded, as for text
    return cast(numbers, kind)


def texts_of(column: NumberColumn) -> Any:
    """Return all values of a number column as their stored text."""
    numbers, others = column.buffers()
    texts = plain(numbers, len(numbers) // 8, pa.int64()).cast(pa.string()).cast(pa.binary())
    return pc.replace_with_mask(texts, marked(others), binary(column.texts)) if others else texts


def id_texts(columns: Columns) -> Any:
    halves = [
        plain(data, columns.entries, pa.uint64()).cast(pa.string())
        for data in (columns.ms, columns.seq)
    ]
    return pc.binary_join_element_wise(*halves, "-")


def packed_ids(columns: Columns, kind: pa.DataType) -> Any:
    """Return the IDs as 16 bytes, both halves big-endian."""
    packed = bytearray(16 * columns.entries)
    halves = memoryview(packed).cast("Q")
    for place, data in enumerate((columns.ms, columns.seq)):
        numbers = array("Q", data)
        numbers.byteswap()
        halves[place::2] = memoryview(numbers)
    offsets = array("i", range(0, len(packed) + 1, 16))
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(bytes(packed))]
    return pa.Array.from_buffers(kind, columns.entries, buffers)


def id_at(columns: Columns, at: int) -> StreamId:
    ms, seq = (
        int.from_bytes(data[8 * at : 8 * at + 8], "little") for data in (columns.ms, columns.seq)
    )
    return StreamId(ms, seq)


def last_of_each(names: Any, values: Any, offsets: bytes) -> tuple[Any, Any, bytes]:
    """Return the pairs without those whose field comes again later in the same entry."""
    ends = plain(offsets, len(offsets) // 4, pa.int32()).to_pylist()
    texts = names.to_pylist()
    kept: list[int] = []
    new_ends = [0]
    for at in range(len(ends) - 1):
        last = {texts[pair]: pair for pair in range(ends[at], ends[at + 1])}
        kept += sorted(last.values())
        new_ends.append(len(kept))
    chosen = pa.array(kept, pa.int32())
    return (
        names.take(chosen),
        values.take(chosen),
        pa.array(new_ends, pa.int32()).buffers()[1].to_pybytes()[: 4 * len(new_ends)],
    )
