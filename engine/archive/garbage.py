"""Removing what deleted streams and dropped segments have left: rows first, then files.

Every file of a segment is removed in these steps, so that no manifest ever names a missing file:

1. The transaction that removes a file from the manifest adds a row to `garbage` with its path. So
   does one for a file that the manifest never named (`discard`).
2. A checkpoint covers that transaction. A sync of the journal would not do: after damage to it,
   recovery may end before the transaction, and the manifest names the file again.
3. The file is removed, and the folder synced.
4. The row is deleted, so no file is left without a row.

If the process is killed in between, the next opening of the store repeats the steps.
"""

from __future__ import annotations

import logging

from streamkeep.engine.commands import keys
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.scan import bodies_with
from streamkeep.engine.tables.segment_files import stored_name
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StoreError, StreamkeepError
from streamkeep.format.core.keys import GARBAGE
from streamkeep.format.rows import records

log = logging.getLogger("streamkeep")


def collect(environment: Environment) -> None:
    """Remove the rows and files of deleted streams, in bounded transactions.

    The command that deleted them was committed, so an error is logged, and a later command
    removes the rest.
    """
    try:
        if not environment.read(lambda txn: txn.rows(GARBAGE)):
            return
        while environment.write(keys.collect_garbage, wait=False, frees=True):
            environment.settle()
        remove_files(environment)
    except StreamkeepError as error:
        log.warning("%s: deleted data will be removed later: %s", environment.path, error)


def discard(environment: Environment, paths: list[str]) -> None:
    """Remove files below `archive/` that the manifest does not name.

    A killed process may have left a record in the journal that was not published and names one of
    them. A recovery would apply it, but not after the commit that this makes in its place.
    """
    if paths:
        environment.write(_doom, paths, frees=True)
        remove_files(environment)


def _doom(txn: WriteTxn, paths: list[str]) -> None:
    for path in paths:
        txn.add_garbage(records.encode_file_garbage(path))


def remove_files(environment: Environment) -> None:
    """Remove the files that are garbage, and then their rows.

    If a file cannot be removed, that is logged, and the next opening of the store tries again.

    Raises:
        StoreFullError: no checkpoint can cover the rows; nothing was removed.
    """
    doomed = environment.read(doomed_files)
    if not doomed:
        return
    environment.make_checkpoint(strict=True)
    failpoints.hit("garbage:synced")
    done: dict[str, list[bytes]] = {}  # by folder
    store = environment.folder
    for db_key, path in doomed:
        name = stored_name(path)
        try:
            store.remove(name)
        except (OSError, StoreError) as error:
            where = str(store.path / name)  # of any bytes, so escaped in the log
            log.warning("cannot remove %r, will try again: %s", where, error)
            continue
        done.setdefault(name.rpartition("/")[0], []).append(db_key)
    for folder in list(done):
        try:
            if store.has_folder(folder):
                store.sync(folder)
        except (OSError, StoreError) as error:
            log.warning("cannot sync %s, will try again: %s", store.path / folder, error)
            del done[folder]
    failpoints.hit("garbage:removed")
    db_keys = [db_key for rows in done.values() for db_key in rows]
    environment.write(_forget, db_keys, frees=True)


def doomed_files(txn: Txn) -> list[tuple[bytes, str]]:
    """Return (key of the row, path below archive/) of each file that is garbage."""
    found = []
    for db_key, body in bodies_with(txn, GARBAGE, b"", "garbage"):
        if records.decode_garbage(body, "garbage")[0] == records.ARCHIVE_FILE:
            found.append((db_key, records.decode_file_garbage(body, "garbage")))
    return found


def _forget(txn: WriteTxn, db_keys: list[bytes]) -> None:
    for db_key in db_keys:
        txn.delete(GARBAGE, db_key)
