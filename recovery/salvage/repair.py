"""Repair: save everything readable of a damaged store in a new one, and report what was lost.

    1. `tables` and `archive`: copy what is readable, from the trees, from the journal after their
       commit, and from pages without a tree;
    2. `rebuild`: make all derived data from the primary data;
    3. check the new store.

The damaged store is not changed. A sound store is copied unchanged, so a second repair does
nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from streamkeep.engine.system.progress import Advance
from streamkeep.format.core.errors import StoreError
from streamkeep.format.humanize import size_text
from streamkeep.recovery.fsck.files import LOST_AND_FOUND
from streamkeep.recovery.fsck.findings import Finding, Severity
from streamkeep.recovery.fsck.source import open_source
from streamkeep.recovery.fsck.store import check
from streamkeep.recovery.salvage.archive import ArchiveSalvage
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.rebuild import drop_meta, rebuild
from streamkeep.recovery.salvage.tables import Salvage


class Repaired:
    """The result of a repair.

    Attributes:
        report: what was rebuilt and what was lost.
        findings: findings about the new store; none above NOTE, unless there is a bug.
        items: number of items in lost+found.
        lost_and_found: path of the folder; None if there are no items.
    """

    def __init__(self, report: Report, findings: list[Finding], items: int, path: Path) -> None:
        self.report = report
        self.findings = findings
        self.items = items
        self.lost_and_found = path / LOST_AND_FOUND if items else None

    def damaged(self) -> bool:
        """Return whether the new store has warnings or errors."""
        return any(one.severity > Severity.NOTE for one in self.findings)


def repair(
    store: Path | str, output: Path | str, *, progress: Advance = lambda pages: None
) -> Repaired:
    """Save everything readable of `store` in a new store at `output`. Never changes `store`.

    `output` appears as a whole, durable; a failed repair leaves nothing there.

    Args:
        output: path of the new store; must not exist or must be an empty folder.
        progress: called with the number of pages read since the last call.

    Raises:
        NotAStoreError, FormatVersionError, StoreLockedError: `store` cannot be read.
        StoreError: `output` cannot be written.
    """
    store, output = Path(store).absolute(), Path(output).absolute()
    report = Report()
    with open_source(store) as source:
        if source.loses and source.replay is not None:
            report.other += source.replay.salvage()
        out = BulkStore(output, source.folder.modes)
        lost = LostAndFound(out.folder)
        try:
            salvage = Salvage(source, out, report, lost, progress)
            salvage.run()
            drop_meta(out, report)
            uuid = None if source.slot is None else source.slot.store_uuid
            archive = ArchiveSalvage(source.folder, out, report, lost, uuid)
            archive.run(rows_lost=salvage.damaged)
            rebuild(
                out,
                report,
                lost,
                slot=source.slot,
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
    store: Path | str, *, scratch: Path | None = None, progress: Advance = lambda pages: None
) -> Repaired:
    """Repair into a temporary folder and remove it, to see what would be lost.

    Args:
        scratch: folder for the temporary folder, which needs about as much space as the store. By
            default the folder of the store; the system's temporary folder if that is not writable.

    Raises:
        StoreError: there is not enough space.
    """
    store = Path(store).absolute()
    if scratch is None:
        scratch = store.parent if os.access(store.parent, os.W_OK) else Path(tempfile.gettempdir())
    _check_room(store, scratch)
    with tempfile.TemporaryDirectory(prefix=".streamkeep-repair-", dir=scratch) as folder:
        return repair(store, Path(folder) / "store", progress=progress)


def _check_room(store: Path, folder: Path) -> None:
    """Raise StoreError if a copy of the store does not fit."""
    needed = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # another process may be using the store
            needed += path.lstat().st_blocks * 512
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    if free < needed:
        raise StoreError(
            f"{folder}: a trial repair needs about {size_text(needed)} for a temporary copy, "
            f"{size_text(free)} are free; name another folder (scratch, --scratch)"
        )
