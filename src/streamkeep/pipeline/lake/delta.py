"""Delta tables: making, opening and committing to one, also where a storage is at fault.

A commit of a Delta table creates the file with the next number in the folder of its log.

**A storage may list an older state** of that folder for a while. A job that took it for the newest
one would remove files that a later version names. So the next version is looked up by its name.

**An S3 server must let only one of two simultaneous commits succeed.** The file must not exist,
which delta-rs requests with the header `If-None-Match: *`; Amazon's S3 has honoured it since 2024.
A server that ignores it also accepts a second file: both jobs believe that they succeeded, and the
commit of one is lost. The answers of such a server look like those of a good one. So before a table
is made on a server other than Amazon's, several threads commit to a temporary table at the same
moment, in several rounds. If the table has fewer versions than successful commits, the server is
refused. In a trial with a server that ignores the header, every round showed it. The check takes a
few dozen small requests, once in the life of a table.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier, BrokenBarrierError
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamkeep.pipeline.lake.files import LakeConflictError, wait_after
from streamkeep.pipeline.storage import places
from streamkeep.pipeline.storage.places import StorageError

_LISTINGS: Final = 12  # tries for one that has the newest version: about seven seconds
_THREADS: Final = 4
_ROUNDS: Final = 3
_COMMIT: Final = "streamkeepCommit"  # in the history of a table, distinguishes commits
_SCHEMA: Final = pa.schema([pa.field("a", pa.int64())])


def newest_table(place: str) -> DeltaTable | None:
    """Return a Delta table at its newest version; None if there is none.

    Raises:
        StorageError: the storage cannot be reached, or keeps listing an older state.
    """
    version = -1
    for tries in range(_LISTINGS):
        if tries:
            wait_after(tries - 1)
        table = table_at(place)
        version = -1 if table is None else int(table.version())
        if not _has_version(place, version + 1):
            return table
    raise StorageError(
        f"{place}: the storage has version {version + 1} of the log, and does not list it; next: "
        "run the job again, later"
    )


def table_at(place: str, version: int | None = None) -> DeltaTable | None:
    """Return a Delta table at the version that the listing of its log gives; None for no table."""
    try:
        with places.reaching(place):
            return DeltaTable(place, version=version, storage_options=places.log_settings(place))
    except TableNotFoundError:
        return None


def _has_version(place: str, version: int) -> bool:
    """Return whether the log of a table has a version, by its name and not by a listing."""
    system, root = places.file_system(place)
    try:
        with (
            places.reaching(place),
            system.open_input_file(f"{root}/_delta_log/{version:020d}.json"),
        ):
            return True
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise StorageError(
            f"{place}: its folder _delta_log may not be read ({error}); next: ask its owner"
        ) from error


def create_table(place: str, schema: pa.Schema, **options: Any) -> DeltaTable:
    """Make a Delta table, unless there is one.

    Raises:
        StorageError: the storage cannot be reached, or two simultaneous commits succeed there.
    """
    with places.reaching(place):
        s3 = place.startswith(("s3://", "s3a://")) and places.endpoint() is not None
        if s3 and table_at(place) is None and not _one_wins(place):
            raise StorageError(
                f"{place}: the server {places.endpoint()} ignores `If-None-Match`, so of two jobs "
                "that commit at the same time, both would succeed, and the entries of one would "
                "be lost; next: use a server that honours it, or a disk"
            )
        told = places.log_settings(place)
        return DeltaTable.create(place, schema, mode="ignore", storage_options=told, **options)


@contextmanager
def reading_log(place: str) -> Iterator[None]:
    """Raise StorageError for what delta-rs raises inside the block."""
    try:
        with places.reaching(place):
            yield
    except DeltaError as error:
        raise StorageError(
            f"{place}: its log cannot be read: {error}; next: run the job again"
        ) from error


def commit(
    table: DeltaTable,
    place: str,
    actions: list[AddAction | RemoveAction],
    versions: Mapping[str, int],
    *,
    what: str,
    again: str,
    partition_by: Sequence[str] = (),
    message: str = "streamkeep",
) -> DeltaTable:
    """Commit files in one transaction; return the table at its newest version.

    Args:
        versions: of applications, by name; simultaneous commits on the same one conflict.
        what, again: what is committed, and what to do after an error, for messages.
        message: for the history of the table.

    Raises:
        LakeConflictError: another job committed first. Nothing was committed.
        StorageError: the storage does not answer, or lost the commit after it confirmed it. It may
            have the commit, or show it later, so its files must stay.
    """
    mark = secrets.token_hex(16)
    moved = [Transaction(name, version) for name, version in versions.items()]
    told = {"userMetadata": message, _COMMIT: mark}
    properties = CommitProperties(custom_metadata=told, app_transactions=moved)
    schema = pa.schema(table.schema().to_arrow())
    try:
        with places.reaching(place):
            table.create_write_transaction(
                actions,
                "append",
                schema,
                partition_by=list(partition_by),
                commit_properties=properties,
            )
    except CommitFailedError as error:
        # A client that did not get the answer repeats the request, and loses against itself.
        done = newest_table(place)
        count = 0 if done is None else int(done.version() - table.version())
        with reading_log(place):
            found = done.history(count) if done is not None and count > 0 else []
        if done is None or all(one.get(_COMMIT) != mark for one in found):
            raise LakeConflictError(
                f"{place}: another job committed first ({error}); next: {again}"
            ) from error
        return done
    except (DeltaError, OSError, StorageError) as error:
        raise StorageError(
            f"{place}: it is unknown whether {what} was committed ({places.one_line(error)}); its "
            f"files stay; next: {again}"
        ) from error
    done = newest_table(place)
    for name, version in versions.items():
        before = table.transaction_version(name)
        if done is None or (before != version and done.transaction_version(name) == before):
            raise StorageError(
                f"{place}: the storage has confirmed a commit, and does not have it; next: {again}"
            )
    assert done is not None
    return done


def _one_wins(lake: str) -> bool:
    place, settings = f"{lake}/_commit-check-{secrets.token_hex(8)}", places.log_settings(lake)
    try:
        DeltaTable.create(place, _SCHEMA, storage_options=settings)
        together = Barrier(_THREADS)

        def commit(number: int) -> int:
            """Commit once per round; return the number of commits that the server accepted."""
            won = 0
            try:
                for _ in range(_ROUNDS):
                    table = DeltaTable(place, storage_options=settings)
                    name = f"{number}-{secrets.token_hex(4)}.parquet"
                    together.wait()
                    actions: list[AddAction | RemoveAction] = [
                        AddAction(name, 1, {}, 0, True, "{}")
                    ]
                    with suppress(DeltaError):  # the server has refused it
                        table.create_write_transaction(actions, "append", _SCHEMA, [])
                        won += 1
            except BrokenBarrierError:
                pass  # another thread failed and raises its error
            except BaseException:
                together.abort()
                raise
            return won

        with ThreadPoolExecutor(_THREADS) as threads:
            won = sum(threads.map(commit, range(_THREADS)))
        # More versions than winners: the answer to a commit was lost, which is no defect.
        return int(DeltaTable(place, storage_options=settings).version()) >= won
    finally:
        system, path = places.file_system(place)
        system.delete_dir(path)
