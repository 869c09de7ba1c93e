"""Backups: a copy of a store in use, as of one commit, complete or not there at all.

The copy is made beside the target, in `.NAME.backup`, checked there like any other store, and
takes the target's name when it is whole. It is an ordinary store: closed, healthy, with the next
epoch, open to every command. A lock on the folder keeps two backups to one target apart; what a
killed one left in the folder is used, as far as it is whole.

The data file is copied anew each time, without its free pages (`engine/admin/copying.py`). Segments
of the archive never change: one that stands in the earlier backup with the size and the checksum
that the manifest names is linked, not copied. Both passes over the archive take that way: the first
copies what there is while the archiver works on, the second holds the archive's lock for the few
that have come since, so that the files are those of the snapshot that is copied.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamkeep.engine.admin.copying import copy_data, finish_copy
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.archive.lock import archive_lock
from streamkeep.engine.archive.segment_output import TEMPORARY
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.model.manifest import iter_segments
from streamkeep.engine.model.segment_files import (
    ARCHIVE_FOLDER,
    check_means,
    open_stored,
    stored_name,
)
from streamkeep.engine.store.opening import find_folder
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.safe_files import Folder, copy_file
from streamkeep.format.core.errors import (
    CorruptionError,
    MissingSegmentError,
    NotAStoreError,
    StoreError,
    StoreLockedError,
)
from streamkeep.format.core.keys import META
from streamkeep.format.rows.backup import BackupRow, decode_backup
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.store import check

META_BACKUP: Final = b"backup"
Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all

_EXCHANGE: Final = 2  # renameat2: both names change places
_TRIES: Final = 5


class BackupReport(NamedTuple):
    """What a backup did.

    Args:
        path: the backup.
        epoch: of the backup, one above that of the store.
        commit_number: the commit of the store that it shows.
        data_bytes: size of its data file; `store_bytes` is that of the store.
        copied_segments, copied_bytes: archive files that were copied,
        kept_segments, kept_bytes: and those that the earlier backup had.
    """

    path: Path
    epoch: int
    commit_number: int
    store_bytes: int
    data_bytes: int
    copied_segments: int
    copied_bytes: int
    kept_segments: int
    kept_bytes: int


def backup(
    store: Store[Any] | str | Path,
    target: str | Path,
    *,
    verify: bool = True,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> BackupReport:
    """Copy a store, in use or not, to `target`; an earlier backup there is replaced as a whole.

    The backup shows one commit, that of the moment when its data file was begun. Others read and
    write meanwhile; pages that they free are not used again until it is done.

    Args:
        store: an open store, or the path of one.
        target: a folder that is missing or empty, or an earlier backup of this store. The folder
            above it must exist.
        verify: check the whole copy with fsck before it takes the target's name.

    Raises:
        StoreError: the target is something else, or was written to since it was a backup.
        StoreLockedError: the target is open, or another backup to it runs.
        CorruptionError: the store is damaged; an earlier backup is left as it was.
        StoreFullError: no room; likewise.
    """
    if not isinstance(store, Store):
        with Store(store, readonly=True) as opened:
            return backup(opened, target, verify=verify, progress=progress, clock=clock)
    place = Path(target).absolute()
    _check_apart(store.path.absolute(), place)
    parent = Folder(place.parent, outside=True)
    aside = f".{place.name}.backup-old"
    with _working_in(parent, place.name) as staging:
        if not parent.exists(place.name) and parent.has_folder(aside):
            parent.rename(aside, place.name)  # a backup was killed while it took the name
        earlier = _check_target(store, place)
        job = _Job(store, staging, earlier, progress)
        report = job.copy(clock or Clock())
        failpoints.hit("backup:copied")
        if verify:
            _verify(staging.path, progress)
        failpoints.hit("backup:checked")
        with nullcontext() if earlier is None else _unused(earlier):
            _take_name(parent, staging.path.name, place.name, aside)
        failpoints.hit("backup:named")
    return report._replace(path=place)


# --- the target ---------------------------------------------------------------------------------


def _check_apart(source: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise StoreError(f"{target.parent}: no such folder; make it first")
    here, there = source.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise StoreError(f"{target}: a backup cannot stand in its store, or around it")


def _check_target(store: Store[Any], place: Path) -> Folder | None:
    """Return the earlier backup of the store, if there is one; raise for anything else."""
    earlier = find_folder(place)
    if earlier is None or not earlier.names():
        return None
    if not earlier.exists(DATA_FILE):
        raise NotAStoreError(f"{place}: not a backup; the target must be missing, empty, or one")
    with Store(place, readonly=True) as found, found.snapshot() as snapshot:
        txn = snapshot.txn
        body = txn.get_row(META, META_BACKUP, "meta")
        if found.uuid != store.uuid:
            raise StoreError(f"{place}: a backup of another store; choose another target")
        changed = body is None or decode_backup(body, "meta").own_commit != txn.raw.id()
    if changed:
        raise StoreError(
            f"{place}: a store that was written to, no mere backup any more; choose another target"
        )
    return earlier


@contextmanager
def _unused(store: Folder) -> Iterator[None]:
    """Hold the lock of a store that nobody has open."""
    lock = CheckpointFile(store, readonly=False)
    try:
        if not lock.try_exclusive():
            raise StoreLockedError(f"{store.path}: the earlier backup is open; close it")
        yield
    finally:
        lock.close()


@contextmanager
def _working_in(parent: Folder, name: str) -> Iterator[Folder]:
    """Hold the lock of the folder in which the copy is made; remove it afterwards."""
    staging = parent.make_folder(f".{name}.backup")
    handle = staging.open_again()
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(
                f"{parent.path / name}: another backup to it is running"
            ) from None
        try:
            for left in staging.names():
                if left != ARCHIVE_FOLDER:
                    staging.remove_any(left)
            yield staging
        finally:
            parent.remove_any(staging.path.name)  # by now it may be the earlier backup
            parent.sync()
    finally:
        os.close(handle)


def _take_name(parent: Folder, staging: str, place: str, aside: str) -> None:
    """Give the copy the target's name; an earlier backup is removed afterwards."""
    if not parent.has_folder(place) or not parent.folder(place).names():
        parent.rename(staging, place)
        parent.sync()
        return
    if _exchange(parent, staging, place):  # the earlier one stands in the staging folder now
        parent.sync()
        failpoints.hit("backup:exchanged")
        return
    parent.remove_folder(aside)
    parent.rename(place, aside)
    failpoints.hit("backup:aside")
    parent.rename(staging, place)
    parent.sync()
    parent.remove_folder(aside)


def _exchange(parent: Folder, one: str, other: str) -> bool:
    """Have two folders change names in one step; say whether the system can."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    here = parent.handle
    done: int = call(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE)
    return done == 0


# --- the copy -----------------------------------------------------------------------------------


class _Job:
    """One copy.

    Args:
        earlier: a backup whose segments may be used.
    """

    def __init__(
        self, store: Store[Any], staging: Folder, earlier: Folder | None, progress: Progress | None
    ) -> None:
        self.store = store
        self.staging = staging
        self.earlier = earlier
        self.progress = progress
        self.copied: dict[str, int] = {}  # bytes by path below archive/
        self.kept: dict[str, int] = {}

    def copy(self, clock: Clock) -> BackupReport:
        """Copy everything as of one commit."""
        for _ in range(_TRIES):
            try:
                with self.store.snapshot() as snapshot:
                    records = list(iter_segments(snapshot.txn))
                self._copy_segments(records, last=False)  # holds no pages meanwhile
                break
            except MissingSegmentError:
                continue  # the archive has moved on
        for _ in range(_TRIES):
            try:
                with self._archive_still(), self.store.snapshot() as snapshot:
                    records = list(iter_segments(snapshot.txn))
                    wanted = self._copy_segments(records, last=True)
                    return self._copy_data(snapshot, wanted, clock)
            except MissingSegmentError as error:
                missing = error
        raise missing

    def _archive_still(self) -> Any:
        """Hold the archive's lock, if there is an archive that this process may lock."""
        environment = self.store._environment
        if environment.folder.has_folder(ARCHIVE_FOLDER) and os.access(
            environment.path / ARCHIVE_FOLDER, os.W_OK
        ):
            return archive_lock(environment)
        return nullcontext()

    def _copy_segments(self, records: list[SegmentRecord], *, last: bool) -> dict[str, int]:
        """Have segments in the copy; return their sizes by path.

        Args:
            last: remove all others.
        """
        total = sum(record.size_bytes for record in records)
        done = 0
        for record in records:
            self._copy_segment(record)
            done += record.size_bytes
            self._tell("archive", done, total)
        wanted = {record.path: record.size_bytes for record in records}
        if last and self.staging.has_folder(ARCHIVE_FOLDER):
            for path in self.staging.files_below(ARCHIVE_FOLDER):
                if path not in wanted:
                    self.staging.remove(stored_name(path))
            archive = self.staging.folder(ARCHIVE_FOLDER)
            used = {path.partition("/")[0] for path in wanted}
            for name in archive.names():
                if name not in used:
                    archive.remove_folder(name)
            for folder in {path.rpartition("/")[0] for path in wanted}:
                archive.sync(folder)
            archive.sync()
        return wanted

    def _copy_segment(self, record: SegmentRecord) -> None:
        name = stored_name(record.path)
        if _is_there(self.staging, record):
            if record.path not in self.kept:
                self.copied[record.path] = record.size_bytes
            return
        self.staging.make_folder(name.rpartition("/")[0])
        self.staging.remove(name)  # what is there is not whole
        if self.earlier is not None and _is_there(self.earlier, record):
            try:
                self.earlier.link(name, self.staging)
            except OSError:
                _copy_segment(self.earlier, self.staging, name)
            self.kept[record.path] = record.size_bytes
            return
        try:
            _copy_segment(self.store._environment.folder, self.staging, name)
        except FileNotFoundError:
            raise MissingSegmentError(record.where, "the file is not there") from None
        self.copied[record.path] = record.size_bytes
        segment = open_stored(self.staging, record.path, record.where)
        check_means(record, segment)
        for problem in segment.check():
            raise problem
        failpoints.hit("backup:segment")

    def _copy_data(
        self, snapshot: Snapshot[Any], wanted: dict[str, int], clock: Clock
    ) -> BackupReport:
        environment = self.store._environment
        raw = snapshot.txn.raw
        commit_number = raw.id()
        total = environment.used_size() - environment.reusable_size()
        epoch = environment.context.epoch
        now_ms = clock.now_ms()

        def rows(own_commit: int) -> dict[bytes, bytes]:
            return {META_BACKUP: BackupRow(now_ms, epoch, commit_number, own_commit).encode()}

        copy_data(
            environment.raw,
            raw,
            self.staging,
            rows,
            lambda done: self._tell("data", min(done, total), total),
        )
        failpoints.hit("backup:data")
        own_epoch = finish_copy(self.staging, clock)
        self.staging.sync(JOURNAL_FOLDER)
        self.staging.sync()
        kept = {path: size for path, size in self.kept.items() if path in wanted}
        copied = {path: size for path, size in self.copied.items() if path in wanted}
        return BackupReport(
            self.staging.path,
            own_epoch,
            commit_number,
            environment.used_size(),
            self.staging.size(DATA_FILE),
            len(copied),
            sum(copied.values()),
            len(kept),
            sum(kept.values()),
        )

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


def _is_there(store: Folder, record: SegmentRecord) -> bool:
    """Say whether a file is the segment that a row names, by size and checksum."""
    try:
        check_means(record, open_stored(store, record.path, record.where))
    except CorruptionError:
        return False
    return True


def _copy_segment(source: Folder, target: Folder, name: str) -> None:
    """Copy a file of the archive; it is on disk on return, under its name only when it is whole."""
    temporary = name + TEMPORARY
    copy_file(source, name, target, temporary)
    handle = target.open(temporary, os.O_RDWR)
    try:
        files.sync_data(handle)
    finally:
        os.close(handle)
    target.rename(temporary, name)


def _verify(staging: Path, progress: Progress | None) -> None:
    """Check the copy; what is wrong with it was wrong with the store."""
    from streamkeep.recovery.fsck.progress import Progress as Checked

    moved = Checked(
        lambda state: None if progress is None else progress("check", state.done, state.total)
    )
    for found in check(staging, progress=moved):
        if found.severity is not Severity.NOTE:
            raise CorruptionError(
                found.where, f"{found.code}: {found.problem}; the backup was not made"
            )
