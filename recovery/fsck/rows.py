"""Parsed rows for the checks: table by table, in key order, one at a time.

A `Shape` says how the rows of one table are parsed. `check_rows` reports every row that cannot be
parsed. All other checks read through `Rows`, which skips and counts such rows. So no problem is
reported twice, and a check knows whether its counts are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import pack_id
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    ERASURES,
    GARBAGE,
    GROUPS,
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    LAST_NUMBER,
    PEL,
    PEL_ORDER,
    PRODUCERS,
    ROWS,
    SEGMENTS,
    TABLES,
    check_key,
    is_lease_key,
    is_name_key,
    pack_number,
    unpack_lease_key,
    unpack_node_key,
    unpack_number,
    unpack_owned_key,
)
from streamkeep.format.rows.group_records import (
    GroupRecord,
    decode_consumer,
    decode_group,
    decode_lease,
)
from streamkeep.format.rows.producers import (
    Message,
    decode_message,
    decode_ordered,
    decode_producer,
    unpack_order_key,
)
from streamkeep.format.rows.records import (
    ARCHIVE_FILE,
    GROUP_ROWS,
    IDEMPOTENCE_ROWS,
    STREAM_NODES,
    decode_file_garbage,
    decode_garbage,
)
from streamkeep.format.segment.manifest import decode_erasure, decode_segment_record
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.pages.tree import Tables

_PREFIX_SIZE: Final = 8
_ID_SIZE: Final = 16
_GARBAGE_KINDS: Final = (STREAM_NODES, GROUP_ROWS, IDEMPOTENCE_ROWS)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Shape(NamedTuple, Generic[T_co]):
    """How the rows of a table are parsed, from key, body and the place for errors."""

    table: int
    parse: Callable[[bytes, bytes, str], T_co]


# --- rows ---------------------------------------------------------------------------------------


class GroupRow(NamedTuple):
    """A group of a stream."""

    db_key: bytes
    stream: int
    record: GroupRecord


class Member(NamedTuple):
    """A consumer of a group, or a producer of a stream."""

    db_key: bytes
    number: int
    name: bytes
    held: int  # how many NACKs a consumer owns, or tracked messages a producer has
    next_order: int  # order of a producer's next message


class NameOf(NamedTuple):
    """The row that maps the number of a member to its name."""

    number: int
    name: bytes


class LeaseRow(NamedTuple):
    """The row of a lease: from which update counter on a consumer was given entries under it."""

    consumer: int
    order: int
    lease: int


class PageRow(NamedTuple):
    """A NACK page, with the ID in its key."""

    db_key: bytes
    ms: int
    seq: int
    data: bytes


class OrderRow(NamedTuple):
    """The page with the NACK of an order key; `page_key` is a key of `pel`."""

    order_key: bytes
    page_key: bytes


class OwnedRow(NamedTuple):
    """A consumer owns NACKs of a page; `page_key` is a key of `pel`."""

    consumer: int
    page_key: bytes


class MessageRow(NamedTuple):
    """A tracked message."""

    db_key: bytes
    producer: int
    message: Message


class GarbageRow(NamedTuple):
    """Rows or a file that are being removed."""

    row_number: int
    kind: int
    number: int
    path: str  # path of a file, relative to archive/


class ErasureRow(NamedTuple):
    """An erased entry."""

    stream_number: int
    ms: int
    seq: int
    time_ms: int


# --- parsing ------------------------------------------------------------------------------------


def _parse_group(db_key: bytes, body: bytes, where: str) -> GroupRow:
    return GroupRow(db_key, unpack_number(db_key[:_PREFIX_SIZE]), decode_group(body, where))


def _parse_name_of(db_key: bytes, body: bytes) -> NameOf:
    return NameOf(int.from_bytes(db_key[_PREFIX_SIZE + 1 :], "big"), body)


def _parse_consumer(db_key: bytes, body: bytes, where: str) -> Member | NameOf | LeaseRow:
    if is_lease_key(db_key):
        return LeaseRow(*unpack_lease_key(db_key), decode_lease(body, where))
    if not is_name_key(db_key):
        return _parse_name_of(db_key, body)
    consumer = decode_consumer(body, where)
    return Member(db_key, consumer.number, consumer.name, consumer.pending, 0)


def _parse_producer(db_key: bytes, body: bytes, where: str) -> Member | NameOf:
    if not is_name_key(db_key):
        return _parse_name_of(db_key, body)
    producer, name = decode_producer(body, where)
    return Member(db_key, producer.number, name, producer.tracked, producer.next_order)


def _parse_page(db_key: bytes, body: bytes, where: str) -> PageRow:
    _, ms, seq = unpack_node_key(db_key)
    return PageRow(db_key, ms, seq, body)


def _parse_order(db_key: bytes, body: bytes, where: str) -> OrderRow:
    if len(body) != _ID_SIZE:
        raise CorruptionError(where, f"a page key of {len(body)} bytes, expected {_ID_SIZE}")
    return OrderRow(db_key[_PREFIX_SIZE:], db_key[:_PREFIX_SIZE] + body)


def _parse_owned(db_key: bytes, body: bytes, where: str) -> OwnedRow:
    group, consumer, ms, seq = unpack_owned_key(db_key)
    if body:
        raise CorruptionError(where, f"a row of {len(body)} bytes, expected an empty row")
    return OwnedRow(consumer, pack_number(group) + pack_id(ms, seq))


def _parse_message(db_key: bytes, body: bytes, where: str) -> MessageRow:
    producer = int.from_bytes(db_key[_PREFIX_SIZE : _PREFIX_SIZE + 4], "big")
    return MessageRow(db_key, producer, decode_message(body, where))


def _parse_message_order(db_key: bytes, body: bytes, where: str) -> MessageRow:
    _, producer, _ = unpack_order_key(db_key)
    return MessageRow(db_key, producer, decode_ordered(db_key, body, where))


def _parse_garbage(db_key: bytes, body: bytes, where: str) -> GarbageRow:
    kind, number = decode_garbage(body, where)
    path = ""
    if kind == ARCHIVE_FILE:
        path = decode_file_garbage(body, where)
    elif kind not in _GARBAGE_KINDS:
        raise CorruptionError(where, f"unknown kind of garbage {kind}")
    return GarbageRow(unpack_number(db_key), kind, number, path)


def _parse_stored(db_key: bytes, body: bytes, where: str) -> bytes:
    return body


def _parse_erasure(db_key: bytes, body: bytes, where: str) -> ErasureRow:
    return ErasureRow(*unpack_node_key(db_key), decode_erasure(body, where))


GROUP_SHAPE: Final = Shape(GROUPS, _parse_group)
CONSUMER_SHAPE: Final = Shape(CONSUMERS, _parse_consumer)
PAGE_SHAPE: Final = Shape(PEL, _parse_page)
OWNED_SHAPE: Final = Shape(CONSUMER_PEL, _parse_owned)
ORDER_SHAPE: Final = Shape(PEL_ORDER, _parse_order)
PRODUCER_SHAPE: Final = Shape(PRODUCERS, _parse_producer)
MESSAGE_SHAPE: Final = Shape(IDEMPOTENCY, _parse_message)
MESSAGE_ORDER_SHAPE: Final = Shape(IDEMPOTENCY_ORDER, _parse_message_order)
GARBAGE_SHAPE: Final = Shape(GARBAGE, _parse_garbage)
SEGMENT_SHAPE: Final = Shape(SEGMENTS, decode_segment_record)
ERASURE_SHAPE: Final = Shape(ERASURES, _parse_erasure)
STORED_SHAPE: Final = Shape(ROWS, _parse_stored)

SHAPES: Final[tuple[Shape[object], ...]] = (
    GROUP_SHAPE,
    CONSUMER_SHAPE,
    PAGE_SHAPE,
    OWNED_SHAPE,
    ORDER_SHAPE,
    PRODUCER_SHAPE,
    MESSAGE_SHAPE,
    MESSAGE_ORDER_SHAPE,
    GARBAGE_SHAPE,
    SEGMENT_SHAPE,
    ERASURE_SHAPE,
    STORED_SHAPE,
)


def row_place(table: int, db_key: bytes) -> str:
    """Return the name of a row in findings."""
    return f"row {db_key.hex()} of {TABLES[table].name}"


def parse_row(shape: Shape[T], db_key: bytes, value: bytes) -> T:
    """Check the key and the checksum of a stored row and parse it; raise CorruptionError."""
    where = row_place(shape.table, db_key)
    check_key(shape.table, db_key)
    return shape.parse(db_key, open_row(shape.table, db_key, value, where), where)


# --- reading ------------------------------------------------------------------------------------


class Rows:
    """The readable rows of one snapshot; `unreadable` counts the other rows that were met."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.unreadable = 0

    def under(self, shape: Shape[T], prefix: bytes = b"") -> Iterator[T]:
        """Yield the rows whose keys begin with `prefix`."""
        for one in self.tables.walk(shape.table, prefix):
            try:
                row = parse_row(shape, one.key, one.value())
            except CorruptionError:
                self.unreadable += 1
                continue
            yield row

    def get(self, shape: Shape[T], db_key: bytes) -> T | None:
        """Return the row with a key; None if it is missing or cannot be read."""
        try:
            value = self.tables.get(shape.table, db_key)
            return None if value is None else parse_row(shape, db_key, value)
        except CorruptionError:
            self.unreadable += 1
            return None

    def lacks(self, shape: Shape[object], db_key: bytes) -> bool:
        """Return whether there is certainly no row with a key, readable or not."""
        return self.tables.lacks(shape.table, db_key)

    def all_of(self, *tables: int) -> bool:
        """Return whether all rows met so far and all pages of these tables can be read."""
        return self.unreadable == 0 and all(map(self.tables.complete, tables))

    def garbage(self, kind: int) -> SortedPairs:
        """Return the numbers of all garbage of a kind."""
        numbers = SortedPairs()
        for row in self.under(GARBAGE_SHAPE):
            if row.kind == kind:
                numbers.add(row.number)
        return numbers


def numbers_in(tables: Tables, table: int) -> Iterator[int]:
    """Yield the numbers that the keys of a table begin with, each once, ascending."""
    start = b""
    while row := next(tables.walk(table, start=start), None):  # not from row to row
        prefix = row.key[:_PREFIX_SIZE]
        if len(prefix) < _PREFIX_SIZE:
            start = row.key + b"\0"
            continue
        number = int.from_bytes(prefix, "big")
        if number > LAST_NUMBER:
            return  # damage, and so is every key after it: the checks of keys report it
        yield number
        start = pack_number(number + 1)
