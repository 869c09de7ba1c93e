"""XINFO and XSETID, and the figures of `stat`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.engine.commands.history import last_archived
from streamkeep.engine.commands.idempotency import count_lasting
from streamkeep.engine.commands.reply_budget import NO_LIMIT
from streamkeep.engine.commands.xrange import read_entries
from streamkeep.engine.commands.xtrim import rewritten_form
from streamkeep.engine.liveness.lease_file import State
from streamkeep.engine.tables.existing import existing_stream, group_in
from streamkeep.engine.tables.group import Group, count_groups, groups_of
from streamkeep.engine.tables.lag import lag
from streamkeep.engine.tables.manifest import note_removed
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.pel_walks import owned_by
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import MAX, id_text, next_id
from streamkeep.format.node.node import ENTRY, PAIRS, end_ids
from streamkeep.format.node.ranges import Range
from streamkeep.format.rows.extension import idempotence_of
from streamkeep.format.rows.group_records import NEVER, UNKNOWN, Consumer

Info = dict[str, Any]  # in redis-py's shape

NOTHING: Final = (0, 0)


def end_entry(txn: Txn, stream: Stream, *, newest: bool, shape: int = ENTRY) -> object:
    """Return the first or the last live entry of a stream, or None."""
    out: list[object] = []
    read_entries(txn, stream, Range(0, 0, MAX, MAX, 1, newest, shape), out)
    return out[0] if out else None


def xinfo_stream(txn: Txn, name: bytes, shape: int) -> Info:
    stream = existing_stream(txn, name)
    return {
        **_summary(txn, stream),
        "groups": count_groups(txn, stream),
        "first-entry": end_entry(txn, stream, newest=False, shape=shape),
        "last-entry": end_entry(txn, stream, newest=True, shape=shape),
    }


def xinfo_stream_full(txn: Txn, name: bytes, count: int, shape: int) -> Info:
    """Return XINFO STREAM FULL in redis-py's shape; `count` 0 for all entries.

    With the shape PAIRS, the entries are a list.
    """
    stream = existing_stream(txn, name)
    out: list[Any] = []
    read_entries(txn, stream, Range(0, 0, MAX, MAX, count or NO_LIMIT, False, shape), out)
    entries: list[Entry] = out
    return {
        **_summary(txn, stream),
        "entries": out if shape == PAIRS else {entry.id: entry.fields for entry in entries},
        "groups": [_full_group(stream, group, count) for group in groups_of(txn, stream)],
    }


def _full_group(stream: Stream, group: Group, count: int) -> Info:
    """Return one group of XINFO STREAM FULL; `count` 0 for all pending entries."""
    record = group.record
    most = count or NO_LIMIT
    return {
        "name": record.name,
        "last-delivered-id": id_text(*record.last_id()),
        "entries-read": None if record.entries_read == UNKNOWN else record.entries_read,
        "lag": lag(stream.record, record),
        "pel-count": record.pending,
        "nacked-count": record.nacked,
        "pending": [
            [
                id_text(nack.ms, nack.seq),
                group.consumer_name(nack.consumer),
                nack.delivery_time,
                nack.delivery_count,
            ]
            for nack in group.pel.first(most)
        ],
        "consumers": [
            {
                "name": consumer.name,
                "seen-time": consumer.seen_time,
                "active-time": consumer.active_time,
                "pel-count": consumer.pending,
                "pending": [
                    [id_text(nack.ms, nack.seq), nack.delivery_time, nack.delivery_count]
                    for nack in owned_by(group.pel, consumer.number, NOTHING, most)
                ],
            }
            for consumer in group.consumers()
        ],
    }


def xinfo_groups(txn: Txn, name: bytes) -> list[Info]:
    stream = existing_stream(txn, name)
    return [
        {
            "name": group.record.name,
            "consumers": group.record.consumers,
            "pending": group.record.pending,
            "last-delivered-id": id_text(group.record.last_ms, group.record.last_seq),
            "entries-read": (
                None if group.record.entries_read == UNKNOWN else group.record.entries_read
            ),
            "lag": lag(stream.record, group.record),
        }
        for group in groups_of(txn, stream)
    ]


def xinfo_consumers(txn: Txn, name: bytes, group_name: bytes, leases: bool = False) -> list[Info]:
    """Return XINFO CONSUMERS in redis-py's shape, and with `leases` the state of each lease."""
    stream = existing_stream(txn, name)
    group = group_in(txn, stream, group_name)
    now_ms = txn.now_ms()
    found: list[Info] = [
        {
            "name": consumer.name,
            "pending": consumer.pending,
            "idle": max(0, now_ms - consumer.seen_time),
            "inactive": (
                NEVER if consumer.active_time == NEVER else max(0, now_ms - consumer.active_time)
            ),
        }
        for consumer in group.consumers()
    ]
    if leases:
        for info, consumer in zip(found, group.consumers(), strict=True):
            info["lease"] = lease_state(txn, group, consumer).value
    return found


def lease_state(txn: Txn, group: Group, consumer: Consumer) -> State:
    known = txn.context.leases
    return State.UNKNOWN if known is None else known.state(group.newest_lease(consumer))


def _summary(txn: Txn, stream: Stream) -> Info:
    """Return the fields that both forms of XINFO STREAM begin with."""
    record = stream.record
    nodes = stream.nodes()
    messages = idempotence_of(record.extension, f"stream {stream.number}")
    producers, tracked = count_lasting(txn, stream)
    return {
        "length": record.length,
        "radix-tree-keys": nodes,
        "radix-tree-nodes": 1 if nodes < 2 else nodes + 2,  # as in Redis with a few nodes
        "last-generated-id": id_text(*record.last_id()),
        "max-deleted-entry-id": id_text(*record.max_deleted_id()),
        "entries-added": record.entries_added,
        "recorded-first-entry-id": id_text(*record.first_id()),
        "idmp-duration": messages.duration,
        "idmp-maxsize": messages.maxsize,
        "pids-tracked": producers,
        "iids-tracked": tracked,
        "iids-added": messages.added,
        "iids-duplicates": messages.duplicates,
    }


def xsetid(
    txn: WriteTxn,
    name: bytes,
    last_id: tuple[int, int],
    entries_added: int | None,
    max_deleted_id: tuple[int, int] | None,
) -> bool:
    """Set last_generated_id, and entries_added and max_deleted_id where given (XSETID).

    entries_read of each group is lowered to entries_added: its lag would be negative.
    """
    if entries_added is not None and entries_added < 0:
        raise CommandError("entries_added must be positive")
    if max_deleted_id is not None and last_id < max_deleted_id:
        raise CommandError(
            "The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
        )
    stream = existing_stream(txn, name)
    record = stream.record
    if last_id < record.max_deleted_id():
        raise CommandError(
            "The ID specified in XSETID is smaller than current max_deleted_entry_id"
        )
    if record.length:
        if last_id < record.last_live_id():
            raise CommandError(
                "The ID specified in XSETID is smaller than the target stream top item"
            )
        if entries_added is not None and entries_added < record.length:
            raise CommandError(
                "The entries_added specified in XSETID is smaller than the target stream length"
            )
    if last_id < record.last_id() and last_id < last_archived(txn, stream):
        raise CommandError(
            "The ID specified in XSETID is smaller than the last entry in the stream's archive"
        )
    take_back(txn, stream, last_id)
    stream.set_last_id(last_id)
    if entries_added is not None:
        stream.set_entries_added(entries_added)
        for group in groups_of(txn, stream):
            if group.record.entries_read > entries_added:
                group.set_entries_read(entries_added)
    if max_deleted_id is not None and max_deleted_id != (0, 0):
        stream.set_max_deleted(max_deleted_id)
    return True


def take_back(txn: WriteTxn, stream: Stream, last_id: tuple[int, int]) -> None:
    """Let higher IDs be given out again, before a stream gets another last ID."""
    if last_id < stream.record.last_id():
        walk = NodeWalk(txn, stream)
        if walk.last() and end_ids(walk.load(), walk.ms, walk.seq).last_slot > last_id:
            # Tombstones are above it; the slots of a node ascend.
            walk.store(*rewritten_form(walk, walk.data, walk.trimmed, set()))
        note_removed(txn, [(stream.number, next_id(*last_id), (MAX, MAX))])


class StreamStat(NamedTuple):
    """The number of entries of a stream, and the bytes that it takes."""

    name: bytes
    length: int
    nodes: int
    tombstones: int
    node_bytes: int
    first_ms: int | None
    last_ms: int | None


def stream_stat(stream: Stream) -> StreamStat:
    """Return the figures of one stream; they are all in its record."""
    record = stream.record
    empty = record.length == 0
    return StreamStat(
        stream.name,
        record.length,
        stream.nodes(),
        record.tombstones,
        stream.node_bytes(),
        None if empty else record.first_ms,
        None if empty else record.last_live_ms,
    )
