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

A store that is gone keeps its entries in the lake. A store or a stream that cannot be copied is a
problem in the report; it keeps its position, and everything else is committed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.arrow.keys import key_text
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import NoSuchKeyError, StreamkeepError
from streamkeep.pipeline.fleet.executor.manifests import Ask, plan_stores
from streamkeep.pipeline.fleet.live import plan_live
from streamkeep.pipeline.fleet.members import find_members
from streamkeep.pipeline.fleet.pieces import Member, Positions, pack_groups, without_erased
from streamkeep.pipeline.fleet.progress_files import POSITIONS, head_application, read_positions
from streamkeep.pipeline.fleet.turning import turn_into_fleet
from streamkeep.pipeline.jobs.executor.fleet_to_lake import Task, write_pieces
from streamkeep.pipeline.jobs.subscription import read_options
from streamkeep.pipeline.lake.erased import ERASED, read_erased
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile, Origin
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.scheduling.conflicts import MOST_CONFLICTS, wait_after
from streamkeep.pipeline.scheduling.packing import filled, spread
from streamkeep.pipeline.scheduling.units import Progress, Report, Stopwatch, cores_of, run_units
from streamkeep.pipeline.storage.numbered import next_version
from streamkeep.pipeline.storage.places import StorageError

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
        head: the version of the head that was read; None for a live store, and if something of it
            was left out, so that the next run reads it again.
        late: whether segments were adopted below what the lake has.
        problems: the errors of its streams, by number and key.
        absent: entries that earlier runs found gone.
    """

    member: Member
    version: int | None
    positions: Positions
    head: int | None
    late: bool = False
    groups: list[tuple[int, str]] = field(default_factory=list)
    files: list[LakeFile] = field(default_factory=list)
    problems: dict[tuple[int, bytes], str] = field(default_factory=dict)
    absent: int = 0


@dataclass
class _Plan:
    """What one run does.

    Attributes:
        problems: the errors of stores that cannot be planned, by UUID.
        keys: those of the requested streams that were seen, if only some were requested.
    """

    stores: list[_Store] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)


def fleet_to_lake(
    spark: SparkSession,
    fleet: str,
    lake: str,
    *,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    columns: pa.Schema | None = None,
    fail_on_data_loss: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Copy the entries that the stores of a fleet have gained since the last run, exactly once.

    Archives give what was published, up to the ID up to which each stream is complete there; stores
    on a path give everything. All entries of a run become visible in one commit, except after a
    conflict with another job.

    Args:
        fleet: a URI with the archives of stores, or a folder of stores.
        lake: path or URI; made if there is none. The lake of one store becomes that of a fleet.
        streams: keys; None, without a pattern, for all.
        pattern: a regular expression for whole keys.
        columns: fields to promote; a lake that lacks some of them gets them (`Lake.create`).
        fail_on_data_loss: do not copy a stream of a store on a path of which entries were trimmed
            since the last run; the report names it. False: copy what remains.

    Returns:
        A report whose `problems` name each store and stream that could not be copied; all others
        are. Its detail `absent` is the number of entries that were gone before this run could copy
        them, in streams of which the number ever added is known: those of stores on a path, and
        those that are sealed up to their newest entry.

    Raises:
        FleetError: there are no stores.
        NoSuchKeyError: no store has one of `streams`.
        LakeError: the path holds something else.
        UnreachableError: the object store of the fleet does not answer.
    """
    with Stopwatch(Report(NAME)) as report:
        options = read_options(
            fleet, streams, pattern, fleet=True, fail_on_data_loss=fail_on_data_loss
        )
        some = streams is not None or pattern is not None
        failed: list[str] = []
        members = find_members(fleet, failed)
        report.details = {"stores": len(members), "changed": 0, "segments": 0, "absent": 0}
        problems: dict[str, str] = {}
        for conflicts in range(MOST_CONFLICTS):
            try:
                table = Lake.create(lake, columns, fleet=True)
                table = table if table.is_fleet else turn_into_fleet(table)
            except LakeConflictError:
                wait_after(conflicts)  # another job has committed something, or has turned it
                continue
            planned = plan(spark, table, members, options, some=some)
            if not conflicts and streams is not None:
                _check_keys(fleet, options, planned)
            stores = planned.stores
            lost = _copy(spark, table, stores, report, progress)
            report.details["changed"] += len(stores) - len(lost)
            again = {one.member.store for one in lost}
            problems |= {f"store {store}": text for store, text in planned.problems.items()}
            for one in stores:
                if one.member.store not in again:
                    for (number, key), text in one.problems.items():
                        problems[str(Origin(one.member.store, number, key))] = text
            if not lost:
                break
            wait_after(conflicts)
            members = [one for one in find_members(fleet, failed) if one.store in again]
        else:
            raise LakeConflictError(f"{lake}: other jobs committed first, every time")
        report.problems = sorted(set(failed))
        report.problems += [f"{where}: not copied: {problems[where]}" for where in sorted(problems)]
        report.details["lake_version"] = Lake.open(lake).version
    return report


def plan(
    spark: SparkSession,
    table: Lake,
    members: Sequence[Member],
    options: ReadOptions | None = None,
    *,
    some: bool = False,
) -> _Plan:
    """Return the stores that have something new, with their work.

    Args:
        options: which streams are copied; None for all.
        some: the options leave out streams.
    """
    asks: list[Ask] = []
    stores: dict[str, _Store] = {}
    found = _Plan()
    for member in members:
        version = table.transaction(POSITIONS.application(member.store))
        erased = table.transaction(ERASED.application(member.store))
        if not member.path:
            head = table.transaction(head_application(member.store))
            if some or head != member.version:
                asks.append(Ask(member, table.uri, version, erased, options if some else None))
            continue
        try:
            before = read_positions(table.uri, member.store, version)
            problems: dict[tuple[int, bytes], str] = {}
            pieces, positions = plan_live(member, before, options, problems)
            gone = read_erased(table.uri, member.store, erased)
        except StorageError:
            raise
        except StreamkeepError as error:
            found.problems[member.store] = str(error)
            continue
        found.keys.update(one.key for one in positions.streams.values())
        found.keys.update(key for _, key in problems)
        if positions != before or problems:
            late = any(piece.late for piece in pieces)
            groups = pack_groups(without_erased(pieces, gone))
            stores[member.store] = _Store(
                *(member, version, positions, None, late, groups),
                problems=problems,
                absent=before.absent,
            )
    known = {ask.member.store: ask for ask in asks}
    for line in run_units(spark, in_tasks(asks), plan_stores):
        facts = json.loads(line)
        store, ask = facts["store"], known[facts["store"]]
        if "problem" in facts:
            found.problems[store] = facts["problem"]
            continue
        found.keys.update(map(bytes.fromhex, facts["keys"]))
        if some and not facts["changed"]:
            continue
        stores[store] = _Store(
            ask.member,
            ask.version,
            Positions.from_json(facts["positions"]),
            None if some else facts["version"],
            facts["late"],
            [(size, text) for size, text in facts["groups"]],
            absent=facts["absent"],
        )
    found.stores = [stores[store] for store in sorted(stores)]
    return found


def _check_keys(fleet: str, options: ReadOptions, planned: _Plan) -> None:
    """Raise NoSuchKeyError for a requested key that no store has."""
    for key in options.keys or ():
        if key not in planned.keys and not planned.problems:
            raise NoSuchKeyError(f"{fleet}: no store has a stream {key_text(key)!r}")


def in_tasks(asks: Sequence[Ask]) -> list[tuple[Ask, ...]]:
    """Return stores in tasks of about equally many segments."""
    return list(filled(asks, lambda ask: ask.member.segments + 100, _SEGMENTS_PER_TASK))


def group_tasks(groups: Sequence[tuple[int, str]], cores: int) -> list[tuple[str, ...]]:
    """Return groups of pieces in tasks of about equal size."""
    sizes = [size for size, _ in groups]
    return [tuple(text for _, text in task) for task in spread(groups, sizes, cores)]


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
        facts = json.loads(line)
        if len(facts) == 4:
            number, key = facts[1], bytes.fromhex(facts[2])
            by_store[facts[0]].problems.setdefault((number, key), facts[3])
        else:
            file = LakeFile.from_json(line)
            by_store[file.store].files.append(file)
    changed = [store for store in stores if not store.problems or _leave_out(table, store)]
    for store in changed:
        for file in store.files:
            number = file.origin.number
            store.positions = store.positions.with_rows(number, file.key, file.entries)
    report.details["segments"] += len(groups)
    return _commit(table, changed, report)


def _leave_out(table: Lake, store: _Store) -> bool:
    """Take the streams that cannot be copied out of a store; return whether anything is left."""
    before = read_positions(table.uri, store.member.store, store.version)
    streams = dict(store.positions.streams)
    for number, _ in store.problems:
        streams.pop(number, None)
        if number in before.streams:
            streams[number] = before.streams[number]
    bad = {number for number, _ in store.problems}
    table.discard(one for one in store.files if one.origin.number in bad)
    store.files = [one for one in store.files if one.origin.number not in bad]
    store.positions = replace(store.positions, streams=streams)
    store.head = None
    return store.positions != before


def _commit(table: Lake, stores: list[_Store], report: Report) -> list[_Store]:
    """Commit the work of stores; return those that another job committed first."""
    lost: list[_Store] = []
    while stores:
        versions: dict[str, int] = {}
        mine = [(one, next_version(one.version)) for one in stores]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(partial(_write, table.uri), mine))
        for store, version in mine:
            versions[POSITIONS.application(store.member.store)] = version
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
            beaten = [
                one
                for one in stores
                if table.transaction(POSITIONS.application(one.member.store)) != one.version
            ]
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
        report.details["absent"] += sum(one.positions.absent - one.absent for one in stores)
        break
    return lost


def _write(lake: str, one: tuple[_Store, int]) -> None:
    store, version = one
    POSITIONS.write(lake, store.member.store, version, store.positions.as_json())


def _forget(lake: str, versions: Sequence[tuple[str, int | None]]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda one: POSITIONS.remove(lake, *one), versions))
