"""What a store is at one moment: one pass over a snapshot, which reads no entries.

Costs a few row reads for each stream, group and consumer. Rates are differences of two `Figures`.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.commands.xinfo import lease_state, stream_stat
from streamkeep.engine.liveness.lease_file import State
from streamkeep.engine.store.durability import CopyState
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.lag import lag
from streamkeep.engine.tables.pel_walks import OrderWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.rows.meta_rows import FollowingRow, StandbyRow
from streamkeep.jobs.layout import Names
from streamkeep.jobs.listing import QueueStats, stats_of
from streamkeep.jobs.queue import queue_names

LOW_DISK: Final = 64 << 20  # bytes free below which a store is called full


class GroupFigures(NamedTuple):
    """One group.

    Attributes:
        lag: entries that it has not read; None if that is unknown.
        oldest_pending_ms: how long ago the entry was delivered that has been pending the longest.
        alive, dead: consumers whose lease is alive, and dead.
    """

    name: bytes
    pending: int
    lag: int | None
    consumers: int
    alive: int
    dead: int
    oldest_pending_ms: int


class StreamFigures(NamedTuple):
    """One stream.

    Attributes:
        entries_added: ever; it never falls.
        last_entry_ms: the time in the ID of its last entry; None if it is empty.
    """

    key: bytes
    length: int
    entries_added: int
    node_bytes: int
    last_entry_ms: int | None
    groups: list[GroupFigures]


class QueueFigures(NamedTuple):
    name: str
    stats: QueueStats


class ArchiveFigures(NamedTuple):
    """The archive of all streams; `retired` is what waits to be archived."""

    segments: int
    entries: int
    bytes: int
    retired_entries: int
    retired_bytes: int


class StoreFigures(NamedTuple):
    """The store as a whole.

    Attributes:
        durable_commit: the newest commit that is known to be on disk; None if this process has the
            store open for reading only.
        oldest_snapshot_commits: how many commits are newer than the oldest open snapshot. The pages
            of all of them stay.
    """

    path: str
    epoch: int
    last_commit: int
    durable_commit: int | None
    checkpoint_commit: int | None
    data_bytes: int
    used_bytes: int
    reusable_bytes: int
    journal_bytes: int
    disk_free_bytes: int
    snapshots: int
    oldest_snapshot_commits: int
    failures: int
    copies: tuple[CopyState, ...]
    follows: StandbyRow | None
    redis: FollowingRow | None


class Figures(NamedTuple):
    """A store at one moment."""

    time_ms: int
    store: StoreFigures
    streams: list[StreamFigures]
    queues: list[QueueFigures]
    archive: ArchiveFigures


def figures_of(store: Store[Any]) -> Figures:
    """Return the figures of a store.

    Streams, groups and queues are those of one snapshot. A store that is open for reading only has
    no figures of syncs.
    """
    whole = store_figures(store)
    archive = archive_figures(store)
    names = queue_names(store)
    with store.snapshot() as snapshot, translated():
        txn = snapshot.txn
        now_ms = txn.now_ms()
        reader = snapshot.as_bytes()
        streams = []
        for key, number in iter_keys(txn):
            stream = txn.load_numbered(number, key)  # once: there may be 100,000
            found = stream_stat(stream)
            streams.append(
                StreamFigures(
                    key,
                    found.length,
                    stream.record.entries_added,
                    found.node_bytes,
                    found.last_ms,
                    [_group(txn, stream, group, now_ms) for group in groups_of(txn, stream)],
                )
            )
        queues = [QueueFigures(name, stats_of(reader, Names(name))) for name in names]
    return Figures(now_ms, whole, streams, queues, archive)


def archive_figures(store: Store[Any]) -> ArchiveFigures:
    archived = store.archived_streams()
    return ArchiveFigures(
        sum(one.segments for one in archived),
        sum(one.entries for one in archived),
        sum(one.size_bytes for one in archived),
        sum(one.retired_entries for one in archived),
        sum(one.retired_bytes for one in archived),
    )


def store_figures(store: Store[Any]) -> StoreFigures:
    found = store.durability()
    disk = os.statvfs(store.path)
    oldest = [slot.behind for slot in found.readers]
    return StoreFigures(
        str(store.path),
        found.epoch,
        found.last_commit,
        found.durable_commit,
        found.checkpoint_commit,
        (store.path / DATA_FILE).stat().st_size,
        store.used_bytes,
        store.reusable_bytes,
        found.journal_bytes,
        disk.f_bavail * disk.f_frsize,
        len(found.readers),
        max(oldest, default=0),
        len(found.failures),
        found.copies,
        found.follows,
        found.redis,
    )


def _group(txn: Txn, stream: Stream, group: Group, now_ms: int) -> GroupFigures:
    record = group.record
    leases = [lease_state(txn, group, consumer) for consumer in group.consumers()]
    return GroupFigures(
        record.name,
        record.pending,
        lag(stream.record, record),
        record.consumers,
        leases.count(State.ALIVE),
        leases.count(State.DEAD),
        _oldest_pending_ms(group, now_ms),
    )


def _oldest_pending_ms(group: Group, now_ms: int) -> int:
    """Return how long ago the oldest delivery was that is pending; 0 if no consumer owns one."""
    if group.record.pending == group.record.nacked:
        return 0
    walk = OrderWalk(group.pel)
    nack = walk.next()
    while nack is not None and not nack.consumer:
        nack = walk.next()
    return 0 if nack is None else nack.idle_ms(now_ms)
