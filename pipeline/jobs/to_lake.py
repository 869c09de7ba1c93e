"""The job `to-lake`: what streams gained since the last time, into a lake.

Plan: each stream has a checkpoint in the lake, the last ID that a commit of this job covered; what
is above it, up to the newest entry now, in the archive and live, is cut into slices and packed.
Work: decode and write Parquet, per slice. Commit: all files and the new checkpoints in one
transaction of the table. Killed anywhere before, the job has done nothing that a reader sees, and
is run again; after it, a second run finds nothing to do.

What a stream deleted before it was taken over is not in the lake; what is erased later is taken out
by the job `erase`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.arrow import RowShape, record_batches
from streamkeep.pipeline.job import Progress, Report, Stopwatch, run_units
from streamkeep.pipeline.lake import Lake, LakeConflictError, LakeError, LakeFile
from streamkeep.pipeline.options import ReadOptions, parse_read
from streamkeep.pipeline.parquet import FileWriter
from streamkeep.pipeline.places import file_system
from streamkeep.pipeline.plan import Slice
from streamkeep.pipeline.reading import pin_streams, reading
from streamkeep.pipeline.source import nodes_of, plan_pins, with_full_paths
from streamkeep.pipeline.staging import new_folder, remove_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "to-lake"


@dataclass(frozen=True)
class Task:
    """What one worker takes over."""

    options: ReadOptions
    lake: str
    schema: bytes  # of the files, serialized
    slices: tuple[Slice, ...]


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
    """Take over what streams gained since the last run, exactly once.

    Args:
        store: its directory.
        lake: path or URI of the lake; made when there is none.
        streams: keys; None, with no pattern, for all.
        pattern: a regular expression that whole keys match.
        columns: fields to promote, when the lake is made.
        tail_export: a folder that all hosts reach, path or URI. Entries that are in no segment are
            written there, for workers that are not on the host of the store, and removed in the
            end. `STORE/archive` has to be where they reach it, too.

    Raises:
        LakeError: the lake cannot be opened, or cannot hold a stream.
        LakeConflictError: other jobs on the same streams were faster, three times.
        IdRangeError: an ID is too big for the lake.
    """
    options = read_options(store, streams, pattern, tail_export)
    with Stopwatch(Report(NAME)) as report:
        with reading(options.path):
            pass  # where there is no store, no lake is to be made
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
        tasks = [Task(options, lake.uri, schema, part.slices) for part in parts]
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


def write_files(task: Task) -> list[str]:
    """Write the entries of a task into files of the lake; return these. Runs in a worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    written: list[LakeFile] = []
    with nodes_of(task.options) as nodes:
        for one in task.slices:
            shape = RowShape(schema, one.key)
            writer = FileWriter(system, root, one.key, schema)
            try:
                for batch in record_batches(shape, nodes(one), one.start, one.end):
                    writer.add(batch)
                written += writer.close()
            except BaseException:
                writer.abandon()
                raise
    return [file.as_json() for file in written]


def promoted_columns(spark: SparkSession, ddl: str) -> pa.Schema:
    """Return columns in the words of SQL, `sku int, price double`, as Arrow has them.

    Raises:
        LakeError: it cannot be parsed.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        columns = spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        text = str(error).strip().splitlines()[0]
        raise LakeError(f"columns {ddl!r}: expected names and types, 'a int': {text}") from None
    return to_arrow_schema(columns, timezone="UTC")


def application_of(store_uuid: str, number: int) -> str:
    """Return the name under which a lake remembers how far a stream has come."""
    return f"streamkeep/{store_uuid}/{number}"


def read_options(
    store: str,
    streams: Sequence[str] | None,
    pattern: str | None,
    tail_export: str | None = None,
) -> ReadOptions:
    """Return what a job on streams of a store reads, in the words of the data source."""
    given = {"path": store, **subscription(streams, pattern)}
    if tail_export is not None:
        given["tailExport"] = tail_export
    return with_full_paths(parse_read(given))


def subscription(streams: Sequence[str] | None, pattern: str | None) -> dict[str, str]:
    """Return the options of the data source that choose streams; all without either."""
    if streams is not None:
        return {"subscribe": json.dumps(list(streams))}
    return {"subscribePattern": pattern if pattern is not None else "(?s).*"}
