"""Stores as JSON Lines: everything that a store holds, for any bytes, for people and programs.

    {"type": "dump", "version": 1, "store": UUID, "time_ms": ...}
    {"type": "stream", "key": ..., "length": 2, "last_generated_id": "5-0", ...}
    {"type": "entry", "id": "5-0", "fields": [[field, value], ...]}
    {"type": "group", "name": ..., "last_delivered_id": "5-0", "entries_read": 2, ...}
    {"type": "consumer", "name": ..., "seen_time_ms": ..., "active_time_ms": null}
    {"type": "pending", "id": "5-0", "consumer": ..., "delivery_time_ms": ..., "delivery_count": 1}
    {"type": "messages", "duration_s": 100, "maxsize": 100, "added": 1, "duplicates": 0}
    {"type": "producer", "name": ..., "messages": [[message ID, "5-0"], ...]}
    {"type": "summary", "command": "dump", "streams": 1, "entries": 2}

A line belongs to the last stream, group, consumer ... above it. Bytes that are UTF-8 are strings,
all others `{"base64": "..."}`. Fields stand in their order, duplicates included. Pending entries
stand in the order of delivery, those of nobody (`"consumer": null`) first. The dump of a range
says so in its `stream` line, and has no groups; one with history says so, too, and has more entries
than the length. The summary tells that nothing was cut off.

What is not in it: how entries are cut into macro nodes, tombstones, and numbers of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from streamkeep.engine.commands.dump import counters_of, delivered_order, messages_of
from streamkeep.engine.commands.retention import RetentionChange
from streamkeep.engine.model.group import Group, groups_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CommandError, InvalidIdError
from streamkeep.format.core.json_form import from_json, json_bytes, json_line, json_pairs
from streamkeep.format.redis.stream_parts import (
    NOBODY,
    ConsumerPart,
    Counters,
    GroupPart,
    Id,
    Messages,
    Pending,
    ProducerPart,
)
from streamkeep.format.rows.group_records import NEVER, UNKNOWN
from streamkeep.format.rows.records import PAGE_FIT
from streamkeep.format.rows.retention import NO_RETENTION
from streamkeep.recovery.load import Incoming
from streamkeep.tools.transfer.dump_source import Source
from streamkeep.tools.transfer.text_lines import RowError

VERSION: Final = 1
_BATCH_ENTRIES: Final = 1000
_BATCH_BYTES: Final = 4 << 20

Line = Callable[..., None]
_decode: Final = json.JSONDecoder().decode


def _id(one: Id) -> str:
    return f"{one[0]}-{one[1]}"


class JsonWriter:
    """Writes a dump as JSON Lines through `write`."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def dump(self, source: Source, uuid: str, time_ms: int) -> None:
        """Write a whole dump."""
        self._line("dump", version=VERSION, store=uuid, time_ms=time_ms)
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
            last_generated_id=_id(counters.last_id),
            max_deleted_id=_id(counters.max_deleted_id or (0, 0)),
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
        """Write the lines of a group."""
        record = group.record
        consumers = group.consumers()
        self._line(
            "group",
            name=json_bytes(record.name),
            last_delivered_id=_id((record.last_ms, record.last_seq)),
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
                id=_id(nack.id()),
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


# --- reading ------------------------------------------------------------------------------------


class _Parsed(NamedTuple):
    line: int
    kind: str
    members: dict[str, Any]


class JsonReader:
    """Loads a dump from its lines; every line is checked."""

    def __init__(
        self, begin: Callable[[bytes], Incoming | None], moved: Callable[[int], None]
    ) -> None:
        """Load what `begin` makes a stream of: it takes the key, and gives None to leave it out."""
        self._begin = begin
        self._moved = moved
        self.line = 0
        self.streams = 0
        self.entries = 0  # of all streams; of those that are loaded, it is `loaded`
        self.loaded = 0
        self._lines: Iterator[_Parsed] = iter(())
        self._next: _Parsed | None = None

    def read(self, stream: Iterator[bytes]) -> None:
        """Load all lines; raise RowError for one that is not as it should be."""
        try:
            self._read(stream)
        except (KeyError, TypeError, ValueError, InvalidIdError) as error:
            problem = f"no {error} in it" if isinstance(error, KeyError) else str(error)
            raise RowError(self.line, f"not a line of a dump: {problem}") from error

    def _read(self, stream: Iterator[bytes]) -> None:
        self._lines = self._parsed(stream)
        self._step()
        head = self._taken("dump")
        if head["version"] != VERSION:
            raise RowError(self.line, f"a dump of version {head['version']}, not {VERSION}")
        while self._is("stream"):
            self._stream(self._taken("stream"))
        summary = self._taken("summary")
        found = (self.streams, self.entries)
        if (summary["streams"], summary["entries"]) != found:
            problem = f"the summary counts {summary['streams']} streams and {summary['entries']}"
            raise RowError(self.line, f"{problem} entries, found {found[0]} and {found[1]}")
        if self._next is not None:
            raise RowError(self._next.line, f"a {self._next.kind} line behind the summary")

    def _parsed(self, stream: Iterator[bytes]) -> Iterator[_Parsed]:
        for number, data in enumerate(stream, 1):
            if data.isspace():
                continue
            try:
                members = _decode(data.decode())
            except (ValueError, RecursionError) as error:
                raise RowError(number, f"not JSON: {error}") from None
            if not isinstance(members, dict) or not isinstance(members.get("type"), str):
                raise RowError(number, "no line of a dump: an object with a 'type' is expected")
            yield _Parsed(number, members["type"], members)

    def _step(self) -> None:
        self._next = next(self._lines, None)

    def _is(self, kind: str) -> bool:
        return self._next is not None and self._next.kind == kind

    def _taken(self, kind: str) -> dict[str, Any]:
        """Return the line that comes next, which must be of a kind."""
        taken = self._next
        if taken is None:
            raise RowError(self.line, f"the dump is cut off: a {kind} line is expected behind it")
        self.line = taken.line
        if taken.kind != kind:
            raise RowError(self.line, f"a {taken.kind} line, where a {kind} line is expected")
        self._step()
        return taken.members

    def _stream(self, head: dict[str, Any]) -> None:
        key = from_json(head["key"])
        self.streams += 1
        counters = Counters(
            _number(head["length"]),
            _parse(head["last_generated_id"]),
            None,
            _parse(head["max_deleted_id"]),
            _number(head["entries_added"]),
            _number(head["groups"]),
        )
        incoming = self._begin(key)
        if incoming is not None and "node_max_bytes" in head:
            incoming.limit_nodes(_number(head["node_max_bytes"]), _number(head["node_max_entries"]))
        entries = self._entries(incoming)
        if "range" in head or "history" in head:
            added = max(counters.entries_added or 0, entries)  # history may hold more
            counters = counters._replace(length=entries, entries_added=added)
        groups = [self._group() for _ in range(counters.groups)]
        messages = self._messages() if self._is("messages") else None
        if incoming is not None:
            incoming.finish(counters, groups, messages)
            if "retention" in head:
                incoming.set_retention(RetentionChange(**head["retention"]))

    def _entries(self, incoming: Incoming | None) -> int:
        """Load the entries that come next; return how many there were."""
        found = size = 0
        batch: list[tuple[int, int, list[bytes]]] = []
        lines: list[int] = []
        while self._is("entry"):
            members = self._taken("entry")
            flat = _flat(members["fields"])
            batch.append((*_parse(members["id"]), flat))
            lines.append(self.line)
            found += 1
            size += sum(map(len, flat))
            if len(batch) >= _BATCH_ENTRIES or size >= _BATCH_BYTES:
                self._append(incoming, batch, lines)
                batch, lines, size = [], [], 0
        self._append(incoming, batch, lines)
        return found

    def _append(
        self,
        incoming: Incoming | None,
        batch: list[tuple[int, int, list[bytes]]],
        lines: list[int],
    ) -> None:
        self.entries += len(batch)
        if incoming is not None and batch:
            try:
                incoming.append(batch)
            except CommandError as error:
                line = lines[error.entry_index or 0]
                raise RowError(line, f"the ID is not above the one before: {error}") from error
            self.loaded += len(batch)
        self._moved(self.loaded)

    def _group(self) -> GroupPart:
        head = self._taken("group")
        consumers: list[ConsumerPart] = []
        for _ in range(_number(head["consumers"])):
            members = self._taken("consumer")
            active = members["active_time_ms"]
            consumers.append(
                ConsumerPart(
                    from_json(members["name"]),
                    _number(members["seen_time_ms"]),
                    NEVER if active is None else _number(active),
                )
            )
        places = {consumer.name: place for place, consumer in enumerate(consumers)}
        pending: list[Pending] = []
        zone: list[Id] = []
        for _ in range(_number(head["pending"])):
            members = self._taken("pending")
            ms, seq = _parse(members["id"])
            owner = NOBODY
            if members["consumer"] is None:
                zone.append((ms, seq))
            else:
                owner = places[from_json(members["consumer"])]
            time, count = members["delivery_time_ms"], members["delivery_count"]
            pending.append(Pending(ms, seq, owner, _number(time), _number(count)))
        read = head["entries_read"]
        return GroupPart(
            from_json(head["name"]),
            _parse(head["last_delivered_id"]),
            UNKNOWN if read is None else _number(read),
            consumers,
            pending,
            zone,
        )

    def _messages(self) -> Messages:
        head = self._taken("messages")
        producers: list[ProducerPart] = []
        while self._is("producer"):
            members = self._taken("producer")
            messages = [(from_json(iid), *_parse(one)) for iid, one in members["messages"]]
            producers.append(ProducerPart(from_json(members["name"]), messages))
        return Messages(
            _number(head["duration_s"]),
            _number(head["maxsize"]),
            producers,
            _number(head["added"]),
            _number(head["duplicates"]),
        )


def _flat(fields: Any) -> list[bytes]:
    if not fields:
        raise ValueError("an entry without fields")
    if type(fields) is not list or any(type(one) is not list or len(one) != 2 for one in fields):
        raise ValueError("fields are not [field, value] pairs")
    flat = chain.from_iterable(fields)
    return [one.encode() if type(one) is str else from_json(one) for one in flat]


def _parse(text: object) -> Id:
    if type(text) is not str or "-" not in text:
        raise ValueError(f"{text!r} is not a complete ID")
    ms, seq = StreamId.parse(text)
    return ms, seq


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is not a number from 0 to 2^64-1")
    return value
