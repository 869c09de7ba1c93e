"""What the first process to open a store finds, and recovery after a power loss.

Three states, told apart by LMDB's newest commit, the newest checkpoint, the journal, the boot
and the mount:

healthy    the newest commit is that of the checkpoint, and the journal holds nothing after it,
           nor a file that begins after commits that are gone. Closing leaves a store so, and it
           may be copied anywhere.
left       processes died, and nothing else happened. What LMDB shows is right, for the system still
           has every page. The journal ends with the newest commit, or with one record more: that of
           a process which was killed before LMDB made the commit.
torn       the system may have lost pages that were not on disk. LMDB's file may hold any mixture.

These show that a store is torn (`examine`):

- the machine was booted, or a sync has failed;
- LMDB's newest commit is older than the checkpoint;
- the journal is ahead of LMDB by two records or more. A writer makes its commit before the next
  can write a record, so a killed one leaves one record at most;
- the journal ends before LMDB's newest commit, which its head knows, or lacks records in its
  middle;
- the head of the journal, which is never synced, does not know LMDB's newest commit, which the
  journal holds, or is not of this boot and mount. A container has mounts of its own, and a copy
  may lack the head: then the recovery was not needed, but it loses nothing, for the journal holds
  every commit.

What none of these shows: pages that were lost while the store stays on the same mount, all of whose
journal and head are older. Then a recovery has to be forced.

A record that follows LMDB's newest commit is replayed, even if it is the only one, whenever the
store is recovered or a process opens it alone for writing. Nobody can tell that it was not
acknowledged. A read-only open does not wait for that one record: if it was acknowledged, the head
knows its commit, as long as the system has its pages.

A torn store is brought back under the exclusive lock: check the root pages of the checkpoint
while nothing is changed; note in `steady` that a recovery has begun, which any machine must bring
to its end; put the checkpoint's meta page in place of both of LMDB's, so that LMDB sees that
commit; pin it; replay the journal; raise the epoch. The new checkpoint is made by whoever opens
the store now, before anything else is written, and only then do the old journal files go. Killed
at any moment before, it starts again from the old point, whose pages nobody has touched.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, LOCK_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile, position_of
from streamkeep.engine.checkpoint.extent import check_extent
from streamkeep.engine.journal.control_file import CONTROL_FILE, ControlFile, LogPosition, read_control_file
from streamkeep.engine.journal.journal import NEW_RECYCLED
from streamkeep.engine.journal.reader import (
    JOURNAL_FOLDER,
    Reader,
    files_after_gap,
    find_position,
    is_writable_at,
    journal_files,
    named_number,
)
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.log.checkpoint import (
    NO_BOOT,
    CheckpointSlot,
    MetaPage,
    decode_meta_page,
    meta_page_for,
    root_checksum,
)
from streamkeep.format.log.journal import DELETE, MOVE, read_changes
from streamkeep.format.rows.records import decode_epoch, encode_number

META_EPOCH: Final = b"epoch"
META_RECOVERY: Final = b"last_recovery"
_RECOVERY: Final = struct.Struct(">QQQQ")
_CREATED: Final = 1  # the commit with which LMDB gets its tables
_BATCH_BYTES: Final = 8 << 20
_KILLED: Final = "a process was killed in a commit"

log = logging.getLogger("streamkeep")


class Recovery(NamedTuple):
    """What the last recovery did.

    Args:
        time_ms: when, in Unix milliseconds.
        epoch: the epoch that it ended.
        checkpoint_commit: the checkpoint that it went back to.
        replayed: how many commits of the journal it replayed.
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
        force: take a store for torn that is not healthy.
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
    if state.torn or state.ahead:
        check_extent(store, slot_meta(slot))  # while nothing is changed: else it stays as it is
        _check_roots(store, slot)
        checkpoint_file.rewrite()
        failpoints.hit("recover:point-safe")
        if slot.boot_id != NO_BOOT:  # a recovery that is killed must begin again, on any machine
            slot = slot._replace(boot_id=NO_BOOT)
            checkpoint_file.write(slot)
        _recover(store, slot, open_lmdb, clock, state.torn or _KILLED)
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
    """Open the journal's folder, made if it is missing; remove spares that were not finished."""
    journal = store.make_folder(JOURNAL_FOLDER)
    for name in journal.names():
        if name.startswith(NEW_RECYCLED):
            journal.remove(name)
    return journal


def is_unfinished(store: Folder, checkpoint_file: CheckpointFile) -> bool:
    """Say whether the store's creation was begun, and never finished.

    Raises:
        CorruptionError: it was finished: there were commits, which follow the first checkpoint.
    """
    if not checkpoint_file.is_unfinished():
        return False
    if has_commits(_newest_meta(store)):
        raise CorruptionError(
            str(checkpoint_file.path), "no checkpoint is whole; run `streamkeep repair`"
        )
    return True


def has_commits(newest: MetaPage | None) -> bool:
    """Say whether anything was committed to a store after its creation."""
    return newest is not None and newest.commit_number > _CREATED


def discard_unfinished(store: Folder) -> None:
    """Remove the files of a store whose creation was never finished."""
    for name in (DATA_FILE, LOCK_FILE):
        store.remove(name)


def needs_recovery(store: Folder, checkpoint_file: CheckpointFile) -> str:
    """Say why a store that nobody has open must be recovered, or created; nothing if it is sound.

    A read-only open may show it without the one record that a process left which was killed in a
    commit.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        return "its creation was cut off" if is_unfinished(store, checkpoint_file) else ""
    return examine(store, slot).torn


def is_ready(store: Folder, checkpoint_file: CheckpointFile) -> bool:
    """Say whether a store that others have open was made ready.

    Whoever makes a commit or a recovery makes a checkpoint in this boot first. So a store
    without one is being created or recovered, or was by a process that was killed.
    """
    slot = checkpoint_file.newest()
    if slot is None:
        return False
    here = boot_id()
    return here in (NO_BOOT, slot.boot_id) or _is_healthy(store, slot)


class State(NamedTuple):
    """What is left of a store that nobody has open; see the top of this module.

    Args:
        torn: why it must be recovered; nothing where it is healthy or was left.
        place: behind LMDB's newest commit in the journal; None where the journal does not hold it.
        ahead: how many commits the journal holds after it. Both are known in the same boot only.
    """

    torn: str
    position: LogPosition | None = None
    ahead: int = 0


def examine(store: Folder, slot: CheckpointSlot, force: bool = False) -> State:
    """Say which state a store is in that nobody has open."""
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    control = read_control_file(journal)
    if control is not None and control.poisoned:
        return State("writing to the disk had failed")
    meta = _newest_meta(store)
    if meta is None or meta.commit_number < slot.commit_number:
        return State("data.mdb is older than its checkpoint")
    if _is_healthy(store, slot):
        return State("", position_of(slot))
    here = boot_id()
    if here == NO_BOOT or slot.boot_id != here:
        return State("the machine stopped while the store was in use")
    newest = meta.commit_number
    position = find_position(journal, slot, position_of(slot), newest)
    ahead = 0 if position is None else _count_records(journal, slot, position)
    reason = ""
    if ahead > 1:
        reason = f"the journal holds {ahead} commits that data.mdb lacks"
    elif files_after_gap(journal, slot, newest + ahead):
        reason = "the journal lacks commits in its middle"
    elif control is not None and control.made > newest:
        reason = f"data.mdb lacks commit {control.made}, which was made"
    elif slot.journal_file not in journal_files(journal):
        pass  # removed by hand; a loss of pages would have spared its name
    elif control is None or not control.same_mount:
        reason = "the file system was mounted again, or the files were copied, while it was in use"
    elif position is not None and newest not in control.known:
        reason = f"journal/{CONTROL_FILE} is older than commit {newest} of data.mdb"
    elif position is None and newest in {control.made, *control.known}:
        reason = f"the journal ends before commit {newest} of data.mdb"
    if force and not reason:
        reason = "it was to be recovered in any case"
    return State(reason, position, ahead)


def _count_records(journal: Folder, slot: CheckpointSlot, position: LogPosition) -> int:
    """Return how many records follow a place."""
    reader = Reader(journal, slot, position)
    while reader.next() is not None:
        pass
    return reader.position.commit_number - position.commit_number


def _is_healthy(store: Folder, slot: CheckpointSlot) -> bool:
    """Say whether there is nothing but what the checkpoint covers."""
    meta = _newest_meta(store)
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    return (
        meta is not None
        and meta.commit_number == slot.commit_number
        and meta.data[8:] == slot.meta_page[8:]
        and Reader(journal, slot, position_of(slot)).next() is None
        and not files_after_gap(journal, slot, slot.commit_number)
    )


def _newest_meta(store: Folder) -> MetaPage | None:
    """Return LMDB's newest meta page; None when none is readable."""
    if not store.exists(DATA_FILE):
        return None
    handle = store.open(DATA_FILE)
    try:
        pages = read_meta_pages(handle)
    finally:
        os.close(handle)
    return pages[-1] if pages else None


def _reset_control_file(journal: Folder, position: LogPosition | None, slot: CheckpointSlot | None) -> None:
    """Set up what processes share; with no place, the next to write begins a new file.

    What is behind the checkpoint counts as not on disk, whoever wrote it.
    """
    journal.remove(CONTROL_FILE)
    if position is not None and slot is not None:
        control = ControlFile(journal)
        control.reset(position, slot.journal_file, slot.commit_number)
        control.close()


def _remove_later(journal: Folder, position: LogPosition) -> None:
    """Remove files after that of a place, none of whose records follows it.

    A writer that was killed began such a file. It says only after which commit it begins, so it
    would follow any commit that gets this number.
    """
    later = [
        name
        for number, name in journal_files(journal).items()
        if max(number, named_number(name)) > position.file_number
    ]
    if later:
        failpoints.hit("recover:remove")
        for name in later:
            journal.remove(name)
        journal.sync()


def _recover(
    store: Folder, slot: CheckpointSlot, open_lmdb: OpenLmdb, clock: Clock, reason: str
) -> None:
    """Bring a store back to the newest commit that the disk still holds."""
    _restore_meta(store, slot)
    failpoints.hit("recover:meta-restored")
    raw = open_lmdb()
    try:
        pin = raw.begin()
        if pin.id() != slot.commit_number:
            problem = "LMDB does not show the commit of the checkpoint"
            raise CorruptionError(str(store.path), problem)
        with raw.begin(write=True) as txn:
            tables = [raw.open_db(table.name.encode(), txn, create=False) for table in TABLES]
        reader = Reader(store.folder(JOURNAL_FOLDER), slot, position_of(slot))
        replayed = _replay(raw, tables, reader)
        done = Recovery(clock.now_ms(), slot.epoch, slot.commit_number, replayed)
        with raw.begin(write=True) as txn:
            epoch = stored_epoch(txn.get(META_EPOCH, db=tables[META]))
            _put_meta(txn, tables[META], META_EPOCH, encode_number(epoch + 1))
            _put_meta(txn, tables[META], META_RECOVERY, done.encode())
        failpoints.hit("recover:epoch-raised")
        pin.abort()
        del pin
    finally:
        raw.close()
    failpoints.hit("recover:replayed")
    log.log(
        logging.INFO if reason == _KILLED else logging.WARNING,
        "%s: recovered, since %s: back to commit %d, and %d commits from the journal",
        store.path,
        reason,
        slot.commit_number,
        replayed,
    )


def stored_epoch(value: bytes | None) -> int:
    """Return the epoch of the value stored under `META_EPOCH`; raise CorruptionError."""
    if value is None:
        raise CorruptionError("meta", "the row of the epoch is missing")
    return decode_epoch(open_row(META, META_EPOCH, value, "meta"), "meta")


def _put_meta(txn: lmdb.Transaction[bytes], meta: lmdb._Database, name: bytes, body: bytes) -> None:
    txn.put(name, seal_row(META, name, body), db=meta)


def _check_roots(store: Folder, slot: CheckpointSlot) -> None:
    """Raise CorruptionError unless the root pages of the checkpoint are as they were."""
    meta = slot_meta(slot)
    handle = store.open(DATA_FILE)
    try:
        for root, expected in (
            (meta.main_root, slot.main_root_checksum),
            (meta.free_root, slot.free_root_checksum),
        ):
            page = None
            if root is not None:
                page = os.pread(handle, meta.page_size, root * meta.page_size)
                page = page.ljust(meta.page_size, b"\0")  # of a file that was cut off
            if root_checksum(page) != expected:
                raise CorruptionError(
                    str(store.path / DATA_FILE),
                    f"page {root} is not the root of commit {slot.commit_number}, to which the "
                    "store must go back; run `streamkeep repair`",
                )
    finally:
        os.close(handle)


def _restore_meta(store: Folder, slot: CheckpointSlot) -> None:
    """Put the meta page of the checkpoint, whose root pages are sound, into both places."""
    handle = store.open(DATA_FILE, os.O_RDWR)
    try:
        newest, page_size = slot.commit_number, slot_meta(slot).page_size
        for position in (0, 1):
            commit = newest if newest % 2 == position else newest - 1
            files.write_at(
                handle, meta_page_for(slot.meta_page, position, commit), position * page_size
            )
            failpoints.hit("recover:meta-written")
        files.sync_data(handle)
    finally:
        os.close(handle)


def slot_meta(slot: CheckpointSlot) -> MetaPage:
    """Return LMDB's meta page that a checkpoint holds."""
    meta = decode_meta_page(slot.meta_page)
    if meta is None or meta.commit_number != slot.commit_number:
        raise CorruptionError("steady", "the slot holds no meta page of its commit")
    return meta


def _replay(raw: lmdb.Environment, tables: list[lmdb._Database], reader: Reader) -> int:
    """Apply what the journal holds; return how many commits that was."""
    count = 0
    body = reader.next()
    while body is not None:
        size = 0
        with raw.begin(write=True) as txn:
            while body is not None and size < _BATCH_BYTES:
                for change in read_changes(body, len(tables)):
                    table = tables[change.table]
                    if change.kind == DELETE:
                        txn.delete(change.db_key, db=table)
                    elif change.kind == MOVE:
                        row = txn.pop(change.db_key, db=table)
                        if row is None:
                            raise CorruptionError("journal", "a MOVE of a row that is not there")
                        txn.put(change.db_key, row, db=tables[change.kept])
                    else:
                        old = txn.get(change.db_key, db=table)
                        txn.put(change.db_key, change.apply(old), db=table)
                size += len(body)
                count += 1
                body = reader.next()
        failpoints.hit("recover:batch")
    return count
