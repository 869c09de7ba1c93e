"""A dump in JSON Lines back into a store; every line is checked. See `dumping/jsonl.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from streamkeep.engine.commands.retention import RetentionChange
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.json_form import from_json
from streamkeep.format.redis import stream_parts
from streamkeep.format.rows.group_records import NEVER, UNKNOWN
from streamkeep.transfer.formats import JSONL_VERSION
from streamkeep.transfer.loading.staged import Entries, Incoming
from streamkeep.transfer.loading.tables import Row, RowError, flat_fields

_decode: Final = json.JSONDecoder().decode

_Line = tuple[int, dict[str, Any]]  # its number, and its members


class JsonReader:
    """Loads a dump from its lines.

    Attributes:
        line: the number of the line that was read last.
        streams: how many the file holds so far.
        entries: those of the file.
    """

    def __init__(
        self, begin: Callable[[bytes], Incoming | None], moved: Callable[[int], None]
    ) -> None:
        """Load the streams for which `begin`, given the key, does not return None."""
        self._begin = begin
        self.entries = Entries(moved)
        self.line = self.streams = 0
        self._lines: Iterator[_Line] = iter(())
        self._next: _Line | None = None

    def read(self, stream: Iterator[bytes]) -> None:
        """Load all lines; raise RowError for one that is wrong."""
        try:
            self._read(stream)
        except (KeyError, TypeError, ValueError, InvalidIdError) as error:
            problem = f"no {error} in it" if isinstance(error, KeyError) else str(error)
            raise RowError(self.line, f"not a line of a dump: {problem}") from error

    def _read(self, stream: Iterator[bytes]) -> None:
        self._lines = self._parsed(stream)
        self._next = next(self._lines, None)
        if self._next is None:
            raise RowError(None, "it is empty: a dump begins with a dump line")
        head = self._taken("dump")
        if head["version"] != JSONL_VERSION:
            raise RowError(self.line, f"a dump of version {head['version']}, not {JSONL_VERSION}")
        while self._is("stream"):
            self._stream(self._taken("stream"))
        summary = self._taken("summary")
        found = (self.streams, self.entries.read)
        if (summary["streams"], summary["entries"]) != found:
            problem = f"the summary counts {summary['streams']} streams and {summary['entries']}"
            raise RowError(self.line, f"{problem} entries, found {found[0]} and {found[1]}")
        if self._next is not None:
            line, members = self._next
            raise RowError(line, f"a {members['type']} line after the summary")

    def _parsed(self, stream: Iterator[bytes]) -> Iterator[_Line]:
        for number, data in enumerate(stream, 1):
            if data.isspace():
                continue
            try:
                members = _decode(data.decode())
            except (ValueError, RecursionError) as error:
                raise RowError(number, f"not JSON: {error}") from None
            if not isinstance(members, dict) or not isinstance(members.get("type"), str):
                raise RowError(number, "not a line of a dump: an object with a 'type' is expected")
            yield number, members

    def _is(self, kind: str) -> bool:
        return self._next is not None and self._next[1]["type"] == kind

    def _taken(self, kind: str) -> dict[str, Any]:
        """Return the next line, which must be of a kind."""
        if self._next is None:
            raise RowError(self.line, f"the dump is cut off: a {kind} line is expected after it")
        self.line, members = self._next
        if members["type"] != kind:
            problem = f"a {members['type']} line, where a {kind} line is expected"
            raise RowError(self.line, problem)
        self._next = next(self._lines, None)
        return members

    def _stream(self, head: dict[str, Any]) -> None:
        key = from_json(head["key"])
        self.streams += 1
        counters = stream_parts.Counters(
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
        for part in self._parts(counters):
            if incoming is not None:
                incoming.take(part)
        if incoming is not None and "retention" in head:
            settings = dict(head["retention"])
            settings.pop("follows", None)  # the loaded stream follows no server
            incoming.set_retention(RetentionChange(**settings))

    def _parts(self, counters: stream_parts.Counters) -> stream_parts.Parts:
        yield counters
        for _ in range(counters.groups):
            yield self._group()
        if self._is("messages"):
            yield self._messages()

    def _entries(self, incoming: Incoming | None) -> int:
        before = self.entries.read
        while self._is("entry"):
            members = self._taken("entry")
            flat = flat_fields(members["fields"])
            self.entries.add(incoming, Row(self.line, None, *_parse(members["id"]), flat))
        self.entries.flush()
        return self.entries.read - before

    def _group(self) -> stream_parts.GroupPart:
        head = self._taken("group")
        consumers: list[stream_parts.ConsumerPart] = []
        for _ in range(_number(head["consumers"])):
            members = self._taken("consumer")
            active = members["active_time_ms"]
            consumers.append(
                stream_parts.ConsumerPart(
                    from_json(members["name"]),
                    _number(members["seen_time_ms"]),
                    NEVER if active is None else _number(active),
                )
            )
        places = {consumer.name: place for place, consumer in enumerate(consumers)}
        pending: list[stream_parts.Pending] = []
        zone: list[Id] = []
        for _ in range(_number(head["pending"])):
            members = self._taken("pending")
            ms, seq = _parse(members["id"])
            owner = stream_parts.NOBODY
            if members["consumer"] is None:
                zone.append((ms, seq))
            else:
                owner = places[from_json(members["consumer"])]
            time, count = members["delivery_time_ms"], members["delivery_count"]
            pending.append(stream_parts.Pending(ms, seq, owner, _number(time), _number(count)))
        read = head["entries_read"]
        return stream_parts.GroupPart(
            from_json(head["name"]),
            _parse(head["last_delivered_id"]),
            UNKNOWN if read is None else _number(read),
            consumers,
            pending,
            zone,
        )

    def _messages(self) -> stream_parts.Messages:
        head = self._taken("messages")
        producers: list[stream_parts.ProducerPart] = []
        while self._is("producer"):
            members = self._taken("producer")
            messages = [(from_json(iid), *_parse(one)) for iid, one in members["messages"]]
            producers.append(stream_parts.ProducerPart(from_json(members["name"]), messages))
        return stream_parts.Messages(
            _number(head["duration_s"]),
            _number(head["maxsize"]),
            producers,
            _number(head["added"]),
            _number(head["duplicates"]),
        )


def _parse(text: object) -> Id:
    if type(text) is not str or "-" not in text:
        raise ValueError(f"{text!r} is not a complete ID")
    ms, seq = StreamId.parse(text)
    return ms, seq


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is not a number from 0 to 2^64-1")
    return value
