"""Checks of the files beside `data.mdb`: checkpoints, the journal, and unknown files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, position_of
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader, files_after_gap
from streamkeep.engine.store.meta import META_UUID
from streamkeep.engine.store.survey import STORE_NAMES
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.journal.journal import read_changes
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.fsck.source import Source

LOST_AND_FOUND: Final = "lost+found"  # folder in which repair saves what belongs nowhere


def check_files(source: Source) -> Iterator[Finding]:
    """Check the files in the folder of a store."""
    yield from check_identity(source)
    yield from check_journal(source)
    yield from check_strays(source)


def check_identity(source: Source) -> Iterator[Finding]:
    """SK023: the checkpoint belongs to this store."""
    slot, tables = source.slot, source.tables
    if slot is None or tables is None:
        return
    try:
        store_uuid = tables.get_row(META, META_UUID, "meta")
    except CorruptionError:
        return  # reported by check_meta
    if store_uuid is not None and store_uuid != slot.store_uuid:
        problem = f"belongs to store {slot.store_uuid.hex()}, this is {store_uuid.hex()}"
        yield finding("SK023", CHECKPOINT_FILE, problem)


def check_journal(source: Source) -> Iterator[Finding]:
    """SK024: the journal after the checkpoint has no gap and can be read."""
    slot = source.slot
    if slot is None or not source.torn:
        return
    folder = source.folder.folder(JOURNAL_FOLDER, missing_ok=True)
    reader = Reader(folder, slot, position_of(slot))
    while (body := reader.next()) is not None:
        try:
            for _ in read_changes(body, TABLES):
                pass
        except CorruptionError as error:
            where = f"journal record of commit {reader.position.commit_number}"
            yield finding("SK024", where, f"{error.problem} at byte {error.offset}")
    end = reader.position.commit_number
    for number, header in files_after_gap(folder, slot, end).items():
        problem = f"begins with commit {header.first_commit}, the files before it end at {end}"
        yield finding("SK024", f"journal file {number}", problem)


def check_strays(source: Source) -> Iterator[Finding]:
    """SK025: the folder contains only files of the store."""
    for name in source.folder.names():
        if name not in STORE_NAMES and name != LOST_AND_FOUND:
            yield finding("SK025", name, "unknown file, left as it is")
