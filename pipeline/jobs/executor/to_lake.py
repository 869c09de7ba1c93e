"""The part of `to-lake` on executors: decoding slices and writing Parquet files."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from streamkeep.arrow.batches import RowShape, record_batches
from streamkeep.pipeline.lake.executor.parquet import FileWriter
from streamkeep.pipeline.lake.files import LakeFile
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.nodes import nodes_of
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.storage.places import file_system


@dataclass(frozen=True)
class Task:
    """The slices that one worker copies."""

    options: ReadOptions
    lake: str
    schema: bytes  # of the files, serialized
    slices: tuple[Slice, ...]


def write_files(task: Task) -> list[str]:
    """Write the entries of a task into files of the lake; return the files. Runs in a worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    written: list[LakeFile] = []
    with nodes_of(task.options) as nodes:
        for one in task.slices:
            shape = RowShape(schema, one.key)
            writer = FileWriter(system, root, one.key, schema)
            try:
                for batch in record_batches(shape, nodes(one), one.start, one.end):
                    writer.add(batch)
                written += writer.close()
            except BaseException:
                writer.abandon()
                raise
    return [file.as_json() for file in written]
