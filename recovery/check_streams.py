"""Checks of names, stream records and macro nodes.

Each stream is walked once; the walk yields what is wrong with its nodes and collects
`StreamFacts`, against which one small check per invariant then holds the record. Memory is
bounded by one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamkeep.engine.stream import Stream, decode_stream
from streamkeep.engine.txn import NEXT_STREAM, Txn
from streamkeep.format.checksum import open_row
from streamkeep.format.entry import MIN_ID, StreamId
from streamkeep.format.envelope import decode_envelope, trimmed_slots
from streamkeep.format.errors import CorruptionError
from streamkeep.format.keys import (
    KEYS,
    NODES,
    STREAMS,
    name_key,
    node_key,
    pack_number,
    unpack_node_key,
    unpack_number,
)
from streamkeep.format.node import tombstone_slots, validate
from streamkeep.format.records import STREAM_NODES, StreamRecord, decode_key_row
from streamkeep.recovery.catalogue import finding
from streamkeep.recovery.check_rows import check_counter
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.rows import Rows


@dataclass(slots=True)
class StreamFacts:
    """What the nodes of one stream really hold."""

    length: int = 0
    tombstones: int = 0
    sealed_nodes: int = 0
    sealed_bytes: int = 0
    first: StreamId = MIN_ID
    last: StreamId = MIN_ID
    highest: StreamId = MIN_ID  # of all slots, live or not
    damaged: bool = False  # a node could not be read, so counts are not comparable


def check_names(txn: Txn) -> Iterator[Finding]:
    """SK001, SK010 to SK012: every name leads to one stream, and every stream has one name."""
    owners: dict[int, bytes] = {}
    for db_key, value in txn.cursor(KEYS):
        where = f"key row {db_key!r}"
        try:
            number, name = decode_key_row(open_row(KEYS, db_key, value, where), where)
        except CorruptionError as error:
            yield finding("SK001", error.where, error.problem)
            continue
        if name_key(b"", name) != db_key:
            yield finding("SK010", where, f"it holds the name {name!r}")
        if number in owners:
            yield finding("SK011", where, f"stream {number} is {owners[number]!r} already")
        owners[number] = name
        if txn.get(STREAMS, pack_number(number)) is None:
            yield finding("SK012", f"stream {name!r}", f"stream number {number} has no record")


def check_orphans(txn: Txn) -> Iterator[Finding]:
    """SK002, SK013 to SK015, SK112: nothing belongs to a stream that does not exist."""
    named = set()
    for db_key, value in txn.cursor(KEYS):
        try:
            named.add(decode_key_row(open_row(KEYS, db_key, value, "key row"), "key row")[0])
        except CorruptionError:
            continue  # reported by check_names
    streams = set()
    for db_key in txn.cursor(STREAMS).iternext(keys=True, values=False):
        number = unpack_number(db_key)
        streams.add(number)
        if number not in named:
            yield finding("SK013", f"stream {number}", "no key row names it")
    yield from check_counter(txn, NEXT_STREAM, max(streams, default=0))
    garbage = Rows(txn).garbage(STREAM_NODES)
    for number in sorted(garbage & streams):
        yield finding("SK015", f"stream {number}", "its nodes are listed as garbage")
    cursor = txn.cursor(NODES)
    found = cursor.first()
    while found:  # from stream to stream, not from node to node
        number = unpack_node_key(cursor.key())[0]
        if number not in streams and number not in garbage:
            yield finding("SK112", f"stream {number}", "macro nodes without a stream record")
        found = cursor.set_range(node_key(number + 1, 0, 0))


def walk_nodes(txn: Txn, stream: Stream, facts: StreamFacts) -> Iterator[Finding]:
    """SK110, SK111, SK113, SK114: each node is sound, in its place, and above the one before."""
    previous: StreamId | None = None
    cursor = txn.cursor(NODES)
    found = cursor.set_range(node_key(stream.number, 0, 0))
    while found:
        number, ms, seq = unpack_node_key(cursor.key())
        if number != stream.number:
            break
        where = _node_place(stream, ms, seq)
        try:
            envelope = decode_envelope(cursor.value(), where)
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK110", where, error.problem)
        else:
            facts.sealed_nodes += 1
            facts.sealed_bytes += len(envelope.listpack)
            if (envelope.number, envelope.ms, envelope.seq) != (number, ms, seq):
                place = f"{envelope.ms}-{envelope.seq} of stream {envelope.number}"
                yield finding("SK114", where, f"its envelope says {place}")
            key = StreamId(ms, seq)
            yield from _check_node(where, key, envelope.listpack, envelope.trimmed, previous, facts)
            previous = facts.highest
        found = cursor.next()
    if stream.has_tail():
        key = StreamId(stream.tail_ms, stream.tail_seq)
        where = _node_place(stream, *key)
        yield from _check_node(where, key, stream.tail_data(), stream.trimmed, previous, facts)


def _check_node(
    where: str,
    key: StreamId,
    data: bytes,
    trimmed: bytes,
    previous: StreamId | None,
    facts: StreamFacts,
) -> Iterator[Finding]:
    """Check one node; add what it holds to the facts."""
    try:
        ids = validate(data, key.ms, key.seq)
    except CorruptionError as error:
        facts.damaged = True
        yield finding("SK110", where, f"{error.problem} (byte {error.offset})")
        return
    if previous is not None and key <= previous:
        yield finding("SK111", where, f"the node before holds {previous}")
    tombstones = tombstone_slots(data, key.ms, key.seq)
    wrong = sorted(trimmed_slots(trimmed) - tombstones)
    if wrong:
        yield finding("SK113", where, f"slots {wrong[:5]} are not tombstones")
    if facts.length == 0:
        facts.first = StreamId(*ids.first_live)
    facts.length += ids.live
    facts.tombstones += len(tombstones)
    facts.last = StreamId(*ids.last_live)
    facts.highest = StreamId(*ids.last_slot)


def _node_place(stream: Stream, ms: int, seq: int) -> str:
    return f"stream {stream.name!r} macro node {ms}-{seq}"


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


def check_stream(txn: Txn, number: int, name: bytes) -> Iterator[Finding]:
    """Check one stream: its record, its nodes, and one against the other."""
    where = f"stream {name!r}"
    value = txn.get(STREAMS, pack_number(number))
    if value is None:
        return  # SK012
    try:
        stream = decode_stream(number, name, value)
    except CorruptionError as error:
        yield finding("SK001", where, error.problem)
        return
    facts = StreamFacts()
    yield from walk_nodes(txn, stream, facts)
    if facts.damaged:
        return  # the counts of what is left would only repeat what was said
    for check in RECORD_CHECKS:
        yield from check(where, stream.record, facts)
