"""What is wrong with a store, what can be saved, and what is different between two."""

from streamkeep.recovery.check import check
from streamkeep.recovery.diff import Difference, diff
from streamkeep.recovery.findings import Finding, Severity
from streamkeep.recovery.progress import Progress

__all__ = ["Difference", "Finding", "Progress", "Severity", "check", "diff"]
