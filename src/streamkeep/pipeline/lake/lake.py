"""The lake: entries of streams in a Delta table of zstd Parquet files.

One row per entry, in columns

    bucket, date   partitions: a hash of the next three, and the UTC day of the ID, null after 9999
    store          UUID of the store
    stream         the key as text (`arrow.keys`)
    incarnation    number of the stream in its store, which changes when it is made again
    ms, seq        the ID; from 2^63 on the negative numbers with the same bits (`files`)
    ts             ms as a time; null after 9999
    fields         all fields in order, array<struct<field: binary, value: binary>>
    ...            promoted fields; rows from before one was added have null, until rewritten

Only the log of the Delta table says which files are valid: a directory listing also finds files of
unfinished jobs, and replaced ones. The driver commits through delta-rs, on disks and in object
stores; `lake.read` lets Spark read the files that the log names. The table uses the lowest protocol
version, so that any reader of Delta can read it. Other programs may rewrite files of a partition,
as OPTIMIZE does.

Each commit updates several of Delta's application transactions. Two commits that update the same
one conflict: one succeeds, and the other gets an error. They live as long as the table.

- `streamkeep/store/<store>` is the version of the file that says up to which entries the lake has
  the streams of a store (`store_fleet.pieces`), and `streamkeep/erased/<store>` that of the
  file with the IDs that were erased from the lake (`lake.files`).
- `streamkeep/format` is the number of this format, from the first commit on.
- `streamkeep/key/<bucket>` is updated by every commit that adds or erases entries of a stream. So a
  job that has read an entry before it was erased cannot add it afterwards.
- `streamkeep/files/<bucket>` is updated by every commit that replaces files of a stream. delta-rs
  lets two transactions remove the same file if the first one moves no data, and the entries would
  then be in the new files of both.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Field as DeltaField
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from streamkeep.arrow.batches import DEFAULT_SCHEMA, SYSTEM_COLUMNS
from streamkeep.arrow.keys import key_of_text, key_text
from streamkeep.engine.system import failpoints
from streamkeep.pipeline.lake import delta
from streamkeep.pipeline.lake import files as lake_files
from streamkeep.pipeline.lake.executor import described
from streamkeep.pipeline.storage import places
from streamkeep.pipeline.storage.numbered import next_version

_ORIGIN: Final = pa.schema(
    [("store", pa.string()), ("stream", pa.string()), ("incarnation", pa.int64())]
)
_BASE: Final = pa.schema([DEFAULT_SCHEMA.field(name) for name in ("ms", "seq", "ts", "fields")])
FORMAT: Final = "streamkeep/format"
LAKE_FORMAT: Final = 1
COLUMNS: Final = "streamkeep/columns"  # when columns were added, in Unix milliseconds
# The columns of which the log has bounds. Without this, delta-rs skips a file if another column is
# filtered in `to_pandas` and its like: it compares with the bounds that are not there.
_BOUNDED: Final = {"delta.dataSkippingStatsColumns": "store,stream,incarnation,ms,ts"}
_SWEPT: Final = re.compile(r"bucket=[^/]+/date=[^/]+/[^/]+\.(parquet|draft)")
_AT_ONCE: Final = 8  # files of other programs that are opened at the same time


# --- the table ------------------------------------------------------------------------------------


class Lake:
    """A lake at one version of its table; `commit` returns the lake at the next version."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.uri = uri
        self.table = table
        schema = pa.schema(table.schema().to_arrow())
        known = (*lake_files.PARTITIONS, *_ORIGIN.names, *_BASE.names)
        missing = [name for name in known if name not in schema.names]
        if missing or tuple(table.metadata().partition_columns) != lake_files.PARTITIONS:
            raise lake_files.LakeError(
                f"{uri}: a Delta table, but not a lake of streams: it lacks "
                f"{', '.join(missing) or 'the partitions bucket and date'}"
            )
        found = self.transaction(FORMAT) or 0
        if found != LAKE_FORMAT:
            newer = "; next: upgrade Streamkeep" if found > LAKE_FORMAT else ""
            raise lake_files.LakeError(
                f"{uri}: lake format {found}, but this version of Streamkeep reads format "
                f"{LAKE_FORMAT}{newer}"
            )
        self.promoted = pa.schema([field for field in schema if field.name not in known])

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> Lake:
        """Open a lake.

        Without `version`, it is at the newest one (`newest_table`).

        Raises:
            NoSuchLakeError: there is no lake.
            LakeError: it is not a lake, or has no such version.
            StorageError: the storage cannot be reached, or keeps listing an older state.
        """
        place = places.plain(uri)
        places.check(place)
        try:
            table = delta.newest_table(place) if version is None else delta.table_at(place, version)
        except DeltaError as error:
            raise lake_files.LakeError(f"{uri}: {error}") from error
        if table is None:
            raise lake_files.NoSuchLakeError(
                f"{uri}: no such lake; next: `streamkeep spark to-lake` makes one"
            )
        return cls(place, table)

    @classmethod
    def create(cls, uri: str, promoted: pa.Schema | None = None) -> Lake:
        """Open a lake; make it if there is none.

        Args:
            promoted: fields that get columns of their own. None for those that the lake has. A
                lake that lacks some of them gets them: null in the rows that it has, until
                `compact` or `erase` writes these again.

        Raises:
            LakeError: the lake has one of the columns with another type, or the path holds
                something else.
            StorageError: the storage cannot be reached, or is an S3 server that accepts two
                simultaneous commits.
        """
        columns = promoted if promoted is not None else pa.schema([])
        _check_distinct(uri, columns.names)
        for field in columns:
            if field.name.lower() in (*lake_files.PARTITIONS, *SYSTEM_COLUMNS):
                raise lake_files.LakeError(
                    f"{uri}: every lake has a column {field.name.lower()!r}; next: leave it out of "
                    "the promoted columns"
                )
        schema = pa.schema(
            [("bucket", pa.string()), ("date", pa.date32()), *_ORIGIN, *_BASE, *columns]
        )
        place = places.plain(uri)
        places.check(place)
        if not places.is_uri(place):
            os.makedirs(place, exist_ok=True)
        numbered = CommitProperties(app_transactions=[Transaction(FORMAT, LAKE_FORMAT)])
        try:
            delta.create_table(
                place,
                schema,
                partition_by=list(lake_files.PARTITIONS),
                name="streamkeep lake",
                description="entries of Redis streams, one per row",
                configuration=_BOUNDED,
                commit_properties=numbered,
            )
        except DeltaError as error:
            try:
                cls.open(uri)  # another job may have made it at the same moment
            except lake_files.LakeError:
                raise lake_files.LakeError(f"{uri}: {error}") from error
        failpoints.hit("lake:made")
        lake = cls.open(uri)
        return lake if promoted is None else lake.with_columns(promoted)

    def with_columns(self, wanted: pa.Schema) -> Lake:
        """Return the lake with these promoted columns, and those that it has; add missing ones.

        Raises:
            LakeError: the lake has one of them with another type.
            LakeConflictError: another job committed first.
        """
        for field in wanted:
            at = self.promoted.get_field_index(field.name)
            if at >= 0 and self.promoted.field(at).type != field.type:
                raise lake_files.LakeError(
                    f"{self.uri}: the column {field.name!r} is {self.promoted.field(at).type}, not "
                    f"{field.type}, and the type of a column cannot change; next: leave the column "
                    "out, or make another lake"
                )
        added = [field for field in wanted if field.name not in self.promoted.names]
        if not added:
            return self
        _check_distinct(self.uri, [*self.promoted.names, *(field.name for field in added)])
        fields = [DeltaField.from_arrow(pa.field(one.name, one.type)) for one in added]
        try:
            with places.reaching(self.uri):
                self.table.alter.add_columns(
                    fields,
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(COLUMNS, time.time_ns() // 1_000_000)]
                    ),
                )
        except CommitFailedError as error:
            raise lake_files.LakeConflictError(
                f"{self.uri}: another job committed first ({error}); next: run the job again"
            ) from error
        except DeltaError as error:
            raise lake_files.LakeError(f"{self.uri}: {error}") from error
        return Lake.open(self.uri)

    def lacking_columns(self) -> set[str]:
        """Return the paths of files that were written before columns were added.

        A file of another program counts as such: it has null where the files before it lacked one.
        """
        since = self.transaction(COLUMNS)
        if since is None:
            return set()
        return {
            row["path"]
            for row in self.logged()
            if row["modification_time"] <= since or lake_files.ids_of_path(row["path"]) is None
        }

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def file_schema(self) -> pa.Schema:
        """Return the columns of the files, which are all columns except the partitions."""
        return pa.schema([*_ORIGIN, *_BASE, *self.promoted])

    @property
    def entry_schema(self) -> pa.Schema:
        """Return the columns of the files without those of their origin."""
        return pa.schema([*_BASE, *self.promoted])

    def files(self) -> list[lake_files.LakeFile]:
        """Return the valid files, ordered by stream and ID.

        Files of other programs are opened to see which IDs they hold.
        """
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = list(threads.map(self._file, self.logged()))
        return sorted(found, key=lambda file: (file.origin, file.first))

    def logged(self) -> list[dict[str, Any]]:
        """Return what the log says of each valid file, with its path as on disk."""
        rows = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [{**row, "path": unquote(row["path"])} for row in rows]

    def _file(self, row: dict[str, Any]) -> lake_files.LakeFile:
        path = row["path"]
        ends = lake_files.ids_of_path(path)
        origin = None
        if ends is not None and row.get("min.stream") is not None:
            key = key_of_text(row["min.stream"])
            origin = lake_files.Origin(row["min.store"], row["min.incarnation"], key)
        if ends is None or origin is None or origin.bucket != row["partition.bucket"]:
            system, root = places.file_system(self.uri)
            with places.reaching(self.uri):
                origin, *ids = described(system, root, path)
            ends = (ids[0], ids[1])
        day = row["partition.date"]
        return lake_files.LakeFile(
            path,
            origin,
            None if day is None else str(day),
            row["num_records"],
            row["size_bytes"],
            *ends,
        )

    def statistics(self) -> dict[str, dict[str, lake_files.Statistics]]:
        """Return what the log says of the columns of each file, by path and column."""
        columns = [name for name in self.file_schema.names if name != "fields"]
        found = {}
        for row in self.logged():
            said = {
                name: lake_files.Statistics(
                    *(row.get(f"{what}.{name}") for what in ("min", "max", "null_count"))
                )
                for name in columns
            }
            found[row["path"]] = {name: one for name, one in said.items() if one.count(None) < 3}
        return found

    def replaced(self) -> set[str]:
        """Return the paths of files that older versions name and this one does not.

        They are those that the log remembers. Some of them may be removed.
        """
        with delta.reading_log(self.uri):
            found = self.table.vacuum(
                retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False
            )
        return {unquote(path) for path in found}

    def transaction(self, application: str) -> int | None:
        """Return the version that an application last committed; None if it never has."""
        found: int | None = self.table.transaction_version(application)
        return found

    def commit(
        self,
        job: str,
        added: Sequence[lake_files.LakeFile],
        *,
        removed: Sequence[lake_files.LakeFile] = (),
        origins: Iterable[lake_files.Origin] = (),
        versions: Mapping[str, int] | None = None,
        moves_data: bool = True,
    ) -> Lake:
        """Commit files in one transaction; return the lake at the new version.

        Args:
            job: its name in the history of the table.
            origins: the streams whose entries it adds or erases; simultaneous commits on the same
                stream conflict.
            versions: of further applications, by name.
            moves_data: False if the same entries only move to other files.

        Raises:
            LakeConflictError: since this lake was opened, another job changed one of the positions
                or replaced files of the same streams. Nothing was committed.
            StorageError: the storage does not answer, or lost the commit after it confirmed it.
        """
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            _add_action(file, moves_data, now_ms) for file in added
        ]
        for file in removed:
            values = {"bucket": file.origin.bucket, "date": file.date}
            gone = RemoveAction(file.path, moves_data, now_ms, file.size_bytes, values)
            actions.append(gone)
        touched = {f"streamkeep/key/{one.bucket}" for one in origins}
        touched |= {f"streamkeep/files/{file.origin.bucket}" for file in removed}
        moved = {name: next_version(self.transaction(name)) for name in touched}
        failpoints.hit("lake:commit")
        done = delta.commit(
            self.table,
            self.uri,
            actions,
            moved | dict(versions or {}),
            what=f"the work of {job}",
            again=f"run {job} again",
            partition_by=lake_files.PARTITIONS,
            message=f"streamkeep {job}",
        )
        failpoints.hit("lake:committed")
        return Lake(self.uri, done)

    @contextmanager
    def reading(
        self, files: Sequence[lake_files.LakeFile], job: str, applications: Sequence[str] = ()
    ) -> Iterator[None]:
        """Explain an error inside the block if another job has replaced what it reads.

        Args:
            files: of entries.
            applications: whose versions name files (`storage.numbered`).

        Raises:
            LakeConflictError: the block failed, and one of the files is no longer valid.
        """
        try:
            yield
        except Exception as error:
            named = {file.path for file in Lake.open(self.uri).files()}
            if all(file.path in named for file in files) and not self.changed(applications):
                raise
            raise lake_files.LakeConflictError(
                f"{self.uri}: another job replaced files while they were read; next: run {job} "
                "again"
            ) from error

    def changed(self, applications: Collection[str]) -> set[str]:
        """Return the applications that other jobs have changed since the lake was opened."""
        newest = Lake.open(self.uri) if applications else self
        return {one for one in applications if newest.transaction(one) != self.transaction(one)}

    def discard(self, files: Iterable[lake_files.LakeFile]) -> None:
        system, root = places.file_system(self.uri)
        for file in files:
            with suppress(FileNotFoundError):
                system.delete_file(f"{root}/{file.path}")

    def sweep(self, retention_hours: int) -> list[str]:
        """Remove the files that no version within the retention names; return their paths.

        Only those of partitions, and not all that Delta would remove: what else is in the folder,
        such as a store, belongs to somebody.

        Raises:
            StorageError: the storage does not answer; some of the files remain.
        """
        system, root = places.file_system(self.uri)

        def remove(path: str) -> None:
            with suppress(FileNotFoundError):
                system.delete_file(f"{root}/{path}")

        try:
            with places.reaching(self.uri):
                found = self.table.vacuum(
                    retention_hours=retention_hours,
                    dry_run=True,
                    enforce_retention_duration=False,
                    full=True,
                )
                paths = [path for path in map(unquote, found) if _SWEPT.fullmatch(path)]
                with ThreadPoolExecutor(_AT_ONCE) as threads:  # an object store takes 30 ms for one
                    list(threads.map(remove, paths))
        except DeltaError as error:
            raise places.StorageError(f"{self.uri}: {error}; next: run compact again") from error
        failpoints.hit("lake:swept")
        return paths


def _check_distinct(uri: str, names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        other = known.get(name.lower())
        if other is not None:
            raise lake_files.LakeError(
                f"{uri}: columns {other!r} and {name!r} are one to Delta, which ignores case; "
                "next: leave one out"
            )
        known[name.lower()] = name


def _add_action(file: lake_files.LakeFile, moves_data: bool, now_ms: int) -> AddAction:
    ends = [file.first, file.last]
    origin = {
        "store": file.origin.store,
        "stream": key_text(file.origin.key),
        "incarnation": file.origin.number,
    }
    low, high = dict[str, Any](origin), dict[str, Any](origin)
    if ends[0].ms >> 63 == ends[1].ms >> 63:  # else the signed numbers are not in their order
        low["ms"], high["ms"] = (lake_files.signed(one.ms) for one in ends)
    if ends[1].ms <= lake_files.LAST_MS:
        low["ts"], high["ts"] = (_iso(one.ms) for one in ends)
    stats: dict[str, Any] = {
        "numRecords": file.entries,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys((*origin, "ms"), 0),
    }
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={"bucket": file.origin.bucket, "date": file.date},
        modification_time=now_ms,
        data_change=moves_data,
        stats=json.dumps(stats),
    )


def _iso(ms: int) -> str:
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
