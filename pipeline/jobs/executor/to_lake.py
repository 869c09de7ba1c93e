"""The part of `to-lake` on executors: decoding slices and writing Parquet files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from streamkeep.arrow.batches import RowShape, record_batches
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.lake.executor.parquet import FileWriter, without_ids
from streamkeep.pipeline.lake.files import LakeError, Origin
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.nodes import nodes_of
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.storage.places import StorageError, file_system


@dataclass(frozen=True)
class Task:
    """The slices that one worker copies."""

    options: ReadOptions
    lake: str
    store: str  # its UUID
    schema: bytes  # of the entries, serialized
    slices: tuple[Slice, ...]
    erased: Mapping[int, tuple[StreamId, ...]]  # IDs that the lake must not get, by stream


def write_files(task: Task) -> list[str]:
    """Write the entries of a task into files of the lake; return the files. Runs in a worker.

    An error of one stream does not stop the others: it is returned as `[key, number, message]`.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    lines: list[str] = []
    with nodes_of(task.options) as nodes:
        for one in task.slices:
            origin = Origin(task.store, one.number, one.key)
            shape = RowShape(schema, one.key, wrapped=True)
            writer = FileWriter(system, root, origin, schema)
            try:
                for batch in record_batches(shape, nodes(one), one.start, one.end):
                    kept = without_ids(batch, task.erased.get(one.number, ()))
                    if len(kept):
                        writer.add(kept)
                lines += [file.as_json() for file in writer.close()]
            except (StorageError, LakeError):
                writer.abandon()
                raise
            except StreamkeepError as error:
                writer.abandon()
                lines.append(json.dumps([one.key.hex(), one.number, str(error)]))
            except BaseException:
                writer.abandon()
                raise
    return lines
