"""Entries as Parquet, for all that computes: the columns of the Spark data source.

They are stream, id, ms, seq, ts, and fields as a list of pairs in their order, duplicates included.
Parquet loses groups and counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final

from streamkeep.transfer.dumping.source import Source
from streamkeep.transfer.formats import KEY_COLUMN
from streamkeep.transfer.optional import arrow

if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP_BYTES: Final = 64 << 20


def write_parquet(source: Source, out: BinaryIO) -> None:
    """Write Parquet."""
    pa = arrow()
    from streamkeep.arrow.batches import RowShape, record_batches

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
    from streamkeep.arrow.batches import DEFAULT_SCHEMA

    try:
        for name in source.names():
            name.decode()
    except UnicodeDecodeError:
        return DEFAULT_SCHEMA.set(0, pa.field(KEY_COLUMN, pa.binary()))
    return DEFAULT_SCHEMA
