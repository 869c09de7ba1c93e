"""Entries as Parquet, for all that computes: the columns of the Spark data source, or chosen ones.

They are stream, id, ms, seq, ts, and fields as a list of pairs in their order, duplicates included;
or stream, id, ts, and a column for each chosen field. Parquet loses groups and counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple

from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.txn.stream import Stream
from streamkeep.transfer.dumping.source import Source
from streamkeep.transfer.formats import KEY_COLUMN, arrow

if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP_BYTES: Final = 64 << 20


class Chosen(NamedTuple):
    """The fields that become columns, their types, and what becomes of values that do not fit."""

    fields: Sequence[bytes]
    types: Mapping[Any, object]
    errors: Literal["raise", "null"]
    repeated: Literal["raise", "last"]


def write_parquet(source: Source, chosen: Chosen | None, out: BinaryIO) -> None:
    """Write Parquet.

    Args:
        chosen: None for all fields, in one column.

    Raises:
        ArgumentError: a column or a type is not one.
        ValueMismatchError: a value does not fit its column.
    """
    pa = arrow()
    schema = _schema(pa, source, chosen)
    with pa.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for stream in source:
            left = source.limits.most
            gathered: list[pyarrow.RecordBatch] = []
            for batch in _batches(source, stream, schema, chosen):
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


def _batches(
    source: Source, stream: Stream, schema: Any, chosen: Chosen | None
) -> Iterator[pyarrow.RecordBatch]:
    from streamkeep.arrow.batches import RowShape, record_batches
    from streamkeep.arrow.frames import BATCH_ROWS, FrameReader

    limits = source.limits
    nodes = ([node] for node in source.nodes(stream))
    if chosen is None:
        yield from record_batches(RowShape(schema, stream.name), nodes, limits.start, limits.end)
        return
    reader = FrameReader(schema, stream.name, chosen.errors, chosen.repeated, BATCH_ROWS)
    parts = ((limits.start, chunk) for chunk in nodes)
    yield from reader.batches(parts, limits.end)


def _schema(pa: Any, source: Source, chosen: Chosen | None) -> Any:
    """Return the schema; keys are binary where one of them is not its own text."""
    from streamkeep.arrow.batches import DEFAULT_SCHEMA
    from streamkeep.arrow.frames import column_of, frame_schema
    from streamkeep.arrow.keys import key_text

    schema = DEFAULT_SCHEMA
    if chosen is not None:
        columns = [KEY_COLUMN, "id", "ts", *map(column_of, chosen.fields)]
        types = {column_of(to_bytes(name)): kind for name, kind in chosen.types.items()}
        schema = frame_schema(columns, types)
    if any(key_text(name).encode() != name for name in source.names()):
        return schema.set(0, pa.field(KEY_COLUMN, pa.binary()))
    return schema
