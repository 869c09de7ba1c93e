"""The audit of a fleet: the archives of its stores, and what their lake has of them.

- Executors read the manifests, and every byte of the segments.
- For each store and stream, the log of the lake must name as many entries as were copied, less
  those that were erased from the lake: a file that was taken out of the log is found.
- A stream must not have fewer entries in the lake than its segments, or its store, have up to the
  position of the lake.
- No file of the lake may hold an entry that was erased from it, or from its own store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamkeep.engine.archive.segments import list_streams
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.fleet.executor.manifests import Ask
from streamkeep.pipeline.fleet.members import find_members
from streamkeep.pipeline.fleet.pieces import Member, Positions
from streamkeep.pipeline.fleet.progress_files import POSITIONS, read_positions
from streamkeep.pipeline.jobs.executor.fleet_audit import Check, check_segments, describe_stores
from streamkeep.pipeline.jobs.fleet_to_lake import group_tasks, in_tasks
from streamkeep.pipeline.lake.erased import ERASED, read_erased
from streamkeep.pipeline.lake.files import LakeFile, Origin, ids_within
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.scheduling.units import Progress, cores_of, run_units
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.storage.places import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stream = tuple[str, int]  # store, and number in it
ErasedIds = Mapping[Stream, Sequence[StreamId]]


@dataclass
class Found:
    """What the audit of a fleet has found apart from the files of the lake.

    Attributes:
        expected: entries that the lake must have, by stream.
        erased: IDs that were erased from a store, by stream.
        sealed_ms: up to which time each archived store is in segments; None if it never was.
    """

    segments: int = 0
    entries: int = 0
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    expected: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    erased: dict[Stream, list[StreamId]] = field(default_factory=lambda: defaultdict(list))
    sealed_ms: dict[str, int | None] = field(default_factory=dict)


def audit_fleet(
    spark: SparkSession, fleet: str, table: Lake | None, progress: Progress | None
) -> Found:
    """Check the archives of a fleet; collect what its lake must have."""
    found = Found()
    asks = []
    for member in find_members(fleet, found.problems):
        version = None if table is None else table.transaction(POSITIONS.application(member.store))
        if member.path:
            try:
                _look_at_live(member, table, version, found)
            except StorageError:
                raise
            except StreamkeepError as error:
                found.problems.append(f"store {member.store}: {error}")
            continue
        asks.append(Ask(member, "" if table is None or version is None else table.uri, version))
        found.sealed_ms[member.store] = member.sealed_ms
    groups: list[tuple[int, str]] = []
    for line in run_units(spark, in_tasks(asks), describe_stores):
        facts = json.loads(line)
        store = facts["store"]
        groups += [(size, text) for size, text in facts["groups"]]
        found.segments += facts["segments"]
        found.problems += [f"store {store}: {one}" for one in facts["problems"]]
        for number, expected, erased in facts["streams"]:
            stream = store, number
            found.expected[stream] += expected
            found.erased[stream] += [StreamId.parse(one) for one in erased]
    tasks = [Check(part) for part in group_tasks(groups, cores_of(spark))]
    for line in run_units(spark, tasks, check_segments, progress):
        facts = json.loads(line)
        found.entries += facts["entries"]
        found.size_bytes += facts["size_bytes"]
        found.problems += facts["problems"]
    return found


def _look_at_live(member: Member, table: Lake | None, version: int | None, found: Found) -> None:
    """Collect what the lake must have of a store on a path, if it has its newest entry."""
    positions = Positions()
    if table is not None:
        positions = read_positions(table.uri, member.store, version)
    options = parse_read({"path": member.path, "subscribePattern": ""})
    with reading(member.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        archived = {one.stream_number: one for one in list_streams(txn)}
        for key, number in iter_keys(txn):
            record = txn.load_numbered(number, key).record
            stream = member.store, number
            ids = erased_ids(txn, number, MIN_ID, MAX_ID)
            found.erased[stream] += [StreamId(*one) for one in sorted(ids)]
            done = positions.end_of(number)
            if done > MIN_ID:
                added = positions.of(number, key).added
                try:
                    check_nothing_lost(txn, options, key, Position(number, done, added=added))
                except DataLossError as error:
                    text = str(error).partition("; next:")[0]
                    found.problems.append(f"{Origin(*stream, key)}: {text}")
            if done >= record.last_id():
                old = archived.get(number)
                history = 0 if old is None else old.entries + old.retired_entries
                found.expected[stream] += record.length + history


def reconcile(
    table: Lake, files: Sequence[LakeFile], erased: ErasedIds, found: Found | None
) -> list[str]:
    """Return the differences between what was copied, what the log names, and what stores have.

    Args:
        erased: IDs that were erased from the lake; it may never have had some of them.
    """
    there: dict[Stream, int] = defaultdict(int)
    for file in files:
        there[file.store, file.origin.number] += file.entries
    copied: dict[Stream, int] = defaultdict(int)
    gone: dict[Stream, int] = defaultdict(int)
    names: dict[Stream, str] = {}
    problems = []
    stores = {file.store for file in files}
    if found is not None:
        stores |= {store for store, _ in found.expected}
    for store in sorted(stores):
        positions = read_positions(
            table.uri, store, table.transaction(POSITIONS.application(store))
        )
        for number, one in positions.streams.items():
            copied[store, number] += one.rows
            gone[store, number] += max(one.erased, len(erased.get((store, number), ())))
            names[store, number] = str(Origin(store, number, one.key))
    for stream in sorted({*there, *copied}):
        if there[stream] != copied[stream]:
            problems.append(
                f"{names.get(stream, str(stream))}: {copied[stream]:,} entries were copied and not "
                f"erased, and the log of the lake names {there[stream]:,}"
            )
    for stream, expected in sorted(found.expected.items() if found is not None else ()):
        if there[stream] + gone[stream] < expected:
            problems.append(
                f"{names.get(stream, str(stream))}: the store has {expected:,} entries up to the "
                f"position of the lake, and the lake {there[stream]:,}"
            )
    return problems


def erased_from_lake(table: Lake, stores: Iterable[str]) -> ErasedIds:
    """Return the IDs that were erased from a lake."""
    found = {}
    for store in stores:
        version = table.transaction(ERASED.application(store))
        for number, ids in read_erased(table.uri, store, version).items():
            found[store, number] = ids
    return found


def erased_in_files(
    files: Sequence[LakeFile], *known: ErasedIds
) -> dict[str, tuple[StreamId, ...]]:
    """Return, by path of a file, the IDs of its range that were erased."""
    gone = {}
    for file in files:
        stream = file.store, file.origin.number
        inside = {
            one for ids in known for one in ids_within(ids.get(stream, ()), file.first, file.last)
        }
        if inside:
            gone[file.path] = tuple(sorted(inside))
    return gone
