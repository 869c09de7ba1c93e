"""How far a store is on disk, as figures."""

from __future__ import annotations

from typing import NamedTuple

import lmdb

from streamkeep.engine.recover import Recovery


class ReaderSlot(NamedTuple):
    """A process that has a snapshot open.

    Args:
        process: its process number.
        behind: how many commits are newer than the snapshot; their old pages cannot be reused.
    """

    process: int
    behind: int


class Durability(NamedTuple):
    """How far a store is on disk.

    Args:
        epoch: raised by every recovery.
        last_commit: the newest commit.
        durable_commit: the newest commit that is known to be on disk, in the journal or the data
            file; None where the store is open for reading only.
        steady_commit: the newest steady point, with which recovery would begin; None before the
            first.
        journal_bytes: what the journal files take.
        last_recovery: None when there has been none.
        readers: everybody who has a snapshot open, the oldest first; a store that is open for
            writing has one itself.
    """

    epoch: int
    last_commit: int
    durable_commit: int | None
    steady_commit: int | None
    journal_bytes: int
    last_recovery: Recovery | None
    readers: list[ReaderSlot]


def read_slots(raw: lmdb.Environment, last_commit: int) -> list[ReaderSlot]:
    """Return who has snapshots open, from LMDB's table of readers."""
    slots = []
    for line in raw.readers().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 3 and fields[2].isdigit():
            slots.append(ReaderSlot(int(fields[0]), max(0, last_commit - int(fields[2]))))
    return sorted(slots, key=lambda slot: -slot.behind)
