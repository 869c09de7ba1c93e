"""Checks of idempotent XADD: producers, their messages, and the order of the messages.

The stream record contains the number under which the rows are stored. Needs memory for one row.

Entry IDs are not checked: the entry of a message may have been deleted, and after XSETID or
XIDMPRECORD a later message may have a lower ID.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.txn.stream import Stream, decode_stream
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.rows.extension import Idempotence, idempotence_of
from streamkeep.format.rows.producers import message_key, order_key, producer_prefix
from streamkeep.format.rows.records import IDEMPOTENCE_ROWS
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import Finding, Scope, finding, quoted
from streamkeep.recovery.fsck.rows import Member, MemberKind, Numbers, Rows, check_members
from streamkeep.recovery.fsck.streams import stream_place
from streamkeep.recovery.pages.tree import Tables

_ROWS_OF_MESSAGES: Final = (keys.PRODUCERS, keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER)
_PRODUCER: Final = MemberKind("producer", shapes.PRODUCER_SHAPE, "SK251", "SK252", "SK253")


# --- all streams of the store -------------------------------------------------------------------


def check_message_numbers(tables: Tables) -> Iterator[Finding]:
    """SK262 to SK264: each number belongs to one stream, and all rows belong to a stream."""
    known = Numbers()
    readable = True
    highest = 0
    for row in tables.walk(keys.STREAMS):
        try:
            stream = decode_stream(keys.unpack_number(row.key), b"", row.value())
            used = _idempotence(stream).number
        except CorruptionError:
            readable = False  # reported by the checks of that stream
            continue
        if used and not known.add(used):
            problem = f"another stream stores its messages under the number {used}"
            yield finding("SK262", f"stream {stream.number}", problem)
        highest = max(highest, used)
    yield from shapes.check_counter(tables, NEXT_IDEMPOTENCE, highest)
    garbage = Rows(tables).garbage(IDEMPOTENCE_ROWS)
    for number in garbage:
        if number in known:
            yield finding("SK263", f"messages {number}", "the rows are listed as garbage")
    if not readable or not tables.complete(keys.STREAMS) or not tables.complete(keys.GARBAGE):
        return  # the other rows may belong to a stream that could not be read
    for table in _ROWS_OF_MESSAGES:
        for number in shapes.numbers_in(tables, table):
            if number not in known and number not in garbage:
                problem = f"rows of {keys.TABLES[table].name} without a stream"
                yield finding("SK264", f"messages {number}", problem)


def _idempotence(stream: Stream) -> Idempotence:
    return idempotence_of(stream.record.extension, f"stream {quoted(stream.name)}")


# --- one stream ---------------------------------------------------------------------------------


def check_messages(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    try:
        value = tables.get(keys.STREAMS, keys.pack_number(number))
        if value is None:
            return  # `check_names` reports it: SK012
        stream = decode_stream(number, name or b"", value)
    except CorruptionError:
        return  # reported by check_stream
    where = stream_place(number, name)
    state = _idempotence(stream)
    rows = Rows(tables)
    producers = tracked = 0
    if state.number:
        prefix = keys.pack_number(state.number)
        yield from check_members(rows, _PRODUCER, prefix, state.next_producer, where)
        for _, row in rows.under(shapes.PRODUCER_SHAPE, prefix):
            if isinstance(row, Member):
                producers += 1
                yield from check_producer(rows, where, state, row)
        yield from check_by_message(rows, where, state)
        for _ in rows.under(shapes.MESSAGE_ORDER_SHAPE, prefix):
            tracked += 1
        yield from check_by_order(rows, where, state)
    if not rows.all_of(*_ROWS_OF_MESSAGES):
        return  # counts would only repeat that rows are damaged
    if state.producers != producers:
        problem = f"pids-tracked is {state.producers}, counted {producers}"
        yield finding("SK254", where, problem)
    if state.tracked != tracked:
        yield finding("SK255", where, f"iids-tracked is {state.tracked}, counted {tracked}")


def check_producer(
    rows: Rows, where: str, state: Idempotence, producer: Member
) -> Iterator[Finding]:
    """SK256, SK257, SK260: the counters of a producer match its messages; they are not too many."""
    place = f"{where} producer {quoted(producer.name)}"
    counted, highest, before = 0, -1, rows.unreadable
    prefix = producer_prefix(state.number, producer.number)
    for _, message in rows.under(shapes.MESSAGE_ORDER_SHAPE, prefix):
        counted += 1
        highest = message.order
    if rows.unreadable > before or not rows.tables.complete(keys.IDEMPOTENCY_ORDER):
        return
    if producer.held != counted:
        yield finding("SK256", place, f"{producer.held} messages, counted {counted}")
    if not 1 <= counted <= state.maxsize:
        yield finding("SK257", place, f"{counted} messages, idmp-maxsize is {state.maxsize}")
    if producer.next_order <= highest:
        problem = f"the next order is {producer.next_order}, found {highest}"
        yield finding("SK260", place, problem)


def check_by_message(rows: Rows, where: str, state: Idempotence) -> Iterator[Finding]:
    """SK258, SK259: each message has its own key, and a row in `idempotency_order`."""
    for db_key, message in rows.under(shapes.MESSAGE_SHAPE, keys.pack_number(state.number)):
        producer = _producer_in(db_key)
        place = f"{where} message {quoted(message.iid)} of producer number {producer}"
        order = order_key(state.number, producer, message.order)
        if message_key(state.number, producer, message.iid) != db_key:
            yield finding("SK258", place, "the row has the key of another message")
        elif rows.lacks(shapes.MESSAGE_ORDER_SHAPE, order):
            problem = f"idempotency_order has no row for its order {message.order}"
            yield finding("SK259", place, problem)


def check_by_order(rows: Rows, where: str, state: Idempotence) -> Iterator[Finding]:
    """SK259, SK261: each row in the order has a message, of a producer that exists."""
    prefix = keys.pack_number(state.number)
    previous = -1
    for db_key, message in rows.under(shapes.MESSAGE_ORDER_SHAPE, prefix):
        producer = _producer_in(db_key)
        if producer != previous and rows.lacks(
            shapes.PRODUCER_SHAPE, keys.number_key(prefix, producer)
        ):
            place = f"{where} producer number {producer}"
            yield finding("SK261", place, "it does not exist, but has messages")
        previous = producer
        by_message = message_key(state.number, producer, message.iid)
        place = f"{where} order {message.order} of producer number {producer}"
        found = rows.get(shapes.MESSAGE_SHAPE, by_message)
        if rows.lacks(shapes.MESSAGE_SHAPE, by_message):
            yield finding("SK259", place, f"the message {quoted(message.iid)} does not exist")
        elif found is not None and found != message:
            problem = f"the message {quoted(message.iid)} has another order or entry"
            yield finding("SK259", place, problem)


def _producer_in(db_key: bytes) -> int:
    return int.from_bytes(db_key[8:12], "big")
