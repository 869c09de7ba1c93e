"""Recovery: the first process that opens a store finds out whether it is whole, or goes back.

LMDB's newest commit, the newest checkpoint, the journal, the boot and the mount tell four states
apart:

healthy    The newest commit is that of the checkpoint. The journal holds nothing after it, and no
           file that begins after missing commits. `close` leaves a store in this state, and it may
           be copied anywhere.
left       Processes died, and nothing else seems to have happened. The journal ends with the newest
           commit of LMDB.
short      The same, but the journal holds more commits: they were deferred, or a process was killed
           before LMDB made the last one.
torn       The system may have lost pages that were not on disk, so LMDB's file may hold any
           mixture of pages.

An opening for writing recovers a store in each of the last three states. The difference matters for
reading only: LMDB's data is right as long as the kernel holds every page, and a read-only opening
of a store that was left shows it. `examine` has the signs of a torn store. They miss one case: the
disk refused pages after all processes had died, the file system stayed mounted, and the kernel has
forgotten the error and the pages. Recovery does not rest on any sign.

A store is recovered under the exclusive lock:

1. Check the root pages of the checkpoint, before anything is changed.
2. Mark the checkpoint, so that an interrupted recovery starts again on any machine.
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
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile, meta_of, position_of
from streamkeep.engine.crash_recovery.extent import check_extent
from streamkeep.engine.crash_recovery.stored_version import stored_position
from streamkeep.engine.journal.control_file import CONTROL_FILE, ControlFile, read_control_file
from streamkeep.engine.journal.journal_files import NEW_RECYCLED, RECYCLED_NAMES
from streamkeep.engine.journal.reader import (
    JOURNAL_FOLDER,
    Reader,
    files_after_gap,
    find_position,
    is_writable_at,
    journal_files,
    named_number,
)
from streamkeep.engine.journal.replay import Replay
from streamkeep.engine.journal.sync_leader import FORMER_LOCK_FILES
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lock_file import LOCK_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place
from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import ADDED_LATER, META, TABLES
from streamkeep.format.journal.checkpoint import NO_BOOT, CheckpointSlot, root_checksum
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, encode_position
from streamkeep.format.lmdb_file.meta_page import MetaPage, meta_page_for
from streamkeep.format.rows.records import decode_epoch, encode_number

META_EPOCH: Final = b"epoch"
META_RECOVERY: Final = b"last_recovery"
_RECOVERY: Final = struct.Struct(">QQQQ")
_CREATED: Final = 1  # the commit with which LMDB gets its tables
_BATCH_BYTES: Final = 8 << 20
# Also true in another container, or for a copy without the control file. The recovery is then not
# needed, but loses nothing: the journal holds every commit.
_MOVED: Final = "the file system was mounted again, or the files were copied, while it was in use"
_KILLED: Final = "the last process that used it was killed, or did not close it"

log = logging.getLogger("streamkeep")


class Recovery(NamedTuple):
    """The last recovery of a store.

    Attributes:
        time_ms: its time, in Unix milliseconds.
        epoch: the epoch that it ended.
        checkpoint_commit: the checkpoint that it went back to.
        replayed: the number of commits that it replayed from the journal.
    """

    time_ms: int
    epoch: int
    checkpoint_commit: int
    replayed: int

    def encode(self) -> bytes:
        """Return the body of the row in `meta`."""
        return _RECOVERY.pack(*self)


def decode_recovery(body: bytes) -> Recovery:
    """Parse the row of the last recovery; raise CorruptionError."""
    if len(body) != _RECOVERY.size:
        raise CorruptionError("meta", f"the row of the last recovery has {len(body)} bytes")
    return Recovery(*_RECOVERY.unpack(body))


OpenLmdb = Callable[[], "lmdb.Environment"]


def prepare(
    store: Folder, checkpoint_file: CheckpointFile, open_lmdb: OpenLmdb, clock: Clock, force: bool
) -> None:
    """Make a store ready to be opened, under the exclusive lock; recover it if it is torn.

    Args:
        force: also recover a store that is merely not healthy.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        if is_unfinished(store, checkpoint_file):
            discard_unfinished(store)
        if not store.exists(DATA_FILE):
            checkpoint_file.mark_unfinished()
        check_extent(store)
        _reset_control_file(_clear_journal(store), None, None)
        return
    journal = _clear_journal(store)
    state = examine(store, slot, force)
    if state.torn or state.after:
        check_extent(store, meta_of(slot))  # before any change, so that a refused store is intact
        _check_roots(store, slot)
        checkpoint_file.rewrite()
        failpoints.hit("recover:point-safe")
        if slot.boot_id != NO_BOOT:  # a killed recovery must start again, on any machine
            slot = slot._replace(boot_id=NO_BOOT)
            checkpoint_file.write(slot)
        _forget_errors(store)
        _recover(store, slot, open_lmdb, clock, state)
        _reset_control_file(journal, None, None)
        return
    check_extent(store)
    position = state.position
    if position is not None and not is_writable_at(journal, slot, position):
        position = None
    if position is not None:
        _remove_later(journal, position)
    _reset_control_file(journal, position, slot)


def _clear_journal(store: Folder) -> Folder:
    """Open or make the journal's folder; remove unfinished files for reuse."""
    journal = store.make_folder(JOURNAL_FOLDER)
    keep_in_place(journal.handle)
    for name in journal.names():
        if name.startswith((NEW_RECYCLED, FORMER_LOCK_FILES)):
            journal.remove(name)
    return journal


def is_unfinished(store: Folder, checkpoint_file: CheckpointFile) -> bool:
    """Return whether the creation of the store was begun and not finished.

    Raises:
        CorruptionError: no checkpoint is valid, but the store has commits, so there was one.
    """
    if not checkpoint_file.is_unfinished():
        return False
    if has_commits(_newest_meta(store)):
        raise CorruptionError(
            str(checkpoint_file.path), "no checkpoint is valid; next: run `streamkeep repair`"
        )
    return True


def has_commits(newest: MetaPage | None) -> bool:
    """Return whether anything was committed to a store after its creation."""
    return newest is not None and newest.commit_number > _CREATED


def discard_unfinished(store: Folder) -> None:
    """Remove the files of a store whose creation was not finished."""
    for name in (DATA_FILE, LOCK_FILE):
        store.remove(name)


def needs_recovery(store: Folder, checkpoint_file: CheckpointFile) -> str:
    """Return why a store that no process has open must be recovered; empty if it need not be.

    For reading, a store that was left need not be: see the top of this module.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        return "its creation was cut off" if is_unfinished(store, checkpoint_file) else ""
    state = examine(store, slot)
    if state.torn or not state.after:
        return state.torn
    return lacks(state.ahead) if state.ahead else _disk_error(store)


def lacks(ahead: int) -> str:
    """Return the reason for a recovery that the number of commits in the journal gives."""
    return f"the journal holds {ahead} commit{'s' * (ahead > 1)} that data.mdb lacks"


def is_ready(store: Folder, checkpoint_file: CheckpointFile) -> bool:
    """Return whether a store that other processes have open was made ready.

    A process makes a checkpoint in this boot before its first commit, and at the end of a recovery.
    So a store without one is still being created or recovered, or that process was killed.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        return False
    here = boot_id()
    return here in (NO_BOOT, slot.boot_id) or _is_healthy(store, slot)


class State(NamedTuple):
    """The state of a store that no process has open; see the top of this module.

    Attributes:
        torn: why it must be recovered; empty if it is healthy or left.
        position: the log position after LMDB's newest commit; None if the journal does not hold
            it, or is of another boot.
        ahead: the number of commits that the journal holds after it, and data.mdb lacks.
        after: the number of commits that it holds after the checkpoint; 0 if it does not hold the
            newest commit.
    """

    torn: str
    position: LogPosition | None = None
    ahead: int = 0
    after: int = 0


def examine(store: Folder, slot: CheckpointSlot, force: bool = False) -> State:
    """Return the state of a store that no process has open."""
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    control = read_control_file(journal)
    if control is not None and control.poisoned:
        return State("a sync to the disk had failed")
    meta = _newest_meta(store)
    if meta is None or meta.commit_number < meta_of(slot).commit_number:
        return State("data.mdb is older than its checkpoint")
    if _is_healthy(store, slot):
        return State("", position_of(slot))
    here = boot_id()
    if here == NO_BOOT or slot.boot_id != here:
        return State("the machine stopped while the store was in use")
    known = slot.journal_file in journal_files(journal)
    moved = known and (control is None or not control.same_mount)
    try:
        stored = stored_position(store, meta)
    except CorruptionError as error:
        return State(_MOVED if moved else f"data.mdb is damaged ({error})")
    newest = stored.commit_number
    position = find_position(journal, slot, position_of(slot), newest)
    if stored.file_number and position is not None:
        position = stored
    ahead = 0 if position is None else _count_records(journal, slot, position)
    reason = ""
    if files_after_gap(journal, slot, newest + ahead):
        reason = "the journal lacks commits in its middle"
    elif control is not None and control.made > newest + ahead:
        reason = f"data.mdb and the journal lack commit {control.made}, which was made"
    elif not known:
        pass  # removed by hand: a loss of pages does not remove names
    elif moved or control is None:
        reason = _MOVED
    elif control.made < newest - 1:
        reason = f"journal/{CONTROL_FILE} is older than commit {newest} of data.mdb"
    elif position is None:  # also if the pages that have the row are torn
        reason = f"the journal ends before commit {newest} of data.mdb"
    if force and not reason:
        reason = "the caller asked for a recovery"
    after = 0 if position is None else newest + ahead - slot.commit_number
    return State(reason, position, ahead, after)


def _count_records(journal: Folder, slot: CheckpointSlot, position: LogPosition) -> int:
    """Return the number of records after a log position."""
    reader = Reader(journal, slot, position)
    while reader.next() is not None:
        pass
    return reader.position.commit_number - position.commit_number


def _is_healthy(store: Folder, slot: CheckpointSlot) -> bool:
    """Return whether the checkpoint covers everything in the store."""
    meta = _newest_meta(store)
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    return (
        meta is not None
        and meta.data[8:] == slot.meta_page[8:]
        and Reader(journal, slot, position_of(slot)).next() is None
        and not files_after_gap(journal, slot, slot.commit_number)
    )


def _newest_meta(store: Folder) -> MetaPage | None:
    """Return LMDB's newest meta page; None if none is readable."""
    if not store.exists(DATA_FILE):
        return None
    handle = store.open(DATA_FILE)
    try:
        pages = read_meta_pages(handle)
    finally:
        os.close(handle)
    return pages[-1] if pages else None


def _reset_control_file(
    journal: Folder, position: LogPosition | None, slot: CheckpointSlot | None
) -> None:
    """Set up the control file; without a position, the next writer begins a new journal file.

    Everything after the checkpoint counts as not on disk.
    """
    if position is None or slot is None:
        journal.remove(CONTROL_FILE)
        return
    control = ControlFile(journal, only=True, fresh=True)
    control.reset(position, slot.journal_file, slot.commit_number)
    control.close()


def _remove_later(journal: Folder, position: LogPosition) -> None:
    """Remove the journal files after the file of a log position; none of their records follows it.

    A killed writer began such a file. Its header names only the commit before it, so its records
    would follow any later commit of that number.
    """
    later = [
        name
        for number, name in journal_files(journal).items()
        if max(number, named_number(name)) > position.file_number
    ]
    if later:
        for name in later:
            journal.remove(name)
        journal.sync()


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
    handle = store.open(DATA_FILE)
    try:
        files.sync_data(handle)
    except OSError as error:
        return f"writing data.mdb had failed ({error.strerror})"
    finally:
        os.close(handle)
    return ""


def _recover(
    store: Folder, slot: CheckpointSlot, open_lmdb: OpenLmdb, clock: Clock, state: State
) -> None:
    """Bring a store to the newest commit that the disk still holds."""
    _restore_meta(store, slot)
    failpoints.hit("recover:meta-restored")
    raw = open_lmdb()
    try:
        pin = raw.begin()
        expected = meta_of(slot).commit_number
        if pin.id() != expected:
            problem = f"LMDB shows commit {pin.id()}, not {expected} of the checkpoint"
            raise CorruptionError(str(store.path), f"{problem}; next: run `streamkeep repair`")
        with raw.begin(write=True) as txn:
            tables = {
                number: raw.open_db(table.name.encode(), txn, create=False)
                for number, table in TABLES.items()
                if number not in ADDED_LATER or txn.get(table.name.encode()) is not None
            }
        reader = Reader(store.folder(JOURNAL_FOLDER), slot, position_of(slot))
        replayed = _replay(raw, tables, reader)
        done = Recovery(clock.now_ms(), slot.epoch, slot.commit_number, replayed)
        with raw.begin(write=True) as txn:
            epoch = stored_epoch(txn.get(META_EPOCH, db=tables[META]))
            _put_meta(txn, tables[META], META_EPOCH, encode_number(epoch + 1))
            _put_meta(txn, tables[META], META_RECOVERY, done.encode())
            txn.put(POSITION_KEY, encode_position(0, 0, 0, reader.position.commit_number))
        failpoints.hit("recover:epoch-raised")
        pin.abort()
        del pin
    finally:
        raw.close()
    failpoints.hit("recover:replayed")
    log.log(
        logging.WARNING if state.torn else logging.INFO,
        "%s: recovered because %s: checkpoint of commit %d, and %d commits from the journal",
        store.path,
        state.torn or (lacks(state.ahead) if state.ahead else _KILLED),
        slot.commit_number,
        replayed,
    )


def stored_epoch(value: bytes | None) -> int:
    """Return the epoch in the value of the row `META_EPOCH`; raise CorruptionError."""
    if value is None:
        raise CorruptionError("meta", "the row of the epoch is missing")
    return decode_epoch(open_row(META, META_EPOCH, value, "meta"), "meta")


def _put_meta(txn: lmdb.Transaction[bytes], meta: lmdb._Database, name: bytes, body: bytes) -> None:
    txn.put(name, seal_row(META, name, body), db=meta)


def _check_roots(store: Folder, slot: CheckpointSlot) -> None:
    """Raise CorruptionError unless the root pages of the checkpoint are unchanged."""
    meta = meta_of(slot)
    handle = store.open(DATA_FILE)
    try:
        for root, expected in (
            (meta.main_root, slot.main_root_checksum),
            (meta.free_root, slot.free_root_checksum),
        ):
            page = None
            if root is not None:
                page = os.pread(handle, meta.page_size, root * meta.page_size)
                page = page.ljust(meta.page_size, b"\0")  # the file may be truncated
            if root_checksum(page) != expected:
                raise CorruptionError(
                    str(store.path / DATA_FILE),
                    f"page {root} is not the root of commit {slot.commit_number}, which recovery "
                    "needs; next: run `streamkeep repair`",
                )
    finally:
        os.close(handle)


def _restore_meta(store: Folder, slot: CheckpointSlot) -> None:
    """Write the meta page of the checkpoint, whose root pages are sound, over both of LMDB's."""
    handle = store.open(DATA_FILE, os.O_RDWR)
    try:
        newest, page_size = meta_of(slot).commit_number, meta_of(slot).page_size
        for position in (0, 1):
            commit = newest if newest % 2 == position else newest - 1
            files.write_at(
                handle, meta_page_for(slot.meta_page, position, commit), position * page_size
            )
            failpoints.hit("recover:meta-written")
        files.sync_data(handle)
    finally:
        os.close(handle)


def _replay(raw: lmdb.Environment, tables: dict[int, lmdb._Database], reader: Reader) -> int:
    """Apply the records of the journal; return their number."""
    count = 0
    body = reader.next()
    while body is not None:
        size = 0
        with raw.begin(write=True) as txn:
            replay = Replay(txn, tables)
            while body is not None and size < _BATCH_BYTES:
                replay.apply(body)
                size += len(body)
                count += 1
                body = reader.next()
            replay.finish()
        failpoints.hit("recover:batch")
    return count
