"""What is wrong with a store, what can be saved, and what is different between two."""

from streamkeep.recovery.check import check
from streamkeep.recovery.diff import Difference, diff
from streamkeep.recovery.findings import Finding, Severity

__all__ = ["Difference", "Finding", "Severity", "check", "diff"]
