"""The job `audit`: it reads every byte of an archive and of a lake, and reports all problems.

For a segment, it checks the trailer, index and seek table, the checksum of each block, every
envelope and listpack, the order and number of entries, and compares them with the manifest. For a
file of the lake, it checks the checksum in its name, the order of IDs, and the row count, ID range
and day against its name, the log and the partition. It also looks for entries that were erased
from the store, overlapping segments, entries that a lake has twice, and missing files.

The job only reads. The problems are in the report in a fixed order, so that two runs can be
compared.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamkeep.engine.commands import keys
from streamkeep.engine.tables.manifest import erased_ids, iter_segments
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.jobs.executor.audit import Task, look_at
from streamkeep.pipeline.jobs.fleet_audit import (
    ErasedIds,
    audit_fleet,
    erased_from_lake,
    erased_in_files,
    reconcile,
)
from streamkeep.pipeline.lake.files import LakeError, LakeFile, Origin
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.scheduling.packing import spread
from streamkeep.pipeline.scheduling.units import Progress, Report, Stopwatch, cores_of, run_units
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.storage.reached import host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamkeep.format.segment.manifest import SegmentRecord


NAME: Final = "audit"


def audit(
    spark: SparkSession,
    store: str | None = None,
    *,
    lake: str | None = None,
    fleet: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check every segment of a store, or of all stores of a fleet, and every file of a lake.

    Args:
        fleet: a URI with the archives of stores, or a folder of stores. The lake is reconciled with
            what was copied into it, and with what the stores have.

    Raises:
        LakeError: there is no such lake, or neither store nor lake was named.
        StoreError: the store cannot be opened.
    """
    if store is None and lake is None and fleet is None:
        raise LakeError("there is nothing to audit; next: name a store, a lake, or both")
    with Stopwatch(Report(NAME)) as report:
        table = Lake.open(lake) if lake is not None else None
        files = table.files() if table is not None else []
        known: set[Origin] = set()
        segments: list[SegmentRecord] = []
        erased: list[ErasedIds] = []
        if table is not None:
            erased.append(erased_from_lake(table, {file.store for file in files}))
        if store is not None:
            segments, ids = _known(store, files)
            erased.append(ids)
            if table is not None and not table.is_fleet:
                known = _uncopied(store, table, report)
        members = None
        if fleet is not None:
            members = audit_fleet(spark, fleet, table, progress)
            erased.append(members.erased)
        archive = os.path.abspath(Path(store) / "archive") if store is not None else ""
        tasks = plan(
            archive,
            segments,
            table.uri if table is not None else "",
            files,
            erased_in_files(files, *erased),
            cores_of(spark),
        )
        found = [json.loads(line) for line in run_units(spark, tasks, look_at, progress)]
        report.entries = sum(one["entries"] for one in found)
        report.files = len(found)
        report.size_bytes = sum(one["size_bytes"] for one in found)
        report.problems += sorted(problem for one in found for problem in one["problems"])
        report.problems += _overlapping(segments)
        if table is not None:
            report.problems += _twice(files)
            if table.is_fleet:
                report.problems += reconcile(table, files, erased[0], members)
            else:
                report.problems += _unbalanced(table, files, known)
        foreign = sum(file.foreign for file in files)
        report.details = {
            "segments": len(segments),
            "lake_files": len(files),
            "lake_files_of_other_programs": foreign,
        }
        if table is not None:
            report.details["lake_version"] = table.version
        if members is not None:
            report.entries += members.entries
            report.size_bytes += members.size_bytes
            report.problems += members.problems
            report.details["segments"] += members.segments
            report.details["sealed_ms"] = members.sealed_ms
    return report


def plan(
    archive: str,
    segments: Sequence[SegmentRecord],
    lake: str,
    files: Sequence[LakeFile],
    erased: dict[str, tuple[StreamId, ...]] | None = None,
    cores: int = 0,
) -> list[Task]:
    """Return tasks of about equal size, for segments and for files of a lake."""
    tasks = [
        Task(archive, part, "", (), driver=host())
        for part in spread(segments, [record.raw_bytes for record in segments], cores)
    ]
    for part in spread(files, [one.size_bytes for one in files], cores):
        gone = {one.path: erased[one.path] for one in part if erased and one.path in erased}
        tasks.append(Task("", (), lake, part, gone))
    return tasks


def _known(store: str, files: Sequence[LakeFile]) -> tuple[list[SegmentRecord], ErasedIds]:
    """Return the manifest of a store, and the IDs that it has erased, as far as a lake goes."""
    erased: dict[tuple[str, int], Sequence[StreamId]] = {}
    with reading(store) as opened, opened.snapshot() as snapshot:
        txn = snapshot.txn
        for number in {one.origin.number for one in files if one.store == opened.uuid}:
            ids = erased_ids(txn, number, MIN_ID, MAX_ID)
            erased[opened.uuid, number] = [StreamId(*one) for one in sorted(ids)]
        return list(iter_segments(txn)), erased


def _overlapping(segments: Sequence[SegmentRecord]) -> list[str]:
    """Return a problem for each pair of overlapping segments of a stream."""
    ordered = sorted(segments, key=lambda one: (one.stream_number, one.first_id))
    return [
        f"{after.where}: begins before {before.path} ends"
        for before, after in pairwise(ordered)
        if before.stream_number == after.stream_number and after.first_id <= before.last_id
    ]


def _twice(files: Sequence[LakeFile]) -> list[str]:
    """Return a problem for each pair of overlapping files: the lake may have entries twice."""
    problems = []
    for _, group in groupby(files, key=lambda file: file.origin):
        reached: LakeFile | None = None
        for file in group:
            if reached is not None and file.first <= reached.last:
                problems.append(f"lake file {file.path}: begins before {reached.path} ends")
            if reached is None or file.last > reached.last:
                reached = file
    return problems


# --- the balance of a lake ------------------------------------------------------------------------


def _uncopied(store: str, table: Lake, report: Report) -> set[Origin]:
    """Return the streams of a store that a lake has a position of; report entries lost since then.

    An entry that was trimmed after the last run of `to-lake`, and before it was copied, is a
    problem. One that was appended since then and is still there is not.
    """
    found = set()
    with reading(store) as opened, opened.snapshot() as snapshot:
        txn = snapshot.txn
        for key, number in keys.iter_keys(txn):
            origin = Origin(opened.uuid, number, key)
            done, counts = table.checkpoint(origin.application), table.counts(origin.application)
            if done is None:
                continue
            found.add(origin)
            options = parse_read({"path": store, "subscribePattern": ""})
            position = Position(number, done, added=counts.added)
            try:
                check_nothing_lost(txn, options, key, position)
                stream = txn.find_stream(key)
            except StreamkeepError as error:
                report.problems.append(f"{origin}: {str(error).partition('; next:')[0]}")
                continue
            if stream is not None and stream.record.entries_added < counts.added:
                report.problems.append(
                    f"{origin}: the lake has counted {counts.added} entries that were ever added, "
                    f"the store has {stream.record.entries_added}"
                )
    return found


def _unbalanced(table: Lake, files: Sequence[LakeFile], known: set[Origin]) -> list[str]:
    """Return a problem for each stream of which the lake has not as many rows as it should.

    Entries that were ever added are in the lake, were gone before they could be copied, or were
    erased from the lake. A file that was taken out of the log shows here.
    """
    rows = Counter({origin: 0 for origin in known})
    for file in files:
        rows[file.origin] += file.entries
    problems = []
    for origin, found in sorted(rows.items()):
        counts = table.counts(origin.application)
        if found != counts.rows:
            problems.append(
                f"{origin}: the lake has {found} entries, expected {counts.rows}: "
                f"{counts.added} added less {counts.absent} that could not be copied and "
                f"{counts.erased} erased"
            )
    return problems
