"""Rows as the newest checkpoint has them, from the pages of `data.mdb`.

LMDB shows the newest image only. The pages of the newest checkpoint are there, too: no flush may
use them, until the next checkpoint is on disk. They are read with pread, without LMDB and without a
lock; afterwards the file of checkpoints says whether all that was read was still theirs.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.stored_rows import StoredRows
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.journal.checkpoint import CheckpointSlot

RowKey = tuple[int, bytes]  # table, LMDB key


def read_rows(
    folder: Folder, slot: CheckpointSlot, wanted: Collection[RowKey]
) -> dict[RowKey, bytes | None]:
    """Return rows of a checkpoint by table and key; None for those that it does not have.

    Raises:
        CorruptionError: pages are damaged, or were used again.
    """
    with os.fdopen(folder.open(DATA_FILE), "rb", buffering=0) as file:
        stored = StoredRows(file.fileno(), slot.meta())
        return {(table, key): stored.value(table, key) for table, key in sorted(wanted)}
