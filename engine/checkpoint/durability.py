"""How far a store is on disk, as figures."""

from __future__ import annotations

from typing import NamedTuple

import lmdb

from streamkeep.engine.checkpoint.crash_recovery import Recovery


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
        checkpoint_commit: the newest checkpoint, with which recovery would begin; None before the
            first.
        journal_bytes: what the journal files take.
        last_recovery: None when there has been none.
        readers: everybody who has a snapshot open, the oldest first; a store that is open for
            writing has one itself.
        failures: what the threads of this process that work for the store have failed at, and try
            again; empty when all is well. The log has it, too.
    """

    epoch: int
    last_commit: int
    durable_commit: int | None
    checkpoint_commit: int | None
    journal_bytes: int
    last_recovery: Recovery | None
    readers: list[ReaderSlot]
    failures: tuple[str, ...] = ()


class Reader(NamedTuple):
    """A snapshot that is open: its process, its thread as LMDB names it, and its commit."""

    process: int
    thread: str
    commit_number: int


def open_readers(raw: lmdb.Environment) -> list[Reader]:
    """Return the snapshots that are open, of all processes, from LMDB's table of readers."""
    found = []
    for line in raw.readers().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 3 and fields[2].isdigit():
            found.append(Reader(int(fields[0]), fields[1], int(fields[2])))
    return found


def read_slots(raw: lmdb.Environment, last_commit: int) -> list[ReaderSlot]:
    """Return who has snapshots open, the oldest first."""
    slots = [
        ReaderSlot(reader.process, max(0, last_commit - reader.commit_number))
        for reader in open_readers(raw)
    ]
    return sorted(slots, key=lambda slot: -slot.behind)
