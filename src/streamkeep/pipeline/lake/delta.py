"""Delta tables: making one, and opening it at its newest version, also where a storage is at fault.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamkeep.pipeline.lake.files import wait_after
from streamkeep.pipeline.storage.places import (
    StorageError,
    endpoint,
    file_system,
    log_settings,
    reaching,
)

_LISTINGS: Final = 12  # tries for one that has the newest version: about seven seconds
_THREADS: Final = 4
_ROUNDS: Final = 3
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
        with reaching(place):
            return DeltaTable(place, version=version, storage_options=log_settings(place))
    except TableNotFoundError:
        return None


def _has_version(place: str, version: int) -> bool:
    """Return whether the log of a table has a version, by its name and not by a listing."""
    system, root = file_system(place)
    try:
        with reaching(place), system.open_input_file(f"{root}/_delta_log/{version:020d}.json"):
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
    with reaching(place):
        s3 = place.startswith(("s3://", "s3a://")) and endpoint() is not None
        if s3 and table_at(place) is None and not _one_wins(place):
            raise StorageError(
                f"{place}: the server {endpoint()} ignores `If-None-Match`, so of two jobs that "
                "commit at the same time, both would succeed, and the entries of one would be "
                "lost; next: use a server that honours it, or a disk"
            )
        told = log_settings(place)
        return DeltaTable.create(place, schema, mode="ignore", storage_options=told, **options)


def _one_wins(lake: str) -> bool:
    """Return whether each successful commit of several threads made a version of a table."""
    place, settings = f"{lake}/_commit-check-{secrets.token_hex(8)}", log_settings(lake)
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
        system, path = file_system(place)
        system.delete_dir(path)
