"""Stores as JSON Lines: all that a store holds, in text that people and programs can read.

    {"type": "dump", "version": 1, "store": UUID, "time_ms": ...}
    {"type": "stream", "key": ..., "length": 2, "last_generated_id": "5-0", ...}
    {"type": "entry", "id": "5-0", "fields": [[field, value], ...]}
    {"type": "group", "name": ..., "last_delivered_id": "5-0", "entries_read": 2, ...}
    {"type": "consumer", "name": ..., "seen_time_ms": ..., "active_time_ms": null}
    {"type": "pending", "id": "5-0", "consumer": ..., "delivery_time_ms": ..., "delivery_count": 1}
    {"type": "messages", "duration_s": 100, "maxsize": 100, "added": 1, "duplicates": 0}
    {"type": "producer", "name": ..., "messages": [[message ID, "5-0"], ...]}
    {"type": "summary", "command": "dump", "streams": 1, "entries": 2}

A line belongs to the last stream, group, consumer ... above it. `format/core/json_form.py` says how
bytes are written. Fields keep their order, duplicates included. Pending entries are in the order of
delivery; those without an owner (`"consumer": null`) come first. The `stream` line of a range has
the member `range`, and no groups follow; with history it has `history`, and more entries may follow
than its length. The summary shows that nothing was cut off.

A dump does not say how entries are cut into macro nodes, and holds no tombstones and no internal
numbers. `loading/jsonl.py` reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamkeep.engine.commands.dump import counters_of, delivered_order, messages_of
from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes, json_line, json_pairs
from streamkeep.format.redis.stream_parts import Messages
from streamkeep.format.rows.group_records import NEVER, UNKNOWN
from streamkeep.format.rows.records import PAGE_FIT
from streamkeep.format.rows.retention import NO_RETENTION
from streamkeep.transfer.dumping.source import Source
from streamkeep.transfer.formats import JSONL_VERSION


class JsonWriter:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def dump(self, source: Source, uuid: str, time_ms: int) -> None:
        self._line("dump", version=JSONL_VERSION, store=uuid, time_ms=time_ms)
        for stream in source:
            self._stream(source, stream)
        self._line("summary", command="dump", streams=source.streams, entries=source.entries)

    def _line(self, kind: str, **members: Any) -> None:
        self._write(json_line(kind, **members).encode() + b"\n")

    def _stream(self, source: Source, stream: Stream) -> None:
        record = stream.record
        groups = groups_of(source.txn, stream) if source.limits.whole else []
        counters = counters_of(stream, len(groups))
        limits: dict[str, object] = {}
        if not source.limits.whole:
            limits["range"] = [str(source.limits.start), str(source.limits.end)]
        if source.limits.history:
            limits["history"] = True
        retention = stream.retention()
        if retention is not None:
            changed = zip(retention._fields, retention, NO_RETENTION, strict=True)
            limits["retention"] = {name: one for name, one, none in changed if one != none}
        if record.node_max_bytes != PAGE_FIT:
            limits["node_max_bytes"] = record.node_max_bytes
            limits["node_max_entries"] = record.node_max_entries
        self._line(
            "stream",
            key=json_bytes(stream.name),
            length=counters.length,
            last_generated_id=str(StreamId(*counters.last_id)),
            max_deleted_id=str(StreamId(*counters.max_deleted_id or (0, 0))),
            entries_added=counters.entries_added,
            groups=counters.groups,
            **limits,
        )
        for ms, seq, flat in source.read(stream):
            pairs = list(zip(flat[0::2], flat[1::2], strict=True))
            self._line("entry", id=f"{ms}-{seq}", fields=json_pairs(pairs))
        for group in groups:
            self.group(group)
        messages = messages_of(source.txn, stream) if source.limits.whole else None
        if messages is not None:
            self._messages(messages)

    def group(self, group: Group) -> None:
        record = group.record
        consumers = group.consumers()
        self._line(
            "group",
            name=json_bytes(record.name),
            last_delivered_id=str(StreamId(record.last_ms, record.last_seq)),
            entries_read=None if record.entries_read == UNKNOWN else record.entries_read,
            consumers=len(consumers),
            pending=record.pending,
        )
        names: dict[int, object] = {0: None}
        for consumer in consumers:
            names[consumer.number] = name = json_bytes(consumer.name)
            active = None if consumer.active_time == NEVER else consumer.active_time
            self._line(
                "consumer", name=name, seen_time_ms=consumer.seen_time, active_time_ms=active
            )
        for nack in delivered_order(group):
            self._line(
                "pending",
                id=str(StreamId(*nack.id())),
                consumer=names[nack.consumer],
                delivery_time_ms=nack.delivery_time,
                delivery_count=nack.delivery_count,
            )

    def _messages(self, messages: Messages) -> None:
        self._line(
            "messages",
            duration_s=messages.duration,
            maxsize=messages.maxsize,
            added=messages.added,
            duplicates=messages.duplicates,
        )
        for producer in messages.producers:
            self._line(
                "producer",
                name=json_bytes(producer.name),
                messages=[[json_bytes(iid), f"{ms}-{seq}"] for iid, ms, seq in producer.messages],
            )
