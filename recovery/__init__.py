"""What is wrong with a store, and what can be saved."""

from streamkeep.recovery.check import check
from streamkeep.recovery.findings import Finding, Severity

__all__ = ["Finding", "Severity", "check"]
