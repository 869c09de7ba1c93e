"""Streams for Redis: an RDB file, DUMP payloads, or commands for `redis-cli --pipe`.

The commands are XADD with IDs, XSETID for the counters, XGROUP, XCLAIM for pending entries, XNACK
for those without an owner, and XIDMPRECORD for messages where the server knows it. No command
restores pending entries that are no longer in the stream, times of consumers, or counters of
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

from streamkeep.engine.commands.dump import counters_of, group_part, messages_of
from streamkeep.engine.commands.xrange import exists
from streamkeep.engine.tables.group import groups_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.id_codec import Id, id_text
from streamkeep.format.core.json_form import json_base64, json_bytes, json_line
from streamkeep.format.redis import stream_dump
from streamkeep.format.redis.rdb import RdbWriter
from streamkeep.format.redis.resp import encode_command
from streamkeep.format.redis.stream_parts import NOBODY, GroupPart, Messages, Pending
from streamkeep.format.rows.group_records import UNKNOWN
from streamkeep.transfer.dumping.source import Source

Write = Callable[[bytes], object]
_IDS_PER_COMMAND: Final = 100


def write_rdb(source: Source, server: str, write: Write) -> stream_dump.Losses:
    writer = RdbWriter(stream_dump.TARGETS[server])
    write(writer.begin(sum(1 for _ in source.names())))
    for stream in source:
        for piece in writer.stream(stream.name, source.parts(stream), stream.nodes()):
            write(piece)
    write(writer.end())
    return writer.losses


def write_payloads(source: Source, server: str, write: Write) -> stream_dump.Losses:
    """Write the DUMP payload of one chosen stream as it is, of several as lines of JSON."""
    losses = stream_dump.Losses()
    for stream in source:
        payload = stream_dump.write_payload(
            source.parts(stream), stream.nodes(), stream_dump.TARGETS[server], losses
        )
        if source.keys is not None and len(source.keys) == 1:
            write(payload)
            continue
        key = json_bytes(stream.name)
        write(json_line("payload", key=key, payload=json_base64(payload)).encode() + b"\n")
    return losses


def write_commands(source: Source, server: str, write: Write) -> stream_dump.Losses:
    """Write commands that rebuild the streams on a server that has none of the keys."""
    losses = stream_dump.Losses()
    for stream in source:
        writer = _CommandWriter(source, stream, stream_dump.TARGETS[server].kind, write, losses)
        writer.entries()
        if source.limits.whole:
            writer.counters()
            for group in groups_of(source.txn, stream):
                writer.group(group_part(group))
            writer.messages(messages_of(source.txn, stream))
    return losses


class _CommandWriter:
    def __init__(
        self, source: Source, stream: Stream, kind: int, write: Write, losses: stream_dump.Losses
    ) -> None:
        self._source = source
        self._stream = stream
        self._kind = kind  # of the server's streams: it decides which commands the server has
        self._write = write
        self._losses = losses
        self._key = stream.name
        self._entries = 0

    def _send(self, *words: bytes | str | int) -> None:
        self._write(encode_command(*words))

    def entries(self) -> None:
        """Write the entries; an empty stream is made of one entry that is trimmed at once."""
        for ms, seq, flat in self._source.read(self._stream):
            self._send("XADD", self._key, f"{ms}-{seq}", *flat)
            self._entries += 1
        if not self._entries and not self._stream.record.length:
            last = counters_of(self._stream, 0).last_id
            made = last if last > (0, 0) else (0, 1)
            self._send("XADD", self._key, "MAXLEN", 0, id_text(*made), "x", "y")

    def counters(self) -> None:
        counters = counters_of(self._stream, 0)
        words: list[bytes | str | int] = []
        deleted = counters.max_deleted_id or (0, 0)
        if self._kind >= stream_dump.TYPE_2:
            added = max(counters.entries_added or 0, self._entries)  # history may hold more
            words = ["ENTRIESADDED", added, "MAXDELETEDID", id_text(*deleted)]
        # An empty stream has had at least the entry that `entries` makes it of.
        elif deleted != (0, 0) or counters.entries_added != (counters.length or 1):
            self._losses.add("stream without its max_deleted_id and entries_added", newer=True)
        self._send("XSETID", self._key, id_text(*counters.last_id), *words)

    def group(self, group: GroupPart) -> None:
        key, name = self._key, group.name
        words: list[bytes | str | int] = []
        read = UNKNOWN if group.entries_read is None else group.entries_read
        if self._kind >= stream_dump.TYPE_2:
            words = ["ENTRIESREAD", read]
            if read > self._stream.record.entries_added:  # newer servers take the lower one
                self._losses.add("entries_read of a group that is above entries_added")
        elif read != UNKNOWN:
            self._losses.add(stream_dump.READ_LOSS, newer=True)
        self._send("XGROUP", "CREATE", key, name, id_text(*group.last_id), *words)
        for consumer in group.consumers:
            self._send("XGROUP", "CREATECONSUMER", key, name, consumer.name)
        self._losses.add("time of a consumer", len(group.consumers))
        gone = 0
        nobodys: dict[Id, Pending] = {}

        def owned() -> Iterator[Pending]:
            nonlocal gone
            for one in group.pending:
                if not exists(self._source.txn, self._stream, one.ms, one.seq):
                    gone += 1
                elif one.consumer == NOBODY:
                    nobodys[one.ms, one.seq] = one
                else:
                    yield one

        self._claims(group, owned())
        self._losses.add("pending entry that is no longer in the stream", gone)
        self._nobodys(group, nobodys)

    def _claims(self, group: GroupPart, pending: Iterator[Pending]) -> None:
        """Write XCLAIM, one command for neighbours that were delivered together."""

        def delivery(one: Pending) -> tuple[int, int, int]:
            return one.consumer, one.delivery_time, one.delivery_count

        for (place, time, count), together in groupby(pending, delivery):
            ids = [id_text(one.ms, one.seq) for one in together]
            owner = group.consumers[place].name
            self._claim(group.name, owner, ids, time, count)

    def _claim(self, group: bytes, owner: bytes, ids: list[bytes], time: int, count: int) -> None:
        for some in _slices(ids):
            words = ("TIME", time, "RETRYCOUNT", count, "FORCE", "JUSTID")
            self._send("XCLAIM", self._key, group, owner, 0, *some, *words)

    def _nobodys(self, group: GroupPart, kept: dict[Id, Pending]) -> None:
        """Write the pending entries without an owner, in their order."""
        zone = [one for one in group.zone if one in kept]
        for count, together in groupby(zone, lambda one: kept[one].delivery_count):
            ids = [id_text(*one) for one in together]
            if self._kind < stream_dump.TYPE_5:
                self._losses.add(stream_dump.UNOWNED_LOSS, len(ids), newer=True)
                self._claim(group.name, stream_dump.NOBODYS_OWNER, ids, 0, count)
                continue
            for some in _slices(ids):
                words = ("IDS", len(some), *some, "RETRYCOUNT", count, "FORCE")
                self._send("XNACK", self._key, group.name, "FAIL", *words)

    def messages(self, messages: Messages | None) -> None:
        if messages is None:
            return
        if self._kind < stream_dump.TYPE_4:
            self._losses.add_messages(messages)
            return
        settings = ("IDMP-DURATION", messages.duration, "IDMP-MAXSIZE", messages.maxsize)
        self._send("XCFGSET", self._key, *settings)
        for producer in messages.producers:
            for iid, ms, seq in producer.messages:
                if exists(self._source.txn, self._stream, ms, seq):
                    words = (producer.name, iid, id_text(ms, seq))
                    self._send("XIDMPRECORD", self._key, *words)
                else:
                    self._losses.add("message whose entry is no longer in the stream")
        if messages.added or messages.duplicates:
            self._losses.add("stream whose counters of messages are lost")


def _slices(ids: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(ids), _IDS_PER_COMMAND):
        yield ids[start : start + _IDS_PER_COMMAND]
