"""Checks of stream records and macro nodes.

Each stream is walked once; the walk yields what is wrong with its nodes and collects
`StreamFacts`, against which one small check per invariant then holds the record. Memory is
bounded by one node.

A quick check looks at envelopes, which have checksums, and at the counts in front of each node; it
looks at entries only in the nodes at both ends of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.engine.txn.stream import Stream, decode_stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import NODES, STREAMS, check_key, pack_number, unpack_node_key
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.stream_facts import Problem, StreamFacts
from streamkeep.format.rows.records import StreamRecord
from streamkeep.format.rows.restoring import restoring_of
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.progress import Scope
from streamkeep.recovery.fsck.rows import row_place
from streamkeep.recovery.pages.tree import Tables

NUMBER_SIZE: Final = 8
NODE_KEY_SIZE: Final = 24
_REPORT_EVERY: Final = 256


def stream_place(number: int, name: bytes | None) -> str:
    """Return how findings name a stream."""
    return f"stream number {number}" if name is None else f"stream {quoted(name)}"


def check_stream_keys(tables: Tables) -> Iterator[Finding]:
    """SK001: every key in `streams` and `nodes` is one."""
    for table in (STREAMS, NODES):
        for page in tables.cursor(table).leaves():
            for db_key in page.keys:
                try:
                    check_key(table, db_key)
                except CorruptionError as error:
                    yield finding("SK001", row_place(table, db_key), error.problem)


class NodeWalk:
    """The walk through the nodes of one stream, oldest first; `facts` is what they hold."""

    def __init__(self, tables: Tables, stream: Stream, where: str, scope: Scope) -> None:
        self.stream = stream
        self.where = where
        self.facts = StreamFacts()
        self._tables = tables
        self._quick = scope.quick
        self._progress = scope.progress

    def findings(self) -> Iterator[Finding]:
        """SK110, SK111, SK113, SK114: each node is sound, in its place, above the one before."""
        stream, facts = self.stream, self.facts
        prefix = stream.db_key
        cursor = self._tables.cursor(NODES)
        found = cursor.set_range(prefix)
        last_key = b""
        deep = not self._quick
        while found and (db_key := cursor.key()).startswith(prefix):
            if len(db_key) == NODE_KEY_SIZE:
                try:
                    problems = facts.add_sealed(db_key, cursor.value(), deep)
                except CorruptionError as error:
                    facts.damaged = True
                    problems = [Problem("SK110", f"{error.where}: {error.problem}")]
                if problems:
                    yield from self._told(StreamId(*unpack_node_key(db_key)[1:]), problems)
                last_key = db_key
                if facts.sealed_nodes % _REPORT_EVERY == 0:
                    self._progress.advance(_REPORT_EVERY)
            found = cursor.next()
        if self._quick and facts.sealed_nodes > 1:
            yield from self._last_sealed(last_key)
        if stream.has_tail():
            key = StreamId(stream.tail_ms, stream.tail_seq)
            yield from self._told(key, facts.add_node(*key, stream.tail_data(), stream.trimmed))
        self._progress.streams += 1
        self._progress.nodes += facts.sealed_nodes + stream.has_tail()

    def _told(self, key: StreamId, problems: list[Problem]) -> Iterator[Finding]:
        for problem in problems:
            yield finding(problem.code, f"{self.where} macro node {key}", problem.text)

    def _last_sealed(self, db_key: bytes) -> Iterator[Finding]:
        """A quick check has passed over the last sealed node; the IDs at its end are needed."""
        try:
            value = self._tables.get(NODES, db_key)
            if value is None:
                return
            envelope = decode_envelope(value, "macro node")
        except CorruptionError:
            return  # reported already
        key = StreamId(*unpack_node_key(db_key)[1:])
        yield from self._told(key, self.facts.end_with(*key, envelope.listpack))


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
        yield finding("SK102", where, f"first_id is {first}, found {StreamId(*facts.first)}")
    last = StreamId(record.last_live_ms, record.last_live_seq)
    if last != facts.last:
        problem = f"last live ID is {last}, found {StreamId(*facts.last)}"
        yield finding("SK103", where, problem)


def check_bounds(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK104 to SK106: what the counters say of each other."""
    last = StreamId(record.last_ms, record.last_seq)
    live = StreamId(*facts.last)
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
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    """Check one stream: its record, its nodes, and one against the other."""
    where = stream_place(number, name)
    try:
        value = tables.get(STREAMS, pack_number(number))
        if value is None:
            return  # SK012
        stream = decode_stream(number, name or b"", value)
        retention_of(stream.record.extension, where)
        restoring_of(stream.record.extension, where)
    except CorruptionError as error:
        yield finding("SK001", where, error.problem)
        return
    walk = NodeWalk(tables, stream, where, scope)
    yield from walk.findings()
    if walk.facts.damaged or not tables.complete(NODES):
        return  # the counts of what is left would only repeat what was said
    for check in RECORD_CHECKS:
        yield from check(where, stream.record, walk.facts)
