"""Checks of the files beside `data.mdb`: checkpoints and unknown files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.crash_recovery.stored_version import META_UUID
from streamkeep.engine.store.survey import STORE_NAMES
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.fsck.source import Source

LOST_AND_FOUND: Final = "lost+found"  # folder in which repair saves what belongs nowhere


def check_files(source: Source) -> Iterator[Finding]:
    """Check the files in the folder of a store."""
    yield from check_identity(source)
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


def check_strays(source: Source) -> Iterator[Finding]:
    """SK025: the folder contains only files of the store."""
    for name in source.folder.names():
        if name not in STORE_NAMES and name != LOST_AND_FOUND:
            yield finding("SK025", name, "unknown file, left as it is")
