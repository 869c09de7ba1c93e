"""Checks of names, stream records and macro nodes.

One walk over the nodes of a stream yields findings about them and collects `StreamFacts`; then the
record is compared with these. Needs memory for one node.

A quick check reads the envelopes, which have checksums, and the counts of each node; it reads
entries only in the first and the last node of a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from streamkeep.engine.txn.stream import Stream, decode_stream
from streamkeep.engine.txn.txn import NEXT_STREAM
from streamkeep.format.core import keys
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import decode_envelope, trimmed_slots
from streamkeep.format.node.node import peek_counts, tombstone_slots
from streamkeep.format.rows.records import STREAM_NODES, StreamRecord
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import Finding, Scope, finding, quoted
from streamkeep.recovery.fsck.rows import Numbers, Rows, row_place
from streamkeep.recovery.pages.tree import Tables

NODE_KEY_SIZE: Final = 24
_REPORT_EVERY: Final = 256
_PEEKED: Final = 64  # enough bytes of a node to read both counts

Problems = list[tuple[str, str]]


def stream_place(number: int, name: bytes | None) -> str:
    """Return the name of a stream in findings; None is a stream without a name."""
    return f"stream number {number}" if name is None else f"stream {quoted(name)}"


def stream_at(tables: Tables, number: int, name: bytes | None) -> Stream | None:
    """Return a stream; None if it has no record, which `check_names` reports (SK012)."""
    value = tables.get(keys.STREAMS, keys.pack_number(number))
    return None if value is None else decode_stream(number, name or b"", value)


# --- names --------------------------------------------------------------------------------------


def named_streams(tables: Tables) -> Iterator[tuple[int, bytes]]:
    """Yield (number, name) of every readable row of `keys`, in the order of the keys."""
    return (named for _, named in Rows(tables).under(shapes.KEY_SHAPE))


def nameless_streams(tables: Tables) -> Iterator[int]:
    named = Numbers(number for number, _ in named_streams(tables))
    return (number for number in _stream_numbers(tables) if number not in named)


def _stream_numbers(tables: Tables) -> Iterator[int]:
    for row in tables.walk(keys.STREAMS):
        with suppress(CorruptionError):  # reported by check_stream_keys
            yield keys.unpack_number(row.key)


def check_names(tables: Tables) -> Iterator[Finding]:
    """SK010, SK012, SK016: every name has its key, a record, and its row in `names`."""
    rows = Rows(tables)
    for db_key, (number, name) in rows.under(shapes.KEY_SHAPE):
        where = f"stream {quoted(name)}"
        if keys.name_key(b"", name) != db_key:
            problem = f"the row contains the name {quoted(name)}"
            yield finding("SK010", shapes.row_place(keys.KEYS, db_key), problem)
        if tables.lacks(keys.STREAMS, keys.pack_number(number)):
            yield finding("SK012", where, f"stream number {number} has no record")
        second = rows.get(shapes.NAME_SHAPE, keys.pack_number(number))
        if second is not None and second != name:
            yield finding("SK016", where, f"`names` has {quoted(second)}")
        elif rows.lacks(shapes.NAME_SHAPE, keys.pack_number(number)):
            yield finding("SK016", where, "`names` lacks it")
    for db_key, _ in rows.under(shapes.NAME_SHAPE):
        if tables.lacks(keys.STREAMS, db_key):
            where = f"stream {keys.unpack_number(db_key)}"
            yield finding("SK016", where, "`names` has it, but it has no record")


def check_numbers(tables: Tables) -> Iterator[Finding]:
    """SK011, SK013, SK014, SK015: every stream has one name and is not listed as garbage."""
    named, more = Numbers(), Counter[int]()
    for number, _ in named_streams(tables):
        if not named.add(number):
            more[number] += 1
    garbage = Rows(tables).garbage(STREAM_NODES)
    highest = 0
    for number in _stream_numbers(tables):
        highest = max(highest, number)
        if number not in named and tables.complete(keys.KEYS):
            yield finding("SK013", f"stream {number}", "no row of keys refers to it")
        elif number in more:
            yield finding("SK011", f"stream {number}", f"{1 + more[number]} names refer to it")
        if number in garbage:
            yield finding("SK015", f"stream {number}", "its nodes are listed as garbage")
    yield from shapes.check_counter(tables, NEXT_STREAM, highest)


def check_orphans(tables: Tables) -> Iterator[Finding]:
    """SK112: every macro node belongs to a stream that exists."""
    garbage = Rows(tables).garbage(STREAM_NODES)
    if not tables.complete(keys.GARBAGE):
        return
    for number in shapes.numbers_in(tables, keys.NODES):
        if tables.lacks(keys.STREAMS, keys.pack_number(number)) and number not in garbage:
            yield finding("SK112", f"stream {number}", "macro nodes without a stream record")


# --- records and nodes --------------------------------------------------------------------------


def check_stream_keys(tables: Tables) -> Iterator[Finding]:
    """SK001: every key in `streams` and `nodes` has the shape of its table."""
    for table in (keys.STREAMS, keys.NODES):
        for row in tables.walk(table):
            try:
                keys.check_key(table, row.key)
            except CorruptionError as error:
                yield finding("SK001", row_place(table, row.key), error.problem)


class StreamFacts:
    """Facts counted over the nodes of one stream, which are added from the oldest to the newest.

    Each method returns what is wrong: codes of findings, with the problem as text.

    Attributes:
        length, tombstones: number of live slots and of tombstones.
        sealed_nodes, sealed_bytes: number of nodes in `nodes`, and bytes of their listpacks.
        first, last: IDs of the first and last live entry; 0-0 if there is none.
        damaged: whether a node could not be read, which makes the counts incomplete.
    """

    def __init__(self) -> None:
        self.length = 0
        self.tombstones = 0
        self.sealed_nodes = 0
        self.sealed_bytes = 0
        self.first: Id = (0, 0)
        self.last: Id = (0, 0)
        self.damaged = False
        self._previous: Id | None = None  # the highest known ID of the node before

    def add_sealed(self, db_key: bytes, value: bytes, deep: bool) -> Problems:
        """Add the node in a row of `nodes`.

        Args:
            deep: check every byte; otherwise only checksum, key and counts.
        """
        number, ms, seq = keys.unpack_node_key(db_key)
        try:
            envelope = decode_envelope(value, "macro node")
        except CorruptionError as error:
            return self._unreadable(error.problem)
        self.sealed_nodes += 1
        self.sealed_bytes += len(envelope.listpack)
        found: Problems = []
        if (envelope.number, envelope.ms, envelope.seq) != (number, ms, seq):
            place = f"{envelope.ms}-{envelope.seq} of stream {envelope.number}"
            found.append(("SK114", f"the envelope is of node {place}"))
        if deep:
            return found + self.add_node(ms, seq, envelope.listpack, envelope.trimmed)
        try:
            live, deleted = peek_counts(envelope.listpack[:_PEEKED])
        except CorruptionError as error:
            return found + self._unreadable(error.problem)
        found += self._not_above((ms, seq))
        self.length += live
        self.tombstones += deleted
        self._previous = (ms, seq)
        return found

    def add_node(self, ms: int, seq: int, data: bytes, trimmed: bytes) -> Problems:
        """Add a node after checking every byte of it."""
        try:
            ids = validate(data, ms, seq)
        except CorruptionError as error:
            return self._unreadable(f"{error.problem} (byte {error.offset})")
        found = self._not_above((ms, seq))
        if trimmed and (wrong := sorted(trimmed_slots(trimmed) - tombstone_slots(data, ms, seq))):
            problem = f"slots {wrong[:5]} are marked as trimmed but are not tombstones"
            found.append(("SK113", problem))
        if self.length == 0:
            self.first = ids.first_live
        self.length += ids.live
        self.tombstones += ids.deleted
        self.last = ids.last_live
        self._previous = ids.last_slot
        return found

    def _unreadable(self, problem: str) -> Problems:
        self.damaged = True
        return [("SK110", problem)]

    def _not_above(self, key: Id) -> Problems:
        if self._previous is None or key > self._previous:
            return []
        return [("SK111", f"the node before it contains ID {StreamId(*self._previous)}")]


def walk_nodes(
    tables: Tables, stream: Stream, where: str, scope: Scope, facts: StreamFacts
) -> Iterator[Finding]:
    """SK110, SK111, SK113, SK114: each node is sound, has its key, is above the one before."""
    rows = (row for row in tables.walk(keys.NODES, stream.db_key) if len(row.key) == NODE_KEY_SIZE)
    following = next(rows, None)
    while (row := following) is not None:
        following = next(rows, None)
        deep = not scope.quick or facts.sealed_nodes == 0 or following is None
        try:
            problems = facts.add_sealed(row.key, row.value(), deep)
        except CorruptionError as error:
            facts.damaged = True
            problems = [("SK110", f"{error.where}: {error.problem}")]
        if problems:
            yield from _reported(where, keys.unpack_node_key(row.key)[1:], problems)
        if facts.sealed_nodes % _REPORT_EVERY == 0:
            scope.progress.advance(_REPORT_EVERY)
    if stream.has_tail():
        key = stream.tail_ms, stream.tail_seq
        problems = facts.add_node(*key, stream.tail_data(), stream.trimmed)
        yield from _reported(where, key, problems)
    scope.progress.streams += 1
    scope.progress.nodes += facts.sealed_nodes + stream.has_tail()


def _reported(where: str, key: Id, problems: Problems) -> Iterator[Finding]:
    for code, problem in problems:
        yield finding(code, f"{where} macro node {StreamId(*key)}", problem)


def check_record(where: str, record: StreamRecord, facts: StreamFacts) -> Iterator[Finding]:
    """SK101 to SK108: the counters of a record are those of its nodes, and fit each other."""
    first, live = StreamId(*record.first_id()), StreamId(*facts.last)
    last, deleted = StreamId(*record.last_id()), StreamId(*record.max_deleted_id())
    if record.length != facts.length:
        yield finding("SK101", where, f"length is {record.length}, counted {facts.length}")
    if first != facts.first:
        yield finding("SK102", where, f"first_id is {first}, found {StreamId(*facts.first)}")
    if record.last_live_id() != live:
        problem = f"last live ID is {StreamId(*record.last_live_id())}, found {live}"
        yield finding("SK103", where, problem)
    if live > last:
        yield finding("SK104", where, f"last_generated_id is {last}, found entry {live}")
    if record.entries_added < record.length:
        problem = f"entries_added is {record.entries_added}, the length is {record.length}"
        yield finding("SK105", where, problem)
    if deleted > last:
        problem = f"max_deleted_id is {deleted}, last_generated_id is {last}"
        yield finding("SK106", where, problem)
    stated = (record.sealed_nodes, record.sealed_bytes)
    counted = (facts.sealed_nodes, facts.sealed_bytes)
    if stated != counted:
        problem = f"the record states {stated[0]} sealed nodes of {stated[1]} bytes"
        yield finding("SK107", where, f"{problem}, counted {counted[0]} of {counted[1]} bytes")
    if record.tombstones != facts.tombstones:
        problem = f"the record states {record.tombstones} tombstones, counted {facts.tombstones}"
        yield finding("SK108", where, problem)


def check_stream(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    """Check one stream: its record, its nodes, and whether they agree."""
    where = stream_place(number, name)
    try:
        stream = stream_at(tables, number, name)
        if stream is None:
            return
        retention_of(stream.record.extension, where)
    except CorruptionError as error:
        yield finding("SK001", where, error.problem)
        return
    facts = StreamFacts()
    yield from walk_nodes(tables, stream, where, scope, facts)
    if not facts.damaged and tables.complete(keys.NODES):  # else that would only be said again
        yield from check_record(where, stream.record, facts)
