"""The part of `restore` on executors: making macro nodes of the rows of a lake."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.envelope import PAGE_LISTPACK
from streamkeep.pipeline.lake.executor import ascending, id_at, read_file, without_ids
from streamkeep.pipeline.lake.files import LakeError, LakeFile
from streamkeep.pipeline.sink.executor import Staged, stage_ascending
from streamkeep.pipeline.storage.places import file_system

_COLUMNS: Final = ("ms", "seq", "fields")
_BATCH_ROWS: Final = 16_384  # small enough for the processor's cache


@dataclass(frozen=True)
class Task:
    lake: str
    files: tuple[LakeFile, ...]
    start: Id
    end: Id
    folder: str
    name: str
    erased: frozenset[StreamId] = frozenset()  # from the target's store; they are left out


def make_nodes(task: Task) -> list[Staged]:
    """Stage the entries of a task's files as nodes; return the file. Runs in a worker."""
    batches = (
        part
        for batch in _rising(task)
        if len(part := without_ids(_within(batch, task.start, task.end), task.erased))
    )
    rows = (
        pa.RecordBatch.from_arrays([ms.view(pa.uint64()), seq.view(pa.uint64()), fields], _COLUMNS)
        for ms, seq, fields in (batch.columns for batch in batches)
    )
    key = task.files[0].origin.key
    return [stage_ascending(rows, task.folder, task.name, key, PAGE_LISTPACK)]


def _rising(task: Task) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's files; raise LakeError if IDs do not rise."""
    system, root = file_system(task.lake)
    last: StreamId | None = None
    for file in task.files:
        for batch in read_file(system, root, file, _COLUMNS, _BATCH_ROWS):
            if not len(batch):
                continue
            if not ascending(batch, last):
                raise LakeError(
                    f"{task.lake}: IDs in {file.path} do not rise; next: `streamkeep spark audit` "
                    "lists all problems of the lake"
                )
            last = id_at(batch, len(batch) - 1)
            yield batch


def _within(batch: pa.RecordBatch, start: Id, end: Id) -> pa.RecordBatch:
    """Return the rows of a batch with IDs from `start` to `end`; IDs ascend."""
    rows = range(len(batch))
    first = bisect_left(rows, start, key=lambda row: id_at(batch, row))
    stop = bisect_right(rows, end, key=lambda row: id_at(batch, row))
    return batch.slice(first, stop - first)
