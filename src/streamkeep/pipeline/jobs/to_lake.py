"""The job `to-lake`: it copies what is new in one store, or in the stores of a fleet, into a lake.

1. Find the stores. For a fleet: one listing, and the head of each archive. An archive whose head
   was read before has nothing new and costs no more.
2. Plan: the lake has a position for each stream, up to which it has everything. For archives, tasks
   read the manifests and the positions, and return what is new in compact groups. A store on a path
   is planned on the driver.
3. Copy: a task gets only its own groups, and writes Parquet files.
4. Commit: one transaction adds all files and, for each store, the version of its new positions.

Before the commit, readers see nothing of the job; after it, another run finds nothing to do. Each
entry comes once: the positions of a store change only with its files, and two jobs that read the
same store conflict. The job that loses keeps the files of all other stores, and plans again those
of which the other job has committed something. It does so until everything is committed.

Entries that were deleted before this job are not in the lake; positions count them, so that `audit`
can prove that the lake has all others. Entries that are erased later are removed by the job
`erase`. A store that is gone keeps its entries in the lake. A store or a stream that cannot be
copied is a problem in the report; it keeps its position, and everything else is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.arrow.keys import key_text
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import CorruptionError, NoSuchKeyError, StreamkeepError
from streamkeep.pipeline.distribution.packing import pack, spread
from streamkeep.pipeline.distribution.units import Progress, Report, cores_of, run_units, timed
from streamkeep.pipeline.jobs.executor.to_lake import NotCopied, Task, write_pieces
from streamkeep.pipeline.lake import files as lake_files
from streamkeep.pipeline.lake.files import LakeConflictError, LakeError, Origin
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.options import EVERY_KEY, ReadOptions, read_options
from streamkeep.pipeline.source.pins import find_streams
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage.numbered import next_version
from streamkeep.pipeline.storage.places import StorageError, new_folder, remove_folder, sweep
from streamkeep.pipeline.store_fleet import pieces as fleet_pieces
from streamkeep.pipeline.store_fleet.executor import Ask, NotPlanned, Work, plan_stores
from streamkeep.pipeline.store_fleet.live import SLICE_BYTES, plan_live
from streamkeep.pipeline.store_fleet.members import find_members, live_member
from streamkeep.pipeline.store_fleet.pieces import Member, Positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "to-lake"
SEGMENTS_PER_TASK: Final = 20_000  # of manifests to read: about a second
_AT_ONCE: Final = 32


@dataclass
class _Plan:
    """What one run does.

    Attributes:
        problems: the errors of stores that cannot be planned, by UUID.
        keys: those of the requested streams that were seen, if only some were requested.
    """

    stores: list[Work] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)


def to_lake(
    spark: SparkSession,
    store: str,
    lake: str,
    *,
    fleet: bool = False,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    columns: pa.Schema | None = None,
    tail_export: str | None = None,
    fail_on_data_loss: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Copy the entries that streams have gained since the last run, exactly once.

    Of a fleet, archives give what was published, up to the ID up to which each stream is complete
    there; stores on a path give everything. All entries of a run become visible in one commit,
    except after a conflict with another job.

    Args:
        store: its directory; of a fleet a URI with the archives of stores, or a folder of stores.
        lake: path or URI of the lake; made if there is none.
        fleet: copy all stores of a fleet.
        streams: keys; None, without a pattern, for all.
        pattern: a regular expression for whole keys.
        columns: fields to promote; a lake that lacks some of them gets them (`Lake.create`).
        tail_export: a folder that all hosts reach, path or URI. Entries outside of segments are
            written there for workers on other hosts, and removed at the end. These must also reach
            the archive: where it is published, otherwise `STORE/archive`.
        fail_on_data_loss: do not copy a stream that was deleted since the last run, or has gone
            back in time, or one of a store on a path of which entries were trimmed since; the
            report names it, and a store that was copied from this path if another one is there
            now. False: copy what remains, count the lost entries, and note that the stream or the
            other store is gone.

    Returns:
        A report whose `problems` name each store and stream that could not be copied; all others
        are. Its detail `absent` is the number of entries that were gone before this run could copy
        them, in streams of which the number ever added is known: those of stores on a path, and
        those that are sealed up to their newest entry.

    Raises:
        FleetError: there are no stores.
        NoSuchKeyError: no store has one of `streams`.
        LakeError: the lake cannot be opened.
        LakeConflictError: other jobs on the same streams committed first, a thousand times.
        UnreachableError: the object store of the fleet does not answer.
    """
    options = read_options(
        store,
        streams,
        pattern,
        fleet=fleet,
        tail_export=tail_export,
        fail_on_data_loss=fail_on_data_loss,
    )
    failed: list[str] = []
    headless: list[str] = []

    def find() -> list[Member]:
        if fleet:
            return find_members(store, failed, headless)
        return [live_member(Path(options.path))]

    with timed(NAME) as report, ExitStack() as stack:
        members = find()
        if not fleet:
            with reading(options.path) as source, source.snapshot() as snapshot:
                find_streams(snapshot.txn, options, all_there=True)  # raises before a lake is made
        report.details = {"stores": len(members), "changed": 0, "streams": 0, "absent": 0}
        folder = None
        if tail_export is not None:
            folder = new_folder(tail_export)
            stack.callback(remove_folder, folder)
            sweep(tail_export)
        _run(spark, members, find, lake, columns, options, report, progress, folder)
        table = Lake.open(lake)
        for one in headless:  # one that was never copied may be published for the first time
            if table.transaction(fleet_pieces.POSITIONS.application(one)) is not None:
                failed.append(f"store {one}: its archive in {store} {fleet_pieces.NO_HEAD}")
        report.problems = [*sorted(set(failed)), *report.problems]
        report.details["lake_version"] = table.version
    return report


def _run(
    spark: SparkSession,
    members: list[Member],
    find: Callable[[], list[Member]],
    lake: str,
    columns: pa.Schema | None,
    options: ReadOptions,
    report: Report,
    progress: Progress | None,
    folder: str | None,
) -> None:
    """Copy what is new in stores until everything is committed.

    Args:
        find: returns them again, after another job has committed.
        folder: for what executors on other hosts cannot reach; None for nothing.
    """
    checked = False
    problems: dict[str, str] = {}
    there = members
    for _ in lake_files.attempts(lake):
        try:
            table = Lake.create(lake, columns)
        except LakeConflictError:  # another job has committed something
            continue
        replaced = _replaced(table, there)
        planned = plan(spark, table, members, options, folder)
        if options.fail_on_data_loss:
            problems |= {f"store {one.member.store}": text for one, text in replaced}
        else:
            planned.stores += [one for one, _ in replaced]
        for key in () if checked else options.keys or ():
            if key not in planned.keys and not planned.problems:
                raise NoSuchKeyError(f"{options.path}: no store has a stream {key_text(key)!r}")
        checked = True
        lost = _copy(spark, table, planned.stores, report, progress)
        again = {one.member.store for one in lost} | _moved_on(table, planned.problems)
        problems |= {
            f"store {store}": text for store, text in planned.problems.items() if store not in again
        }
        for one in planned.stores:
            if one.member.store not in again:
                for (number, key), text in one.problems.items():
                    problems[str(Origin(one.member.store, number, key))] = text
        if not again:
            break
        members = [one for one in find() if one.store in again]
    report.problems = [f"{where}: not copied: {problems[where]}" for where in sorted(problems)]


def _replaced(table: Lake, members: Sequence[Member]) -> list[tuple[Work, str]]:
    """Return the stores in whose place a member is, with positions that note it, and a sentence."""
    if not any(one.path for one in members):
        return []
    others = sorted(fleet_pieces.POSITIONS.stores(table.uri) - {one.store for one in members})
    versions = {one: table.transaction(fleet_pieces.POSITIONS.application(one)) for one in others}

    def read(store: str) -> Positions:
        try:
            return fleet_pieces.read_positions(table.uri, store, versions[store])
        except CorruptionError:
            return Positions()  # a job has just replaced them; the next run, or audit, reports them

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        copied = dict(zip(others, threads.map(read, others), strict=True))
    found = []
    for store, text in fleet_pieces.replaced_stores(copied, members).items():
        was = copied[store]
        member = Member(store, was.name, was.labels)
        positions = replace(was, gone=True)
        found.append((Work(member, versions[store], positions, None, absent=was.absent), text))
    return found


def plan(
    spark: SparkSession,
    table: Lake,
    members: Sequence[Member],
    options: ReadOptions,
    folder: str | None = None,
) -> _Plan:
    """Return the stores that have something new, with their work.

    Args:
        options: which streams are copied.
        folder: for what executors on other hosts cannot reach; None for nothing.
    """
    some = options.pattern is None or options.pattern.pattern != EVERY_KEY
    asks: list[Ask] = []
    planned: list[Work | NotPlanned] = []
    for member in members:
        version = table.transaction(fleet_pieces.POSITIONS.application(member.store))
        erased = table.transaction(lake_files.ERASED.application(member.store))
        ask = Ask(member, table.uri, version, erased, options, some)
        if member.path:
            planned.append(_planned_live(ask, folder))
        elif some or table.transaction(_head_application(member.store)) != member.version:
            asks.append(ask)
    units = pack(asks, lambda ask: ask.member.segments + 100, SEGMENTS_PER_TASK)
    planned += run_units(spark, units, plan_stores)
    found = _Plan()
    for one in planned:
        if isinstance(one, NotPlanned):
            found.problems[one.store] = one.problem
            continue
        found.keys |= one.keys
        if one.is_new:
            found.stores.append(one)
    found.stores.sort(key=lambda one: one.member.store)
    return found


def _planned_live(ask: Ask, folder: str | None) -> Work | NotPlanned:
    """Return the work for a store on a path, or its error."""
    member, problems = ask.member, dict[tuple[int, bytes], str]()
    try:
        before = fleet_pieces.read_positions(ask.lake, member.store, ask.version)
        pieces, positions = plan_live(member, before, ask.options, problems, folder)
        gone = lake_files.read_erased(ask.lake, member.store, ask.erased)
    except StorageError:
        raise
    except StreamkeepError as error:
        return NotPlanned(member.store, str(error))
    return Work(
        member,
        ask.version,
        positions,
        None,
        any(piece.late for piece in pieces),
        fleet_pieces.pack_groups(fleet_pieces.without_erased(pieces, gone), SLICE_BYTES),
        problems=problems,
        absent=before.absent,
        keys={one.key for one in positions.streams.values()} | {key for _, key in problems},
        is_new=positions != before or bool(problems),
    )


def _moved_on(table: Lake, stores: Iterable[str]) -> set[str]:
    """Return the stores of which another job has committed something since the lake was opened.

    It has removed their old positions, so that they could not be planned.
    """
    applications = {one: fleet_pieces.POSITIONS.application(one) for one in stores}
    changed = table.changed(applications.values())
    return {store for store, one in applications.items() if one in changed}


def group_tasks(groups: Sequence[tuple[int, bytes]], cores: int) -> list[tuple[bytes, ...]]:
    """Return groups of pieces in tasks of about equal size."""
    tasks = spread(groups, lambda group: group[0], cores)
    return [tuple(packed for _, packed in task) for task in tasks]


def _head_application(store: str) -> str:
    """Return the application whose version is that of the archive's head that was read.

    While it is that of the head, there is nothing new, and neither manifest nor positions are read.
    """
    return f"streamkeep/head/{store}"


# --- copying and committing -----------------------------------------------------------------------


def _copy(
    spark: SparkSession, table: Lake, stores: list[Work], report: Report, progress: Progress | None
) -> list[Work]:
    """Copy and commit what is new; return the stores that another job committed first."""
    groups = [group for store in stores for group in store.groups]
    late = {one.member.store for one in stores if one.late and one.version is not None}
    there = tuple(file for file in table.files() if file.store in late) if late else ()
    schema = table.entry_schema.serialize().to_pybytes()
    tasks = [Task(table.uri, schema, part, there) for part in group_tasks(groups, cores_of(spark))]
    by_store = {one.member.store: one for one in stores}
    for done in run_units(spark, tasks, write_pieces, progress):
        if isinstance(done, NotCopied):
            stream = done.origin.number, done.origin.key
            by_store[done.origin.store].problems.setdefault(stream, done.problem)
        else:
            by_store[done.store].files.append(done)
    changed: list[Work] = []
    lost: list[Work] = []
    for store in stores:
        try:
            if not store.problems or _leave_out(table, store):
                changed.append(store)
        except LakeConflictError:
            table.discard(store.files)
            lost.append(store)
    for store in changed:
        for file in store.files:
            number = file.origin.number
            store.positions = store.positions.with_rows(number, file.origin.key, file.entries)
    return lost + _commit(table, changed, report)


def _leave_out(table: Lake, store: Work) -> bool:
    """Take the streams that cannot be copied out of a store; return whether anything is left.

    Raises:
        LakeConflictError: another job has committed something of the store.
    """
    uuid = store.member.store
    with table.reading((), NAME, [fleet_pieces.POSITIONS.application(uuid)]):
        before = fleet_pieces.read_positions(table.uri, uuid, store.version)
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


def _commit(table: Lake, stores: list[Work], report: Report) -> list[Work]:
    """Commit the work of stores; return those that another job committed first."""
    lost: list[Work] = []
    while stores:
        versions: dict[str, int] = {}
        mine = [(one, next_version(one.version)) for one in stores]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(partial(_write, table.uri), mine))
        for store, version in mine:
            versions[fleet_pieces.POSITIONS.application(store.member.store)] = version
            if store.head is not None:
                versions[_head_application(store.member.store)] = store.head
        failpoints.hit("fleet:positions")
        files = [file for store in stores for file in store.files]
        origins = {file.origin for file in files}
        try:
            table.commit(NAME, files, origins=origins, versions=versions)
        except LakeConflictError:
            _forget(table.uri, [(one.member.store, version) for one, version in mine])
            table = Lake.open(table.uri)
            beaten = [
                one
                for one in stores
                if table.transaction(fleet_pieces.POSITIONS.application(one.member.store))
                != one.version
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
        report.details["changed"] += len(stores)
        report.details["streams"] += len(origins)
        report.details["absent"] += sum(one.positions.absent - one.absent for one in stores)
        break
    return lost


def _write(lake: str, one: tuple[Work, int]) -> None:
    store, version = one
    fleet_pieces.POSITIONS.write(lake, store.member.store, version, store.positions.as_json())


def _forget(lake: str, versions: Sequence[tuple[str, int | None]]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda one: fleet_pieces.POSITIONS.remove(lake, *one), versions))


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
