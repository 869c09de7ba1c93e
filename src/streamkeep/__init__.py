"""Redis Streams, durable in a directory.

    >>> import streamkeep
    >>> with streamkeep.open("orders.store") as store:
    ...     store.xadd("orders", {"sku": "7", "count": "2"})
    ...     store.xrange("orders")

`open` gives a `Store`, whose methods are those of redis-py's stream commands; `aio.open` gives the
same for asyncio, and `transfer` dumps and loads files. Names are loaded when they are first used,
so that `streamkeep.format` works where LMDB is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamkeep import supported  # noqa: F401  # raises where the package cannot run

if TYPE_CHECKING:
    from streamkeep import aio, transfer
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.redis_pipeline import Pipeline
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot, Transaction
    from streamkeep.engine.api.work import When
    from streamkeep.engine.feed.effects import Commit, Effect
    from streamkeep.facade import open
    from streamkeep.format.core.entry import (
        MAX_ID,
        MIN_ID,
        ClaimedEntry,
        DeliveredEntry,
        Entry,
        RepeatedFields,
        StreamId,
    )
    from streamkeep.format.core.errors import (
        ArgumentError,
        ChangesGoneError,
        ChecksumError,
        CommandError,
        CorruptionError,
        ErasureBlockedError,
        FormatVersionError,
        GroupExistsError,
        IdTooSmallError,
        InvalidIdError,
        KeyExistsError,
        LoadError,
        MissingPackageError,
        MissingSegmentError,
        NoSuchGroupError,
        NoSuchKeyError,
        NotAStoreError,
        NotShippedError,
        RecoveryNeededError,
        StaleSnapshotError,
        StoreClosedError,
        StoreError,
        StoreFullError,
        StoreLockedError,
        StreamFullError,
        StreamkeepError,
        TargetExistsError,
        TransferError,
        UnreachableError,
        UntrustedFileError,
        ValueMismatchError,
    )

__version__ = "0.1.0"

_HOMES = {
    "streamkeep.facade": "open",
    "streamkeep.engine.api.store": "Store",
    "streamkeep.engine.api.views": "Snapshot Transaction",
    "streamkeep.engine.api.work": "When",
    "streamkeep.engine.feed.effects": "Commit Effect",
    "streamkeep.engine.api.read_commands": "ScanEntry",
    "streamkeep.engine.api.redis_pipeline": "Pipeline",
    "streamkeep.format.core.entry": (
        "MAX_ID MIN_ID ClaimedEntry DeliveredEntry Entry RepeatedFields StreamId"
    ),
}
_MODULES = ("aio", "transfer")

__all__ = [  # noqa: RUF022  # `open` first
    "open",
    "ArgumentError",
    "ChangesGoneError",
    "ChecksumError",
    "ClaimedEntry",
    "CommandError",
    "Commit",
    "CorruptionError",
    "DeliveredEntry",
    "Effect",
    "Entry",
    "ErasureBlockedError",
    "FormatVersionError",
    "GroupExistsError",
    "IdTooSmallError",
    "InvalidIdError",
    "KeyExistsError",
    "LoadError",
    "MAX_ID",
    "MIN_ID",
    "MissingPackageError",
    "MissingSegmentError",
    "NoSuchGroupError",
    "NoSuchKeyError",
    "NotAStoreError",
    "NotShippedError",
    "Pipeline",
    "RecoveryNeededError",
    "RepeatedFields",
    "ScanEntry",
    "Snapshot",
    "StaleSnapshotError",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StreamFullError",
    "StreamId",
    "StreamkeepError",
    "TargetExistsError",
    "Transaction",
    "When",
    "TransferError",
    "UnreachableError",
    "UntrustedFileError",
    "ValueMismatchError",
    "aio",
    "transfer",
]
_HOME_OF = {name: "streamkeep.format.core.errors" for name in __all__ if name.endswith("Error")}
_HOME_OF |= {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"streamkeep.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'streamkeep' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
