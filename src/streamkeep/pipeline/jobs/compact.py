"""The job `compact`: it merges many small files of a lake into few large ones.

A run of `to-lake` leaves at least one file per stream and day, so an hourly run leaves 24. The job
merges consecutive files of a partition up to the target size, and replaces them in one transaction
that is marked as moving no data, so that a streaming read of the table does not see the entries
again. Readers that began before continue with the old files, which are kept for the retention time.
Files with overlapping IDs are left alone; `audit` reports them. Files of other programs, such as
those of Delta's OPTIMIZE, are written again, so that they have checksums and ordered IDs.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import groupby
from typing import TYPE_CHECKING, Final

from streamkeep.pipeline.distribution.units import Progress, Report, run_units, timed
from streamkeep.pipeline.jobs.executor.rewrite import Task, rewrite_files
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile, attempts
from streamkeep.pipeline.lake.lake import Lake

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
    fill: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Merge small files of a lake, and remove files that no version names any more.

    One commit replaces all files: readers see either all old ones or all new ones.

    Args:
        lake: path or URI.
        target_bytes: the size from which a file is not merged further.
        retention_hours: how long replaced files are kept, for readers of older versions and for
            jobs that have not committed yet. With 0, a job that runs at the same time fails.
        fill: also write all files again that lack columns which were added to the lake later.

    Returns:
        A report with the number of new `files`, and in `details` that of `files_replaced`, their
        `bytes_replaced`, the number of `files_swept`, which were removed, and `lake_version`.

    Raises:
        LakeError: there is no such lake.
        StorageError: the storage cannot be reached.
        LakeConflictError: other jobs replaced some of the files in every try.
    """
    with timed(NAME) as report:
        report.details = {"files_replaced": 0, "bytes_replaced": 0}
        for _ in attempts(lake):
            table = Lake.open(lake)
            schema = table.entry_schema.serialize().to_pybytes()
            lacking = table.lacking_columns() if fill else set()
            chosen = groups(table.files(), target_bytes, lacking)
            tasks = [Task(table.uri, schema, group) for group in chosen]
            try:
                with table.reading([file for task in tasks for file in task.files], NAME):
                    done = run_units(spark, tasks, rewrite_files, progress)
            except LakeConflictError:
                continue
            work = [(task, one.files[0]) for task, one in zip(tasks, done, strict=True)]
            table, lost = _commit(table, work, report)
            if not lost:
                break
        swept = table.sweep(retention_hours)
        report.details |= {"files_swept": len(swept), "lake_version": table.version}
    return report


def _commit(table: Lake, work: list[tuple[Task, LakeFile]], report: Report) -> tuple[Lake, bool]:
    """Commit merged files; return the lake, and whether other jobs have replaced files of some.

    A conflict takes only those merged files of which another job has replaced a source. The others
    are still right, and are committed with the next try.
    """
    lost = False
    for _ in attempts(table.uri):
        if not work:
            break
        added = [merged for _, merged in work]
        removed = [file for task, _ in work for file in task.files]
        try:
            table = table.commit(NAME, added, removed=removed, moves_data=False)
        except LakeConflictError:
            table = Lake.open(table.uri)
            named = {file.path for file in table.files()}
            valid = [one for one in work if all(file.path in named for file in one[0].files)]
            table.discard(merged for task, merged in work if (task, merged) not in valid)
            lost = lost or len(valid) < len(work)
            work = valid
            continue
        report.entries += sum(file.entries for file in added)
        report.files += len(added)
        report.size_bytes += sum(file.size_bytes for file in added)
        report.details["files_replaced"] += len(removed)
        report.details["bytes_replaced"] += sum(file.size_bytes for file in removed)
        break
    return table, lost


def groups(
    files: list[LakeFile], target_bytes: int, lacking: Container[str] = ()
) -> list[tuple[LakeFile, ...]]:
    """Return groups of files to merge: neighbours in one partition.

    Args:
        lacking: paths of files that are written again in any case.
    """
    found: list[tuple[LakeFile, ...]] = []
    # Not by key: between two files of one, a stream may have had another, and a restore of it
    # would meet overlapping files.
    ordered = sorted(files, key=lambda file: (file.origin.stream, file.first))
    for _, partition in groupby(ordered, key=lambda file: (file.origin, file.date)):
        group: list[LakeFile] = []
        for file in partition:
            size = sum(one.size_bytes for one in group)
            if group and (size + file.size_bytes > target_bytes or file.first <= group[-1].last):
                found.append(tuple(group))
                group = []
            group.append(file)
        found.append(tuple(group))
    return [
        group for group in found if len(group) > 1 or group[0].foreign or group[0].path in lacking
    ]
