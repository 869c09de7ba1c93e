"""What is wrong with a store, what can be saved, and what is different between two."""

from streamkeep.engine.admin.compact import Compacted, compact
from streamkeep.recovery.backups.backup import BackupReport, backup
from streamkeep.recovery.diff import Difference, diff
from streamkeep.recovery.fsck.findings import Finding, Severity
from streamkeep.recovery.fsck.progress import Progress
from streamkeep.recovery.fsck.store import check

__all__ = [
    "BackupReport",
    "Compacted",
    "Difference",
    "Finding",
    "Progress",
    "Severity",
    "backup",
    "check",
    "compact",
    "diff",
]
