"""The rows of a lake's files, read on an executor with the columns of their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamkeep.pipeline.lake.files import PARTITIONS
from streamkeep.pipeline.storage.places import file_system, reaching

_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class TableFile:
    """A file that the log names, of any program; its path is relative to the lake."""

    path: str
    stream: str | None
    date: Any
    size_bytes: int
    store: str | None = None


def table_batches(uri: str, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of its partition. Runs in a worker."""
    system, root = file_system(uri)
    names = [name for name in schema.names if name not in PARTITIONS]
    with reaching(uri), pq.ParquetFile(f"{root}/{file.path}", filesystem=system) as source:
        there = set(source.schema_arrow.names)
        for batch in source.iter_batches(_BATCH_ROWS, columns=[n for n in names if n in there]):
            columns = [
                batch.column(name).cast(schema.field(name).type)
                if name in there
                else pa.nulls(len(batch), schema.field(name).type)  # the column was added later
                for name in names
            ]
            constant = pa.scalar(file.date, schema.field("date").type)
            columns.append(pa.repeat(constant, len(batch)))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
