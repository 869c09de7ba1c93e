"""Checking, repairing and backing up stores.

The recovery after a crash, which every opening may need, is `engine.crash_recovery.recover`.

Rooms: `pages` (LMDB's file, read without LMDB), `fsck` (checks), `salvage` (repair), `backups`.
May import: `engine`, `format`. Other folders may use the names in `__all__`.
"""

from streamkeep.engine.whole_store.compact import Compacted, compact
from streamkeep.recovery.backups.backup import BackupReport, backup, restore
from streamkeep.recovery.fsck.findings import Finding, Severity
from streamkeep.recovery.fsck.progress import Progress
from streamkeep.recovery.fsck.store import check

__all__ = [
    "BackupReport",
    "Compacted",
    "Finding",
    "Progress",
    "Severity",
    "backup",
    "check",
    "compact",
    "restore",
]
