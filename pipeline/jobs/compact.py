"""The job `compact`: it merges many small files of a lake into few large ones.

A run of `to-lake` leaves at least one file per stream and day, so an hourly run leaves 24. The job
merges consecutive files of a partition up to the target size, and replaces them in one transaction
that is marked as moving no data, so that a streaming read of the table does not see the entries
again. Readers that began before continue with the old files, which are kept for the retention time.
Files with overlapping IDs are left alone; `audit` reports them. Files of other programs, such as
those of Delta's OPTIMIZE, are written again, so that they have checksums and ordered IDs.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from streamkeep.pipeline.jobs.executor.compact import Task, merge_files
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.tasks.units import Progress, Report, Stopwatch, run_units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME: Final = "compact"
TARGET_BYTES: Final = 128 << 20
RETENTION_HOURS: Final = 168  # a week, as in Delta's own tools


def compact(
    spark: SparkSession,
    lake: str,
    *,
    target_bytes: int = TARGET_BYTES,
    retention_hours: int = RETENTION_HOURS,
    progress: Progress | None = None,
) -> Report:
    """Merge small files of a lake, and remove files that no version names any more.

    Args:
        target_bytes: the size from which a file is not merged further.
        retention_hours: how long replaced files are kept, for readers of older versions and for
            jobs that have not committed yet. With 0, a job that runs at the same time fails.

    Raises:
        LakeConflictError: another job replaced some of the files; nothing was changed.
    """
    with Stopwatch(Report(NAME)) as report:
        table = Lake.open(lake)
        schema = table.entry_schema.serialize().to_pybytes()
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
    """Return groups of files to merge: neighbours in one partition."""
    found: list[tuple[LakeFile, ...]] = []
    for _, partition in groupby(files, key=lambda file: (file.origin, file.date)):
        group: list[LakeFile] = []
        for file in partition:
            size = sum(one.size_bytes for one in group)
            if group and (size + file.size_bytes > target_bytes or file.first <= group[-1].last):
                found.append(tuple(group))
                group = []
            group.append(file)
        found.append(tuple(group))
    return [group for group in found if len(group) > 1 or group[0].foreign]
