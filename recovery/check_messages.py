"""Checks of idempotent XADD: producers, their messages, and the order in which these came.

The stream record says under which number the rows stand. Memory is bounded by one row, and by the
numbers of all streams.

Entry IDs prove nothing here: a message may have become an entry that is gone, and after XSETID or
XIDMPRECORD a later message may have the lower ID.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from streamkeep.engine.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.stream import Stream, decode_stream
from streamkeep.engine.txn import Txn
from streamkeep.format.errors import CorruptionError
from streamkeep.format.extension import Idempotence, idempotence_of
from streamkeep.format.keys import (
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    PRODUCERS,
    STREAMS,
    TABLES,
    number_key,
    pack_number,
    unpack_number,
)
from streamkeep.format.producers import message_key, order_key, producer_prefix
from streamkeep.format.records import IDEMPOTENCE_ROWS
from streamkeep.recovery.catalogue import finding
from streamkeep.recovery.check_members import MemberKind, check_members
from streamkeep.recovery.check_rows import check_counter
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.rows import (
    MESSAGE_ORDER_SHAPE,
    MESSAGE_SHAPE,
    PRODUCER_SHAPE,
    Member,
    Rows,
    numbers_in,
)

_ROWS_OF_MESSAGES: Final = (PRODUCERS, IDEMPOTENCY, IDEMPOTENCY_ORDER)
_PRODUCER: Final = MemberKind("producer", PRODUCER_SHAPE, "SK251", "SK252", "SK253")


@dataclass(slots=True)
class MessageFacts:
    """What the rows of one stream really hold."""

    producers: int = 0
    tracked: int = 0


# --- all streams of the store -------------------------------------------------------------------


def check_message_numbers(txn: Txn) -> Iterator[Finding]:
    """SK262 to SK264: each number belongs to one stream, and no rows belong to none."""
    numbers: set[int] = set()
    complete = True
    for db_key, value in txn.cursor(STREAMS):
        try:
            stream = decode_stream(unpack_number(db_key), b"", value)
            used = _idempotence(stream).number
        except CorruptionError:
            complete = False  # reported by the checks of that stream
            continue
        if used in numbers:
            problem = f"another stream keeps its messages under the number {used}"
            yield finding("SK262", f"stream {stream.number}", problem)
        if used:
            numbers.add(used)
    yield from check_counter(txn, NEXT_IDEMPOTENCE, max(numbers, default=0))
    garbage = Rows(txn).garbage(IDEMPOTENCE_ROWS)
    for number in sorted(numbers & garbage):
        yield finding("SK263", f"messages {number}", "they are listed as garbage")
    if not complete:
        return  # what is left may belong to a stream that could not be read
    for table in _ROWS_OF_MESSAGES:
        for number in numbers_in(txn, table):
            if number not in numbers and number not in garbage:
                problem = f"rows of {TABLES[table].name} without a stream"
                yield finding("SK264", f"messages {number}", problem)


def _idempotence(stream: Stream) -> Idempotence:
    return idempotence_of(stream.record.extension, f"stream {stream.name!r}")


# --- one stream ---------------------------------------------------------------------------------


def check_messages(txn: Txn, number: int, name: bytes) -> Iterator[Finding]:
    """Check what one stream remembers of its producers."""
    value = txn.get(STREAMS, pack_number(number))
    if value is None:
        return  # SK012
    try:
        stream = decode_stream(number, name, value)
    except CorruptionError:
        return  # reported by check_stream
    where = f"stream {name!r}"
    state = _idempotence(stream)
    rows = Rows(txn)
    facts = MessageFacts()
    if state.number:
        prefix = pack_number(state.number)
        yield from check_members(rows, _PRODUCER, prefix, state.next_producer, where)
        for row in rows.under(PRODUCER_SHAPE, prefix):
            if isinstance(row, Member):
                facts.producers += 1
                yield from check_producer(txn, where, state, row)
        yield from check_by_message(rows, where, state)
        yield from check_by_order(rows, where, state, facts)
    if not rows.unreadable:  # what is left would only repeat what was said
        yield from check_counts(where, state, facts)


def check_producer(
    txn: Txn,
    where: str,
    state: Idempotence,
    producer: Member,
) -> Iterator[Finding]:
    """SK256, SK257, SK260: a producer counts its messages, which are not too many."""
    place = f"{where} producer {producer.name!r}"
    rows = Rows(txn)
    counted, highest = 0, -1
    prefix = producer_prefix(state.number, producer.number)
    for row in rows.under(MESSAGE_ORDER_SHAPE, prefix):
        counted += 1
        highest = row.message.order
    if rows.unreadable:
        return
    if producer.held != counted:
        yield finding("SK256", place, f"{producer.held} messages, counted {counted}")
    if not 1 <= counted <= state.maxsize:
        yield finding("SK257", place, f"{counted} messages, idmp-maxsize is {state.maxsize}")
    if producer.next_order <= highest:
        problem = f"the next message gets the order {producer.next_order}, found {highest}"
        yield finding("SK260", place, problem)


def check_by_message(rows: Rows, where: str, state: Idempotence) -> Iterator[Finding]:
    """SK258, SK259: each message stands under its key, and has its place in the order."""
    for row in rows.under(MESSAGE_SHAPE, pack_number(state.number)):
        message = row.message
        place = f"{where} message {message.iid!r} of producer number {row.producer}"
        if message_key(state.number, row.producer, message.iid) != row.db_key:
            yield finding("SK258", place, "it stands under the key of another message")
            continue
        order = order_key(state.number, row.producer, message.order)
        if rows.lacks(MESSAGE_ORDER_SHAPE, order):
            problem = f"no row of idempotency_order has its order {message.order}"
            yield finding("SK259", place, problem)


def check_by_order(
    rows: Rows, where: str, state: Idempotence, facts: MessageFacts
) -> Iterator[Finding]:
    """SK259, SK261: each place in the order is that of a message, of a producer that exists."""
    prefix = pack_number(state.number)
    previous = -1
    for row in rows.under(MESSAGE_ORDER_SHAPE, prefix):
        facts.tracked += 1
        message = row.message
        if row.producer != previous:
            previous = row.producer
            if rows.lacks(PRODUCER_SHAPE, number_key(prefix, previous)):
                place = f"{where} producer number {previous}"
                yield finding("SK261", place, "it has messages, but does not exist")
        db_key = message_key(state.number, row.producer, message.iid)
        place = f"{where} order {message.order} of producer number {row.producer}"
        if rows.lacks(MESSAGE_SHAPE, db_key):
            yield finding("SK259", place, f"the message {message.iid!r} does not exist")
            continue
        found = rows.get(MESSAGE_SHAPE, db_key)
        if found is not None and found.message != message:
            problem = f"the message {message.iid!r} has another order or entry"
            yield finding("SK259", place, problem)


def check_counts(where: str, state: Idempotence, facts: MessageFacts) -> Iterator[Finding]:
    """SK254, SK255: the stream counts producers and messages."""
    if state.producers != facts.producers:
        problem = f"pids-tracked is {state.producers}, counted {facts.producers}"
        yield finding("SK254", where, problem)
    if state.tracked != facts.tracked:
        problem = f"iids-tracked is {state.tracked}, counted {facts.tracked}"
        yield finding("SK255", where, problem)
