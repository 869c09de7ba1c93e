"""The job `audit`: it reads every byte of an archive and of a lake, and reports all problems.

For a segment, it checks the trailer, index and seek table, the checksum of each block, every
envelope and listpack, the order and number of entries, and compares them with the manifest. For a
file of the lake, it checks the checksum in its name, the order of IDs, and the row count, ID range
and day against its name, the log and the partition, and its values against the statistics of the
log, by which readers of the table skip files. It also looks for entries that were erased
from the store, overlapping segments, entries that a lake has twice, and missing files.

The job only reads. The problems are in the report in a fixed order, so that two runs can be
compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.distribution.packing import spread
from streamkeep.pipeline.distribution.units import Progress, Report, Stopwatch, cores_of, run_units
from streamkeep.pipeline.jobs import fleet_audit
from streamkeep.pipeline.jobs.executor.audit import Task, look_at
from streamkeep.pipeline.lake.files import LakeError, LakeFile, Statistics
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage.places import host
from streamkeep.pipeline.store_fleet.members import live_member

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

    It reads every byte, and changes nothing.

    Args:
        store: its directory; what it has is compared with the lake.
        lake: path or URI.
        fleet: a URI with the archives of stores, or a folder of stores. The lake is reconciled with
            what was copied into it, and with what the stores have.

        progress: called with the numbers of finished and of all tasks.

    Returns:
        A report whose `problems` have one line for each problem, in a fixed order; empty if all is
        well. `entries`, `files` and `size_bytes` are what was read.

    Raises:
        LakeError: there is no such lake, or nothing was named.
        LakeConflictError: other jobs committed to the lake, every time that its state was read.
        StoreError: the store cannot be opened.
        FleetError: there are no stores in the fleet.
        NotOnExecutorError: an executor does not reach the archive.
    """
    if store is None and lake is None and fleet is None:
        raise LakeError("there is nothing to audit; next: name a store, a lake, or both")
    with Stopwatch(Report(NAME)) as report:
        found = fleet_audit.begin(lake)
        table, files = found.table, found.files
        segments: list[SegmentRecord] = []
        remote = ("", "")
        if store is not None:
            fleet_audit.look_at_live(live_member(Path(store)), found)
            with reading(store) as opened, opened.snapshot() as snapshot:
                segments = list(iter_segments(snapshot.txn))
                setting, uuid = opened.remote_archive(), opened.uuid
                remote = ("", "") if setting is None else (setting.uri, uuid)
        if fleet is not None:
            fleet_audit.audit_fleet(spark, fleet, found, progress)
        archive = os.path.abspath(Path(store) / "archive") if store is not None else ""
        tasks = plan(
            archive,
            segments,
            table.uri if table is not None else "",
            files,
            fleet_audit.erased_in_files(found),
            cores_of(spark),
            remote,
            {} if table is None else table.statistics(),
        )
        facts = [json.loads(line) for line in run_units(spark, tasks, look_at, progress)]
        report.entries = sum(one["entries"] for one in facts) + found.entries
        report.files = len(facts)
        report.size_bytes = sum(one["size_bytes"] for one in facts) + found.size_bytes
        report.problems += sorted(problem for one in facts for problem in one["problems"])
        report.problems += _overlapping(segments)
        report.problems += _twice(files)
        report.problems += fleet_audit.reconcile(found)
        report.problems += found.problems
        report.details = {
            "segments": len(segments) + found.segments,
            "lake_files": len(files),
            "lake_files_of_other_programs": sum(file.foreign for file in files),
        }
        if table is not None:
            report.details["lake_version"] = table.version
        if fleet is not None:
            report.details["sealed_ms"] = found.sealed_ms
    return report


def plan(
    archive: str,
    segments: Sequence[SegmentRecord],
    lake: str,
    files: Sequence[LakeFile],
    erased: dict[str, tuple[StreamId, ...]] | None = None,
    cores: int = 0,
    remote: tuple[str, str] = ("", ""),
    statistics: Mapping[str, dict[str, Statistics]] | None = None,
) -> list[Task]:
    """Return tasks of about equal size, for segments and for files of a lake.

    Args:
        remote: the URI of the archive in an object store, and the UUID of the store; "" for none.
        statistics: what the log of the lake says of each file (`Lake.statistics`).
    """
    uri, store = remote
    tasks = [
        Task(archive, part, "", (), driver=host(), uri=uri, store=store)
        for part in spread(segments, [record.raw_bytes for record in segments], cores)
    ]
    for part in spread(files, [one.size_bytes for one in files], cores):
        gone = {one.path: erased[one.path] for one in part if erased and one.path in erased}
        said = {one.path: (statistics or {}).get(one.path, {}) for one in part}
        tasks.append(Task("", (), lake, part, gone, said))
    return tasks


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
