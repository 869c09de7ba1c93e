"""The part of `compact` on executors: writing the rows of several files into one."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from streamkeep.pipeline.lake.executor.parquet import FileWriter, read_whole
from streamkeep.pipeline.lake.files import LakeFile
from streamkeep.pipeline.storage.places import file_system


@dataclass(frozen=True)
class Task:
    """Files that one worker merges into one."""

    lake: str
    schema: bytes
    files: tuple[LakeFile, ...]


def merge_files(task: Task) -> list[str]:
    """Write the entries of a task's files into one file; return it. Runs in a worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    with FileWriter(system, root, task.files[0].origin, schema, file_bytes=None) as writer:
        for file in task.files:
            for batch in read_whole(system, root, file, schema):
                writer.add(batch)
        return [file.as_json() for file in writer.close()]
