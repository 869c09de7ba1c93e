"""The job `to-lake`: it copies the new entries of streams into a lake.

1. Plan: the lake has a position for each stream, the last ID that a commit of this job covered. The
   entries above it, up to the newest one now, archived and live, are cut into slices.
2. Work: workers decode slices and write Parquet files.
3. Commit: one transaction of the table adds all files and the new positions.

If the job is killed before the commit, readers see nothing of it, and it can be run again. After
the commit, another run finds nothing to do. Entries that were deleted before this job are not in
the lake; entries that are erased later are removed by the job `erase`.

The commit also notes how many entries the stream ever had, and how many of them were gone before
they could be copied, so that `audit` can prove that the lake has all others. A stream that cannot
be copied is a problem in the report, and the other streams are committed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.jobs.executor.to_lake import Task, write_files
from streamkeep.pipeline.jobs.subscription import read_options
from streamkeep.pipeline.lake.erased import ERASED, read_erased
from streamkeep.pipeline.lake.files import (
    LakeConflictError,
    LakeError,
    LakeFile,
    Origin,
    ids_within,
)
from streamkeep.pipeline.lake.table import Counts, Lake
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.scheduling.conflicts import MOST_CONFLICTS, wait_after
from streamkeep.pipeline.scheduling.units import Progress, Report, Stopwatch, cores_of, run_units
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.pins import find_streams, pin_stream
from streamkeep.pipeline.source.plan import plan_pins
from streamkeep.pipeline.source.slices import Pin, Slice
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.storage.folders import new_folder, remove_folder
from streamkeep.pipeline.storage.places import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME: Final = "to-lake"
_log = logging.getLogger(__name__)


def to_lake(
    spark: SparkSession,
    store: str,
    lake: str,
    *,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    columns: pa.Schema | None = None,
    tail_export: str | None = None,
    fail_on_data_loss: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Copy the entries that streams have gained since the last run, exactly once.

    Args:
        store: its directory.
        lake: path or URI of the lake; made if there is none.
        streams: keys; None, without a pattern, for all.
        pattern: a regular expression for whole keys.
        columns: fields to promote; a lake that lacks some of them gets them (`Lake.create`).
        tail_export: a folder that all hosts reach, path or URI. Entries outside of segments are
            written there for workers on other hosts, and removed at the end. These must also reach
            `STORE/archive`.
        fail_on_data_loss: do not copy a stream of which entries were trimmed since the last run;
            the report names it. False: copy what remains, and count the lost entries.

    Returns:
        A report whose `problems` name each stream that could not be copied; the others are. Its
        detail `absent` is the number of entries that were gone before this run could copy them.

    Raises:
        LakeError: the lake cannot be opened.
        LakeConflictError: other jobs on the same streams committed first, a thousand times.
    """
    options = read_options(
        store,
        streams,
        pattern,
        tail_export=tail_export,
        fail_on_data_loss=fail_on_data_loss,
    )
    with Stopwatch(Report(NAME)) as report:
        with reading(options.path):
            pass  # opened first, so that no lake is made if there is no store
        for conflicts in range(MOST_CONFLICTS):
            try:
                table = Lake.create(lake, columns)
                if table.is_fleet:
                    raise LakeError(
                        f"{lake}: the lake of a fleet; next: copy into it with fleet (--fleet URI)"
                    )
                _take_over(spark, options, table, report, progress)
            except LakeConflictError:
                if conflicts + 1 == MOST_CONFLICTS:
                    raise
                wait_after(conflicts)
                continue
            break
    return report


@dataclass(frozen=True)
class _Plan:
    """What is to be copied of one stream.

    Attributes:
        added: entries that were ever added to it.
        before: what the lake knows of it.
    """

    pin: Pin
    origin: Origin
    added: int
    before: Counts


def _take_over(
    spark: SparkSession,
    options: ReadOptions,
    lake: Lake,
    report: Report,
    progress: Progress | None,
) -> None:
    problems: dict[Origin, str] = {}
    plans = _plans(options, lake, problems)
    schema = lake.entry_schema.serialize().to_pybytes()
    folder = None if options.tail_export is None else new_folder(options.tail_export)
    try:
        parts = _partitions(options, plans, folder, cores_of(spark), problems)
        store = plans[0].origin.store if plans else ""
        erased = _erased(lake, plans)
        tasks = [
            Task(
                *(options, lake.uri, store, schema, part),
                {one.number: erased[one.number] for one in part if one.number in erased},
            )
            for part in parts
        ]
        lines = run_units(spark, tasks, write_files, progress)
    finally:
        if folder is not None:
            remove_folder(folder)
    written: list[LakeFile] = []
    for line in map(json.loads, lines):
        if len(line) == 3:
            problems.setdefault(Origin(store, line[1], bytes.fromhex(line[0])), line[2])
        else:
            written.append(LakeFile.from_json(json.dumps(line)))
    lake.discard(file for file in written if file.origin in problems)
    files = [file for file in written if file.origin not in problems]
    taken = [one for one in plans if one.origin not in problems]
    absent = 0
    if taken:
        counts = {}
        for one in taken:
            copied = sum(file.entries for file in files if file.origin == one.origin)
            gone = one.added - one.before.added - copied
            absent += gone
            application = one.origin.application
            counts[application] = Counts(one.added, one.before.absent + gone, one.before.erased)
        try:
            lake = lake.commit(
                NAME,
                files,
                checkpoints={one.origin.application: one.pin.end for one in taken},
                counts=counts,
                origins=[one.origin for one in taken],
            )
        except LakeConflictError:
            lake.discard(files)
            raise
    report.entries = sum(file.entries for file in files)
    report.files = len(files)
    report.size_bytes = sum(file.size_bytes for file in files)
    report.details = {"streams": len(taken), "absent": absent, "lake_version": lake.version}
    report.problems = [f"{origin}: not copied: {text}" for origin, text in sorted(problems.items())]


def _plans(options: ReadOptions, lake: Lake, problems: dict[Origin, str]) -> list[_Plan]:
    """Return what is new in each stream; add streams to `problems` of which entries are lost."""
    plans = []
    with reading(options.path) as source, source.snapshot() as snapshot:
        txn = snapshot.txn
        for key, number in find_streams(txn, options, all_there=True).items():
            origin = Origin(source.uuid, number, key)
            try:
                pin = pin_stream(txn, options, key, number)
            except StreamkeepError as error:
                problems[origin] = str(error)
                continue
            done, before = lake.checkpoint(origin.application), lake.counts(origin.application)
            if done is not None:
                try:
                    check_nothing_lost(
                        txn, options, pin.key, Position(pin.number, done, added=before.added)
                    )
                except DataLossError as error:
                    if options.fail_on_data_loss:
                        problems[origin] = str(error)
                        continue
                    _log.warning("%s", error)
            if done is not None and done >= pin.end:
                continue
            start = pin.start if done is None else max(pin.start, done.next())
            stream = txn.find_stream(pin.key)
            if start <= pin.end and stream is not None:
                added = stream.record.entries_added
                plans.append(_Plan(replace(pin, start=start), origin, added, before))
    return plans


def _erased(lake: Lake, plans: list[_Plan]) -> dict[int, tuple[StreamId, ...]]:
    """Return the new IDs that were erased from the lake before they came, by stream."""
    if not plans:
        return {}
    store = plans[0].origin.store
    known = read_erased(lake.uri, store, lake.transaction(ERASED.application(store)))
    found = {}
    for one in plans:
        ids = ids_within(known.get(one.origin.number, ()), one.pin.start, one.pin.end)
        if ids:
            found[one.origin.number] = ids
    return found


def _partitions(
    options: ReadOptions,
    plans: list[_Plan],
    folder: str | None,
    cores: int,
    problems: dict[Origin, str],
) -> list[tuple[Slice, ...]]:
    """Return the partitions of all streams; leave out those that cannot be planned."""
    try:
        return plan_pins(options, tuple(one.pin for one in plans), folder, cores)
    except StorageError:
        raise
    except StreamkeepError:
        parts = []
        for one in plans:
            try:
                parts += plan_pins(options, (one.pin,), folder, cores)
            except StreamkeepError as error:
                problems[one.origin] = str(error)
        return parts


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
