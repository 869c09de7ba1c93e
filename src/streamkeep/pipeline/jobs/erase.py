"""The job `erase`: it erases entries from a store, its archive and a lake, and verifies that.

The order of the steps keeps other jobs from bringing an erased entry back:

1. The store: `Store.erase` overwrites the entries in live nodes, retired rows, segments, the
   journal and free pages, and records the IDs.
2. The lake: files that may hold one of the IDs are rewritten without them and replaced in one
   transaction, which conflicts with jobs that read an entry before step 1.
3. The replaced files, and all others of the lake that hold an ID and that the log does not name,
   are removed at once. Older versions of the lake can then no longer be read, which is the purpose.
   A file that no job and no commit of the lake has written is not removed, whatever it holds.
4. Verification: all files of the stream that may hold one of the IDs, named by the log or not, are
   read again, and so is the store. The report names each file that cannot be read, and each file of
   another program that holds an ID.

After a crash, the job can be run again and skips what is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.fs as pafs

import streamkeep
from streamkeep.arrow.keys import key_text
from streamkeep.engine.archive.segments import list_streams
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.system import failpoints
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.pipeline.distribution.units import Progress, Report, run_units, timed
from streamkeep.pipeline.jobs.executor.rewrite import Task, count_in_file, rewrite_files
from streamkeep.pipeline.lake import files as lake_files
from streamkeep.pipeline.lake.files import LakeConflictError, LakeError, LakeFile, Origin
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.lake.read import read_lake
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage.numbered import NumberedFiles, next_version
from streamkeep.pipeline.storage.places import file_system, reaching
from streamkeep.pipeline.store_fleet.pieces import POSITIONS, read_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


NAME: Final = "erase"
# What a file raises that is damaged, or whose columns `ms` and `seq` are missing or no numbers.
_UNREADABLE: Final = (OSError, KeyError, TypeError, pa.ArrowException)


def erase(
    spark: SparkSession,
    key: str | bytes,
    ids: Sequence[str | StreamId] = (),
    *,
    store: str | None = None,
    lake: str | None = None,
    store_id: str | None = None,
    where: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Erase entries of a stream from a store, its archive, and a lake.

    First from the store, durably, then from the lake, in one commit; then the old files are
    removed. Run it again if it was killed.

    Args:
        key: of the stream. If it was renamed, what the lake has of it under its other keys goes,
            too.
        ids: of the entries.
        store: None if the entries are already erased from the store.
        lake: None if there is no lake.
        store_id: UUID of the store whose entries are erased from the lake; by default that of
            `store`. The same IDs of other stores stay.
        where: an SQL condition on the columns of the lake; matching entries are erased, too.

    Raises:
        LakeError: there is no such lake, or neither store nor lake was named, or the lake has the
            key from several stores and none was named, or the condition cannot be used.
        LakeConflictError: other jobs committed to the same files in every try.
    """
    if store is None and lake is None:
        raise LakeError("there is nothing to erase from; next: name a store, a lake, or both")
    if where is not None and lake is None:
        raise LakeError("a condition needs a lake to search in; next: name a lake")
    with timed(NAME) as report:
        name = key.encode() if isinstance(key, str) else key
        wanted = {one if isinstance(one, StreamId) else StreamId.parse(one) for one in ids}
        origins: list[Origin] = []
        if lake is not None:
            table = Lake.open(lake)
            origins = _origins(table, name, store, store_id)
            if where is not None and origins:
                lacking = table.lacking_columns()
                if any(one.path in lacking and one.origin in origins for one in table.files()):
                    raise LakeError(
                        f"{lake}: some rows are from before columns were added, so that the "
                        "condition may miss entries; next: run "
                        f"`streamkeep spark compact {lake} --fill` first"
                    )
                keys = sorted({key_text(one.key) for one in origins})
                numbers = ", ".join(sorted({str(one.number) for one in origins}))
                rows = read_lake(spark, lake, streams=keys, stores=[origins[0].store])
                rows = _matching(rows.where(f"incarnation in ({numbers})"), where)
                for row in rows.select("ms", "seq").toLocalIterator():
                    wanted.add(StreamId(lake_files.unsigned(row.ms), lake_files.unsigned(row.seq)))
        chosen = tuple(sorted(wanted))
        erased = 0
        if store is not None and chosen:
            with streamkeep.open(store, create=False) as opened:
                erased = opened.erase(name, *chosen)
        rewritten = removed = 0
        if lake is not None and chosen and origins:
            removed, rewritten = _erase_in_lake(spark, lake, origins, chosen, progress)
            swept, drafts = _remove_old_files(lake, origins, chosen)
            report.details["files_removed"] = swept
            if drafts:
                report.problems.append(
                    f"{drafts} unfinished files of other jobs are in the partitions of {name!r}; "
                    "next: run erase again when these jobs have ended; if they died, first run "
                    f"`streamkeep spark compact {lake} --keep 0`"
                )
            left, problems = _count_left(lake, origins, chosen)
            report.details["found_in_lake_again"] = left
            report.problems += problems
            if left:
                report.problems.append(
                    f"{left} of the entries are still in files of the lake, which another job has "
                    "written meanwhile; next: run erase again"
                )
        if store is not None and chosen:
            with streamkeep.open(store, create=False, readonly=True) as opened:
                report.details["found_in_store_again"] = 0
                ours = {one.number for one in origins if one.store == opened.uuid}
                with opened.snapshot() as snapshot:  # RENAME may have changed the keys
                    there = {at for at, number in iter_keys(snapshot.txn) if number in ours}
                for one in sorted({name, *there}):
                    left = sum(len(opened.xrange(one, at, at, history=True)) for at in chosen)
                    report.details["found_in_store_again"] += left
                    if left:
                        called = "" if one == name else f", in {key_text(one)!r}; next: erase there"
                        report.problems.append(
                            f"{left} of the entries are still in the store{called}"
                        )
        report.entries = len(chosen)
        report.files = rewritten
        report.details |= {"erased_in_store": erased, "erased_in_lake": removed}
    return report


def _matching(rows: DataFrame, where: str) -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        return rows.where(where)
    except PySparkException as error:
        text = str(error).strip().splitlines()[0].rstrip(";")
        raise LakeError(
            f"the condition {where!r} cannot be used: {text}; next: it is SQL on columns of the "
            "lake, with texts in quotes, such as \"name = 'x'\""
        ) from None


def _origins(table: Lake, key: bytes, store: str | None, store_id: str | None) -> list[Origin]:
    """Return the streams of one store that had the key, in the lake or in the store.

    Those of the store may come into the lake at this moment. A stream that was renamed is there
    with each key under which the lake has entries of it.
    """
    files = table.files()
    known = {file.origin for file in files if file.origin.key == key}
    if store is not None:
        with reading(store) as opened, opened.snapshot() as snapshot:
            store_id = store_id or opened.uuid
            if store_id == opened.uuid:
                stream = snapshot.txn.find_stream(key)
                old = list_streams(snapshot.txn)
                numbers = {one.stream_number for one in old if one.key == key}
                numbers |= set() if stream is None else {stream.number}
                known |= {Origin(store_id, number, key) for number in numbers}
    streams = {one.stream for one in known}
    found = sorted(known | {file.origin for file in files if file.origin.stream in streams})
    stores = sorted({one.store for one in found})
    if store_id is None and len(stores) > 1:
        raise LakeError(
            f"{table.uri}: {len(stores)} stores have a stream {key_text(key)!r}: "
            f"{', '.join(stores)}; next: name one with store_id (--store-id)"
        )
    return [one for one in found if store_id in (None, one.store)]


# --- the lake -------------------------------------------------------------------------------------


def _erase_in_lake(
    spark: SparkSession,
    lake: str,
    origins: Sequence[Origin],
    ids: tuple[StreamId, ...],
    progress: Progress | None,
) -> tuple[int, int]:
    """Replace the files that hold one of the IDs; return (erased entries, new files)."""
    for _ in lake_files.attempts(lake):
        table, added = Lake.open(lake), list[LakeFile]()
        schema = table.entry_schema.serialize().to_pybytes()
        tasks = [
            Task(table.uri, schema, (file,), inside)
            for file in table.files()
            if file.origin in origins
            and (inside := lake_files.ids_within(ids, file.first, file.last))
        ]
        try:
            with table.reading([task.files[0] for task in tasks], NAME):
                found = run_units(spark, tasks, rewrite_files, progress)
            added = [file for one in found for file in one.files]
            removed, gone = list[LakeFile](), Counter[Origin]()
            for task, one in zip(tasks, found, strict=True):
                removed += task.files if one.gone else ()
                gone[task.files[0].origin] += one.gone
            _commit(table, origins, ids, added, removed, gone)
        except LakeConflictError:
            table.discard(added)
            continue
        return sum(gone.values()), len(added)
    raise AssertionError  # the last attempt raises


def _commit(
    table: Lake,
    origins: Sequence[Origin],
    ids: tuple[StreamId, ...],
    added: Sequence[LakeFile],
    removed: Sequence[LakeFile],
    gone: Mapping[Origin, int],
) -> None:
    """Replace files by those without erased entries, count these, and note their IDs.

    It conflicts with every other commit of the streams. A job that has read an entry before it was
    erased cannot add it afterwards.

    Args:
        gone: the number of erased entries of each stream.

    Raises:
        LakeConflictError: another job has committed something of the streams; nothing was changed.
    """
    uri, store = table.uri, origins[0].store
    applications = {files: files.application(store) for files in (lake_files.ERASED, POSITIONS)}
    old = {files: table.transaction(one) for files, one in applications.items()}
    with table.reading((), NAME, list(applications.values())):
        known = lake_files.read_erased(uri, store, old[lake_files.ERASED])
        positions = read_positions(uri, store, old[POSITIONS])
    now = lake_files.with_ids(known, {one.number for one in origins}, ids)
    new: dict[NumberedFiles, int] = {}
    if now != known:
        new[lake_files.ERASED] = next_version(old[lake_files.ERASED])
        lake_files.write_erased(uri, store, new[lake_files.ERASED], now)
    for origin, number in gone.items():
        positions = positions.with_rows(origin.number, origin.key, -number, number)
    new[POSITIONS] = next_version(old[POSITIONS])
    POSITIONS.write(uri, store, new[POSITIONS], positions.as_json())
    versions = {applications[files]: version for files, version in new.items()}
    failpoints.hit("lake:noted")
    try:
        table.commit(NAME, added, removed=removed, origins=origins, versions=versions)
    except LakeConflictError:
        for files, version in new.items():
            files.remove(uri, store, version)
        raise
    for files in new:
        files.remove(uri, store, old[files])


def _remove_old_files(
    lake: str, origins: Sequence[Origin], ids: tuple[StreamId, ...]
) -> tuple[int, int]:
    """Remove the files of the lake that its version does not name and that hold one of the IDs.

    Returns:
        The number of removed files; and of drafts of running jobs, whose IDs are unknown.
    """
    system, root = file_system(lake)
    table = Lake.open(lake)
    named = {file.path for file in table.files()}
    removed = drafts = 0
    for path, origin, own in _paths_of(table, origins):
        if not path.endswith(".parquet"):
            drafts += 1
        elif own and path not in named:
            try:
                held = _count_in(system, root, path, origin, ids) > 0
            except pa.ArrowInvalid:
                held = True  # half of a file, of a job that died or is still writing
            except _UNREADABLE:
                continue  # it is gone, or `_count_left` names it
            if held:
                with suppress(FileNotFoundError), reaching(lake):
                    system.delete_file(f"{root}/{path}")
                    removed += 1
    return removed, drafts


def _count_left(
    lake: str, origins: Sequence[Origin], ids: tuple[StreamId, ...]
) -> tuple[int, list[str]]:
    """Read all files of the partitions of streams again.

    Returns:
        How many of the entries are still in files of the lake; and the problems of files that
        cannot be read, and of files of other programs that hold some of the entries.
    """
    system, root = file_system(lake)
    table = Lake.open(lake)
    named = {file.path for file in table.files()}
    left = 0
    problems: list[str] = []
    for path, origin, own in _paths_of(table, origins):
        if not path.endswith(".parquet"):
            continue
        try:
            found = _count_in(system, root, path, origin, ids)
        except FileNotFoundError:
            continue  # another job has removed it
        except _UNREADABLE as error:
            if path in named:
                raise
            problems.append(
                f"{path} cannot be read ({type(error).__name__}: {error}); the lake does not name "
                "it, and it may hold an erased entry; next: remove it, or run erase again when the "
                "storage answers"
            )
            continue
        if own:
            left += found
        elif found:
            problems.append(
                f"{path} holds {found} of the entries, and is a file of another program, which the "
                "lake does not name; next: remove it"
            )
    return left, problems


def _count_in(
    system: pafs.FileSystem, root: str, path: str, origin: Origin, ids: tuple[StreamId, ...]
) -> int:
    """Return how many rows of a file have one of the IDs.

    Its rows decide, and not its range: a job that began after the erasure, such as `compact`, may
    be about to commit a file of that range, which has none of them.
    """
    ends = lake_files.ids_of_path(path) or (MIN_ID, MAX_ID)
    inside = lake_files.ids_within(ids, *ends)
    if not inside:
        return 0
    return count_in_file(system, root, LakeFile(path, origin, None, 0, 0, *ends), inside)


def _paths_of(table: Lake, origins: Sequence[Origin]) -> Iterator[tuple[str, Origin, bool]]:
    """Yield all files in the partitions of streams.

    Some may be gone: the log also knows files that a storage does not list yet.

    Yields:
        The path, relative to the lake; the stream; and whether the file is one of the lake: its log
        knows the file, or a job has written it.
    """
    system, root = file_system(table.uri)
    known = {file.path for file in table.files()} | table.replaced()
    for origin in origins:
        folder = lake_files.stream_folder(origin)
        selector = pafs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
        listed = [
            info.path[len(root) + 1 :]
            for info in system.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]
        for path in {*listed, *(one for one in known if one.startswith(f"{folder}/"))}:
            yield path, origin, path in known or lake_files.ids_of_path(path) is not None
