"""The job `tail`: it continuously copies new entries of streams to a target.

It is a streaming query of the source `streamkeep`, with its offsets in a checkpoint next to the
target. After a restart it continues where it stopped. Targets:

    console    for people
    parquet    Spark's own file sink; Spark reads the files with the folder's metadata
    delta      a Delta table; executors write the files, and each batch is a transaction with its
               number, so exactly once
    store      another store of Streamkeep, with the same IDs; each batch is a transaction, so
               exactly once

For a lake that can be compacted, erased from and audited, use `to-lake`.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution.quick_ack import QuickAckCall
from streamkeep.pipeline.distribution.units import Report, timed
from streamkeep.pipeline.jobs.executor.tail import write_part
from streamkeep.pipeline.options import subscription
from streamkeep.pipeline.sink.identity import Batch, find_batch
from streamkeep.pipeline.storage import places
from streamkeep.pipeline.storage.places import new_folder, remove_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "tail"
MAX_ENTRIES: Final = 1_000_000
TARGETS: Final = ("console", "parquet", "delta", "store")
_POLL_S: Final = 1  # whole seconds, for Spark


class TailError(StreamkeepError):
    """The target of a tail cannot be written to."""


def tail(
    spark: SparkSession,
    store: str,
    target: str = "console",
    path: str | None = None,
    *,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    checkpoint: str | None = None,
    from_start: bool = False,
    available_now: bool = False,
    every_s: float = 0.0,
    max_entries: int = MAX_ENTRIES,
    fail_on_data_loss: bool = True,
    tail_export: str | None = None,
    staging: str | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> Report:
    """Follow streams until interrupted, or to their present end.

    Args:
        store: its directory.
        target: console, parquet, delta or store.
        path: of the target; None for the console.
        checkpoint: folder for offsets; by default `<path>.checkpoint`. The console has no
            checkpoint and starts over each time.
        from_start: begin with the oldest entry, including archived ones, instead of after the
            newest. An existing checkpoint takes precedence.
        available_now: end when all present entries have been written.
        every_s: seconds between batches; 0 for as soon as possible.
        max_entries: the limit for one batch, so that the first one, from an old start, is not all.
        fail_on_data_loss: end with an error if entries were removed before they were read.
        tail_export: a folder that all hosts reach, path or URI, for entries outside of segments, if
            workers are on other hosts than the store.
        staging: such a folder through which workers send files to the driver, for the target store.
        on_batch: called with the number of entries of each batch, shortly after it.

    Returns:
        A report with the number of `entries` that were written. Except for the console, each batch
        is written whole or not at all, and a query that goes on with its checkpoint writes each
        entry once.

    Raises:
        TailError: the target does not exist, or needs a path.
        StreamingQueryException: of Spark, the query failed; its text names the error, such as
            DataLossError.
    """
    if target not in TARGETS:
        raise TailError(f"there is no target {target!r}, expected one of {', '.join(TARGETS)}")
    if (path is None) != (target == "console"):
        raise TailError(f"the target {target} {'has no' if path else 'needs a'} path")
    frame = spark.readStream.format("streamkeep").options(**subscription(streams, pattern))
    frame = frame.option("startingOffsets", "earliest" if from_start else "latest")
    frame = frame.option("failOnDataLoss", fail_on_data_loss)
    frame = frame.option("maxEntriesPerTrigger", max_entries)
    # A folder for this query, because Spark ends a query without reporting its last batch as done.
    folder = None if tail_export is None else new_folder(places.plain(tail_export))
    if folder is not None:
        frame = frame.option("tailExport", folder)
    rows = frame.load(places.located(store))
    with timed(NAME) as report, _alone_in(path if target == "parquet" else None):
        query = _start(rows, target, path, checkpoint, staging, available_now, every_s)
        seen = -1
        try:
            while query.isActive:
                seen = _report_batches(query, seen, report, on_batch)
                query.awaitTermination(_POLL_S)
            query.awaitTermination()  # raises the error that ended the query
        finally:
            query.stop()
            if folder is not None:
                remove_folder(folder)
        _report_batches(query, seen, report, on_batch)
    report.details = {"target": target, "path": path}
    return report


@contextmanager
def _alone_in(folder: str | None) -> Iterator[None]:
    """Keep other tails from a folder of Parquet files, if it is mounted here, during a block.

    Of two queries with checkpoints of their own, Spark would take the batches of one for those of
    the other, which then lacks their entries.

    Raises:
        TailError: another tail is at work there.
    """
    if folder is None or not places.is_local(folder):
        yield
        return
    root = places.file_system(folder)[1]
    os.makedirs(root, exist_ok=True)
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TailError(
                f"{folder}: another tail writes there; next: end it, or name another path"
            ) from None
        yield
    finally:
        os.close(handle)


def _report_batches(
    query: StreamingQuery, seen: int, report: Report, on_batch: Callable[[int], None] | None
) -> int:
    """Count and report the batches that ended since the last call; return the newest one."""
    for progress in query.recentProgress:
        if progress["batchId"] > seen and progress["numInputRows"]:
            seen = progress["batchId"]
            report.entries += progress["numInputRows"]
            if on_batch is not None:
                on_batch(progress["numInputRows"])
    return seen


def _start(
    rows: DataFrame,
    target: str,
    path: str | None,
    checkpoint: str | None,
    staging: str | None,
    available_now: bool,
    every_s: float,
) -> StreamingQuery:
    if target == "console":
        rows = rows.selectExpr(
            "stream",
            "id",
            # `decode` fails for what is not UTF-8
            "transform(fields, f -> concat(string(f.field), '=', string(f.value))) AS fields",
        )
    writer = rows.writeStream
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every_s:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    if target == "console":
        return writer.format("console").option("truncate", False).start()
    assert path is not None
    location = places.plain(path)
    offsets = checkpoint or f"{location}.checkpoint"
    for place in (offsets, *((location,) if target == "parquet" else ())):
        if places.by_python_only(place):
            raise TailError(
                f"{place}: Spark itself writes there, but PySpark has no client for object stores; "
                "next: use --checkpoint DIR on a disk and --to delta for the entries, or s3a:// if "
                "Spark has its jars for S3"
            )
    writer = writer.option("checkpointLocation", offsets)
    if target == "parquet":
        _check_files(location, offsets)
        return writer.format("parquet").option("compression", "zstd").start(location)
    if target == "store":
        if staging is not None:
            writer = writer.option("stagingPath", staging)
        return writer.format("streamkeep").start(location)
    places.check(location)

    def to_delta(batch: DataFrame, number: int) -> None:
        append_batch(location, batch, find_batch(offsets, number))

    return writer.foreachBatch(to_delta).start()


def _check_files(location: str, offsets: str) -> None:
    """Raise TailError if Spark would skip batches, as it does with all that the folder has.

    A checkpoint plans a batch before the folder gets it, and notes its end after that. Only folders
    of this host are looked at: Spark may reach others with settings of its own.
    """
    if not (places.is_local(location) and places.is_local(offsets)):
        return
    written, planned = _newest(location, "_spark_metadata"), _newest(offsets, "offsets")
    if written >= 0 and not _newest(offsets, "commits") <= written <= planned:
        has = "has no batch" if planned < 0 else f"has planned up to batch {planned}"
        raise TailError(
            f"{location} has up to batch {written}, but the checkpoint {has}: one of them is "
            "another one, or was set back; next: use the newest state of both, or a new "
            "--checkpoint with a new folder"
        )


def _newest(place: str, name: str) -> int:
    """Return the newest batch of a log of Spark; -1 if there is none."""
    numbers = [-1]
    with suppress(FileNotFoundError):
        for file in os.listdir(f"{places.file_system(place)[1]}/{name}"):
            number = file.removesuffix(".compact")  # others are hidden, or not complete
            if number.isdecimal():
                numbers.append(int(number))
    return max(numbers)


def append_batch(location: str, rows: DataFrame, batch: Batch) -> None:
    """Append a batch to a Delta table exactly once, on executors; it may come again.

    The table notes its number and its plan (`sink.identity`), also if it has no rows.

    The files of a batch are removed only if its commit was refused. After any other failure of the
    commit, the storage may have it, or show it later.
    """
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql.pandas.types import to_arrow_schema

    from streamkeep.pipeline.lake.delta import commit, create_table, newest_table
    from streamkeep.pipeline.lake.files import LakeConflictError

    table = newest_table(location)
    application = f"streamkeep/tail/{batch.query}"
    versions = {application: batch.number, f"{application}/plan": batch.plan >> 1}  # signed there
    newest, plan = (None if table is None else table.transaction_version(one) for one in versions)
    if newest is not None and batch.number <= newest:
        if batch.number == newest and plan in (None, batch.plan >> 1):
            return
        raise TailError(
            f"batch {batch.number} comes again, but this checkpoint has written up to batch "
            f"{newest}: it was set back; next: use its newest state, or a new --checkpoint"
        )
    expected = 0 if newest is None else newest + 1
    if batch.number > expected and (newest is None or plan is not None):
        raise TailError(
            f"{location}: batch {batch.number} comes, but the batches from {expected} on are "
            "missing: another table was put in place, perhaps an older copy; next: put back its "
            "newest state, or use a new --checkpoint"
        )
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    if table is None:
        table = create_table(location, schema)
    there = pa.schema(table.schema().to_arrow()).names
    if table.metadata().partition_columns or not {*schema.names} <= {*there}:
        raise TailError(
            f"{location}: a Delta table of something else, with the columns {', '.join(there)}; "
            "next: name another path"
        )
    write = QuickAckCall(partial(write_part, location, schema))
    written = rows.mapInArrow(write, "result string").collect()
    files = [json.loads(row.result) for row in written]
    now_ms = time.time_ns() // 1_000_000
    added: list[AddAction | RemoveAction] = [
        AddAction(name, size, {}, now_ms, True, json.dumps({"numRecords": count}))
        for name, size, count in files
    ]
    failpoints.hit("tail:batch")
    try:
        what = {"what": f"batch {batch.number}", "again": "start the query again"}
        commit(table, location, added, versions, **what)
    except LakeConflictError:
        system, root = places.file_system(location)
        for name, *_ in files:
            system.delete_file(f"{root}/{name}")
        raise
    failpoints.hit("tail:committed")
