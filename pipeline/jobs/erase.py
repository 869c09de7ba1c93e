"""The job `erase`: it erases entries from a store, its archive and a lake, and verifies that.

The order of the steps keeps other jobs from bringing an erased entry back:

1. The store: `Store.erase` overwrites the entries in live nodes, retired rows, segments, the
   journal and free pages, and records the IDs.
2. The lake: files that may hold one of the IDs are rewritten without them and replaced in one
   transaction, which conflicts with jobs that read an entry before step 1.
3. The replaced files, and those of older versions that may hold an ID, are removed at once. Older
   versions of the lake can then no longer be read, which is the purpose.
4. Verification: all files of the stream that may hold one of the IDs, named by the log or not, are
   read again, and so is the store.

After a crash, the job can be run again and skips what is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.jobs.executor.erase import Task, count_in_file, rewrite_file
from streamkeep.pipeline.lake.files import (
    LakeConflictError,
    LakeError,
    LakeFile,
    folder_of,
    ids_of_path,
    ids_within,
)
from streamkeep.pipeline.lake.read import read_lake
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.storage.places import file_system
from streamkeep.pipeline.tasks.units import Progress, Report, Stopwatch, run_units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME: Final = "erase"
_TRIES: Final = 5


def erase(
    spark: SparkSession,
    key: str,
    ids: Sequence[str | StreamId] = (),
    *,
    store: str | None = None,
    lake: str | None = None,
    where: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Erase entries of a stream from a store, its archive, and a lake.

    Args:
        key: of the stream.
        ids: of the entries.
        store: None if the entries are already erased from the store.
        lake: None if there is no lake.
        where: an SQL condition on the columns of the lake; matching entries are erased, too.

    Raises:
        LakeError: there is no such lake, or neither store nor lake was named.
        LakeConflictError: other jobs committed to the same files in every try.
    """
    if store is None and lake is None:
        raise LakeError("there is nothing to erase from; next: name a store, a lake, or both")
    if where is not None and lake is None:
        raise LakeError("a condition needs a lake to search in; next: name a lake")
    with Stopwatch(Report(NAME)) as report:
        name = key.encode()
        wanted = {one if isinstance(one, StreamId) else StreamId.parse(one) for one in ids}
        if where is not None and lake is not None:
            rows = read_lake(spark, lake).where(f"stream = {_sql_text(key)}").where(where)
            for row in rows.select("ms", "seq").toLocalIterator():
                wanted.add(StreamId(row.ms, row.seq))
        chosen = tuple(sorted(wanted))
        erased = 0
        if store is not None and chosen:
            erased = _erase_in_store(store, name, chosen)
        rewritten = removed = 0
        if lake is not None and chosen:
            removed, rewritten = _erase_in_lake(spark, lake, name, chosen, progress)
            swept, drafts = _remove_old_files(lake, name, chosen)
            report.details["files_removed"] = swept
            if drafts:
                report.problems.append(
                    f"{drafts} unfinished files of other jobs are in the partitions of {key!r}; "
                    "next: run erase again when these jobs have ended; if they died, first run "
                    f"`streamkeep spark compact {lake} --keep 0`"
                )
            left = _count_left(lake, name, chosen)
            report.details["found_in_lake_again"] = left
            if left:
                report.problems.append(f"{left} of the entries are still in files of the lake")
        if store is not None and chosen:
            left = _count_in_store(store, name, chosen)
            report.details["found_in_store_again"] = left
            if left:
                report.problems.append(f"{left} of the entries are still in the store")
        report.entries = len(chosen)
        report.files = rewritten
        report.details |= {"erased_in_store": erased, "erased_in_lake": removed}
    return report


# --- the store ------------------------------------------------------------------------------------


def _erase_in_store(store: str, key: bytes, ids: Sequence[StreamId]) -> int:
    import streamkeep

    with streamkeep.open(store, create=False) as opened:
        return opened.erase(key, *ids)


def _count_in_store(store: str, key: bytes, ids: Sequence[StreamId]) -> int:
    import streamkeep

    with streamkeep.open(store, create=False, readonly=True) as opened:
        return sum(len(opened.xrange(key, one, one, history=True)) for one in ids)


# --- the lake -------------------------------------------------------------------------------------


def _erase_in_lake(
    spark: SparkSession,
    lake: str,
    key: bytes,
    ids: tuple[StreamId, ...],
    progress: Progress | None,
) -> tuple[int, int]:
    """Replace the files that hold one of the IDs; return (erased entries, new files)."""
    for last_try in [False] * (_TRIES - 1) + [True]:
        try:
            return _rewrite_files(spark, Lake.open(lake), key, ids, progress)
        except LakeConflictError:
            if last_try:
                raise
    raise AssertionError  # the last try returns or raises


def _rewrite_files(
    spark: SparkSession,
    table: Lake,
    key: bytes,
    ids: tuple[StreamId, ...],
    progress: Progress | None,
) -> tuple[int, int]:
    schema = table.file_schema.serialize().to_pybytes()
    tasks = [
        Task(table.uri, schema, file, inside)
        for file in table.files()
        if file.key == key and (inside := ids_within(ids, file.first, file.last))
    ]
    with table.reading([task.file for task in tasks], NAME):
        found = [json.loads(line) for line in run_units(spark, tasks, rewrite_file, progress)]
    by_path = {task.file.path: task.file for task in tasks}
    removed = [by_path[one["path"]] for one in found if one["gone"]]
    added = [LakeFile.from_json(text) for one in found for text in one["files"]]
    try:
        table.commit(NAME, added, removed=removed, keys=[key])
    except LakeConflictError:
        table.discard(added)
        raise
    return sum(one["gone"] for one in found), len(added)


def _remove_old_files(lake: str, key: bytes, ids: tuple[StreamId, ...]) -> tuple[int, int]:
    """Remove the files that the present version does not name and that may hold one of the IDs.

    Returns:
        The number of removed files, and of drafts of running jobs, whose IDs are unknown.
    """
    system, root = file_system(lake)
    named = {file.path for file in Lake.open(lake).files()}
    removed = drafts = 0
    for path in _paths_of(system, root, key):
        ends = ids_of_path(path)
        if ends is None:
            drafts += 1
        elif path not in named and ids_within(ids, *ends):
            system.delete_file(f"{root}/{path}")
            removed += 1
    return removed, drafts


def _count_left(lake: str, key: bytes, ids: tuple[StreamId, ...]) -> int:
    """Return how many of the entries are still in files of the stream's partitions."""
    system, root = file_system(lake)
    left = 0
    for path in _paths_of(system, root, key):
        ends = ids_of_path(path)
        if ends is not None and (inside := ids_within(ids, *ends)):
            file = LakeFile(path, key, None, 0, 0, *ends)
            left += count_in_file(system, root, file, inside)
    return left


def _paths_of(system: pafs.FileSystem, root: str, key: bytes) -> list[str]:
    """Return the paths, relative to the lake, of all files in the partitions of a stream."""
    folder = folder_of(key, None).split("/")[0]
    selector = pafs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
    return [
        info.path[len(root) + 1 :]
        for info in system.get_file_info(selector)
        if info.type == pafs.FileType.File
    ]


def _sql_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
