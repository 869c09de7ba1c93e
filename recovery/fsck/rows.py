"""Rows for the checks: table by table, in key order, one at a time; and the checks of single rows.

A `Shape` says how the rows of one table are parsed. `check_rows` reports every row that cannot be
parsed. All other checks read through `Rows`, which skips and counts such rows. So no problem is
reported twice, and a check knows whether its counts are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH, META_UUID
from streamkeep.engine.store.meta import META_CREATED, META_FORMAT
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.tables.manifest import NEXT_FILE, NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_GARBAGE, NEXT_STREAM
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.rows import group_records, meta_rows, producers, records
from streamkeep.format.segment import manifest
from streamkeep.format.segment.remote import META_REMOTE, decode_setting
from streamkeep.recovery.fsck.findings import Finding, finding, quoted
from streamkeep.recovery.pages.tree import Tables

_PREFIX_SIZE: Final = 8
_ID_SIZE: Final = 16
_WORD: Final = 10  # bits of a number that are its place in a word of `Numbers`
_IN_WORD: Final = (1 << _WORD) - 1
_GARBAGE_KINDS: Final = (records.STREAM_NODES, records.GROUP_ROWS, records.IDEMPOTENCE_ROWS)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Decode = Callable[[bytes, str], object]


class Shape(NamedTuple, Generic[T_co]):
    """How the rows of a table are parsed, from key, body and the place for errors."""

    table: int
    parse: Callable[[bytes, bytes, str], T_co]


class Member(NamedTuple):
    """A consumer of a group, or a producer of a stream."""

    number: int
    name: bytes
    held: int  # how many NACKs a consumer owns, or tracked messages a producer has
    next_order: int = 0  # order of a producer's next message
    seen_time: int = 0  # of a consumer, as the next one
    active_time: int = 0


class Garbage(NamedTuple):
    """Rows or a file that are being removed."""

    kind: int
    number: int
    path: str  # path of a file, relative to archive/


def _parse_consumer(db_key: bytes, body: bytes, where: str) -> Member | bytes | int:
    """Return a consumer; of a row under a number the name; of one of a lease the lease."""
    if keys.is_lease_key(db_key):
        return group_records.decode_lease(body, where)
    if not keys.is_name_key(db_key):
        return body
    one = group_records.decode_consumer(body, where)
    return Member(one.number, one.name, one.pending, 0, one.seen_time, one.active_time)


def _parse_producer(db_key: bytes, body: bytes, where: str) -> Member | bytes | int:
    """Return a producer; of a row under a number the name."""
    if not keys.is_name_key(db_key):
        return body
    producer, name = producers.decode_producer(body, where)
    return Member(producer.number, name, producer.tracked, producer.next_order)


def _parse_order(db_key: bytes, body: bytes, where: str) -> bytes:
    """Return the key of a page in `pel`."""
    if len(body) != _ID_SIZE:
        raise CorruptionError(where, f"a page key of {len(body)} bytes, expected {_ID_SIZE}")
    return db_key[:_PREFIX_SIZE] + body


def _parse_owned(db_key: bytes, body: bytes, where: str) -> bytes:
    """Return the key of a page in `pel`."""
    if body:
        raise CorruptionError(where, f"a row of {len(body)} bytes, expected an empty row")
    return db_key[:_PREFIX_SIZE] + db_key[-_ID_SIZE:]


def _parse_garbage(db_key: bytes, body: bytes, where: str) -> Garbage:
    kind, number = records.decode_garbage(body, where)
    path = ""
    if kind == records.ARCHIVE_FILE:
        path = records.decode_file_garbage(body, where)
    elif kind not in _GARBAGE_KINDS:
        raise CorruptionError(where, f"unknown kind of garbage {kind}")
    return Garbage(kind, number, path)


SHAPES: Final[list[Shape[Any]]] = []


def _shape(table: int, parse: Callable[[bytes, bytes, str], T]) -> Shape[T]:
    shape = Shape(table, parse)
    SHAPES.append(shape)
    return shape


def _body(table: int) -> Shape[bytes]:
    """Return the shape of rows that may have any bytes."""
    return _shape(table, lambda db_key, body, where: body)


def _decoded(table: int, decode: Callable[[bytes, str], T]) -> Shape[T]:
    """Return the shape of rows whose bodies say everything."""
    return _shape(table, lambda db_key, body, where: decode(body, where))


KEY_SHAPE: Final = _decoded(keys.KEYS, records.decode_key_row)
NAME_SHAPE: Final = _body(keys.NAMES)
GROUP_SHAPE: Final = _decoded(keys.GROUPS, group_records.decode_group)
CONSUMER_SHAPE: Final = _shape(keys.CONSUMERS, _parse_consumer)
PAGE_SHAPE: Final = _body(keys.PEL)
OWNED_SHAPE: Final = _shape(keys.CONSUMER_PEL, _parse_owned)
ORDER_SHAPE: Final = _shape(keys.PEL_ORDER, _parse_order)
PRODUCER_SHAPE: Final = _shape(keys.PRODUCERS, _parse_producer)
MESSAGE_SHAPE: Final = _decoded(keys.IDEMPOTENCY, producers.decode_message)
MESSAGE_ORDER_SHAPE: Final = _shape(keys.IDEMPOTENCY_ORDER, producers.decode_ordered)
GARBAGE_SHAPE: Final = _shape(keys.GARBAGE, _parse_garbage)
SEGMENT_SHAPE: Final = _shape(keys.SEGMENTS, manifest.decode_segment_record)
ERASURE_SHAPE: Final = _decoded(keys.ERASURES, manifest.decode_erasure)
_body(keys.ROWS)


def row_place(table: int, db_key: bytes) -> str:
    if table == keys.KEYS:
        return f"key row {quoted(db_key)}"
    return f"row {db_key.hex()} of {TABLES[table].name}"


def parse_row(shape: Shape[T], db_key: bytes, value: bytes) -> T:
    """Check the key and the checksum of a stored row and parse it; raise CorruptionError."""
    where = row_place(shape.table, db_key)
    keys.check_key(shape.table, db_key)
    return shape.parse(db_key, row_body(shape.table, db_key, value, where), where)


class Rows:
    """The readable rows of one snapshot; `unreadable` counts the other rows that were met."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.unreadable = 0

    def under(self, shape: Shape[T], prefix: bytes = b"") -> Iterator[tuple[bytes, T]]:
        """Yield key and content of the rows whose keys begin with `prefix`."""
        for row in self.tables.walk(shape.table, prefix):
            try:
                parsed = parse_row(shape, row.key, row.value())
            except CorruptionError:
                self.unreadable += 1
                continue
            yield row.key, parsed

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

    def garbage(self, kind: int) -> Numbers:
        """Return the numbers of all garbage of a kind."""
        return Numbers(row.number for _, row in self.under(GARBAGE_SHAPE) if row.kind == kind)


class Numbers:
    """A set of numbers. The store gives them one after the other, so each takes about a bit."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._words: dict[int, bytearray] = {}  # the bits of neighbours
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> bool:
        """Add a number; return whether it is new."""
        bits = self._words.get(number >> _WORD)
        if bits is None:
            bits = self._words[number >> _WORD] = bytearray(1 << _WORD - 3)
        at, mask = (number & _IN_WORD) >> 3, 1 << (number & 7)
        is_new = not bits[at] & mask
        bits[at] |= mask
        return is_new

    def __contains__(self, number: int) -> bool:
        bits = self._words.get(number >> _WORD)
        return bits is not None and bits[(number & _IN_WORD) >> 3] >> (number & 7) & 1 == 1

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in ascending order."""
        for word in sorted(self._words):
            bits = int.from_bytes(self._words[word], "little")
            while bits:  # not each place: a word of a hostile store has one number
                lowest = bits & -bits
                yield (word << _WORD) + lowest.bit_length() - 1
                bits ^= lowest


def numbers_in(tables: Tables, table: int) -> Iterator[int]:
    """Yield the numbers that the keys of a table begin with, each once, ascending."""
    start = b""
    while row := next(tables.walk(table, start=start), None):  # not from row to row
        prefix = row.key[:_PREFIX_SIZE]
        if len(prefix) < _PREFIX_SIZE:
            start = row.key + b"\0"
            continue
        number = int.from_bytes(prefix, "big")
        if number > keys.LAST_NUMBER:
            return  # damage, and so is every key after it: the checks of keys report it
        yield number
        start = keys.pack_number(number + 1)


# --- checks -------------------------------------------------------------------------------------

_COUNTERS: Final = (
    NEXT_STREAM,
    NEXT_GARBAGE,
    NEXT_GROUP,
    NEXT_IDEMPOTENCE,
    NEXT_SEQUENCE,
    NEXT_FILE,
)
_NEEDED: Final = (META_FORMAT, META_UUID, META_EPOCH)
_META: Final[dict[bytes, Decode]] = {
    META_FORMAT: records.decode_number,
    META_UUID: records.decode_uuid,
    META_EPOCH: records.decode_epoch,
    META_CREATED: records.decode_number,
    meta_rows.META_RECOVERY: lambda body, where: meta_rows.decode_recovery(body),
    meta_rows.META_BACKUP: meta_rows.decode_backup,
    meta_rows.META_LAST_BACKUP: meta_rows.decode_backup,
    meta_rows.META_STANDBY: meta_rows.decode_standby,
    META_REMOTE: decode_setting,
    meta_rows.META_FOLLOWING: meta_rows.decode_following,
    **dict.fromkeys(_COUNTERS, records.decode_counter),
}


def check_meta(tables: Tables) -> Iterator[Finding]:
    """SK002: every row of `meta` can be read, and no required row is missing."""
    for row in tables.walk(META):
        name = row.key
        where = f"meta {name.decode(errors='backslashreplace')}"
        try:
            check_meta_row(name, row_body(META, name, row.value(), where), where)
        except CorruptionError as error:
            if name not in _COUNTERS:  # `check_counter` reports these
                yield finding("SK002", where, error.problem)
    for name in _NEEDED:
        if tables.lacks(META, name):
            yield finding("SK002", f"meta {name.decode()}", "the row is missing")


def check_meta_row(name: bytes, body: bytes, where: str) -> None:
    """Raise CorruptionError unless a row of `meta` can be read; accept unknown names."""
    if name in _META:
        _META[name](body, where)
    elif name.startswith(meta_rows.BATCH_PREFIX):
        meta_rows.decode_batch(body, name)


def check_rows(tables: Tables) -> Iterator[Finding]:
    """SK001: every row of names, groups, messages, garbage and manifest can be read."""
    for shape in SHAPES:
        for row in tables.walk(shape.table):
            try:
                parse_row(shape, row.key, row.value())
            except CorruptionError as error:
                yield finding("SK001", row_place(shape.table, row.key), error.problem)


def check_garbage(tables: Tables) -> Iterator[Finding]:
    """SK014: the next number of a row of garbage is not in use."""
    numbers = (keys.unpack_number(db_key) for db_key, _ in Rows(tables).under(GARBAGE_SHAPE))
    yield from check_counter(tables, NEXT_GARBAGE, max(numbers, default=0))


def check_counter(
    tables: Tables, counter: bytes, highest: int, code: str = "SK014"
) -> Iterator[Finding]:
    """SK002, SK014, SK309: a counter of `meta` can be read, and is above all numbers in use."""
    where = f"meta {counter.decode()}"
    try:
        body = tables.get_row(META, counter, where)
        following = 1 if body is None else records.decode_counter(body, where)
    except CorruptionError as error:
        yield finding("SK002", where, error.problem)
        return
    if highest >= following and tables.complete(META):
        problem = f"the next number is {following}, but {highest} is in use"
        yield finding(code, where, problem)


# --- names and numbers: consumers of a group, and producers of a stream -------------------------


class MemberKind(NamedTuple):
    """Consumers or producers: the shape of their rows, and the codes of their findings.

    Both have two rows: one with the name as its key and the record, and one that maps the number
    to the name.
    """

    noun: str
    shape: Shape[Member | bytes | int]
    misplaced: str
    unmatched: str
    not_given: str


def check_members(
    rows: Rows, kind: MemberKind, prefix: bytes, following: int, where: str
) -> Iterator[Finding]:
    """SK221 to SK223, SK251 to SK253: the rows for names and for numbers agree.

    Args:
        following: the number that the next member would get.
    """
    for db_key, row in rows.under(kind.shape, prefix):
        if isinstance(row, bytes):
            yield from _check_number(rows, kind, prefix, db_key, row, where)
        elif isinstance(row, Member):
            place = f"{where} {kind.noun} {quoted(row.name)}"
            if keys.name_key(prefix, row.name) != db_key:
                yield finding(kind.misplaced, place, "the row has the key of another name")
                continue
            if not 0 < row.number < following:
                problem = f"the number is {row.number}, the next number is {following}"
                yield finding(kind.not_given, place, problem)
            by_number = keys.number_key(prefix, row.number)
            name = rows.get(kind.shape, by_number)
            if rows.lacks(kind.shape, by_number):
                yield finding(kind.unmatched, place, f"there is no row for number {row.number}")
            elif isinstance(name, bytes) and name != row.name:
                problem = f"number {row.number} has the name {quoted(name)}"
                yield finding(kind.unmatched, place, problem)


def _check_number(
    rows: Rows, kind: MemberKind, prefix: bytes, db_key: bytes, name: bytes, where: str
) -> Iterator[Finding]:
    number = int.from_bytes(db_key[len(prefix) + 1 :], "big")
    place = f"{where} {kind.noun} number {number}"
    by_name = keys.name_key(prefix, name)
    member = rows.get(kind.shape, by_name)
    if rows.lacks(kind.shape, by_name):
        problem = f"it has the name {quoted(name)}, which does not exist"
        yield finding(kind.unmatched, place, problem)
    elif isinstance(member, Member) and member.number != number:
        problem = f"it has the name {quoted(name)}, whose number is {member.number}"
        yield finding(kind.unmatched, place, problem)
