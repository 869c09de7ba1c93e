"""A compacted copy of `data.mdb`, for backups and compaction.

LMDB writes the used pages of one snapshot, without free pages, and restarts its transaction
numbers. So the copy gets the next epoch: then a file with the old numbers, such as a journal, can
never be taken for a part of the copy.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from typing import Any, Final

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.recover import stored_epoch
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH
from streamkeep.engine.store.opening import MAPS, open_environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Advance
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import position_in
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import StoreFullError, StoreLockedError, UnreachableError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.journal.position import POSITION_KEY, encode_position
from streamkeep.format.rows.records import encode_number

_TICK_S: Final = 0.2


def copy_data(
    raw: lmdb.Environment,
    snapshot: ReadTxn | None,
    folder: Folder,
    rows: Callable[[int], dict[bytes, bytes]],
    progress: Advance | None = None,
) -> None:
    """Write a compacted copy of an environment into an empty folder; it is on disk on return.

    Args:
        snapshot: what to copy, with its rows in memory; None for the newest commit in the file.
        rows: returns more rows for `meta`, given the number of the newest commit of the copy.

    Raises:
        StoreFullError: there is no room. The caller removes the partial copy.
        CorruptionError: LMDB has found damage.
    """
    path: Any = os.fsencode(folder.path)
    txn = None if snapshot is None else snapshot.raw()
    with translated(system=True):
        _watched(lambda: raw.copy(path, compact=True, txn=txn), folder, progress)
        folder.make_ours(DATA_FILE)
        failpoints.hit("copy:written")
        with closing(open_new(folder)) as copy:
            tables = tables_of(copy)
            with copy.begin(write=True) as writer:
                epoch = stored_epoch(writer.get(META_EPOCH, None, tables[META])) + 1
                _, _, chain, commit_number = position_in(writer if txn is None else txn)
                if snapshot is not None and snapshot.newest_commit() != commit_number:
                    commit_number, chain = snapshot.newest_commit(), 0  # not known
                    newer = Memtable()
                    newer.tables = snapshot.over
                    newer.write(writer, tables)
                # Commits are counted on; the copy has no journal.
                writer.put(POSITION_KEY, encode_position(0, 0, chain, commit_number))
                for key, body in {META_EPOCH: encode_number(epoch), **rows(commit_number)}.items():
                    writer.put(key, with_checksum(META, key, body), db=tables[META])
            copy.sync(True)
        folder.sync()


@contextmanager
def made_beside(
    parent: Folder, name: str, what: str, *, goes_on: Iterable[str] | None = ()
) -> Iterator[Folder]:
    """Hold the lock of the folder in which a copy named `name` is made, beside its place.

    The folder is removed at the end, unless the caller has renamed it: then another process may
    have made one of the same name.

    Args:
        what: a backup, or a restore; the name of the folder ends with it.
        goes_on: what of an attempt before is not removed at the beginning. None for all of it:
            then everything stays for the next one if the work is interrupted, or a target away.

    Raises:
        StoreLockedError: another process makes one there.
        StoreFullError: the disk is full, and nothing is written elsewhere in the block.
    """
    folder = parent.make_folder(f".{name}.{what}")
    handle = folder.open_again()
    stays = True

    def is_ours() -> bool:
        place = parent.status(f".{name}.{what}")
        return place is not None and os.path.samestat(place, os.fstat(handle))

    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"{parent.path / name}: another {what} is making it") from None
        if not is_ours():
            # It was that of another process, which has finished since: the copy is in it.
            raise StoreLockedError(f"{parent.path / name}: another {what} has just made it")
        for left in () if goes_on is None else {*folder.names()}.difference(goes_on):
            folder.remove_any(left)
        stays = False
        try:
            with translated(system=True):
                yield folder
        except StoreFullError as error:  # not of a store that is open, where deleting would help
            raise StoreFullError(
                f"{parent.path / name}: its disk is full; nothing was changed there; "
                "next: make room there, or name a place on another disk"
            ) from error
    except BaseException as error:
        passes = isinstance(error, UnreachableError) or not isinstance(error, Exception)
        stays = stays or (passes and goes_on is None)
        raise
    finally:
        try:
            if not stays:
                if is_ours():
                    parent.remove_any(f".{name}.{what}")
                parent.sync()
        finally:
            os.close(handle)


@translated()
def open_new(folder: Folder) -> lmdb.Environment:
    """Open an environment for a store that is made row by row; nothing is synced before its end."""
    path = os.fsencode(folder.path)
    for size in MAPS:
        try:
            return lmdb.open(path, map_size=size, max_dbs=len(TABLES) + 1, lock=False, sync=False)
        except lmdb.MemoryError as error:
            problem = error
    raise problem


def tables_of(raw: lmdb.Environment) -> dict[int, Any]:
    """Return the handles of the tables, which are made if they are missing."""
    with raw.begin(write=True) as txn:
        return {number: raw.open_db(table.name.encode(), txn) for number, table in TABLES.items()}


def finish_copy(folder: Folder, clock: Clock, *, standby: bool = False) -> int:
    """Complete the store in a folder with a copied `data.mdb`; return its epoch."""
    environment = open_environment(folder.path, clock=clock, standby=standby)
    epoch = environment.context.epoch
    environment.release()
    return epoch


def _watched(work: Callable[[], None], folder: Folder, progress: Advance | None) -> None:
    """Run `work`, and report the growing size of a folder's data file to `progress`."""
    if progress is None:
        work()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="streamkeep-copy") as threads:
        copied = threads.submit(work)
        while not wait([copied], _TICK_S).done:
            if folder.exists(DATA_FILE):
                progress(folder.size(DATA_FILE))
    # The thread has ended, even if `progress` raises: the caller closes LMDB next.
    copied.result()
