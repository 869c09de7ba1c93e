"""Repair: write what can be saved of a damaged store into a new one, and say what was lost.

    1. `salvage`: copy what is readable, from the trees, and where they are damaged, from the pages;
    2. `rebuild`: make all derived data anew from what is there;
    3. check the new store.

The damaged store is not changed. A store without damage is copied as it is, so that repairing a
repaired store changes nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError
from streamkeep.format.shown import size_text
from streamkeep.recovery.fsck.files import LOST_AND_FOUND
from streamkeep.recovery.fsck.findings import Finding, Severity
from streamkeep.recovery.fsck.source import Source, open_source
from streamkeep.recovery.fsck.store import check
from streamkeep.recovery.salvage.archive import ArchiveSalvage
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.private_copy import recovered_copy
from streamkeep.recovery.salvage.rebuild import drop_meta, rebuild
from streamkeep.recovery.salvage.tables import Salvage

Progress = Callable[[int], None]


class Repaired:
    """What a repair has done.

    Attributes:
        report: what was rebuilt and what was lost.
        findings: what is still wrong with the new store: nothing, unless there is a bug.
        lost_and_found: where that is, and how many items it has; None when there are none.
    """

    def __init__(self, report: Report, findings: list[Finding], items: int, path: Path) -> None:
        self.report = report
        self.findings = findings
        self.items = items
        self.lost_and_found = path / LOST_AND_FOUND if items else None

    def damaged(self) -> bool:
        """Say whether anything is still wrong."""
        return any(one.severity > Severity.NOTE for one in self.findings)


def repair(
    store: Path | str, output: Path | str, *, progress: Progress = lambda pages: None
) -> Repaired:
    """Write what can be saved of `store` into a new store at `output`.

    Args:
        output: the new store; nothing may be there yet.
        progress: is told of pages as they are read.

    Raises:
        NotAStoreError, FormatVersionError, StoreLockedError: `store` cannot be read.
        StoreError: `output` cannot be written. Nothing is left there.
    """
    store, output = Path(store).absolute(), Path(output).absolute()
    report = Report()
    with open_source(store) as source, _newest(source, output, report) as newest:
        out = BulkStore(output)
        lost = LostAndFound(out.folder)
        try:
            salvage = Salvage(newest, out, report, lost, progress)
            salvage.run()
            drop_meta(out, report)
            uuid = None if newest.slot is None else newest.slot.store_uuid
            archive = ArchiveSalvage(source.folder, out, report, lost, uuid)
            archive.run(rows_lost=salvage.damaged)
            rebuild(
                out,
                report,
                lost,
                slot=newest.slot,
                highest_epoch=salvage.highest_epoch,
                holes=salvage.holes(),
                highest_stream=archive.highest_stream,
            )
        except BaseException:
            lost.close()
            out.abandon()
            raise
        lost.close()
        out.finish()
    return Repaired(report, list(check(output)), lost.items, output)


def try_repair(
    store: Path | str, *, scratch: Path | None = None, progress: Progress = lambda pages: None
) -> Repaired:
    """Repair into a folder that is removed at once: to see what would be lost.

    Args:
        scratch: where that folder is made. It takes about as much room as the store, so that it
            is beside the store by default, and among temporary files only where that cannot be.

    Raises:
        StoreError: there is not as much room.
    """
    store = Path(store).absolute()
    if scratch is None:
        scratch = store.parent if os.access(store.parent, os.W_OK) else Path(tempfile.gettempdir())
    _check_room(store, scratch)
    with tempfile.TemporaryDirectory(prefix=".streamkeep-repair-", dir=scratch) as folder:
        return repair(store, Path(folder) / "store", progress=progress)


def _check_room(store: Path, folder: Path) -> None:
    """Raise where a copy of the store would not fit."""
    needed = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # others may be using the store
            needed += path.lstat().st_blocks * 512
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    if free < needed:
        raise StoreError(
            f"{folder}: a trial repair writes about {size_text(needed)}, which it removes, and "
            f"{size_text(free)} are free; name another folder for it"
        )


@contextmanager
def _newest(source: Source, output: Path, report: Report) -> Iterator[Source]:
    """Yield the store as of its newest commit: that of a torn one is in the journal."""
    if not source.torn:
        yield source
        return
    name = output.name + ".recovered"
    try:
        files.create_folder(output.parent)
        parent = Folder(output.parent, outside=True)
    except OSError as error:
        raise translate_os(error) from error
    copy = output.with_name(name)
    try:
        if recovered_copy(source.folder, parent, name):
            with open_source(copy) as recovered:
                yield recovered
            return
    finally:
        with suppress(OSError):
            parent.remove_folder(name)
    if source.replayable:
        report.other.append(f"{source.replayable} commits of the journal, which cannot be replayed")
    yield source
