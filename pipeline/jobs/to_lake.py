"""The job `to-lake`: it copies the new entries of streams into a lake.

1. Plan: the lake has a position for each stream, the last ID that a commit of this job covered. The
   entries above it, up to the newest one now, archived and live, are cut into slices.
2. Work: workers decode slices and write Parquet files.
3. Commit: one transaction of the table adds all files and the new positions.

If the job is killed before the commit, readers see nothing of it, and it can be run again. After
the commit, another run finds nothing to do. Entries that were deleted before this job are not in
the lake; entries that are erased later are removed by the job `erase`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.jobs.executor.to_lake import Task, write_files
from streamkeep.pipeline.lake.files import LakeConflictError, LakeError, LakeFile
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.options import ReadOptions, parse_read, with_full_paths
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.plan import plan_pins
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage.folders import new_folder, remove_folder
from streamkeep.pipeline.tasks.units import Progress, Report, Stopwatch, run_units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME: Final = "to-lake"


def to_lake(
    spark: SparkSession,
    store: str,
    lake: str,
    *,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    columns: pa.Schema | None = None,
    tail_export: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copy the entries that streams have gained since the last run, exactly once.

    Args:
        store: its directory.
        lake: path or URI of the lake; made if there is none.
        streams: keys; None, without a pattern, for all.
        pattern: a regular expression for whole keys.
        columns: fields to promote, if the lake is made.
        tail_export: a folder that all hosts reach, path or URI. Entries outside of segments are
            written there for workers on other hosts, and removed at the end. These must also reach
            `STORE/archive`.

    Raises:
        LakeError: the lake cannot be opened, or cannot hold a stream.
        LakeConflictError: other jobs on the same streams committed first, three times.
        IdRangeError: an ID is too large for the lake.
    """
    options = read_options(store, streams, pattern, tail_export)
    with Stopwatch(Report(NAME)) as report:
        with reading(options.path):
            pass  # opened first, so that no lake is made if there is no store
        for last_try in (False, False, True):
            table = Lake.create(lake, columns)
            try:
                _take_over(spark, options, table, report, progress)
            except LakeConflictError:
                if last_try:
                    raise
                continue
            break
    return report


def _take_over(
    spark: SparkSession,
    options: ReadOptions,
    lake: Lake,
    report: Report,
    progress: Progress | None,
) -> None:
    checkpoints: dict[str, StreamId] = {}
    pins = []
    with reading(options.path) as source, source.snapshot() as snapshot:
        for pin in pin_streams(snapshot.txn, options):
            application = application_of(source.uuid, pin.number)
            done = lake.checkpoint(application)
            start = pin.start if done is None else max(pin.start, done.next())
            if start <= pin.end:
                pins.append(replace(pin, start=start))
                checkpoints[application] = pin.end
    schema = lake.file_schema.serialize().to_pybytes()
    folder = None if options.tail_export is None else new_folder(options.tail_export)
    try:
        parts = plan_pins(options, tuple(pins), folder)
        tasks = [Task(options, lake.uri, schema, part) for part in parts]
        lines = run_units(spark, tasks, write_files, progress)
    finally:
        if folder is not None:
            remove_folder(folder)
    files = [LakeFile.from_json(line) for line in lines]
    if checkpoints:
        try:
            lake = lake.commit(NAME, files, checkpoints=checkpoints, keys={pin.key for pin in pins})
        except LakeConflictError:
            lake.discard(files)
            raise
    report.entries = sum(file.entries for file in files)
    report.files = len(files)
    report.size_bytes = sum(file.size_bytes for file in files)
    report.details = {"streams": len(pins), "lake_version": lake.version}


def promoted_columns(spark: SparkSession, ddl: str) -> pa.Schema:
    """Return the Arrow schema of columns in SQL, such as `sku int, price double`.

    Raises:
        LakeError: the text cannot be parsed.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        columns = spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        text = str(error).strip().splitlines()[0]
        raise LakeError(
            f"columns {ddl!r}: expected names and types such as 'a int': {text}"
        ) from None
    return to_arrow_schema(columns, timezone="UTC")


def application_of(store_uuid: str, number: int) -> str:
    """Return the name under which a lake stores the position of a stream."""
    return f"streamkeep/{store_uuid}/{number}"


def read_options(
    store: str,
    streams: Sequence[str] | None,
    pattern: str | None,
    tail_export: str | None = None,
) -> ReadOptions:
    """Return the options of the data source for a job on streams of a store."""
    given = {"path": store, **subscription(streams, pattern)}
    if tail_export is not None:
        given["tailExport"] = tail_export
    return with_full_paths(parse_read(given))


def subscription(streams: Sequence[str] | None, pattern: str | None) -> dict[str, str]:
    """Return the options of the data source that select streams; without either, all."""
    if streams is not None:
        return {"subscribe": json.dumps(list(streams))}
    return {"subscribePattern": pattern if pattern is not None else "(?s).*"}
