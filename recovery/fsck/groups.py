"""Checks of consumer groups and of idempotent XADD: what has numbers of its own beside a stream.

Groups: names and numbers, pending entries, and the two indexes of the PEL.

1. One walk over the pages of a group yields findings about them and collects `GroupFacts`.
2. The group record and its consumers are compared with these facts.
3. Each row of the two indexes is compared with the page that it names.

Needs memory for one page, and for the consumers of one group.

States that Redis allows are not findings. last_delivered_id may be any ID (XGROUP SETID),
entries_read may be above entries_added (in dumps of older versions), and a pending ID may be above
last_delivered_id (SETID, FORCE), may be deleted from the stream, and may even be above
last_generated_id, because XSETID may lower it in an empty stream.

Idempotent XADD: producers, their messages, and the order of the messages. The stream record
contains the number under which the rows are stored. Needs memory for one row. Entry IDs are not
checked: the entry of a message may have been deleted, and after XSETID or XIDMPRECORD a later
message may have a lower ID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.txn.stream import Stream, decode_stream
from streamkeep.format.core import keys
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id, unpack_id
from streamkeep.format.rows import nacks
from streamkeep.format.rows.extension import Idempotence, idempotence_of
from streamkeep.format.rows.group_records import UNKNOWN, GroupRecord
from streamkeep.format.rows.producers import message_key, order_key, producer_prefix
from streamkeep.format.rows.records import GROUP_ROWS, IDEMPOTENCE_ROWS
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import Finding, Scope, finding, guarded, quoted
from streamkeep.recovery.fsck.rows import Member, MemberKind, Numbers, Rows, check_members
from streamkeep.recovery.fsck.streams import stream_at, stream_place
from streamkeep.recovery.pages.tree import Tables

_ROWS_OF_GROUPS: Final = (keys.CONSUMERS, keys.PEL, keys.CONSUMER_PEL, keys.PEL_ORDER)
_ROWS_OF_MESSAGES: Final = (keys.PRODUCERS, keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER)
_CONSUMER: Final = MemberKind("consumer", shapes.CONSUMER_SHAPE, "SK221", "SK222", "SK223")
_PRODUCER: Final = MemberKind("producer", shapes.PRODUCER_SHAPE, "SK251", "SK252", "SK253")
_NUMBER_SIZE: Final = 8


@dataclass(slots=True)
class GroupFacts:
    """Facts counted over the pages of one group."""

    owned: Counter[int] = field(default_factory=Counter)  # NACKs by the number of their consumer
    highest: Id | None = None
    highest_order: int = -1  # the highest update counter
    damaged: bool = False  # a page could not be read, so the counts are incomplete


def page_id(page_key: bytes) -> Id:
    """Return the ID in the key of a NACK page; 0-0 for the NACKs in the group's own row."""
    return unpack_id(page_key[_NUMBER_SIZE:]) if page_key else (0, 0)


def index_rows(page_key: bytes, page: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield table, key and body of the rows of both indexes that a NACK page must have."""
    group = keys.unpack_number(page_key[:_NUMBER_SIZE])
    yield (
        keys.PEL_ORDER,
        keys.pack_number(group) + nacks.first_order_key(page),
        page_key[_NUMBER_SIZE:],
    )
    for consumer in sorted(nacks.owners_of(page)):
        yield keys.CONSUMER_PEL, keys.owned_key(group, consumer, *page_id(page_key)), b""


# --- all groups of the store --------------------------------------------------------------------


def check_group_numbers(tables: Tables) -> Iterator[Finding]:
    """SK202 to SK206: names, numbers and streams of groups; all rows belong to a group."""
    rows = Rows(tables)
    known = Numbers()
    highest = 0
    for db_key, record in rows.under(shapes.GROUP_SHAPE):
        prefix = db_key[:_NUMBER_SIZE]
        stream = keys.unpack_number(prefix)
        where = f"stream {stream} group {quoted(record.name)}"
        if keys.name_key(prefix, record.name) != db_key:
            yield finding("SK202", where, "the row has the key of another name")
        if tables.lacks(keys.STREAMS, prefix):
            yield finding("SK203", where, f"stream {stream} does not exist")
        if not known.add(record.number):
            problem = f"two groups have the number {record.number}"
            yield finding("SK204", f"stream {stream}", problem)
        highest = max(highest, record.number)
    yield from shapes.check_counter(tables, NEXT_GROUP, highest)
    readable = rows.all_of(keys.GROUPS)
    yield from _check_owned(tables, known, readable, GROUP_ROWS, "SK205", _ROWS_OF_GROUPS, "SK206")


def _check_owned(
    tables: Tables,
    known: Numbers,
    readable: bool,
    kind: int,
    listed: str,
    owned: tuple[int, ...],
    orphaned: str,
) -> Iterator[Finding]:
    """SK205, SK206, SK263, SK264: rows under a number have an owner, or else are garbage.

    Args:
        readable: `known` has all numbers that have an owner.
    """
    rows = Rows(tables)
    noun = "group" if kind == GROUP_ROWS else "messages"
    garbage = rows.garbage(kind)
    for number in garbage:
        if number in known:
            yield finding(listed, f"{noun} {number}", "the rows are listed as garbage")
    if not readable or not rows.all_of(keys.GARBAGE):
        return  # the other rows may belong to an owner that could not be read
    for table in owned:
        for number in shapes.numbers_in(tables, table):
            if number not in known and number not in garbage:
                problem = f"rows of {keys.TABLES[table].name} without an owner"
                yield finding(orphaned, f"{noun} {number}", problem)


# --- one group ----------------------------------------------------------------------------------


def check_groups(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    for _, record in Rows(tables).under(shapes.GROUP_SHAPE, keys.pack_number(number)):
        where = f"{stream_place(number, name)} group {quoted(record.name)}"
        yield from guarded(check_group(tables, where, record))


def check_group(tables: Tables, where: str, record: GroupRecord) -> Iterator[Finding]:
    """Check one group: its consumers, its pages, its record, its indexes."""
    rows = Rows(tables)
    prefix = keys.pack_number(record.number)
    yield from check_members(rows, _CONSUMER, prefix, record.next_consumer, where)
    found = rows.under(shapes.CONSUMER_SHAPE, prefix)
    members = sorted(row for _, row in found if isinstance(row, Member))
    known = {member.number for member in members} if rows.all_of(keys.CONSUMERS) else None
    facts = GroupFacts()
    yield from walk_pages(rows, where, record, known, facts)
    yield from check_leases(rows, where, record, known)
    if facts.damaged or not rows.all_of(*_ROWS_OF_GROUPS):
        return  # counts without the damaged rows would only repeat that they are damaged
    yield from check_record(where, record, facts)
    if record.consumers != len(members):
        yield finding("SK209", where, f"{record.consumers} consumers, counted {len(members)}")
    for member in members:
        if member.held != facts.owned[member.number]:
            problem = f"pending is {member.held}, counted {facts.owned[member.number]}"
            yield finding("SK210", f"{where} consumer {quoted(member.name)}", problem)
    yield from check_indexes(rows, where, prefix)


def pages_of(
    under: Callable[[shapes.Shape[bytes], bytes], Iterator[tuple[bytes, bytes]]],
    record: GroupRecord,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and NACKs of the pages of a group: the inline one, with the key b"", first."""
    if record.inline_nacks:
        yield b"", record.inline_nacks
    yield from under(shapes.PAGE_SHAPE, keys.pack_number(record.number))


def walk_pages(
    rows: Rows, where: str, record: GroupRecord, known: set[int] | None, facts: GroupFacts
) -> Iterator[Finding]:
    """SK201, SK211 to SK214, SK231, SK233: each page is sound, in order, and indexed.

    Args:
        known: numbers of the consumers; None if some cannot be read.
    """
    for page_key, page in pages_of(rows.under, record):
        if page_key and record.inline_nacks:
            facts.damaged = True
            yield finding("SK213", where, "there are NACKs in its row, and in pages as well")
            return
        first = StreamId(*page_id(page_key))
        place = f"{where} NACK page {first}" if page_key else f"{where} inline NACKs"
        try:
            found = nacks.examine_page(page, *first)
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK211", place, error.problem)
            continue
        if facts.highest is not None and first <= facts.highest:
            yield finding("SK212", place, f"the page before it contains ID {facts.highest}")
        facts.owned.update(found.owners)
        facts.highest = StreamId(*found.last)
        facts.highest_order = max(facts.highest_order, found.highest_order)
        yield from _check_nacks(where, page, found, known)
        if page_key:
            yield from _check_indexed(rows, place, page_key, page)


def _check_nacks(
    where: str, page: bytes, found: nacks.PageFacts, known: set[int] | None
) -> Iterator[Finding]:
    """SK201, SK214: owners exist; no ordering time is before the delivery time."""
    missing = set() if known is None else found.owners.keys() - known - {0}
    for index in range(nacks.count_nacks(page) if missing else 0):
        nack = nacks.decode_nack(page, index)
        if nack.consumer in missing:
            problem = f"consumer number {nack.consumer} does not exist"
            yield finding("SK201", f"{where} pel {nack.ms}-{nack.seq}", problem)
    for nack in found.misplaced:
        time, sorted_by = nack.delivery_time, nacks.order_time(nack.order_key)
        problem = f"the delivery time is {time}, the ordering time is {sorted_by}"
        yield finding("SK214", f"{where} pel {nack.ms}-{nack.seq}", problem)


def _check_indexed(rows: Rows, where: str, page_key: bytes, page: bytes) -> Iterator[Finding]:
    """SK231, SK233: both indexes have rows for a page."""
    for table, db_key, _ in index_rows(page_key, page):
        if table == keys.CONSUMER_PEL:
            if rows.lacks(shapes.OWNED_SHAPE, db_key):
                problem = f"consumer_pel has no row for it and consumer number {_owner(db_key)}"
                yield finding("SK233", where, problem)
            continue
        named = rows.get(shapes.ORDER_SHAPE, db_key)
        if named is None:
            lacking = rows.lacks(shapes.ORDER_SHAPE, db_key)
        else:  # another page with the same earliest order; or the row is wrong, which is SK232
            lacking = named != page_key and _is_right(rows, db_key, named)
        if lacking:
            yield finding("SK231", where, "pel_order has no row for its earliest NACK")


def _is_right(rows: Rows, db_key: bytes, page_key: bytes) -> bool:
    """Return whether the row of an index names a page that has what it says."""
    page = rows.get(shapes.PAGE_SHAPE, page_key)
    with suppress(CorruptionError):  # `walk_pages` reports it
        return page is not None and any(db_key == key for _, key, _ in index_rows(page_key, page))
    return False


def _owner(db_key: bytes) -> int:
    return keys.unpack_owned_key(db_key)[1]


def check_indexes(rows: Rows, where: str, prefix: bytes) -> Iterator[Finding]:
    """SK232, SK234: each row of an index names a page that has what it says."""
    for shape in (shapes.ORDER_SHAPE, shapes.OWNED_SHAPE):
        for db_key, page_key in rows.under(shape, prefix):
            if _is_right(rows, db_key, page_key):
                continue
            there = StreamId(*page_id(page_key))
            if shape is shapes.ORDER_SHAPE:
                place = f"{where} pel_order {db_key[_NUMBER_SIZE:].hex()}"
                yield finding("SK232", place, f"not the earliest NACK of a page {there}")
            else:
                problem = f"consumer number {_owner(db_key)} owns no NACK of such a page"
                yield finding("SK234", f"{where} consumer_pel {there}", problem)


def check_record(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK207, SK208, SK215, SK216: the counts of a group; the next update counter is not in use."""
    pending, nacked = facts.owned.total(), facts.owned[0]
    if record.pending != pending:
        yield finding("SK207", where, f"pending is {record.pending}, counted {pending}")
    if record.nacked != nacked:
        yield finding("SK208", where, f"{record.nacked} unowned NACKs, counted {nacked}")
    if record.next_order <= facts.highest_order:
        problem = f"the next update counter is {record.next_order}, found {facts.highest_order}"
        yield finding("SK215", where, problem)
    if record.entries_read < UNKNOWN:
        problem = f"entries_read is {record.entries_read}, expected at least {UNKNOWN}"
        yield finding("SK216", where, problem)


def check_leases(
    rows: Rows, where: str, record: GroupRecord, known: set[int] | None
) -> Iterator[Finding]:
    """SK224: the row of a lease belongs to a consumer and to deliveries that were made."""
    for db_key, _ in rows.under(
        shapes.CONSUMER_SHAPE, keys.leases_prefix(keys.pack_number(record.number))
    ):
        if not keys.is_lease_key(db_key):
            continue
        consumer, order = keys.unpack_lease_key(db_key)
        place = f"{where} consumer number {consumer}"
        if known is not None and consumer not in known:
            yield finding("SK224", place, "it has a lease, but does not exist")
        elif order > record.next_order:
            problem = f"a lease from update counter {order} on, the next one is {record.next_order}"
            yield finding("SK224", place, problem)


# --- idempotent XADD ----------------------------------------------------------------------------


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
    readable = readable and tables.complete(keys.STREAMS)
    owned = _ROWS_OF_MESSAGES
    yield from _check_owned(tables, known, readable, IDEMPOTENCE_ROWS, "SK263", owned, "SK264")


def _idempotence(stream: Stream) -> Idempotence:
    return idempotence_of(stream.record.extension, f"stream {quoted(stream.name)}")


def check_messages(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    try:
        stream = stream_at(tables, number, name)
    except CorruptionError:
        return  # reported by check_stream
    if stream is None:
        return
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
