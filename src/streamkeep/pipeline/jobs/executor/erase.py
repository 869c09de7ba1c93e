"""The part of `erase` on executors: rewriting a file without some entries."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.lake.executor import parquet
from streamkeep.pipeline.lake.files import LakeFile
from streamkeep.pipeline.storage.places import file_system


@dataclass(frozen=True)
class Task:
    """A file to rewrite, and the IDs to leave out."""

    lake: str
    schema: bytes
    file: LakeFile
    ids: tuple[StreamId, ...]


def rewrite_file(task: Task) -> list[str]:
    """Rewrite a file without some IDs, if it has any of them. Runs in a worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    if not count_in_file(system, root, task.file, task.ids):
        return [json.dumps({"path": task.file.path, "gone": 0, "files": []})]
    gone = 0
    with parquet.FileWriter(system, root, task.file.origin, schema, file_bytes=None) as writer:
        for batch in parquet.read_whole(system, root, task.file, schema):
            kept = parquet.without_ids(batch, task.ids)
            gone += len(batch) - len(kept)
            if len(kept):
                writer.add(kept)
        files = [file.as_json() for file in writer.close()]
    return [json.dumps({"path": task.file.path, "gone": gone, "files": files})]


def count_in_file(
    system: pafs.FileSystem, root: str, file: LakeFile, ids: tuple[StreamId, ...]
) -> int:
    return sum(
        parquet.count_ids(batch, ids)
        for batch in parquet.read_file(system, root, file, ("ms", "seq"))
    )
