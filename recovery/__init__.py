"""What is wrong with a store, what can be saved, and what is different between two."""

from streamkeep.engine.compact import Compacted, compact
from streamkeep.recovery.backups import BackupReport, backup
from streamkeep.recovery.check import check
from streamkeep.recovery.diff import Difference, diff
from streamkeep.recovery.findings import Finding, Severity
from streamkeep.recovery.progress import Progress

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
