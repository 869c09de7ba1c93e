"""The part of `tail` on executors: writing the rows of a micro-batch into Parquet files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streamkeep.pipeline.storage import places
from streamkeep.pipeline.storage.places import check_written, file_system, make_folder, reaching

_RESULT: Final = pa.schema([pa.field("result", pa.string())])


def write_part(
    table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a partition of a DataFrame into a file of a Delta table, which no log names yet.

    Yields a line of JSON with path, size and number of rows, if there are rows.
    """
    system, root = file_system(table)
    name = f"part-{uuid.uuid4().hex}.zstd.parquet"
    writer: Any = None
    rows = 0
    with reaching(table):
        for batch in batches:
            if not len(batch):
                continue
            if writer is None:
                make_folder(system, root)
                out = system.open_output_stream(f"{root}/{name}", compression=None)
                writer = pq.ParquetWriter(out, schema, compression="zstd")
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))
            rows += len(batch)
        if writer is None:
            return
        writer.close()
        size = out.tell()
        out.close()
        if isinstance(system, pafs.LocalFileSystem):
            # a power loss must not empty a file that a commit names
            places.sync_file(f"{root}/{name}")
    check_written(table, system, f"{root}/{name}", size)
    line = json.dumps([name, size, rows])
    yield pa.RecordBatch.from_arrays([pa.array([line])], schema=_RESULT)
