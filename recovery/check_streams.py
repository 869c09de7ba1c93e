"""Checks of stream records and macro nodes.

Each stream is walked once; the walk yields what is wrong with its nodes and collects
`StreamFacts`, against which one small check per invariant then holds the record. Memory is
bounded by one node.

A quick check looks at envelopes, which have checksums, and at the counts in front of each node; it
looks at entries only in the nodes at both ends of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamkeep.engine.stream import Stream, decode_stream
from streamkeep.format.entry import MIN_ID, StreamId
from streamkeep.format.envelope import Envelope, decode_envelope, trimmed_slots
from streamkeep.format.errors import CorruptionError
from streamkeep.format.extension import split_sections
from streamkeep.format.keys import (
    NODES,
    STREAMS,
    node_key,
    pack_number,
    unpack_node_key,
    unpack_number,
)
from streamkeep.format.node import NodeIds, peek_counts, tombstone_slots, validate
from streamkeep.format.records import StreamRecord
from streamkeep.recovery.catalogue import finding
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.tree import Cursor, Tables

_PEEKED = 64  # bytes of a node in which both counts stand


@dataclass(slots=True)
class StreamFacts:
    """What the nodes of one stream really hold."""

    length: int = 0
    tombstones: int = 0
    sealed_nodes: int = 0
    sealed_bytes: int = 0
    first: StreamId = MIN_ID
    last: StreamId = MIN_ID
    highest: StreamId = MIN_ID  # of all slots, live or not, as far as they were looked at
    damaged: bool = False  # a node could not be read, so counts are not comparable


def stream_place(number: int, name: bytes | None) -> str:
    """Return how findings name a stream."""
    return f"stream number {number}" if name is None else f"stream {name!r}"


def check_stream_keys(tables: Tables) -> Iterator[Finding]:
    """SK001: every key in `streams` and `nodes` is one."""
    for table, unpack in ((STREAMS, unpack_number), (NODES, unpack_node_key)):
        cursor = tables.cursor(table)
        found = cursor.first()
        while found:
            try:
                unpack(cursor.key())
            except CorruptionError as error:
                yield finding("SK001", f"row {cursor.key().hex()}", error.problem)
            found = cursor.next()


class NodeWalk:
    """The walk through the nodes of one stream, oldest first; `facts` is what they hold."""

    def __init__(self, tables: Tables, stream: Stream, where: str, *, quick: bool) -> None:
        self.stream = stream
        self.where = where
        self.facts = StreamFacts()
        self._tables = tables
        self._quick = quick
        self._previous: StreamId | None = None

    def findings(self) -> Iterator[Finding]:
        """SK110, SK111, SK113, SK114: each node is sound, in its place, above the one before."""
        stream = self.stream
        prefix = stream.db_key
        cursor = self._tables.cursor(NODES)
        found = cursor.set_range(node_key(stream.number, 0, 0))
        while found and cursor.key().startswith(prefix):
            if len(cursor.key()) == len(prefix) + 16:
                yield from self._sealed(cursor)
            found = cursor.next()
        if self._quick and not self.facts.damaged and self.facts.sealed_nodes:
            yield from self._last_sealed()
        if stream.has_tail():
            key = StreamId(stream.tail_ms, stream.tail_seq)
            yield from self._deep(self._place(key), key, stream.tail_data(), stream.trimmed)

    def _place(self, key: StreamId) -> str:
        return f"{self.where} macro node {key}"

    def _sealed(self, cursor: Cursor) -> Iterator[Finding]:
        number, ms, seq = unpack_node_key(cursor.key())
        key = StreamId(ms, seq)
        facts = self.facts
        try:
            envelope = decode_envelope(cursor.value(), "macro node")
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK110", self._place(key), error.problem)
            return
        facts.sealed_nodes += 1
        facts.sealed_bytes += len(envelope.listpack)
        if (envelope.number, envelope.ms, envelope.seq) != (number, ms, seq):
            place = f"{envelope.ms}-{envelope.seq} of stream {envelope.number}"
            yield finding("SK114", self._place(key), f"its envelope says {place}")
        if self._quick and facts.sealed_nodes > 1:
            yield from self._shallow(key, envelope)
        else:
            yield from self._deep(self._place(key), key, envelope.listpack, envelope.trimmed)

    def _shallow(self, key: StreamId, envelope: Envelope) -> Iterator[Finding]:
        """Count what a node says of itself; its checksum has been looked at."""
        facts = self.facts
        try:
            live, deleted = peek_counts(envelope.listpack[:_PEEKED])
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK110", self._place(key), error.problem)
            return
        if self._previous is not None and key <= self._previous:
            yield finding("SK111", self._place(key), f"the node before holds {self._previous}")
        facts.length += live
        facts.tombstones += deleted
        self._previous = key

    def _deep(self, where: str, key: StreamId, data: bytes, trimmed: bytes) -> Iterator[Finding]:
        """Check one node to its last byte; add what it holds to the facts."""
        facts = self.facts
        try:
            ids = validate(data, key.ms, key.seq)
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK110", where, f"{error.problem} (byte {error.offset})")
            return
        if self._previous is not None and key <= self._previous:
            yield finding("SK111", where, f"the node before holds {self._previous}")
        if trimmed:
            wrong = sorted(trimmed_slots(trimmed) - tombstone_slots(data, key.ms, key.seq))
            if wrong:
                yield finding("SK113", where, f"slots {wrong[:5]} are not tombstones")
        if facts.length == 0:
            facts.first = StreamId(*ids.first_live)
        facts.length += ids.live
        facts.tombstones += ids.deleted
        self._ends_with(ids)

    def _ends_with(self, ids: NodeIds) -> None:
        facts = self.facts
        facts.last = StreamId(*ids.last_live)
        facts.highest = StreamId(*ids.last_slot)
        self._previous = facts.highest

    def _last_sealed(self) -> Iterator[Finding]:
        """A quick check has passed over the last sealed node; the IDs at its end are needed."""
        key = self._previous
        if key is None or self.facts.sealed_nodes < 2:
            return
        value = self._tables.get(NODES, node_key(self.stream.number, *key))
        if value is None:
            return
        envelope = decode_envelope(value, "macro node")
        try:
            self._ends_with(validate(envelope.listpack, *key))
        except CorruptionError as error:
            self.facts.damaged = True
            yield finding("SK110", self._place(key), f"{error.problem} (byte {error.offset})")


# --- the record against the facts ---------------------------------------------------------------

Check = Callable[[str, StreamRecord, StreamFacts], Iterator[Finding]]


def check_length(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK101: length is the number of live entries."""
    if record.length != facts.length:
        yield finding("SK101", where, f"length is {record.length}, counted {facts.length}")


def check_ends(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK102, SK103: first_id and last live ID are those of the entries at the ends."""
    first = StreamId(record.first_ms, record.first_seq)
    if first != facts.first:
        yield finding("SK102", where, f"first_id is {first}, found {facts.first}")
    last = StreamId(record.last_live_ms, record.last_live_seq)
    if last != facts.last:
        yield finding("SK103", where, f"last live ID is {last}, found {facts.last}")


def check_bounds(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK104 to SK106: what the counters say of each other."""
    last = StreamId(record.last_ms, record.last_seq)
    live = facts.last
    if live > last:
        yield finding("SK104", where, f"last_generated_id is {last}, found the entry {live}")
    if record.entries_added < record.length:
        problem = f"entries_added is {record.entries_added}, length {record.length}"
        yield finding("SK105", where, problem)
    deleted = StreamId(record.max_deleted_ms, record.max_deleted_seq)
    if deleted > last:
        yield finding("SK106", where, f"max_deleted_id is {deleted}, last_generated_id {last}")


def check_sizes(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK107, SK108: number and size of nodes, number of tombstones."""
    stated = (record.sealed_nodes, record.sealed_bytes)
    counted = (facts.sealed_nodes, facts.sealed_bytes)
    if stated != counted:
        problem = f"the record says {stated[0]} sealed nodes of {stated[1]} bytes"
        yield finding("SK107", where, f"{problem}, counted {counted[0]} of {counted[1]}")
    if record.tombstones != facts.tombstones:
        problem = f"the record says {record.tombstones} tombstones, counted {facts.tombstones}"
        yield finding("SK108", where, problem)


RECORD_CHECKS: tuple[Check, ...] = (check_length, check_ends, check_bounds, check_sizes)


def check_stream(
    tables: Tables, number: int, name: bytes | None, *, quick: bool = False
) -> Iterator[Finding]:
    """Check one stream: its record, its nodes, and one against the other."""
    where = stream_place(number, name)
    try:
        value = tables.get(STREAMS, pack_number(number))
        if value is None:
            return  # SK012
        stream = decode_stream(number, name or b"", value)
        split_sections(stream.record.extension, where)
    except CorruptionError as error:
        yield finding("SK001", where, error.problem)
        return
    walk = NodeWalk(tables, stream, where, quick=quick)
    yield from walk.findings()
    if walk.facts.damaged or not tables.complete(NODES):
        return  # the counts of what is left would only repeat what was said
    for check in RECORD_CHECKS:
        yield from check(where, stream.record, walk.facts)
