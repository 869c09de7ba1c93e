"""The audit of stores: the archives of a fleet, and what a lake has of each store.

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamkeep.engine.archive.segments import list_streams
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution.units import Progress, cores_of, run_units
from streamkeep.pipeline.jobs.executor.fleet_audit import Check, check_segments, describe_stores
from streamkeep.pipeline.jobs.to_lake import group_tasks, in_tasks
from streamkeep.pipeline.lake.erased import ERASED, Erased, read_erased
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile, Origin, attempts, ids_within
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.storage.places import StorageError
from streamkeep.pipeline.store_fleet.executor.manifests import Ask
from streamkeep.pipeline.store_fleet.members import find_members
from streamkeep.pipeline.store_fleet.pieces import NO_HEAD, Member, Positions, deleted_streams
from streamkeep.pipeline.store_fleet.progress_files import POSITIONS, read_positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stream = tuple[str, int]  # store, and number in it


@dataclass
class Found:
    """What the audit of stores has found, and what their lake has of them.

    Attributes:
        table, files: the lake; None for no lake.
        expected: entries that the lake must have, by stream.
        erased: IDs that were erased from a store, by stream.
        sealed_ms: up to which time each archived store is in segments; None if it never was.
        positions: what the lake has of each store, as far as it was read.
        erased_from_lake: which entries were erased from it, as far as that was read.
    """

    table: Lake | None
    files: Sequence[LakeFile]
    segments: int = 0
    entries: int = 0
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    expected: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    erased: dict[Stream, list[StreamId]] = field(default_factory=lambda: defaultdict(list))
    sealed_ms: dict[str, int | None] = field(default_factory=dict)

    positions: dict[str, Positions] = field(default_factory=dict)
    erased_from_lake: dict[str, Erased] = field(default_factory=dict)

    def positions_of(self, store: str) -> Positions:
        """Return what the lake has of a store."""
        if self.table is None:
            return Positions()
        if store not in self.positions:
            version = self.table.transaction(POSITIONS.application(store))
            self.positions[store] = read_positions(self.table.uri, store, version)
        return self.positions[store]

    def erased_of(self, store: str) -> Erased:
        """Return which entries of a store were erased from the lake."""
        if self.table is None:
            return {}
        if store not in self.erased_from_lake:
            version = self.table.transaction(ERASED.application(store))
            self.erased_from_lake[store] = read_erased(self.table.uri, store, version)
        return self.erased_from_lake[store]


def begin(lake: str | None) -> Found:
    """Return what a lake says of its stores.

    It is read at once, since other jobs remove it with their commits.
    """
    if lake is None:
        return Found(None, ())
    for _ in attempts(lake):
        table = Lake.open(lake)
        found = Found(table, table.files())
        # Also those of which the log names no file: all of them may have been taken out of it.
        stores = {file.store for file in found.files} | POSITIONS.stores(table.uri)
        names = [kind.application(one) for one in stores for kind in (POSITIONS, ERASED)]
        try:
            with table.reading((), "audit", names):
                for store in stores:
                    found.positions_of(store)
                    found.erased_of(store)
        except LakeConflictError:
            continue
        return found
    raise AssertionError  # the last attempt raises


def audit_fleet(spark: SparkSession, fleet: str, found: Found, progress: Progress | None) -> None:
    """Check the archives of a fleet; collect what its lake must have."""
    asks = []
    headless: list[str] = []
    members = find_members(fleet, found.problems, headless)
    found.problems += [f"store {one}: its archive in {fleet} {NO_HEAD}" for one in headless]
    for member in members:
        if member.path:
            try:
                look_at_live(member, found)
            except StorageError:
                raise
            except StreamkeepError as error:
                found.problems.append(f"store {member.store}: {error}")
            continue
        table = found.table
        version = None if table is None else table.transaction(POSITIONS.application(member.store))
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


def look_at_live(member: Member, found: Found) -> None:
    """Collect what the lake must have of a store on a path, if it has its newest entry."""
    positions = found.positions_of(member.store)
    options = parse_read({"path": member.path, "subscribePattern": ""})
    with reading(member.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
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
        for number, text in deleted_streams(positions, living).items():
            origin = Origin(member.store, number, positions.streams[number].key)
            found.problems.append(f"{origin}: {text.partition('; next:')[0]}")


def reconcile(found: Found) -> list[str]:
    """Return the differences between what was copied, what the log names, and what stores have."""
    table = found.table
    if table is None:
        return []
    there: dict[Stream, int] = defaultdict(int)
    for file in found.files:
        there[file.store, file.origin.number] += file.entries
    copied: dict[Stream, int] = defaultdict(int)
    gone: dict[Stream, int] = defaultdict(int)
    names: dict[Stream, str] = {}
    stores = {store for store, _ in (*there, *found.expected)} | set(found.positions)
    for store in sorted(stores):
        erased = found.erased_of(store)
        for number, one in found.positions_of(store).streams.items():
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


def erased_in_files(found: Found) -> dict[str, tuple[StreamId, ...]]:
    """Return, by path of a file, the erased IDs of its range."""
    gone: dict[str, tuple[StreamId, ...]] = {}
    for file in found.files:
        number = file.origin.number
        erased = found.erased_of(file.store).get(number, ())
        known = {*found.erased.get((file.store, number), ()), *erased}
        inside = ids_within(known, file.first, file.last)
        if inside:
            gone[file.path] = tuple(sorted(inside))
    return gone
