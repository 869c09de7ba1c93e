"""The job `audit`: it reads every byte of an archive and of a lake, and reports all problems.

For a segment, it checks the trailer, index and seek table, the checksum of each block, every
envelope and listpack, the order and number of entries, and compares them with the manifest. For a
file of the lake, it checks the checksum in its name, the order of IDs, and the row count, ID range
and day against its name, the log and the partition, and its values against the statistics of the
log, by which readers of the table skip files. It also looks for entries that were erased
from the store, overlapping segments, entries that a lake has twice, and missing files.

Of each store it compares what was copied with what the log of the lake names and what the store
has, up to the position of the lake: a file that was taken out of the log is found, and a stream of
which the lake has fewer entries than its segments, or its store. No file of the lake may hold an
entry that was erased from it, or from its own store.

The job only reads. The problems are in the report in a fixed order, so that two runs can be
compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final

from streamkeep.engine.archive.segments import list_streams
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import erased_ids, iter_segments
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution.packing import pack, spread
from streamkeep.pipeline.distribution.units import Progress, Report, cores_of, run_units, timed
from streamkeep.pipeline.jobs.executor.audit import Archived, Task, describe_stores, look_at
from streamkeep.pipeline.jobs.to_lake import SEGMENTS_PER_TASK, group_tasks
from streamkeep.pipeline.lake import files as lake_files
from streamkeep.pipeline.lake.files import Erased, LakeConflictError, LakeError, LakeFile, Origin
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.storage.places import StorageError
from streamkeep.pipeline.store_fleet import pieces
from streamkeep.pipeline.store_fleet.members import find_members, live_member
from streamkeep.pipeline.store_fleet.pieces import Member, Positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "audit"

Stream = tuple[str, int]  # store, and number in it


@dataclass
class _Found:
    """What a lake has of its stores, and what these have.

    Attributes:
        table, files: the lake; None for no lake.
        positions: what the lake has of each store.
        gone: which entries were erased from the lake, of each store.
        segments: their number; `groups` has them, packed.
        expected: entries that the lake must have, by stream.
        erased: IDs that were erased from a store, by stream.
    """

    table: Lake | None = None
    files: Sequence[LakeFile] = ()
    positions: dict[str, Positions] = field(default_factory=lambda: defaultdict(Positions))
    gone: dict[str, Erased] = field(default_factory=lambda: defaultdict(dict))
    segments: int = 0
    groups: list[tuple[int, bytes]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expected: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    erased: dict[Stream, list[StreamId]] = field(default_factory=lambda: defaultdict(list))


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
    with timed(NAME) as report:
        found = _begin(lake)
        if store is not None:
            member = live_member(Path(store))
            _look_at_live(member, found, "")
            _look_for_replaced(found, [member])
        if fleet is not None:
            sealed = _look_at_fleet(spark, fleet, found)
            report.details["sealed_ms"] = sealed
        tasks = plan(found, cores_of(spark))
        facts = run_units(spark, tasks, look_at, progress)
        report.entries = sum(one.entries for one in facts)
        report.files = len(facts)
        report.size_bytes = sum(one.size_bytes for one in facts)
        report.problems += sorted(problem for one in facts for problem in one.problems)
        report.problems += _twice(found.files) + _reconcile(found) + found.problems
        report.details |= {
            "segments": found.segments,
            "lake_files": len(found.files),
            "lake_files_of_other_programs": sum(file.foreign for file in found.files),
        }
        if found.table is not None:
            report.details["lake_version"] = found.table.version
    return report


def _begin(lake: str | None) -> _Found:
    """Return what a lake says of its stores.

    It is read at once, since other jobs remove it with their commits.
    """
    for _ in lake_files.attempts(lake) if lake is not None else ():
        table = Lake.open(lake or "")
        found = _Found(table, table.files())
        # Also those of which the log names no file: all of them may have been taken out of it.
        stores = {file.store for file in found.files} | pieces.POSITIONS.stores(table.uri)
        names = [
            kind.application(one)
            for one in stores
            for kind in (pieces.POSITIONS, lake_files.ERASED)
        ]
        try:
            with table.reading((), NAME, names):
                for one in stores:
                    version = table.transaction(pieces.POSITIONS.application(one))
                    found.positions[one] = pieces.read_positions(table.uri, one, version)
                    version = table.transaction(lake_files.ERASED.application(one))
                    found.gone[one] = lake_files.read_erased(table.uri, one, version)
        except LakeConflictError:
            continue
        return found
    return _Found()


def _look_at_fleet(spark: SparkSession, fleet: str, found: _Found) -> dict[str, int | None]:
    """Collect the segments of a fleet, and what its lake must have.

    Returns:
        Up to which time each archived store is in segments; None if it never was.
    """
    headless: list[str] = []
    archived: list[Member] = []
    members = find_members(fleet, found.problems, headless)
    _look_for_replaced(found, members)
    for member in members:
        if not member.path:
            archived.append(member)
            continue
        try:
            _look_at_live(member, found, f"store {member.store}: ")
        except StorageError:
            raise
        except StreamkeepError as error:
            found.problems.append(f"store {member.store}: {error}")
    found.problems += [f"store {one}: its archive in {fleet} {pieces.NO_HEAD}" for one in headless]
    asks = [(one, found.positions[one.store]) for one in archived]
    units = pack(asks, lambda ask: ask[0].segments + 100, SEGMENTS_PER_TASK)
    for one in run_units(spark, units, describe_stores):
        found.groups += one.groups
        found.segments += one.segments
        found.problems += [f"store {one.store}: {text}" for text in one.problems]
        for number, (expected, erased) in one.streams.items():
            found.expected[one.store, number] += expected
            found.erased[one.store, number] += erased
    return {one.store: one.sealed_ms for one in archived}


def _look_for_replaced(found: _Found, members: Sequence[Member]) -> None:
    for store, text in pieces.replaced_stores(found.positions, members).items():
        found.problems.append(f"store {store}: {text.partition('; next:')[0]}")


def _look_at_live(member: Member, found: _Found, prefix: str) -> None:
    """Collect the segments of a store on a path, and what the lake must have of it.

    The latter is known if the lake has the newest entry of a stream.
    """
    positions = found.positions[member.store]
    options = parse_read({"path": member.path, "subscribePattern": ""})
    with reading(member.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        driver = "" if member.uri else gethostname()
        segments = [
            Archived(member, one, driver=driver, prefix=prefix) for one in iter_segments(txn)
        ]
        found.segments += len(segments)
        found.groups += pieces.pack_groups(segments)
        ordered = sorted(segments, key=lambda one: (one.record.stream_number, one.record.first_id))
        for before, after in pairwise(one.record for one in ordered):
            same = before.stream_number == after.stream_number
            if same and after.first_id <= before.last_id:
                where = f"{prefix}{after.where}"
                found.problems.append(f"{where}: begins before {before.path} ends")
        archived = {one.stream_number: one for one in list_streams(txn)}
        living = {number: key for key, number in iter_keys(txn)}
        for number in {*living, *positions.streams}:
            ids = erased_ids(txn, number, MIN_ID, MAX_ID)
            found.erased[member.store, number] += [StreamId(*one) for one in sorted(ids)]
        for number, key in living.items():
            stream = member.store, number
            done = positions.end_of(number)
            try:
                record = txn.load_numbered(number, key).record
                if done > MIN_ID:
                    added = positions.of(number, key).added
                    position = Position(number, done, added, done, added)
                    check_nothing_lost(txn, options, key, position)
            except StreamkeepError as error:
                text = str(error).partition("; next:")[0]
                found.problems.append(f"{Origin(*stream, key)}: {text}")
                continue
            if done >= record.last_id():
                old = archived.get(number)
                history = 0 if old is None else old.entries + old.retired_entries
                found.expected[stream] += record.length + history
        for number, text in pieces.deleted_streams(positions, living).items():
            origin = Origin(member.store, number, positions.streams[number].key)
            found.problems.append(f"{origin}: {text.partition('; next:')[0]}")


def plan(found: _Found, cores: int = 0) -> list[Task]:
    """Return tasks of about equal size, for segments and for files of a lake."""
    tasks = [Task(part) for part in group_tasks(found.groups, cores)]
    if found.table is None:
        return tasks
    erased: dict[str, tuple[StreamId, ...]] = {}  # by path of a file, the IDs of its range
    for file in found.files:
        number = file.origin.number
        known = {
            *found.erased.get((file.store, number), ()),
            *found.gone[file.store].get(number, ()),
        }
        erased[file.path] = tuple(sorted(lake_files.ids_within(known, file.first, file.last)))
    statistics = found.table.statistics()
    for part in spread(found.files, lambda file: file.size_bytes, cores):
        gone = {one.path: erased[one.path] for one in part}
        said = {one.path: statistics.get(one.path, {}) for one in part}
        tasks.append(Task((), found.table.uri, part, gone, said))
    return tasks


def _twice(files: Sequence[LakeFile]) -> list[str]:
    """Return a problem for each pair of overlapping files: the lake may have entries twice."""
    problems = []
    ordered = sorted(files, key=lambda file: (file.origin.stream, file.first))
    for _, group in groupby(ordered, key=lambda file: file.origin.stream):
        reached: LakeFile | None = None
        for file in group:
            if reached is not None and file.first <= reached.last:
                problems.append(f"lake file {file.path}: begins before {reached.path} ends")
            if reached is None or file.last > reached.last:
                reached = file
    return problems


def _reconcile(found: _Found) -> list[str]:
    """Return the differences between what was copied, what the log names, and what stores have."""
    if found.table is None:
        return []
    there: dict[Stream, int] = defaultdict(int)
    for file in found.files:
        there[file.store, file.origin.number] += file.entries
    copied: dict[Stream, int] = defaultdict(int)
    gone: dict[Stream, int] = defaultdict(int)
    names: dict[Stream, str] = {}
    for store, positions in sorted(found.positions.items()):
        erased = found.gone[store]
        for number, one in positions.streams.items():
            copied[store, number] += one.rows
            # The lake may never have had some of the IDs that were erased from it.
            gone[store, number] += max(one.erased, len(erased.get(number, ())))
            names[store, number] = str(Origin(store, number, one.key))
    problems = []
    for stream in sorted({*there, *copied}):
        if there[stream] != copied[stream]:
            problems.append(
                f"{names.get(stream, str(stream))}: the lake has {there[stream]:,} entries, "
                f"expected {copied[stream]:,}, which were copied and not erased"
            )
    for stream, expected in sorted(found.expected.items()):
        if there[stream] + gone[stream] < expected:
            problems.append(
                f"{names.get(stream, str(stream))}: the store has {expected:,} entries up to the "
                f"position of the lake, and the lake {there[stream]:,}"
            )
    return problems
