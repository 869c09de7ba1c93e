"""What `Store.durability` reports: which commits are on disk, and which snapshots are open."""

from __future__ import annotations

from typing import NamedTuple

from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import Slot, read_slots
from streamkeep.engine.system.failures import Failures
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.flush import open_readers
from streamkeep.engine.txn.read_txn import ReadTxn, Txn
from streamkeep.format.core.keys import META
from streamkeep.format.rows import meta_rows


class ReaderSlot(NamedTuple):
    """A process that has a snapshot open.

    Attributes:
        process: its process number.
    """

    process: int
    behind: int  # the number of commits after the snapshot, whose freed pages cannot be reused


class CopyState(NamedTuple):
    """A copy of the store elsewhere; see `streamkeep ship`.

    Attributes:
        target: its URI.
        behind: the number of commits that it does not have yet.
        shipped_ms: Unix time at which the last ones reached it; 0 if none has since a restore.
        proved_ms: Unix time at which `ship verify` found it sound, as far as the shipper knows; 0
            if never.
        missing_segments: segments of the archive that the store did not have to be copied.
        taken_over: another store has taken it over, and this one may not ship there.
    """

    target: str
    behind: int
    shipped_ms: int
    proved_ms: int
    missing_segments: int
    taken_over: bool


class Durability(NamedTuple):
    """Which commits of a store are on disk.

    Attributes:
        epoch: a number that every recovery raises.
        last_commit: the newest commit.
        durable_commit: the newest commit that is known to be on disk, in the journal or the data
            file; None if the store is open for reading only.
        checkpoint_commit: the newest checkpoint, where recovery would begin; None before the
            first one.
        journal_bytes: the size of the journal files.
        last_recovery: None if there was none.
        readers: the processes that have a snapshot open, the oldest snapshot first. A store that
            is open for writing holds one itself.
        failures: what the background threads of this process failed at and will try again; empty
            if all is well. The log has these errors, too.
        copies: those elsewhere.
        follows: what a standby follows, and how far it is; None for any other store.
        redis: the Redis server whose streams the store follows, and how far; None if it never did.
    """

    epoch: int
    last_commit: int
    durable_commit: int | None
    checkpoint_commit: int | None
    journal_bytes: int
    last_recovery: meta_rows.Recovery | None
    readers: list[ReaderSlot]
    failures: tuple[str, ...] = ()
    copies: tuple[CopyState, ...] = ()
    follows: meta_rows.StandbyRow | None = None
    redis: meta_rows.FollowingRow | None = None


def read_durability(
    txn: ReadTxn, store: Folder, lock: CheckpointFile | None, failures: Failures
) -> Durability:
    """Return how far a store is on disk, given a snapshot of its newest commit.

    Args:
        lock: None if a read-only store has no file of checkpoints.
    """
    context = txn.context
    journal = context.journal
    slot = None if lock is None else lock.newest()
    last_commit = txn.newest_commit()
    row = txn.get_row(META, meta_rows.META_RECOVERY, "meta")
    standby = standby_of(txn)
    folder = store.folder(JOURNAL_FOLDER, missing_ok=True)
    in_image = txn.raw().id()
    readers = sorted(open_readers(context.raw), key=lambda one: one.commit_number)
    return Durability(
        context.epoch,
        last_commit,
        None if journal is None else min(journal.control.durable(), last_commit),
        None if slot is None else slot.commit_number,
        sum(map(folder.size, folder.names())),
        None if row is None else meta_rows.decode_recovery(row),
        [ReaderSlot(one.process, max(0, in_image - one.commit_number)) for one in readers],
        failures.texts(),
        () if standby else tuple(_copy(one, last_commit) for one in read_slots(folder)),
        standby,
        following_of(txn),
    )


def standby_of(txn: Txn) -> meta_rows.StandbyRow | None:
    """Return what a standby follows, and how far it is; None for another store."""
    body = txn.get_row(META, meta_rows.META_STANDBY, "meta")
    return None if body is None else meta_rows.decode_standby(body, "meta")


def following_of(txn: Txn) -> meta_rows.FollowingRow | None:
    """Return which Redis server a store follows, and how far it is; None for none."""
    body = txn.get_row(META, meta_rows.META_FOLLOWING, "meta")
    return None if body is None else meta_rows.decode_following(body, "meta")


def _copy(slot: Slot, last_commit: int) -> CopyState:
    if slot.taken_over:  # what was shipped is of another store by now
        slot = slot._replace(shipped=0, shipped_ms=0)
    behind = max(0, last_commit - slot.shipped)
    known = (slot.shipped_ms, slot.proved_ms, slot.missing, slot.taken_over)
    return CopyState(slot.target, behind, *known)
