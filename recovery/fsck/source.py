"""What a store is, as it lies there: which commit to look at, and how to keep it in place.

A store is looked at as of one commit, whose pages must not be overwritten meanwhile:

in use     somebody has the store open. A snapshot of LMDB pins the newest commit, and its pages
           are read from the file, past LMDB.
idle       nobody has it open. Likewise where LMDB's lock file is there; else the store's own lock
           keeps everybody out.
torn       it needs recovery (`recover`). Then the newest checkpoint is looked at, whose
           pages nobody has touched: its meta page stands in `steady`. No copy is needed.

LMDB is asked for a snapshot only after its meta pages were found sound; it looks into no other
page for that. Where neither meta page is sound, the checkpoint helps out, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, LOCK_FILE
from streamkeep.engine.checkpoint.checkpoint_file import (
    CHECKPOINT_FILE,
    UNFINISHED,
    CheckpointFile,
    age,
    position_of,
)
from streamkeep.engine.checkpoint.crash_recovery import examine, has_commits
from streamkeep.engine.checkpoint.stored_version import META_FORMAT, refuse_newer
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader
from streamkeep.engine.store.opening import find_folder, is_listed
from streamkeep.engine.store.registry import registry
from streamkeep.engine.store.survey import check_files, check_lmdb_files
from streamkeep.engine.store.swap import is_swapping
from streamkeep.engine.system.owners import Trusted
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.txn import ReadTxn
from streamkeep.format.core.errors import (
    CorruptionError,
    NotAStoreError,
    RecoveryNeededError,
    StoreError,
    StoreLockedError,
)
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.log.checkpoint import (
    SLOT,
    SLOT_SIZE,
    SLOTS,
    CheckpointSlot,
    MetaPage,
    decode_meta_page,
    decode_slot,
)
from streamkeep.format.log.lmdb_pages import META_SIZE, meta_problem
from streamkeep.format.node.envelope import FORMAT, MAGIC
from streamkeep.format.rows.records import decode_number
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.pages.page_file import PageFile
from streamkeep.recovery.pages.tree import Tables

_TRIES: Final = 1000
_SLOT_TRIES: Final = 3
_SLOT_WAIT_S: Final = 0.02
_PAGE_SIZES: Final = (4096, 8192, 16384, 32768)
_MANY_READERS: Final = 512
_NODE_START: Final = MAGIC + bytes([FORMAT])
_PIECE: Final = 1 << 20
_LOOKED_AT: Final = 64 << 20  # bytes in which a store shows itself by its nodes


class Source:
    """A store as of one commit.

    Attributes:
        found: what is wrong with its files as such: meta pages, checkpoints.
        tables: its tables; None when no meta page of any commit is left.
        torn: it needs recovery, and this is its newest checkpoint.
        slot: its newest checkpoint; None when there is none.
        replayable: commits that a recovery would replay.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.path = folder.path
        self.found: list[Finding] = []
        self.tables: Tables | None = None
        self.torn = False
        self.slot: CheckpointSlot | None = None
        self.replayable = 0

    def see(self, meta: MetaPage | None) -> None:
        """Look at the commit of a meta page."""
        if meta is not None and self.folder.exists(DATA_FILE):
            self.tables = Tables(PageFile(self.folder, meta.page_size), meta)

    def meta_damaged(self) -> bool:
        """Say whether a meta page is damaged, so that the newest commit may not be what is seen."""
        return any(one.code == "SK003" for one in self.found)

    def raw_pages(self) -> PageFile | None:
        """Return the data file without its trees; None when there is none. Close it."""
        try:
            return PageFile(self.folder, _PAGE_SIZES[0])
        except OSError:
            return None

    def close(self) -> None:
        """Close the data file."""
        if self.tables is not None:
            self.tables.pages.close()


def read_metas(store: Folder) -> tuple[list[MetaPage], list[Finding]]:
    """Return the meta pages that are sound, the newest last, and what is wrong with the others."""
    metas: list[MetaPage] = []
    found: list[Finding] = []
    try:
        with os.fdopen(store.open(DATA_FILE), "rb", buffering=0) as file:
            first = file.read(META_SIZE)
            size = 0
            if not meta_problem(first, 0, 0):
                meta = decode_meta_page(first)
                size = meta.page_size if meta else 0
            for place in (0, 1):
                data = first
                if place:
                    data = _second_meta(file.fileno(), size)
                problem = meta_problem(data, place, size)
                meta = None if problem else decode_meta_page(data)
                if meta is None:
                    found.append(finding("SK003", f"{DATA_FILE} meta page {place}", problem))
                else:
                    metas.append(meta)
    except OSError as error:
        found.append(finding("SK003", DATA_FILE, f"cannot be read: {error.strerror}"))
    return sorted(metas, key=lambda meta: meta.commit_number), found


def _second_meta(handle: int, size: int) -> bytes:
    """Return meta page 1; it says itself where it stands if the first one is damaged."""
    for page_size in (size,) if size else _PAGE_SIZES:
        data = os.pread(handle, META_SIZE, page_size)
        if size or not meta_problem(data, 1, page_size):
            return data
    return os.pread(handle, META_SIZE, _PAGE_SIZES[0])


def read_slots(store: Folder) -> tuple[CheckpointSlot | None, list[Finding]]:
    """Return the newest checkpoint, and what is wrong with the file."""
    for _ in range(_SLOT_TRIES):  # one may be being written
        newest, found = _read_slots(store)
        if not found:
            break
        time.sleep(_SLOT_WAIT_S)
    return newest, found


def _read_slots(store: Folder) -> tuple[CheckpointSlot | None, list[Finding]]:
    try:
        data = store.read(CHECKPOINT_FILE)
    except FileNotFoundError:
        return None, [finding("SK020", CHECKPOINT_FILE, "the file is missing")]
    whole: list[CheckpointSlot] = []
    damaged: list[int] = []
    for place in range(SLOTS):
        stored = data[place * SLOT_SIZE : place * SLOT_SIZE + SLOT.size]
        slot = decode_slot(stored)
        if slot is not None:
            whole.append(slot)
        elif any(stored) and not stored.startswith(UNFINISHED):
            damaged.append(place)
    code = "SK021" if whole else "SK020"
    found = [
        finding(code, f"{CHECKPOINT_FILE} slot {place}", "it is not whole") for place in damaged
    ]
    if not whole and not damaged:
        found.append(finding("SK020", CHECKPOINT_FILE, "it holds no checkpoint"))
    newest = max(whole, key=age, default=None)
    return newest, found


@contextmanager
def open_source(path: Path, trust_owners: Trusted = ()) -> Iterator[Source]:
    """Look at the store at `path` without changing it.

    Raises:
        UntrustedFileError: a file of it is a link, say, or belongs to a user who is not trusted.
        NotAStoreError: there is no store.
        StoreLockedError: another process is recovering it.
        FormatVersionError: a newer version wrote it.
    """
    opened = registry.find(path)
    folder = _find(path, trust_owners) if opened is None else opened.folder
    if is_swapping(folder):
        raise RecoveryNeededError(
            f"{path}: a compaction was cut off; open the store for writing once"
        )
    source = Source(folder)
    if opened is not None:
        with opened.begin_read() as txn:
            see_snapshot(source, txn)
            try:
                yield source
            finally:
                source.close()
        return
    try:
        with _locked(folder) as (lock, alone):
            yield from _see(source, lock, alone)
    finally:
        source.close()


def _see(source: Source, lock: CheckpointFile | None, alone: bool) -> Iterator[Source]:
    """Choose the commit, pin it, and yield the source."""
    path, folder = source.path, source.folder
    metas, meta_findings = read_metas(folder)
    source.slot, slot_findings = read_slots(folder)
    source.found += meta_findings + slot_findings
    slot = source.slot
    newest = metas[-1] if metas else None
    if slot is None and lock is not None and lock.is_unfinished() and not has_commits(newest):
        raise NotAStoreError(f"{path}: its creation was never finished; it holds nothing")
    if slot is None and not metas and not _holds_nodes(folder):
        raise NotAStoreError(f"{path}: {DATA_FILE} is not a store: {meta_findings[0].problem}")
    checkpoint_file = None if slot is None else decode_meta_page(slot.meta_page)
    if not folder.exists(DATA_FILE):
        yield source
        return
    if alone and slot is not None and checkpoint_file is not None:
        state = examine(folder, slot)
        if state.torn:
            _see_torn(source, checkpoint_file, slot, state.ahead)
            yield source
            return
    if checkpoint_file is not None and (
        newest is None or checkpoint_file.commit_number > newest.commit_number
    ):
        source.see(checkpoint_file)  # both meta pages are damaged, or the newer one is
        yield source
        return
    if meta_findings:  # LMDB could choose the damaged one
        source.see(newest)
        _check_is_ours(source)
        yield source
        return
    if lock is not None and not (alone or is_listed(path) or lock.try_exclusive()):
        raise StoreLockedError(
            f"{path}: open in another process; to look at it beside that takes permission to write "
            f"{LOCK_FILE}; get that, or check a backup"
        )
    raw = _open_lmdb(folder)
    pin = None
    try:
        with suppress(lmdb.Error):
            pin = None if raw is None else raw.begin()
        if pin is not None:
            newest = _meta_of(folder, pin.id())
            if lock is not None and alone:
                lock.share()  # others may work while we look
        source.see(newest)
        _check_is_ours(source)
        yield source
    finally:
        if pin is not None:
            pin.abort()
            del pin
        if raw is not None:
            raw.close()


def _see_torn(source: Source, checkpoint_file: MetaPage, slot: CheckpointSlot, ahead: int) -> None:
    """Look at the checkpoint of a store that needs recovery.

    Args:
        ahead: commits that the journal holds and LMDB's newest meta page does not know, though the
            machine was not booted.
    """
    source.torn = True
    source.see(checkpoint_file)
    journal = source.folder.folder(JOURNAL_FOLDER, missing_ok=True)
    reader = Reader(journal, slot, position_of(slot))
    while reader.next() is not None:
        source.replayable += 1
    source.found.append(
        finding(
            "SK022",
            "store",
            f"checked as of the checkpoint at commit {slot.commit_number}; "
            f"{source.replayable} commits of the journal follow",
        )
    )
    if ahead > 1:
        problem = f"the journal holds {ahead} commits that it lacks"
        source.found.append(finding("SK026", DATA_FILE, problem))


def see_snapshot(source: Source, txn: ReadTxn) -> None:
    """Look at the commit of a snapshot, as long as that is open."""
    source.slot, slot_findings = read_slots(source.folder)
    source.found += slot_findings
    source.see(_meta_of(source.folder, txn.raw.id()))


def _meta_of(store: Folder, commit_number: int) -> MetaPage:
    """Return the meta page of a pinned commit.

    Two commits meanwhile overwrite it, but not before LMDB has closed the snapshot's own commit:
    the one that is seen then may be newer, and is pinned as well.
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
    raise CorruptionError(DATA_FILE, f"no meta page of commit {commit_number}")


def _open_lmdb(store: Folder) -> lmdb.Environment | None:
    """Return the environment, to pin a commit; None where LMDB's locks cannot be had.

    A lock file is not created: the store may be a copy that nobody has opened yet.
    """
    path = store.path
    if not os.access(path, os.W_OK) or not os.access(path / LOCK_FILE, os.W_OK):
        return None
    check_lmdb_files(store, readonly=True)
    try:
        return lmdb.open(str(path), readonly=True, create=False, max_readers=_MANY_READERS)
    except lmdb.Error:
        return None


# --- the place ----------------------------------------------------------------------------------


def _find(path: Path, trust_owners: Trusted) -> Folder:
    """Return the folder of the store that may be at `path`; raise where there is none."""
    store = find_folder(path, trust_owners)
    if store is None:
        raise NotAStoreError(f"{path}: no such store")
    if not store.exists(DATA_FILE) and not store.exists(CHECKPOINT_FILE):
        raise NotAStoreError(f"{path}: no store: there is no {DATA_FILE} in it")
    check_files(store, readonly=True)
    try:
        os.close(store.open(DATA_FILE))
    except FileNotFoundError:
        pass  # a finding
    except OSError as error:
        raise StoreError(f"{path / DATA_FILE}: {error.strerror}") from error
    return store


@contextmanager
def _locked(store: Folder) -> Iterator[tuple[CheckpointFile | None, bool]]:
    """Hold the lock of the store; also say whether nobody else has the store open."""
    lock: CheckpointFile | None = None
    with suppress(FileNotFoundError):
        try:
            lock = CheckpointFile(store, readonly=True)
        except PermissionError as error:
            raise StoreError(f"{store.path / CHECKPOINT_FILE}: {error.strerror}") from error
    if lock is None:
        yield None, True
        return
    try:
        alone = lock.try_exclusive()
        if not alone:
            lock.share()
        yield lock, alone
    finally:
        lock.close()


def _holds_nodes(store: Folder) -> bool:
    """Say whether a data file without any meta page has macro nodes among its first pages."""
    try:
        with os.fdopen(store.open(DATA_FILE), "rb") as file:
            end = b""
            for _ in range(_LOOKED_AT // _PIECE):
                piece = file.read(_PIECE)
                if _NODE_START in end + piece:
                    return True
                if not piece:
                    break
                end = piece[-len(_NODE_START) :]
            return False
    except OSError:
        return False


def _check_is_ours(source: Source) -> None:
    """Raise for an LMDB environment that is no store, and for a newer store."""
    tables = source.tables
    if tables is None:
        return
    if META in tables.missing and source.slot is None and len(tables.missing) > len(TABLES) // 2:
        raise NotAStoreError(f"{source.path}: an LMDB environment, but not a store")
    where = f"{source.path}: meta"
    try:
        body = tables.get_row(META, META_FORMAT, where)
        version = 0 if body is None else decode_number(body, where)
    except CorruptionError:
        return  # a finding
    refuse_newer(source.path, version)
