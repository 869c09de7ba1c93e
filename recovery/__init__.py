"""Checking, repairing and backing up stores.

The recovery after a crash, which every opening may need, is `engine.crash_recovery.recover`.

Rooms: `pages` (LMDB's file, read without LMDB), `fsck` (checks), `salvage` (repair), `backups`,
`copies` (elsewhere, which follow the store; imported at their first use).
May import: `engine`, `format`. Other folders may use the names in `__all__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamkeep.engine.whole_store.compact import Compacted, compact
from streamkeep.recovery.backups.backup import BackupReport, backup, restore
from streamkeep.recovery.fsck.findings import Finding, Progress, Severity
from streamkeep.recovery.fsck.store import check

if TYPE_CHECKING:
    from streamkeep.recovery.copies.changes import changes
    from streamkeep.recovery.copies.restore import RestoreReport, restore_copy
    from streamkeep.recovery.copies.shipper import ShipReport
    from streamkeep.recovery.copies.shipping import ship, shipping
    from streamkeep.recovery.copies.verify import VerifyReport, verify_copy

__all__ = [
    "BackupReport",
    "Compacted",
    "Finding",
    "Progress",
    "RestoreReport",
    "Severity",
    "ShipReport",
    "VerifyReport",
    "backup",
    "changes",
    "check",
    "compact",
    "restore",
    "restore_copy",
    "ship",
    "shipping",
    "verify_copy",
]

_COPIES = {
    "RestoreReport": "restore",
    "ShipReport": "shipper",
    "VerifyReport": "verify",
    "changes": "changes",
    "restore_copy": "restore",
    "ship": "shipping",
    "shipping": "shipping",
    "verify_copy": "verify",
}


def __getattr__(name: str) -> Any:
    """Return a function or a type of `copies`: a store that is not copied need not load that."""
    if name not in _COPIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"streamkeep.recovery.copies.{_COPIES[name]}"), name)
