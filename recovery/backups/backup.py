"""Backups: a copy of a store in use, as of one commit. The target gets all of it or nothing.

1. Copy the archive into the folder `.NAME.backup` beside the target, while the archiver may run.
2. Under the archive's lock, take a snapshot, copy the segments written since, and copy the data
   file of that snapshot without its free pages (`engine/whole_store/copying.py`).
3. Check the copy with fsck.
4. Rename the folder to the target.

Segments never change. One that the earlier backup contains, with the size and checksum of the
manifest, is linked instead of copied. A lock on the folder excludes a second backup to the same
target. If a process was killed, the next backup uses the sound segments in the folder.

The backup is an ordinary store, closed and healthy, with the next epoch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.segment_output import copy_segment
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.remote.remote_archive import check_means
from streamkeep.engine.store.command import Free
from streamkeep.engine.store.place import find_folder
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import StepProgress, silent
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, open_stored, stored_name
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.engine.whole_store.copying import copy_data, finish_copy, made_beside
from streamkeep.format.core import errors
from streamkeep.format.core.keys import META
from streamkeep.format.rows.meta_rows import META_BACKUP, META_LAST_BACKUP, BackupRow, decode_backup
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.fsck.store import check_whole

_EXCHANGE: Final = 2  # flag of renameat2: swap both names
_TRIES: Final = 5


class BackupReport(NamedTuple):
    """The result of a backup.

    Attributes:
        path: path of the backup.
        epoch: epoch of the backup, one above that of the store.
        commit_number: the commit of the store that was copied.
        store_bytes, data_bytes: used size of the store's data file, and size of the backup's.
        copied_segments, copied_bytes: number and size of archive files that were copied.
        kept_segments, kept_bytes: number and size of those that the earlier backup had.
        recorded: whether the store has a row about the backup, which `streamkeep status` reads; it
            cannot be written if the store is read-only, full, or belongs to another user.
        archive_findings: what fsck found in the object store of the archive, which the copy reads
            from but does not hold.
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
    recorded: bool = False
    archive_findings: tuple[Finding, ...] = ()


def backup(
    store: Store[Any] | str | Path,
    target: str | Path,
    *,
    verify: bool = True,
    progress: StepProgress | None = None,
) -> BackupReport:
    """Copy a store, in use or not, to `target`, and replace an earlier backup there.

    The backup is durable on return and shows the newest commit at the time when the copy of the
    data file began. The store can be read and written during the backup, but LMDB cannot reuse
    pages that are freed during the copy of the data file.

    Args:
        store: an open store, or the path of one.
        target: a folder that is missing or empty, or an earlier backup of this store. Its parent
            folder must exist.
        verify: check the whole copy with fsck before it replaces the target.

    Raises:
        StoreError: the target is something else, was changed since it was made, or has commits
            that the store lacks.
        StoreLockedError: the target is open, or another backup to it is running.
        CorruptionError: the store is damaged; an earlier backup is unchanged.
        StoreFullError: the disk is full; an earlier backup is unchanged.
    """
    if not isinstance(store, Store):
        with Store(store, readonly=True) as opened:
            report = backup(opened, target, verify=verify, progress=progress)
        return report._replace(recorded=_record(store, report.path))
    if source := store._environment.follows:
        raise errors.StoreError(
            f"{store.path}: a standby cannot be backed up; next: `streamkeep ship restore "
            f"{source} TARGET` makes a store of the copy that it follows"
        )
    place = path_of(target, "target").absolute()
    check_apart(store.path, place)
    modes = store._environment.folder.modes.copied()
    parent = Folder(place.parent, outside=True, like=modes)
    aside = f".{place.name}.backup-old"
    with made_beside(parent, place.name, "backup", goes_on=(ARCHIVE_FOLDER,)) as staging:
        if not parent.exists(place.name) and parent.has_folder(aside):
            parent.rename(aside, place.name)  # a backup was killed while it renamed the folders
        earlier = _check_target(store, place)
        job = _Job(store, staging, earlier, progress or silent)
        report = job.copy()
        failpoints.hit("backup:copied")
        if verify:
            found = check_whole(staging.path, job.progress, "the backup was not made")
            report = report._replace(archive_findings=found)
        failpoints.hit("backup:checked")
        with nullcontext() if earlier is None else _unused(earlier):
            _rename_to_target(parent, staging.path.name, place.name, aside)
        failpoints.hit("backup:named")
    return report._replace(path=place, recorded=not store._readonly and _record(store, place))


def restore(
    backup_path: str | Path, target: str | Path, *, progress: StepProgress | None = None
) -> BackupReport:
    """Put a copy of a backup, checked with fsck, where no store is.

    The backup does not change. On return the store is durable; a call that fails leaves nothing.

    Args:
        target: must not exist; its parent folder must.

    Raises:
        StoreError: there is something at the target, or what is to be restored is no backup.
        CorruptionError: the backup is damaged.
        StoreFullError: the disk is full.
    """
    if os.path.lexists(path_of(target, "target")):
        raise errors.StoreError(f"{target}: there is something already; next: move it away")
    with Store(backup_path, readonly=True) as opened:
        with opened.snapshot() as snapshot:
            if source_of(snapshot) is None:
                raise errors.StoreError(
                    f"{backup_path}: not a backup, but a store; next: name one that `streamkeep "
                    "backup` has made"
                )
        return backup(opened, target, progress=progress)


def _record(store: Store[Any] | str | Path, backup: Path) -> bool:
    """Write into a store which commit its newest backup has; return False if that cannot be."""
    with Store(backup, readonly=True) as copy, copy.snapshot() as snapshot:
        row = source_of(snapshot)
    assert row is not None

    def put(txn: WriteTxn) -> None:
        txn.put_row(META, META_LAST_BACKUP, row._replace(own_commit=txn.commit_number).encode())

    try:
        if isinstance(store, Store):
            store._run(Free(put, ()))
        else:
            with Store(store, create=False, sync="none") as writer:
                writer._run(Free(put, ()))
    except errors.StoreError:
        return False
    return True


def source_of(backup: Snapshot[Any]) -> BackupRow | None:
    """Return what a backup is a copy of; None for a store that is no backup."""
    return _row(backup, META_BACKUP)


def last_backup(snapshot: Snapshot[Any]) -> BackupRow | None:
    """Return the newest backup that a store knows of; None if there was none."""
    return _row(snapshot, META_LAST_BACKUP)


def _row(snapshot: Snapshot[Any], name: bytes) -> BackupRow | None:
    body = snapshot.txn.get_row(META, name, "meta")
    return None if body is None else decode_backup(body, "meta")


# --- the target ---------------------------------------------------------------------------------


def check_apart(source: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise errors.StoreError(f"{target.parent}: no such folder; create it first")
    here, there = (Path(os.path.realpath(one)) for one in (source, target))
    if here == there or here in there.parents or there in here.parents:
        problem = "a backup cannot be inside its store, or contain it"
        raise errors.StoreError(f"{target}: {problem}; choose another target")


def _check_target(store: Store[Any], place: Path) -> Folder | None:
    """Return the earlier backup of the store at `place`; None if the folder is missing or empty.

    Raises:
        NotAStoreError, StoreError: the folder is not an unchanged backup of this store as it was.
    """
    earlier = find_folder(place)
    if earlier is None or not earlier.names():
        return None
    if not earlier.exists(DATA_FILE):
        expected = "the target must be missing, empty, or an earlier backup"
        raise errors.NotAStoreError(f"{place}: not a backup; {expected}")
    with Store(place, readonly=True) as found, found.snapshot() as snapshot:
        txn = snapshot.txn
        row = source_of(snapshot)
        if found.uuid != store.uuid:
            raise errors.StoreError(f"{place}: a backup of another store; choose another target")
        changed = row is None or row.own_commit != txn.newest_commit()
    if row is None or changed:
        raise errors.StoreError(
            f"{place}: a backup that was changed since it was made; choose another target"
        )
    with store.snapshot() as present:
        newest, origin = present.txn.newest_commit(), source_of(present)
    # A store that was restored has the commits of its origin, and then its own, of later epochs.
    if origin is not None and row.epoch <= origin.epoch:
        newest = min(newest, origin.commit_number)
    if row.commit_number > newest:
        raise errors.StoreError(
            f"{place}: a backup of a state that this store does not have: it has commit "
            f"{row.commit_number}, and the store, which an older backup or a repair may have made, "
            f"those up to {newest}; `streamkeep diff` shows what only the backup has; next: choose "
            "another target, or move the backup away"
        )
    return earlier


@contextmanager
def _unused(store: Folder) -> Iterator[None]:
    """Hold the exclusive lock of a backup; raise StoreLockedError if a process has it open."""
    lock = CheckpointFile(store, readonly=False)
    try:
        if not lock.try_exclusive():
            raise errors.StoreLockedError(
                f"{store.path}: the earlier backup is open; close it first"
            )
        yield
    finally:
        lock.close()


def _rename_to_target(parent: Folder, staging: str, place: str, aside: str) -> None:
    """Rename the copy to the target; the earlier backup is removed afterwards."""
    if not parent.has_folder(place) or not parent.folder(place).names():
        parent.rename(staging, place)
        parent.sync()
        return
    if _exchange(parent, staging, place):
        parent.sync()
        failpoints.hit("backup:exchanged")
        parent.remove_folder(staging)  # the earlier backup
        return
    parent.remove_folder(aside)
    parent.rename(place, aside)
    failpoints.hit("backup:aside")
    parent.rename(staging, place)
    parent.sync()
    parent.remove_folder(aside)


def _exchange(parent: Folder, one: str, other: str) -> bool:
    """Swap the names of two folders atomically; return False if the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    here = parent.handle
    done: int = call(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE)
    return done == 0


# --- the copy -----------------------------------------------------------------------------------


class _Job:
    """The copy of one backup.

    Args:
        earlier: an earlier backup, whose segments may be linked.
    """

    def __init__(
        self, store: Store[Any], staging: Folder, earlier: Folder | None, progress: StepProgress
    ) -> None:
        self.store = store
        self.staging = staging
        self.earlier = earlier
        self.progress = progress
        self.kept: set[str] = set()  # paths below archive/ of segments that the earlier one had

    def copy(self) -> BackupReport:
        with suppress(errors.MissingSegmentError):  # which the archiver has replaced meanwhile
            with self.store.snapshot() as snapshot:
                records = self._here(iter_segments(snapshot.txn))
            self._copy_segments(records, last=False)  # after the snapshot: it pins no pages
        for _ in range(_TRIES):
            try:
                with self._locked_archive():
                    self.store._environment.make_checkpoint()  # the copy has few free pages then
                    with self.store.snapshot() as snapshot:
                        records = self._here(iter_segments(snapshot.txn))
                        wanted = self._copy_segments(records, last=True)
                        return self._copy_data(snapshot, wanted)
            except errors.MissingSegmentError as error:
                missing = error
        raise missing

    def _here(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """Return the segments that the backup has to hold.

        Those that are only in the object store of the archive stay there; the backup reads them
        there, as the store does.
        """
        environment = self.store._environment
        if environment.remote_archive() is None:
            return list(records)
        return [one for one in records if environment.folder.exists(stored_name(one.path))]

    def _locked_archive(self) -> Any:
        """Hold the archive's lock, if there is an archive and this process may lock it."""
        environment = self.store._environment
        if environment.folder.has_folder(ARCHIVE_FOLDER) and os.access(
            environment.path / ARCHIVE_FOLDER, os.W_OK
        ):
            return ArchiveLock(environment)
        return nullcontext()

    def _copy_segments(self, records: list[SegmentRecord], *, last: bool) -> dict[str, int]:
        """Copy or link the segments; return their sizes by path.

        Args:
            last: whether to remove all other segments and to sync the folders.
        """
        total = sum(record.size_bytes for record in records)
        done = 0
        for record in records:
            self._copy_segment(record)
            done += record.size_bytes
            self.progress("archive", done, total)
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
            return
        self.staging.remove(name)  # a file that is there is not the segment
        source = self.store._environment.folder
        if self.earlier is not None and _is_there(self.earlier, record):
            self.kept.add(record.path)
            self.staging.make_folder(name.rpartition("/")[0])
            with suppress(OSError):  # another file system, for example
                self.earlier.link(name, self.staging)
                return
            source = self.earlier
        copy_segment(open_stored(source, record.path, record.where), self.staging, name)
        segment = open_stored(self.staging, record.path, record.where)
        check_means(record, segment)
        for problem in segment.check():
            raise problem
        failpoints.hit("backup:segment")

    def _copy_data(self, snapshot: Snapshot[Any], wanted: dict[str, int]) -> BackupReport:
        clock = Clock()
        environment = self.store._environment
        commit_number = snapshot.txn.newest_commit()
        with translated():  # it reads the roots of tables, which may be damaged
            total = environment.context.size() - environment.reusable_size()
        epoch = environment.context.epoch
        now_ms = clock.now_ms()

        def rows(own_commit: int) -> dict[bytes, bytes]:
            return {META_BACKUP: BackupRow(now_ms, epoch, commit_number, own_commit).encode()}

        copy_data(
            environment.raw,
            snapshot.txn,
            self.staging,
            rows,
            lambda done: self.progress("data", min(done, total), total),
        )
        failpoints.hit("backup:data")
        own_epoch = finish_copy(self.staging, clock)
        self.staging.sync(JOURNAL_FOLDER)
        self.staging.sync()
        kept = [size for path, size in wanted.items() if path in self.kept]
        copied = [size for path, size in wanted.items() if path not in self.kept]
        return BackupReport(
            self.staging.path,
            own_epoch,
            commit_number,
            environment.context.size(),
            self.staging.size(DATA_FILE),
            len(copied),
            sum(copied),
            len(kept),
            sum(kept),
        )


def _is_there(store: Folder, record: SegmentRecord) -> bool:
    """Return whether a folder contains the segment of a row, by size and checksum."""
    try:
        check_means(record, open_stored(store, record.path, record.where))
    except errors.CorruptionError:
        return False
    return True
