"""The check that an S3 server lets only one of two simultaneous commits succeed.

A commit of a Delta table creates the file with the next number, which must not exist. delta-rs
requests that with the header `If-None-Match: *`, which Amazon's S3 has honoured since 2024. A
server that ignores the header also accepts a second file: both jobs believe that they succeeded,
and the commit of one is lost. The answers of such a server look like those of a good one.

So before a lake is made on a server other than Amazon's, several threads commit to a temporary
table at the same moment, in several rounds. If the table has fewer versions than successful
commits, the server is refused. In a trial with a server that ignores the header, every round showed
it. The check takes a few dozen small requests, once in the life of a lake.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamkeep.pipeline.storage.places import StorageError, endpoint, file_system

_THREADS: Final = 4
_ROUNDS: Final = 3
_SCHEMA: Final = pa.schema([pa.field("a", pa.int64())])


def check_commits(table: str, settings: dict[str, str]) -> None:
    """Check, unless the table exists, that only one of two simultaneous commits succeeds.

    Args:
        table: path or URI of the future table. The check is made below it and leaves nothing there.
        settings: of delta-rs.

    Raises:
        StorageError: both commits succeed.
        OSError: the storage cannot be reached or written to.
    """
    if not table.startswith(("s3://", "s3a://")) or endpoint() is None:
        return
    if not _exists(table, settings) and not _one_wins(table, settings):
        raise StorageError(
            f"{table}: the server {endpoint()} ignores `If-None-Match`, so of two jobs that commit "
            "at the same time, both would succeed, and the entries of one would be lost; next: use "
            "a server that honours it, or a disk"
        )


def _exists(table: str, settings: dict[str, str]) -> bool:
    """Return whether the table exists; delta-rs' own function would block all threads."""
    try:
        DeltaTable(table, storage_options=settings)
    except TableNotFoundError:
        return False
    return True


def _one_wins(lake: str, settings: dict[str, str]) -> bool:
    """Return whether each successful commit of several threads made a version of a table."""
    place = f"{lake}/_commit-check-{secrets.token_hex(8)}"
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
                    won += _commit(table, name)
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


def _commit(table: DeltaTable, name: str) -> int:
    """Commit a file to a table; return 1 if the server accepted it, 0 if it refused."""
    actions: list[AddAction | RemoveAction] = [AddAction(name, 1, {}, 0, True, "{}")]
    try:
        table.create_write_transaction(actions, "append", _SCHEMA, partition_by=[])
    except DeltaError:
        return 0
    return 1
