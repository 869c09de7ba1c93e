"""Whether an S3 server keeps two commits at once apart.

A commit of a Delta table is a file with the next number, which must not be there yet: delta-rs asks
for that with the header `If-None-Match: *`. Amazon's S3 has honoured it since 2024. A server that
does not know the header takes the second file, too: both jobs are told that they have won, and what
one of them committed is gone. Nothing in the answers tells such a server from a good one.

So a lake is not made on a server other than Amazon's before this was tried: a few threads commit
to a table of their own at the same moment, some times over. Where the table has fewer versions
than commits have won, the server is refused. In a trial with a server that ignores the header, each
of the rounds showed it; a few dozen small requests are what it costs, once in the life of a lake.
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

from streamkeep.pipeline.places import PlaceError, endpoint, file_system

_THREADS: Final = 4
_ROUNDS: Final = 3
_SCHEMA: Final = pa.schema([pa.field("a", pa.int64())])


def check_commits(table: str, settings: dict[str, str]) -> None:
    """Make sure, where there is no table yet, that of two commits at once one fails.

    Args:
        table: path or URI below which it is tried, where that is not known; nothing stays there.
        settings: of delta-rs.

    Raises:
        PlaceError: both win.
        OSError: the place cannot be reached, or not be written to.
    """
    if not table.startswith(("s3://", "s3a://")) or endpoint() is None:
        return
    if not _is_there(table, settings) and not _one_wins(table, settings):
        raise PlaceError(
            f"{table}: the server {endpoint()} ignores `If-None-Match`, so two jobs that commit "
            "at once would both win, and the entries of one be lost: use a server that honours it, "
            "or a disk"
        )


def _is_there(table: str, settings: dict[str, str]) -> bool:
    """Say whether there is a table; delta-rs' own function keeps all threads waiting."""
    try:
        DeltaTable(table, storage_options=settings)
    except TableNotFoundError:
        return False
    return True


def _one_wins(lake: str, settings: dict[str, str]) -> bool:
    """Try it."""
    place = f"{lake}/_commit-check-{secrets.token_hex(8)}"
    try:
        DeltaTable.create(place, _SCHEMA, storage_options=settings)
        together = Barrier(_THREADS)

        def commit(number: int) -> int:
            """Commit once per round; return how often that was told good."""
            won = 0
            try:
                for _ in range(_ROUNDS):
                    table = DeltaTable(place, storage_options=settings)
                    name = f"{number}-{secrets.token_hex(4)}.parquet"
                    together.wait()
                    won += _commit(table, name)
            except BrokenBarrierError:
                pass  # another thread failed, and tells why
            except BaseException:
                together.abort()
                raise
            return won

        with ThreadPoolExecutor(_THREADS) as threads:
            won = sum(threads.map(commit, range(_THREADS)))
        return int(DeltaTable(place, storage_options=settings).version()) == won
    finally:
        system, path = file_system(place)
        system.delete_dir(path)


def _commit(table: DeltaTable, name: str) -> int:
    """Commit a file to a table; return 1 when that won, 0 when it lost and was told so."""
    actions: list[AddAction | RemoveAction] = [AddAction(name, 1, {}, 0, True, "{}")]
    try:
        table.create_write_transaction(actions, "append", _SCHEMA, partition_by=[])
    except DeltaError:
        return 0
    return 1
