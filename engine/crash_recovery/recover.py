"""Recovery: the first process that opens a store finds out whether it is whole, or goes back.

`state` says what the files hold. An opening for writing recovers each store that is not healthy,
whatever happened to it; one for reading shows LMDB's newest commit if that is certain to be the
newest of all. A recovery that would lose commits that no power loss explains is refused, and the
caller has to choose (`choose`).

A store is recovered under the exclusive lock:

1. Find the way to the newest commit, before anything is changed: the root pages of its checkpoint
   are sound, and each record of the journal up to its end can be applied.
2. Mark the checkpoint, so that an interrupted recovery starts again on any machine. If the way
   begins with LMDB's newest commit, sync that first, and write it as a checkpoint.
3. Write the checkpoint's meta page over both of LMDB's, so that LMDB sees that commit. Pin it.
4. Replay the journal, and raise the epoch.
5. The process that opens the store makes a new checkpoint before it writes anything else. Only
   then are the old journal files retired.

A process killed before the end of step 5 leaves the old checkpoint, whose pages are unchanged, so
that recovery can start again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery.state import (
    State,
    Way,
    WayName,
    choose,
    examine,
    is_healthy,
    lacks,
)
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH, StoredRows, check_extent
from streamkeep.engine.journal.control_file import (
    CONTROL_FILE,
    NEW_CONTROL_FILE,
    ControlFile,
    read_control_file,
)
from streamkeep.engine.journal.journal import RECYCLED_NAMES
from streamkeep.engine.journal.reader import (
    JOURNAL_FOLDER,
    Owner,
    Reader,
    is_writable_at,
    newest_commit,
)
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.lock_file import LOCK_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.errors import CorruptionError, RecoveryNeededError, StoreFullError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.journal.checkpoint import NO_BOOT, CheckpointSlot
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, encode_position
from streamkeep.format.lmdb_file.meta_page import meta_page_for
from streamkeep.format.rows.meta_rows import META_RECOVERY, Recovery, decode_recovery
from streamkeep.format.rows.records import decode_epoch, encode_number

_CREATED: Final = 1  # the commit with which LMDB gets its tables
_BATCH_BYTES: Final = 8 << 20
_KILLED: Final = "the last process that used it was killed, or did not close it"

log = logging.getLogger("streamkeep")


OpenLmdb = Callable[[], "lmdb.Environment"]


def prepare(
    store: Folder,
    checkpoint_file: CheckpointFile,
    open_lmdb: OpenLmdb,
    clock: Clock,
    force: WayName | None,
) -> None:
    """Make a store ready to be opened, under the exclusive lock; recover it if it needs that.

    Args:
        force: the way to recover it, whatever it loses; see `choose`.

    Raises:
        RecoveryNeededError: commits would be lost that no power loss explains; nothing was changed.
    """
    slot = checkpoint_file.newest()
    if slot is None and not has_commits(store):
        if checkpoint_file.is_unfinished():
            for name in (DATA_FILE, LOCK_FILE):
                store.remove(name)
        if not store.exists(DATA_FILE):
            checkpoint_file.mark_unfinished()
        check_extent(store)
        _clear_journal(store).remove(CONTROL_FILE)
        return
    if slot is None:
        _check_creation_ended(checkpoint_file)
    state = examine(store, slot)
    state = state._replace(made=max(state.made, _made_before(store, slot, state)))
    way = None
    if not state.healthy and (slot is not None or state.unreadable(follows=False)):
        way = choose(state, store, force)
    control = read_control_file(store.folder(JOURNAL_FOLDER, missing_ok=True))
    if way is None:
        check_extent(store)
        if slot is not None and control is not None and control.cut_off:
            checkpoint_file.rewrite()  # an error of that sync was perhaps told to who died in it
        journal = _clear_journal(store)
        if slot is not None and is_writable_at(journal, slot, slot.position()):
            _replace_control_file(journal, slot.position(), slot.commit_number)
        else:
            journal.remove(CONTROL_FILE)
        return
    journal = _clear_journal(store)
    _set_checkpoint(store, checkpoint_file, way.slot, new=way is state.data)
    _forget_errors(store)
    _recover(store, way, open_lmdb, clock, state)
    durable = 0 if control is None else min(control.durable, way.end)
    _replace_control_file(journal, LogPosition(0, 0, 0, way.end), durable)


def _made_before(store: Folder, slot: CheckpointSlot | None, state: State) -> int:
    """Return the newest commit that a recovery knew of after which no checkpoint can be read.

    It may have lost commits, as its caller had chosen, or after a power loss. Nothing else says so.
    """
    if slot is None or state.data is None or state.data.slot.epoch == slot.epoch:
        return 0
    try:
        with store.opened(DATA_FILE) as handle:
            body = StoredRows(handle, state.data.slot.meta()).meta(META_RECOVERY)
        done = decode_recovery(body)
        end = done.checkpoint_commit + done.replayed
        return end + done.lost if state.data.slot.commit_number == end else 0  # it has ended
    except CorruptionError:  # whoever reads that row gets the error
        return 0


def _set_checkpoint(
    store: Folder, checkpoint_file: CheckpointFile, slot: CheckpointSlot, *, new: bool
) -> None:
    """Have an interrupted recovery start again from this checkpoint, on any machine.

    Args:
        new: it is that of LMDB's newest commit, whose pages may not be on disk.

    Raises:
        RecoveryNeededError: they cannot be written.
    """
    if new:
        error = _new_disk_error(store)
        if error:
            raise RecoveryNeededError(f"{store.path}: {error}; next: open the store again")
    else:
        checkpoint_file.rewrite()
    failpoints.hit("recover:point-safe")
    if new or slot.boot_id != NO_BOOT:
        checkpoint_file.write(slot._replace(boot_id=NO_BOOT))


def _clear_journal(store: Folder) -> Folder:
    """Open or make the journal's folder; remove what a killed opening was making."""
    journal = store.make_folder(JOURNAL_FOLDER)
    keep_in_place(journal.handle)
    journal.remove(NEW_CONTROL_FILE)
    return journal


def _check_creation_ended(checkpoint_file: CheckpointFile) -> None:
    """Raise CorruptionError if the only checkpoint of a store with commits is damaged."""
    if checkpoint_file.is_unfinished():
        raise CorruptionError(
            str(checkpoint_file.path), "no checkpoint is valid; next: run `streamkeep repair`"
        )


def has_commits(store: Folder) -> bool:
    """Return whether anything was committed to a store after its creation, also if LMDB lacks it.

    Its first journal file is begun with the first record.
    """
    if not store.exists(DATA_FILE):
        return False
    try:
        with store.opened(DATA_FILE) as handle:
            pages = read_meta_pages(handle)
            if not pages or pages[-1].commit_number > _CREATED:
                return len(pages) > 0
            owner = Owner(*StoredRows(handle, pages[-1]).identity())
    except CorruptionError:
        return False
    return newest_commit(store.folder(JOURNAL_FOLDER, missing_ok=True), owner) > 0


def needs_recovery(
    store: Folder, checkpoint_file: CheckpointFile | None, *, follows: bool = False
) -> str:
    """Return why a store that no process has open must be recovered; empty if it need not be.

    For reading, a store that was left need not be: see `state`.

    Args:
        checkpoint_file: None if there is none.
        follows: the reader applies what the journal has after `data.mdb`.
    """
    slot = None if checkpoint_file is None else checkpoint_file.newest()
    if slot is None and not has_commits(store):
        unfinished = checkpoint_file is not None and checkpoint_file.is_unfinished()
        return "its creation was cut off" if unfinished else ""
    if slot is None and checkpoint_file is not None:
        _check_creation_ended(checkpoint_file)
    state = examine(store, slot)
    return state.unreadable(follows=follows) or ("" if state.healthy else _new_disk_error(store))


def is_ready(store: Folder, checkpoint_file: CheckpointFile) -> bool:
    """Return whether a store that other processes have open was made ready.

    A process makes a checkpoint in this boot before its first commit, and at the end of a recovery.
    So a store without one is still being created or recovered, or that process was killed.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        return False
    here = boot_id()
    return here in (NO_BOOT, slot.boot_id) or is_healthy(store, slot)


def _replace_control_file(journal: Folder, position: LogPosition, durable: int) -> None:
    """Set up a new control file: all commits up to a position were made, and nothing follows.

    Args:
        position: where the next record goes. Without a journal file, that begins one.
        durable: a commit up to which all was on disk before; the next checkpoint covers the others.
    """
    # Not the same file: one that was copied here may have blocks that move when they are
    # overwritten. On a full disk, a commit could then neither be published nor be cut (see
    # `keep_in_place`). By a rename: until a checkpoint is made, only the control file says which
    # commits a recovery has replayed, so a damaged journal would lose them without an error.
    try:
        control = ControlFile(journal, NEW_CONTROL_FILE, only=True)
    except OSError as error:
        if not isinstance(translate_os(error), StoreFullError):
            raise
        journal.remove(CONTROL_FILE)  # whose block is the only room on a full disk
        control = ControlFile(journal, NEW_CONTROL_FILE, only=True)
    control.reset(position, durable)
    control.close()
    journal.rename(NEW_CONTROL_FILE, CONTROL_FILE)


def _forget_errors(store: Folder) -> None:
    """Have the kernel report an old error of the disk now; recovery writes what it concerns again.

    The first sync after an error reports it, even if that sync itself succeeds.
    """
    _disk_error(store)
    journal = store.folder(JOURNAL_FOLDER)
    for name in RECYCLED_NAMES:  # their blocks may have met the error, too
        journal.remove(name)


def _disk_error(store: Folder) -> str:
    """Return the error of the disk since the pages of the data file were synced; empty if none."""
    with store.opened(DATA_FILE) as handle:
        try:
            files.sync_data(handle)
        except OSError as error:
            return f"writing data.mdb had failed ({error.strerror})"
    return ""


def _new_disk_error(store: Folder) -> str:
    """As `_disk_error`, for a process that does not go back to the checkpoint.

    The kernel reports an error once, and may drop the pages. So the control file keeps it for every
    later opening, unless this process may not write to it.
    """
    error = _disk_error(store)
    if error:
        with suppress(OSError):
            control = ControlFile(store.folder(JOURNAL_FOLDER), only=True)
            control.poison()
            control.close()
    return error


def _recover(store: Folder, way: Way, open_lmdb: OpenLmdb, clock: Clock, state: State) -> None:
    slot = way.slot
    _restore_meta(store, slot)
    failpoints.hit("recover:meta-restored")
    lost = state.lost(way)
    raw = open_lmdb()
    reader = Reader(store.folder(JOURNAL_FOLDER), slot, slot.position())
    try:
        pin = raw.begin()
        expected = slot.meta().commit_number
        if pin.id() != expected:
            problem = f"LMDB shows commit {pin.id()}, not {expected} of the checkpoint"
            raise CorruptionError(str(store.path), f"{problem}; next: run `streamkeep repair`")
        with raw.begin(write=True) as txn:
            tables = {
                number: raw.open_db(table.name.encode(), txn, create=False)
                for number, table in TABLES.items()
            }
        replayed = way.end - slot.commit_number
        _replay(raw, tables, reader, way.end)
        done = Recovery(clock.now_ms(), slot.epoch, slot.commit_number, replayed, lost)
        with raw.begin(write=True) as txn:
            epoch = stored_epoch(txn.get(META_EPOCH, db=tables[META]))
            _put_meta(txn, tables[META], META_EPOCH, encode_number(epoch + 1))
            _put_meta(txn, tables[META], META_RECOVERY, done.encode())
            # No file goes on; the chain does, for copies of the store elsewhere.
            chain = reader.position.chain
            txn.put(POSITION_KEY, encode_position(0, 0, chain, way.end))
        failpoints.hit("recover:epoch-raised")
        pin.abort()
        del pin
    finally:
        reader.close()
        raw.close()
    failpoints.hit("recover:replayed")
    ahead = way.end - state.shown()
    reason = state.torn or (lacks(ahead) if ahead > 0 else _KILLED)
    if way is state.data and state.checkpoint is not None:
        reason = f"the journal cannot be read after commit {state.checkpoint.end}"
    log.log(
        logging.WARNING if state.torn or lost or way is state.data else logging.INFO,
        "%s: recovered because %s: commit %d of %s, and %d commits from the journal%s",
        store.path,
        reason,
        slot.commit_number,
        "data.mdb" if way is state.data else "the checkpoint",
        replayed,
        f"; {lost} later commits were lost" if lost else "",
    )


def stored_epoch(value: bytes | None) -> int:
    """Return the epoch in the value of the row `META_EPOCH`; raise CorruptionError."""
    if value is None:
        raise CorruptionError("meta", "the row of the epoch is missing")
    return decode_epoch(row_body(META, META_EPOCH, value, "meta"), "meta")


def _put_meta(txn: lmdb.Transaction[bytes], meta: lmdb._Database, name: bytes, body: bytes) -> None:
    txn.put(name, with_checksum(META, name, body), db=meta)


def _restore_meta(store: Folder, slot: CheckpointSlot) -> None:
    """Write the meta page of the checkpoint, whose root pages are sound, over both of LMDB's."""
    with store.opened(DATA_FILE, os.O_RDWR) as handle:
        newest, page_size = slot.meta().commit_number, slot.meta().page_size
        for position in (0, 1):
            commit = newest if newest % 2 == position else newest - 1
            files.write_at(
                handle, meta_page_for(slot.meta_page, position, commit), position * page_size
            )
            failpoints.hit("recover:meta-written")
        files.sync_data(handle)


def _replay(
    raw: lmdb.Environment, tables: dict[int, lmdb._Database], reader: Reader, end: int
) -> None:
    while reader.position.commit_number < end:
        size = 0
        with raw.begin(write=True) as txn:
            memtable = Memtable()
            while reader.position.commit_number < end and size < _BATCH_BYTES:
                body = reader.next()
                if body is None:
                    raise CorruptionError("journal", f"it was read to commit {end} before")
                memtable.apply(body, txn, tables)
                size += len(body)
            memtable.write(txn, tables)
            txn.put(POSITION_KEY, encode_position(*reader.position))  # each commit is whole
        failpoints.hit("recover:batch")
