"""The lake: entries of streams in a Delta table of zstd Parquet files.

One row per entry, in columns

    store          partition, in the lake of a fleet only: the UUID of the store
    stream, date   partitions: the key of the stream, and the day (UTC) of the ID; null after 9999
    ms, seq        the ID
    ts             ms as a time
    fields         all fields in order, array<struct<field: binary, value: binary>>
    ...            promoted fields, chosen when the lake is made

The files of a partition are in `stream=<key>/date=<day>/`, in the lake of a fleet below
`store=<UUID>/`. Their names contain the first and the
last ID and a checksum of the file. Only the log of the Delta table says which files are valid: a
directory listing also finds files of unfinished jobs, and replaced ones. The driver commits through
delta-rs, on disks and in object stores; `lake.read` lets Spark read the files that the log
names. The table uses the lowest protocol version, so that any reader of Delta can read it.

Each commit updates several of Delta's application transactions. Two commits that update the same
one conflict: one succeeds, and the other gets an error.

- `streamkeep/<store>/<number>/ms` and `.../seq` are the position of a stream: their versions are
  the halves of its last ID, as signed numbers of the same bits. They live as long as the table.
- `streamkeep/key/<key>` is updated by every commit that adds or erases entries of a stream. So a
  job that has read an entry before it was erased cannot add it afterwards.
- `streamkeep/store/<store>` is, in the lake of a fleet, the version of the store's state of which
  everything was copied; the positions of its streams are in a file (`lake.positions`). Every commit
  that adds or erases entries of a store updates it. `streamkeep/erased/<store>` counts erasures.
- `streamkeep/files/<key>` is updated by every commit that replaces files of a stream. delta-rs lets
  two transactions remove the same file if the first one moves no data, and the entries would then
  be in the new files of both.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamkeep.arrow.batches import DEFAULT_SCHEMA, SYSTEM_COLUMNS
from streamkeep.engine.system import failpoints
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import bits, unsigned
from streamkeep.pipeline.lake.commit_check import check_commits
from streamkeep.pipeline.lake.files import (
    FLEET_PARTITIONS,
    LAST_MS,
    PARTITIONS,
    LakeConflictError,
    LakeError,
    LakeFile,
    ids_of_path,
    partition_name,
)
from streamkeep.pipeline.storage.places import (
    check,
    file_system,
    is_uri,
    log_settings,
    plain,
    reaching,
)

_BASE: Final = pa.schema([DEFAULT_SCHEMA.field(name) for name in ("ms", "seq", "ts", "fields")])


# --- the table ------------------------------------------------------------------------------------


class Lake:
    """A lake at one version of its table; `commit` returns the lake at the next version."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.uri = uri
        self.table = table
        schema = pa.schema(table.schema().to_arrow())
        missing = [name for name in (*PARTITIONS, *_BASE.names) if name not in schema.names]
        self.partitions = tuple(table.metadata().partition_columns)
        if missing or self.partitions not in (PARTITIONS, FLEET_PARTITIONS):
            raise LakeError(
                f"{uri}: a Delta table, but not a lake of streams: it lacks "
                f"{', '.join(missing) or 'the partitions stream and date'}"
            )
        self.promoted = pa.schema(
            [field for field in schema if field.name not in (*self.partitions, *_BASE.names)]
        )

    @property
    def is_fleet(self) -> bool:
        """Return whether this is the lake of a fleet, whose rows name their store."""
        return self.partitions == FLEET_PARTITIONS

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> Lake:
        """Open a lake.

        Raises:
            LakeError: there is no lake, or it has no such version.
            StorageError: the storage cannot be reached.
        """
        place = plain(uri)
        check(place)
        try:
            with reaching(place):
                table = DeltaTable(place, version=version, storage_options=log_settings(place))
        except TableNotFoundError:
            raise LakeError(
                f"{uri}: no such lake; next: `streamkeep spark to-lake` makes one"
            ) from None
        except DeltaError as error:
            raise LakeError(f"{uri}: {error}") from error
        return cls(place, table)

    @classmethod
    def create(cls, uri: str, promoted: pa.Schema | None = None, *, fleet: bool = False) -> Lake:
        """Open a lake; make it if there is none.

        Args:
            promoted: fields that get columns of their own. None for those that the lake has.
            fleet: a new lake is that of a fleet.

        Raises:
            LakeError: the lake has other columns, or the path holds something else.
            StorageError: the storage cannot be reached, or is an S3 server that accepts two
                simultaneous commits.
        """
        columns = promoted if promoted is not None else pa.schema([])
        partitions = FLEET_PARTITIONS if fleet else PARTITIONS
        for field in columns:
            if field.name in (*partitions, *SYSTEM_COLUMNS):
                raise LakeError(
                    f"{uri}: every lake has a column {field.name!r}; next: leave it out of the "
                    "promoted columns"
                )
        kinds = [pa.date32() if name == "date" else pa.string() for name in partitions]
        schema = pa.schema([*map(pa.field, partitions, kinds), *_BASE, *columns])
        place = plain(uri)
        check(place)
        if not is_uri(place):
            os.makedirs(place, exist_ok=True)
        told = log_settings(place)
        try:
            with reaching(place):
                check_commits(place, told)
                DeltaTable.create(
                    place,
                    schema,
                    mode="ignore",
                    partition_by=list(partitions),
                    name="streamkeep lake",
                    description="entries of Redis streams, one per row",
                    storage_options=told,
                )
        except DeltaError as error:
            raise LakeError(f"{uri}: {error}") from error
        failpoints.hit("lake:made")
        lake = cls.open(uri)
        if promoted is not None and not promoted.equals(lake.promoted):
            has = ", ".join(f"{field.name} {field.type}" for field in lake.promoted) or "none"
            raise LakeError(
                f"{uri}: the promoted columns of a lake cannot change, and this one has: {has}; "
                "next: leave the columns out, or make another lake"
            )
        return lake

    @property
    def version(self) -> int:
        """Return the version of the table."""
        return int(self.table.version())

    @property
    def file_schema(self) -> pa.Schema:
        """Return the columns of the files, which are all columns except the partitions."""
        return pa.schema([*_BASE, *self.promoted])

    def files(self) -> list[LakeFile]:
        """Return the valid files, ordered by stream and ID."""
        found = []
        for row in pa.table(self.table.get_add_actions(flatten=True)).to_pylist():
            path = unquote(row["path"])
            ends = ids_of_path(path)
            if ends is None:
                raise LakeError(
                    f"{self.uri}: {path} was written by another program, and only `read_lake` "
                    "reads such files"
                )
            day = row["partition.date"]
            found.append(
                LakeFile(
                    path,
                    (row["partition.stream"] or "").encode(),
                    None if day is None else str(day),
                    row["num_records"],
                    row["size_bytes"],
                    *ends,
                    row.get("partition.store") or "",
                )
            )
        return sorted(found, key=lambda file: (file.store, file.key, file.first))

    def checkpoint(self, application: str) -> StreamId | None:
        """Return the position of an application; None if it has never committed."""
        ms = self.table.transaction_version(f"{application}/ms")
        seq = self.table.transaction_version(f"{application}/seq")
        return None if ms is None or seq is None else StreamId(unsigned(ms), unsigned(seq))

    def commit(
        self,
        job: str,
        added: Sequence[LakeFile],
        *,
        removed: Sequence[LakeFile] = (),
        checkpoints: Mapping[str, StreamId] | None = None,
        keys: Iterable[bytes] = (),
        versions: Mapping[str, int] | None = None,
        moves_data: bool = True,
    ) -> Lake:
        """Commit files in one transaction; return the lake at the new version.

        Args:
            job: its name in the history of the table.
            checkpoints: the new positions of applications.
            keys: the streams whose entries it adds or erases; simultaneous commits on the same
                stream conflict.
            versions: more applications, by name, and their new versions.
            moves_data: False if the same entries only move to other files.

        Raises:
            LakeConflictError: since this lake was opened, another job changed one of the positions
                or replaced files of the same streams. Nothing was committed.
        """
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            _add_action(file, moves_data, now_ms) for file in added
        ]
        for file in removed:
            values = partition_values(file)
            gone = RemoveAction(file.path, moves_data, now_ms, file.size_bytes, values)
            actions.append(gone)
        moved = [Transaction(f"streamkeep/key/{key.hex()}", 0) for key in keys]
        replaced = {file.store or file.key.hex() for file in removed}
        moved += [Transaction(f"streamkeep/files/{name}", 0) for name in sorted(replaced)]
        moved += [Transaction(name, version) for name, version in (versions or {}).items()]
        for application, last in (checkpoints or {}).items():
            moved.append(Transaction(f"{application}/ms", bits(last.ms)))
            moved.append(Transaction(f"{application}/seq", bits(last.seq)))
        schema = pa.schema(self.table.schema().to_arrow())
        failpoints.hit("lake:commit")
        try:
            with reaching(self.uri):
                self.table.create_write_transaction(
                    actions,
                    "append",
                    schema,
                    partition_by=list(self.partitions),
                    commit_properties=CommitProperties(
                        custom_metadata={"userMetadata": f"streamkeep {job}"},
                        app_transactions=moved,
                    ),
                )
        except CommitFailedError as error:
            raise LakeConflictError(
                f"{self.uri}: another job committed first ({error}); next: run {job} again"
            ) from error
        failpoints.hit("lake:committed")
        return Lake.open(self.uri)

    @contextmanager
    def reading(self, files: Sequence[LakeFile], job: str) -> Iterator[None]:
        """Explain an error inside the block if another job has replaced one of the files.

        Raises:
            LakeConflictError: the block failed, and one of the files is no longer valid.
        """
        try:
            yield
        except Exception as error:
            named = {file.path for file in Lake.open(self.uri).files()}
            if all(file.path in named for file in files):
                raise
            raise LakeConflictError(
                f"{self.uri}: another job replaced files while they were read; next: run {job} "
                "again"
            ) from error

    def discard(self, files: Iterable[LakeFile]) -> None:
        """Remove files that were written but not committed."""
        system, root = file_system(self.uri)
        for file in files:
            try:
                system.delete_file(f"{root}/{file.path}")
            except FileNotFoundError:
                continue

    def sweep(self, retention_hours: int) -> list[str]:
        """Remove the files that no version within the retention names; return their paths."""
        removed = self.table.vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        failpoints.hit("lake:swept")
        # In an object store, the result also has the markers of empty folders.
        return [unquote(path) for path in removed if path.endswith((".parquet", ".draft"))]


def partition_values(file: LakeFile) -> dict[str, str | None]:
    """Return the values of the partition columns of a file."""
    values = {"stream": partition_name(file.key), "date": file.date}
    return {"store": file.store, **values} if file.store else values


def _add_action(file: LakeFile, moves_data: bool, now_ms: int) -> AddAction:
    ends = [file.first, file.last]
    stats: dict[str, Any] = {
        "numRecords": file.entries,
        "minValues": {"ms": ends[0].ms},
        "maxValues": {"ms": ends[1].ms},
        "nullCount": {"ms": 0, "seq": 0},
    }
    if ends[0].ms == ends[1].ms:
        stats["minValues"]["seq"], stats["maxValues"]["seq"] = ends[0].seq, ends[1].seq
    if ends[1].ms <= LAST_MS:
        stats["minValues"]["ts"], stats["maxValues"]["ts"] = (_iso(one.ms) for one in ends)
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=partition_values(file),
        modification_time=now_ms,
        data_change=moves_data,
        stats=json.dumps(stats),
    )


def _iso(ms: int) -> str:
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
