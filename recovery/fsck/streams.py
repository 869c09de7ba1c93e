"""Checks of stream records and macro nodes.

One walk over the nodes of a stream yields findings about them and collects `StreamFacts`. Then one
small check per invariant compares the record with these facts. Needs memory for one node.

A quick check reads the envelopes, which have checksums, and the counts of each node; it reads
entries only in the first and the last node of a stream.
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
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.progress import Scope
from streamkeep.recovery.fsck.rows import row_place
from streamkeep.recovery.pages.tree import Tables

NODE_KEY_SIZE: Final = 24
_REPORT_EVERY: Final = 256


def stream_place(number: int, name: bytes | None) -> str:
    """Return the name of a stream in findings; None is a stream without a name."""
    return f"stream number {number}" if name is None else f"stream {quoted(name)}"


def check_stream_keys(tables: Tables) -> Iterator[Finding]:
    """SK001: every key in `streams` and `nodes` has the shape of its table."""
    for table in (STREAMS, NODES):
        for row in tables.walk(table):
            try:
                check_key(table, row.key)
            except CorruptionError as error:
                yield finding("SK001", row_place(table, row.key), error.problem)


class NodeWalk:
    """The walk over the nodes of one stream, oldest first; collects `facts`."""

    def __init__(self, tables: Tables, stream: Stream, where: str, scope: Scope) -> None:
        self.stream = stream
        self.where = where
        self.facts = StreamFacts()
        self._tables = tables
        self._quick = scope.quick
        self._progress = scope.progress

    def findings(self) -> Iterator[Finding]:
        """SK110, SK111, SK113, SK114: each node is sound, has its key, is above the one before."""
        stream, facts = self.stream, self.facts
        last_key = b""
        deep = not self._quick
        for row in self._tables.walk(NODES, stream.db_key):
            db_key = row.key
            if len(db_key) == NODE_KEY_SIZE:
                try:
                    problems = facts.add_sealed(db_key, row.value(), deep)
                except CorruptionError as error:
                    facts.damaged = True
                    problems = [Problem("SK110", f"{error.where}: {error.problem}")]
                if problems:
                    yield from self._reported(StreamId(*unpack_node_key(db_key)[1:]), problems)
                last_key = db_key
                if facts.sealed_nodes % _REPORT_EVERY == 0:
                    self._progress.advance(_REPORT_EVERY)
        if self._quick and facts.sealed_nodes > 1:
            yield from self._last_sealed(last_key)
        if stream.has_tail():
            key = StreamId(stream.tail_ms, stream.tail_seq)
            problems = facts.add_node(*key, stream.tail_data(), stream.trimmed)
            yield from self._reported(key, problems)
        self._progress.streams += 1
        self._progress.nodes += facts.sealed_nodes + stream.has_tail()

    def _reported(self, key: StreamId, problems: list[Problem]) -> Iterator[Finding]:
        for problem in problems:
            yield finding(problem.code, f"{self.where} macro node {key}", problem.text)

    def _last_sealed(self, db_key: bytes) -> Iterator[Finding]:
        """Read the last sealed node, which a quick check has skipped: its last IDs are needed."""
        try:
            value = self._tables.get(NODES, db_key)
            if value is None:
                return
            envelope = decode_envelope(value, "macro node")
        except CorruptionError:
            return  # reported already
        key = StreamId(*unpack_node_key(db_key)[1:])
        yield from self._reported(key, self.facts.end_with(*key, envelope.listpack))


# --- the record against the facts ---------------------------------------------------------------

Check = Callable[[str, StreamRecord, StreamFacts], Iterator[Finding]]


def check_length(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK101: length is the number of live entries."""
    if record.length != facts.length:
        yield finding("SK101", where, f"length is {record.length}, counted {facts.length}")


def check_ends(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK102, SK103: first_id and last live ID are those of the first and the last live entry."""
    first = StreamId(record.first_ms, record.first_seq)
    if first != facts.first:
        yield finding("SK102", where, f"first_id is {first}, found {StreamId(*facts.first)}")
    last = StreamId(record.last_live_ms, record.last_live_seq)
    if last != facts.last:
        problem = f"last live ID is {last}, found {StreamId(*facts.last)}"
        yield finding("SK103", where, problem)


def check_bounds(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK104 to SK106: the counters do not contradict each other."""
    last = StreamId(record.last_ms, record.last_seq)
    live = StreamId(*facts.last)
    if live > last:
        yield finding("SK104", where, f"last_generated_id is {last}, found entry {live}")
    if record.entries_added < record.length:
        problem = f"entries_added is {record.entries_added}, the length is {record.length}"
        yield finding("SK105", where, problem)
    deleted = StreamId(record.max_deleted_ms, record.max_deleted_seq)
    if deleted > last:
        problem = f"max_deleted_id is {deleted}, last_generated_id is {last}"
        yield finding("SK106", where, problem)


def check_sizes(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK107, SK108: number and size of nodes, number of tombstones."""
    stated = (record.sealed_nodes, record.sealed_bytes)
    counted = (facts.sealed_nodes, facts.sealed_bytes)
    if stated != counted:
        problem = f"the record states {stated[0]} sealed nodes of {stated[1]} bytes"
        yield finding("SK107", where, f"{problem}, counted {counted[0]} of {counted[1]} bytes")
    if record.tombstones != facts.tombstones:
        problem = f"the record states {record.tombstones} tombstones, counted {facts.tombstones}"
        yield finding("SK108", where, problem)


RECORD_CHECKS: tuple[Check, ...] = (check_length, check_ends, check_bounds, check_sizes)


def check_stream(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    """Check one stream: its record, its nodes, and whether they agree."""
    where = stream_place(number, name)
    try:
        value = tables.get(STREAMS, pack_number(number))
        if value is None:
            return  # `check_names` reports it: SK012
        stream = decode_stream(number, name or b"", value)
        retention_of(stream.record.extension, where)
    except CorruptionError as error:
        yield finding("SK001", where, error.problem)
        return
    walk = NodeWalk(tables, stream, where, scope)
    yield from walk.findings()
    if walk.facts.damaged or not tables.complete(NODES):
        return  # counts without the damaged nodes would only repeat that they are damaged
    for check in RECORD_CHECKS:
        yield from check(where, stream.record, walk.facts)
