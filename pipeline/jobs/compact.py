"""The job `compact`: many small files of a lake into few big ones, with the same entries.

A run of `to-lake` leaves at least one file per stream and day, so an hourly one leaves 24. Files of
one partition that follow each other are put together up to the target size, and replaced in one
transaction that says that no data have moved, so that a stream read of the table does not see
them again. A reader that began before goes on with the old files, which stay until the retention
is over. Files whose IDs overlap are left alone: that is for `audit` to tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.pipeline.job import Progress, Report, Stopwatch, run_units
from streamkeep.pipeline.lake import Lake, LakeConflictError, LakeFile
from streamkeep.pipeline.parquet import FileWriter, read_file
from streamkeep.pipeline.places import file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "compact"
TARGET_BYTES: Final = 128 << 20
RETENTION_HOURS: Final = 168  # what Delta's own tools take: a week


@dataclass(frozen=True)
class Task:
    """Files that one worker makes one."""

    lake: str
    schema: bytes
    files: tuple[LakeFile, ...]


def compact(
    spark: SparkSession,
    lake: str,
    *,
    target_bytes: int = TARGET_BYTES,
    retention_hours: int = RETENTION_HOURS,
    progress: Progress | None = None,
) -> Report:
    """Put small files of a lake together, and remove files that nothing names any more.

    Args:
        target_bytes: size of a file that is big enough.
        retention_hours: files stay that long after they were replaced, for readers of older
            versions and for jobs that have not committed yet. 0 while another job runs makes it
            fail.

    Raises:
        LakeConflictError: another job replaced some of the files; nothing has changed.
    """
    with Stopwatch(Report(NAME)) as report:
        table = Lake.open(lake)
        schema = table.file_schema.serialize().to_pybytes()
        tasks = [Task(table.uri, schema, group) for group in groups(table.files(), target_bytes)]
        removed = [file for task in tasks for file in task.files]
        with table.reading(removed, NAME):
            lines = run_units(spark, tasks, merge_files, progress)
        added = [LakeFile.from_json(line) for line in lines]
        if added:
            try:
                table = table.commit(NAME, added, removed=removed, moves_data=False)
            except LakeConflictError:
                table.discard(added)
                raise
        swept = table.sweep(retention_hours)
        report.entries = sum(file.entries for file in added)
        report.files = len(added)
        report.size_bytes = sum(file.size_bytes for file in added)
        report.details = {
            "files_replaced": len(removed),
            "bytes_replaced": sum(file.size_bytes for file in removed),
            "files_swept": len(swept),
            "lake_version": table.version,
        }
    return report


def groups(files: list[LakeFile], target_bytes: int) -> list[tuple[LakeFile, ...]]:
    """Return the files that become one, group by group: neighbours in one partition."""
    found: list[tuple[LakeFile, ...]] = []
    for _, partition in groupby(files, key=lambda file: (file.key, file.date)):
        group: list[LakeFile] = []
        for file in partition:
            size = sum(one.size_bytes for one in group)
            if group and (size + file.size_bytes > target_bytes or file.first <= group[-1].last):
                found.append(tuple(group))
                group = []
            group.append(file)
        found.append(tuple(group))
    return [group for group in found if len(group) > 1]


def merge_files(task: Task) -> list[str]:
    """Write the entries of a task's files into one; return it. Runs in a worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    writer = FileWriter(system, root, task.files[0].key, schema, file_bytes=None)
    try:
        for file in task.files:
            for batch in read_file(system, root, file, schema.names):
                writer.add(batch)
        return [file.as_json() for file in writer.close()]
    except BaseException:
        writer.abandon()
        raise
