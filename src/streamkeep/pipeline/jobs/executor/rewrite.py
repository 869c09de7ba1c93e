"""The part of `compact` and `erase` on executors: writing the rows of files again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.lake import executor
from streamkeep.pipeline.lake.files import LakeFile
from streamkeep.pipeline.storage.places import file_system


@dataclass(frozen=True)
class Task:
    """Files of one partition that one worker writes into one, without the entries of some IDs."""

    lake: str
    schema: bytes
    files: tuple[LakeFile, ...]
    ids: tuple[StreamId, ...] = ()


class Rewritten(NamedTuple):
    """How many entries were left out, and the new files."""

    gone: int
    files: list[LakeFile]


def rewrite_files(task: Task) -> list[Rewritten]:
    """Write the files of a task again. Runs in a worker.

    A single file that has none of the IDs is not written again.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    if task.ids and not sum(count_in_file(system, root, one, task.ids) for one in task.files):
        return [Rewritten(0, [])]
    gone, origin = 0, task.files[0].origin
    with executor.FileWriter(system, root, origin, schema, file_bytes=None) as writer:
        for file in task.files:
            for batch in executor.read_whole(system, root, file, schema):
                kept = executor.without_ids(batch, task.ids)
                gone += len(batch) - len(kept)
                if len(kept):
                    writer.add(kept)
        return [Rewritten(gone, writer.close())]


def count_in_file(
    system: pafs.FileSystem, root: str, file: LakeFile, ids: tuple[StreamId, ...]
) -> int:
    return sum(
        len(batch) - len(executor.without_ids(batch, ids))
        for batch in executor.read_file(system, root, file, ("ms", "seq"))
    )
