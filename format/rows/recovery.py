"""The row of `meta` that says what the last recovery of a store did: five numbers, u64."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError

META_RECOVERY: Final = b"last_recovery"
_RECOVERY: Final = struct.Struct(">QQQQQ")


class Recovery(NamedTuple):
    """The last recovery of a store.

    Attributes:
        time_ms: its time, in Unix milliseconds.
        epoch: the epoch that it ended.
        checkpoint_commit: the checkpoint that it went back to.
        replayed: the number of commits that it replayed from the journal.
        lost: the number of later commits that the files show to have been made, and that were lost.
            After a power loss, none of them had been on disk.
    """

    time_ms: int
    epoch: int
    checkpoint_commit: int
    replayed: int
    lost: int = 0

    def encode(self) -> bytes:
        return _RECOVERY.pack(*self)


def decode_recovery(body: bytes) -> Recovery:
    if len(body) != _RECOVERY.size:
        raise CorruptionError("meta", f"the row of the last recovery has {len(body)} bytes")
    return Recovery(*_RECOVERY.unpack(body))
