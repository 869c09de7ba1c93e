"""The commit of a store that fsck, repair and dump read, and how its pages are kept unchanged.

A store is read as of one commit, whose pages must not be overwritten during the read:

in use     A process has the store open. A snapshot of LMDB pins its newest commit; its pages are
           read from the file, without LMDB. Commits since the last flush come from the journal.
closed     No process has it open. The same if LMDB's lock file exists; otherwise the store's own
           lock keeps other processes out.
left       Processes were killed, or the machine has stopped. It is read as an opening for writing
           would recover it (`engine.crash_recovery.state`), from pages that nothing overwrites,
           with the records of the journal in memory. The store's own lock keeps others out.

LMDB opens a snapshot only after both meta pages were checked; it reads no other page for that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import lmdb

from streamkeep.engine.checkpoint import checkpoint_file as checkpoints
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery.recover import has_commits
from streamkeep.engine.crash_recovery.state import State, Way, examine
from streamkeep.engine.crash_recovery.stored_rows import StoredRows
from streamkeep.engine.journal.control_file import read_control_file
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader
from streamkeep.engine.store.meta import check_format
from streamkeep.engine.store.opening import is_listed
from streamkeep.engine.store.place import find_folder
from streamkeep.engine.store.registry import registry
from streamkeep.engine.store.survey import check_files, check_lmdb_files, is_swapping
from streamkeep.engine.system.lock_file import LOCK_FILE, wait_for_others
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core import errors
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.journal.checkpoint import SLOT, SLOT_SIZE, SLOTS, CheckpointSlot
from streamkeep.format.journal.position import POSITION_KEY, decode_position
from streamkeep.format.lmdb_file import meta_page
from streamkeep.format.node.envelope import FORMAT, MAGIC
from streamkeep.recovery.fsck.findings import Finding, finding
from streamkeep.recovery.fsck.journal import Mend, Replay
from streamkeep.recovery.fsck.rows import row_place
from streamkeep.recovery.pages.tree import PageFile, Tables

_TRIES: Final = 1000
_SLOT_TRIES: Final = 3
_SLOT_WAIT_S: Final = 0.02
PAGE_SIZES: Final = (32768, 16384, 8192, 4096)  # the usual one last: its problem is told
_JOURNAL_TRIES: Final = 3
_LISTED: Final = 20  # rows that differ
_MANY_READERS: Final = 512
_NODE_START: Final = MAGIC + bytes([FORMAT])
_SEARCHED: Final = 64 << 20  # bytes of `data.mdb` that are searched for a macro node


class Source:
    """A store as of one commit.

    Attributes:
        found: findings about meta pages and checkpoints.
        tables: its tables; None if no sound meta page is left.
        slot: its newest checkpoint; None if there is none.
        replay: what is in memory of the journal; None if nothing is.
        loses: a recovery would lose commits, or fail.
        unread: a commit of which the tree itself cannot be read; 0 if there is none.
        made: the newest commit that is known to have been made, where a recovery is needed.
        alone: no other process can open the store until this one is closed.
    """

    def __init__(self, folder: Folder, mend: Mend | None = None) -> None:
        self.folder = folder
        self.path = folder.path
        self.mend = mend
        self.found: list[Finding] = []
        self.tables: Tables | None = None
        self.slot: CheckpointSlot | None = None
        self.replay: Replay | None = None
        self.loses = False
        self.unread = 0
        self.made = 0
        self.alone = False

    def use_commit(self, meta: meta_page.MetaPage | None) -> None:
        """Read the tables as of the commit of a meta page."""
        if meta is not None and self.folder.exists(DATA_FILE):
            self.tables = Tables(PageFile(self.folder, meta.page_size), meta)

    def partial(self, table: int, db_key: bytes) -> bytes | None:
        """Return what a row had before a part that the journal lacks; None if it has all of it."""
        return None if self.replay is None else self.replay.partial.get((table, db_key))

    def close(self) -> None:
        tables, self.tables = self.tables, None
        if tables is not None:
            tables.pages.close()


def read_metas(store: Folder) -> tuple[list[meta_page.MetaPage], list[Finding]]:
    """Return the sound meta pages, the newest last, and findings about the others."""
    metas: list[meta_page.MetaPage] = []
    found: list[Finding] = []
    try:
        with os.fdopen(store.open(DATA_FILE), "rb", buffering=0) as file:
            size = 0
            for number in (0, 1):
                # If page 0 is damaged, page 1 is where its own page size says.
                for offset in (0,) if number == 0 else (size,) if size else PAGE_SIZES:
                    data = os.pread(file.fileno(), meta_page.META_SIZE, offset)
                    problem = meta_page.meta_problem(data, number, offset)
                    if not problem:
                        break
                meta = None if problem else meta_page.decode_meta_page(data)
                if meta is None:
                    found.append(finding("SK003", f"{DATA_FILE} meta page {number}", problem))
                else:
                    size = meta.page_size
                    metas.append(meta)
    except OSError as error:
        found.append(finding("SK003", DATA_FILE, f"cannot be read: {error.strerror}"))
    return sorted(metas, key=lambda meta: meta.commit_number), found


def read_slots(store: Folder) -> tuple[CheckpointSlot | None, list[Finding]]:
    """Return the newest checkpoint, and findings about the checkpoint file."""
    for _ in range(_SLOT_TRIES):  # another process may be writing a slot
        newest, found = _read_slots(store)
        if not found:
            break
        time.sleep(_SLOT_WAIT_S)
    return newest, found


def _read_slots(store: Folder) -> tuple[CheckpointSlot | None, list[Finding]]:
    try:
        data = store.read(checkpoints.CHECKPOINT_FILE)
    except FileNotFoundError:
        return None, [finding("SK020", checkpoints.CHECKPOINT_FILE, "the file is missing")]
    sound = checkpoints.valid_slots(data)
    code = "SK021" if sound else "SK020"
    found = []
    for number in range(SLOTS):
        stored = data[number * SLOT_SIZE : number * SLOT_SIZE + SLOT.size]
        if number not in sound and any(stored) and not stored.startswith(checkpoints.UNFINISHED):
            where = f"{checkpoints.CHECKPOINT_FILE} slot {number}"
            found.append(finding(code, where, "the slot is truncated or damaged"))
    if not sound and not found:
        where = checkpoints.CHECKPOINT_FILE
        found.append(finding("SK020", where, "the file contains no checkpoint"))
    return max(sound.values(), key=checkpoints.age, default=None), found


@contextmanager
def open_source(path: Path, mend: Mend | None = None) -> Iterator[Source]:
    """Open the store at `path` for reading as of one commit, without changing it.

    Args:
        mend: see `Replay`; a check has none.

    Raises:
        UntrustedFileError: a file of the store is a link, for example, or has an untrusted owner.
        NotAStoreError: `path` does not hold a store.
        RecoveryNeededError: a compaction was interrupted.
        StoreLockedError: another process is recovering the store, or has it open and `lock.mdb`
            is not writable.
        FormatVersionError: the store has another format.
    """
    opened = registry.find(path)
    folder = _find(path) if opened is None else opened.folder
    source = Source(folder, mend)
    with ExitStack() as stack:
        stack.callback(source.close)
        if opened is not None:
            source.slot, source.found = read_slots(folder)

            def pin(pinned: ExitStack) -> meta_page.MetaPage:
                txn = pinned.enter_context(opened.begin_stored())
                return meta_of(folder, txn.raw().id())

            _use_newest(source, stack, pin)
        else:
            _choose_commit(source, stack)
        yield source


def _choose_commit(source: Source, stack: ExitStack) -> None:
    """Choose the commit to read, and pin it."""
    path, folder = source.path, source.folder
    lock, exclusive = stack.enter_context(_locked(folder))
    if is_swapping(folder):  # and no process is at it
        raise errors.RecoveryNeededError(
            f"{path}: a compaction was interrupted; open the store for writing once to finish it"
        )
    source.alone = exclusive
    metas, meta_findings = read_metas(folder)
    source.slot, slot_findings = read_slots(folder)
    source.found += meta_findings + slot_findings
    slot = source.slot
    newest = metas[-1] if metas else None
    if slot is None and lock is not None and lock.is_unfinished() and not has_commits(folder):
        raise errors.NotAStoreError(f"{path}: the store is empty, its creation was not finished")
    if slot is None and not metas and not _has_nodes(folder):
        raise errors.NotAStoreError(
            f"{path}: {DATA_FILE} is not a store: {meta_findings[0].problem}"
        )
    checkpoint = None if slot is None else meta_page.decode_meta_page(slot.meta_page)
    if not folder.exists(DATA_FILE):
        return
    other = "" if slot is None or newest is None else _other_store(folder, slot, newest)
    is_older = bool(newest and checkpoint and newest.commit_number < checkpoint.commit_number)
    if other:
        source.found.append(finding("SK023", checkpoints.CHECKPOINT_FILE, other))
    if exclusive and (slot is not None or has_commits(folder)):
        state = examine(folder, slot)
        if state.damage and state.data is None and (other or is_older):
            # Somebody has put a file in the place of another one. Then data.mdb is whole as of what
            # it shows, and has no tree of the checkpoint.
            problem = state.damage.problem.partition("; next: ")[0]
            source.found.append(finding("SK004", DATA_FILE, problem))
            is_older, state = False, examine(folder, None)
            end = 0 if state.data is None else state.data.end
            if slot is not None and not other and end < slot.commit_number:
                source.loses, source.unread = True, slot.commit_number
        if not state.healthy and _use_state(source, state):
            return
    if checkpoint and (newest is None or is_older):
        source.use_commit(checkpoint)  # both meta pages are damaged, or the newer one is
        return
    if meta_findings:  # no LMDB here: it might choose the damaged meta page
        source.use_commit(newest)
        _check_is_store(source)
        return
    if lock is not None and not (exclusive or is_listed(path) or lock.try_exclusive()):
        raise errors.StoreLockedError(
            f"{path}: another process has the store open, and reading it at the same time needs "
            f"write permission for {LOCK_FILE}; get the permission, or check a backup"
        )
    raw = _open_lmdb(folder)
    if raw is not None:
        stack.callback(raw.close)

    def pin(pinned: ExitStack) -> meta_page.MetaPage | None:
        with suppress(lmdb.Error):
            if raw is not None:
                txn = raw.begin()
                pinned.callback(txn.abort)
                meta = meta_of(folder, txn.id())
                if lock is not None and exclusive:
                    lock.share()  # the commit is pinned: other processes may open the store
                    source.alone = False
                return meta
        return newest

    _use_newest(source, stack, pin)


def _other_store(folder: Folder, slot: CheckpointSlot, meta: meta_page.MetaPage) -> str:
    """Return the problem if a checkpoint is that of another store, else ""."""
    with suppress(errors.CorruptionError), folder.opened(DATA_FILE) as handle:
        here = StoredRows(handle, meta).identity()[1]
        if here != slot.store_uuid:
            return f"belongs to store {slot.store_uuid.hex()}, this is {here.hex()}"
    return ""


def _use_newest(
    source: Source, stack: ExitStack, pin: Callable[[ExitStack], meta_page.MetaPage | None]
) -> None:
    """Read the commit of data.mdb that `pin` pins, and those after it that the journal has."""
    for tries_left in reversed(range(_JOURNAL_TRIES)):
        with ExitStack() as pinned:
            source.use_commit(pin(pinned))
            _check_is_store(source)
            try:
                _replay_newer(source)
            except errors.CorruptionError as error:
                if tries_left:  # a checkpoint may have come in between
                    source.close()
                    continue
                source.loses = True
                source.found.append(finding("SK024", "journal", error.problem))
            stack.enter_context(pinned.pop_all())
            return


def _replay_newer(source: Source) -> None:
    """Read the commits that the journal has and LMDB has not; raise CorruptionError."""
    tables, slot = source.tables, source.slot
    journal = source.folder.folder(JOURNAL_FOLDER, missing_ok=True)
    control = read_control_file(journal)
    if tables is None or slot is None or control is None or not control.same_mount:
        return
    row, _ = tables.main.find(POSITION_KEY)
    position = slot.position() if row is None else decode_position(row)
    source.made = control.made
    if position.commit_number < control.made:
        source.replay = Replay(tables, Reader(journal, slot, position), source.mend)
        source.replay.run(control.made)


def _use_state(source: Source, state: State) -> bool:
    """Read a store as it would be recovered; return False if LMDB's newest commit is all there is.

    Where that commit is not torn, it is read, and compared with what the journal makes of the
    checkpoint.
    """
    slot, data = source.slot, state.data
    source.made = max(state.made, state.promised)
    try:
        way = state.best()
        if data is not None and data.end >= way.end:
            way = data
    except errors.CorruptionError as error:  # nothing can be recovered: read what can be read
        if data is not None:
            way = data
        elif slot is not None:
            way = Way(slot, slot.commit_number, "")
            source.unread = slot.commit_number
            problem = error.problem.partition("; next: ")[0]
            source.found.append(finding("SK004", DATA_FILE, problem))  # perhaps no check finds it
        else:
            return False
        source.loses = True
    _tell(source, state, way)
    if state.checkpoint is not None and data is not None:
        source.found += _differences(source, state.checkpoint, data)
    if not state.unreadable(follows=False):
        return False
    source.replay = _replay(source, way, source.mend)
    source.tables = source.replay.tables
    try:
        source.replay.run(way.end)
    except errors.CorruptionError as error:
        source.loses = True
        source.found.append(finding("SK024", "journal", error.problem))
    return True


def _replay(source: Source, way: Way, mend: Mend | None = None) -> Replay:
    """Return a replay that begins at a checkpoint."""
    meta = way.slot.meta()
    tables = Tables(PageFile(source.folder, meta.page_size), meta)
    journal = source.folder.folder(JOURNAL_FOLDER, missing_ok=True)
    return Replay(tables, Reader(journal, way.slot, way.slot.position()), mend)


def _tell(source: Source, state: State, way: Way) -> None:
    """Add the findings about the state of a store to those of its source."""
    begin, shown = way.slot.commit_number, state.shown()
    loss = state.loss(way)
    source.loses = source.loses or loss != ""
    if loss:
        source.found.append(finding("SK024", "journal", loss.partition("; next: ")[0]))
    elif state.checkpoint is not None and state.checkpoint.end < shown:
        problem = state.checkpoint.problem or "it is damaged"
        problem = f"it can be read up to commit {state.checkpoint.end}: {problem}"
        source.found.append(finding("SK027", "journal", problem))
    if state.unreadable(follows=False):
        count = way.end - begin
        commits = f"{count} commit{'s' * (count != 1)} of the journal"
        problem = f"checked as of commit {way.end}: commit {begin} of data.mdb and {commits}"
        lost = state.lost(way)
        if lost and not loss:
            problem += f"; {lost} later commits, which were not on disk, are lost"
        source.found.append(finding("SK022", "store", problem))
    ahead = way.end - shown
    if state.data is not None and ahead > 0:
        problem = f"lacks {ahead} commit{'s' * (ahead > 1)} that the journal has"
        source.found.append(finding("SK026", DATA_FILE, problem))


def _differences(source: Source, checkpoint: Way, data: Way) -> Iterator[Finding]:
    """SK028: LMDB's newest commit has the rows that the journal makes of the checkpoint."""
    if checkpoint.end < data.slot.commit_number:
        return
    replay = _replay(source, checkpoint)
    tables = replay.tables
    try:
        replay.run(data.slot.commit_number)
        shown = Tables(tables.pages, data.slot.meta())
        count = 0
        for table, rows in tables.changed.items():
            for db_key, value in rows.items():
                same = shown.get(table, db_key) == value
                count += not same
                if not same and count <= _LISTED:
                    problem = f"differs at commit {tables.commit_number}"
                    yield finding("SK028", row_place(table, db_key), problem)
        if count > _LISTED:
            yield finding("SK028", "journal", f"differs in {count - _LISTED} more rows")
    except errors.CorruptionError:
        pass  # the checks of pages report it
    finally:
        tables.pages.close()


def meta_of(store: Folder, commit_number: int) -> meta_page.MetaPage:
    """Return the meta page of a pinned commit, or of a newer one.

    The second commit after the snapshot overwrites its meta page. The newer commit that is then
    found is pinned as well: LMDB keeps all pages that are newer than the oldest snapshot.
    """
    newest = None
    for _ in range(_TRIES):
        for meta in read_metas(store)[0]:
            if meta.commit_number == commit_number:
                return meta
            if meta.commit_number > commit_number:
                newest = meta
        if newest is not None:
            return newest
    raise errors.CorruptionError(DATA_FILE, f"no meta page of commit {commit_number}")


def _open_lmdb(store: Folder) -> lmdb.Environment | None:
    """Return the LMDB environment, to pin a commit; None if its lock file cannot be used.

    The lock file is not created: the store may be a copy that was never opened.
    """
    path = store.path
    if not os.access(path, os.W_OK) or not os.access(path / LOCK_FILE, os.W_OK):
        return None
    check_lmdb_files(store, readonly=True)
    wait_for_others(store)
    try:
        return lmdb.open(os.fsencode(path), readonly=True, create=False, max_readers=_MANY_READERS)
    except lmdb.Error:
        return None


# --- the folder ---------------------------------------------------------------------------------


def _find(path: Path) -> Folder:
    """Return the folder of the store at `path`; raise NotAStoreError if there is none."""
    store = find_folder(path)
    if store is None:
        raise errors.NotAStoreError(f"{path}: no such store")
    if not store.exists(DATA_FILE) and not store.exists(checkpoints.CHECKPOINT_FILE):
        raise errors.NotAStoreError(
            f"{path}: not a store: it has no {DATA_FILE}; next: correct the path"
        )
    check_files(store, readonly=True)
    try:
        os.close(store.open(DATA_FILE))
    except FileNotFoundError:
        pass  # `read_metas` reports it
    except OSError as error:
        raise errors.StoreError(f"{path / DATA_FILE}: {error.strerror}") from error
    return store


@contextmanager
def _locked(store: Folder) -> Iterator[tuple[CheckpointFile | None, bool]]:
    """Hold the lock of the store; also return whether no other process has the store open."""
    lock = None
    try:
        with suppress(FileNotFoundError):
            lock = CheckpointFile(store, readonly=True)
    except PermissionError as error:
        file = store.path / checkpoints.CHECKPOINT_FILE
        raise errors.StoreError(f"{file}: {error.strerror}") from error
    if lock is None:
        yield None, True
        return
    with closing(lock):
        exclusive = lock.try_exclusive()
        if not exclusive:
            lock.share()
        yield lock, exclusive


def _has_nodes(store: Folder) -> bool:
    """Return whether the first 64 MiB of a data file without meta pages contain a macro node."""
    with suppress(OSError):
        return _NODE_START in store.read(DATA_FILE, _SEARCHED)
    return False


def _check_is_store(source: Source) -> None:
    """Raise for an LMDB environment of another program, and for a store of another format."""
    tables = source.tables
    if tables is None:
        return
    if META in tables.missing and source.slot is None and len(tables.missing) > len(TABLES) // 2:
        raise errors.NotAStoreError(f"{source.path}: an LMDB environment, but not a store")
    where = f"{source.path}: meta"
    with suppress(errors.CorruptionError):  # `check_meta` reports it
        check_format(source.path, lambda name: tables.get_row(META, name, where))
