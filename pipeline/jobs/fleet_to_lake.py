"""The job `to-lake --fleet`: it copies what is new in many stores into one lake.

1. Find the stores: one listing, and the head of each. A store whose head was read before has
   nothing new and costs no more.
2. Plan, on executors: each reads the manifests of some stores, and the positions that the lake has
   of them, and returns what is new in compact groups.
3. Copy, on executors: a task gets only its own groups.
4. Commit: one transaction adds all files and, for each store, the version of its new positions.

Each entry comes once: the positions of a store change only with its files, and two jobs that read
the same store conflict. The job that loses keeps the files of all other stores, and plans again
those of which the other job has committed something. It does so until everything is committed.

A store that is gone keeps its entries in the lake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.engine.system import failpoints
from streamkeep.pipeline.fleet.executor.manifests import Ask, plan_stores
from streamkeep.pipeline.fleet.live import plan_live
from streamkeep.pipeline.fleet.members import find_members
from streamkeep.pipeline.fleet.pieces import Member, Positions, pack_groups
from streamkeep.pipeline.fleet.progress_files import (
    head_application,
    next_version,
    read_positions,
    remove_positions,
    store_application,
    write_positions,
)
from streamkeep.pipeline.fleet.turning import turn_into_fleet
from streamkeep.pipeline.jobs.executor.fleet_to_lake import Task, write_pieces
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.tasks.conflicts import MOST_CONFLICTS, wait_after
from streamkeep.pipeline.tasks.packing import partition_bytes
from streamkeep.pipeline.tasks.units import Progress, Report, Stopwatch, run_units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "to-lake"
_SEGMENTS_PER_TASK: Final = 20_000  # of manifests to read: about a second
_AT_ONCE: Final = 32


@dataclass
class _Store:
    """What one run does for a store.

    Attributes:
        version: of its positions in the lake when the run was planned.
        head: the version of the head that was read; None for a live store.
        late: whether segments were adopted below what the lake has.
    """

    member: Member
    version: int | None
    positions: Positions
    head: int | None
    late: bool = False
    groups: list[tuple[int, str]] = field(default_factory=list)
    files: list[LakeFile] = field(default_factory=list)


def fleet_to_lake(
    spark: SparkSession,
    fleet: str,
    lake: str,
    *,
    columns: pa.Schema | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copy the entries that the stores of a fleet have gained since the last run, exactly once.

    Archives give what was published, up to the ID up to which each stream is complete there; stores
    on a path give everything. All entries of a run become visible in one commit, except after a
    conflict with another job.

    Args:
        fleet: a URI with the archives of stores, or a folder of stores.
        lake: path or URI; made if there is none. The lake of one store becomes that of a fleet.
        columns: fields to promote, if the lake is made.

    Raises:
        FleetError: there are no stores.
        LakeError: the path holds something else.
        UnreachableError: the object store of the fleet does not answer.
    """
    with Stopwatch(Report(NAME)) as report:
        members = find_members(fleet)
        report.details = {"stores": len(members), "changed": 0, "segments": 0}
        for conflicts in range(MOST_CONFLICTS):
            table = Lake.create(lake, columns, fleet=True)
            try:
                table = table if table.is_fleet else turn_into_fleet(table)
            except LakeConflictError:
                continue  # another job has committed something, or has turned it
            stores = plan(spark, table, members)
            lost = _copy(spark, table, stores, report, progress)
            report.details["changed"] += len(stores) - len(lost)
            if not lost:
                break
            wait_after(conflicts)
            wanted = {one.member.store for one in lost}
            members = [one for one in find_members(fleet) if one.store in wanted]
        else:
            raise LakeConflictError(f"{lake}: other jobs committed first, every time")
        report.details["lake_version"] = Lake.open(lake).version
    return report


def plan(spark: SparkSession, table: Lake, members: Sequence[Member]) -> list[_Store]:
    """Return the stores that have something new, with their work."""
    asks: list[Ask] = []
    stores: dict[str, _Store] = {}
    for member in members:
        version = table.table.transaction_version(store_application(member.store))
        if member.path:
            before = read_positions(table.uri, member.store, version)
            pieces, positions = plan_live(member, before)
            if positions != before:
                groups = pack_groups(pieces)
                stores[member.store] = _Store(member, version, positions, None, groups=groups)
        elif table.table.transaction_version(head_application(member.store)) != member.version:
            asks.append(Ask(member, table.uri, version))
    known = {ask.member.store: ask for ask in asks}
    for line in run_units(spark, in_tasks(asks), plan_stores):
        found = json.loads(line)
        ask = known[found["store"]]
        stores[found["store"]] = _Store(
            ask.member,
            ask.version,
            Positions.decode(found["positions"].encode()),
            found["version"],
            found["late"],
            [(size, text) for size, text in found["groups"]],
        )
    return [stores[store] for store in sorted(stores)]


def in_tasks(asks: Sequence[Ask]) -> list[tuple[Ask, ...]]:
    """Return stores in tasks of about equally many segments."""
    tasks: list[tuple[Ask, ...]] = []
    task: list[Ask] = []
    weight = 0
    for ask in asks:
        task.append(ask)
        weight += ask.member.segments + 100
        if weight >= _SEGMENTS_PER_TASK:
            tasks.append(tuple(task))
            task, weight = [], 0
    return [*tasks, tuple(task)] if task else tasks


def group_tasks(groups: Sequence[tuple[int, str]], cores: int) -> list[tuple[str, ...]]:
    """Return groups of pieces in tasks of about equal size."""
    target = partition_bytes(sum(size for size, _ in groups), cores=cores)
    tasks: list[tuple[str, ...]] = []
    task: list[str] = []
    total = 0
    for size, text in groups:
        if task and total + size // 2 > target:
            tasks.append(tuple(task))
            task, total = [], 0
        task.append(text)
        total += size
    return [*tasks, tuple(task)] if task else tasks


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at once; 0 where that is unknown."""
    context = getattr(spark, "_sc", None)
    return 0 if context is None else int(context.defaultParallelism)


# --- copying and committing -----------------------------------------------------------------------


def _copy(
    spark: SparkSession,
    table: Lake,
    stores: list[_Store],
    report: Report,
    progress: Progress | None,
) -> list[_Store]:
    """Copy and commit what is new; return the stores that another job committed first."""
    groups = [group for store in stores for group in store.groups]
    late = {one.member.store for one in stores if one.late and one.version is not None}
    there = tuple(file for file in table.files() if file.store in late) if late else ()
    schema = table.entry_schema.serialize().to_pybytes()
    tasks = [Task(table.uri, schema, part, there) for part in group_tasks(groups, cores_of(spark))]
    by_store = {one.member.store: one for one in stores}
    for line in run_units(spark, tasks, write_pieces, progress):
        file = LakeFile.from_json(line)
        store = by_store[file.store]
        store.files.append(file)
        number, key = file.origin.number, file.key
        store.positions = store.positions.with_rows(number, key, file.entries)
    report.details["segments"] += len(groups)
    return _commit(table, stores, report)


def _commit(table: Lake, stores: list[_Store], report: Report) -> list[_Store]:
    """Commit the work of stores; return those that another job committed first."""
    lost: list[_Store] = []
    while stores:
        versions: dict[str, int] = {}
        mine = [(one, next_version(one.version)) for one in stores]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(partial(_write, table.uri), mine))
        for store, version in mine:
            versions[store_application(store.member.store)] = version
            if store.head is not None:
                versions[head_application(store.member.store)] = store.head
        failpoints.hit("fleet:positions")
        files = [file for store in stores for file in store.files]
        try:
            origins = {file.origin for file in files}
            table.commit(NAME, files, origins=origins, versions=versions)
        except LakeConflictError:
            _forget(table.uri, [(one.member.store, version) for one, version in mine])
            table = Lake.open(table.uri)
            beaten = [one for one in stores if _version(table, one) != one.version]
            for one in beaten:
                table.discard(one.files)
            lost += beaten
            stores = [one for one in stores if one not in beaten]
            continue
        failpoints.hit("fleet:committed")
        _forget(table.uri, [(one.member.store, one.version) for one in stores])
        report.entries += sum(file.entries for file in files)
        report.files += len(files)
        report.size_bytes += sum(file.size_bytes for file in files)
        break
    return lost


def _write(lake: str, one: tuple[_Store, int]) -> None:
    store, version = one
    write_positions(lake, store.member.store, version, store.positions)


def _forget(lake: str, versions: Sequence[tuple[str, int | None]]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda one: remove_positions(lake, *one), versions))


def _version(table: Lake, store: _Store) -> int | None:
    found: int | None = table.table.transaction_version(store_application(store.member.store))
    return found
