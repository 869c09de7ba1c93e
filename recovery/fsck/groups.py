"""Checks of consumer groups: names and numbers, pending entries, and the two indexes of the PEL.

1. One walk over the pages of a group yields findings about them and collects `GroupFacts`.
2. The group record is compared with these facts.
3. More walks count the NACKs of each consumer, for `_COUNTED` consumers at a time.
4. Each row of the two indexes is compared with the page that it names.

Needs memory for one page and for those counts.

States that Redis allows are not findings. last_delivered_id may be any ID (XGROUP SETID),
entries_read may be above entries_added (in dumps of older versions), and a pending ID may be above
last_delivered_id (SETID, FORCE), may be deleted from the stream, and may even be above
last_generated_id, because XSETID may lower it in an empty stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GARBAGE,
    GROUPS,
    PEL,
    PEL_ORDER,
    STREAMS,
    TABLES,
    leases_prefix,
    name_key,
    number_key,
    owned_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.rows.group_records import UNKNOWN, GroupRecord
from streamkeep.format.rows.nacks import (
    PageFacts,
    count_nacks,
    count_owners,
    decode_nack,
    examine_page,
    first_order_key,
    order_time,
    owners_of,
    owns,
)
from streamkeep.format.rows.records import GROUP_ROWS
from streamkeep.recovery.fsck.catalogue import finding, guarded
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.members import MemberKind, check_members
from streamkeep.recovery.fsck.progress import Scope
from streamkeep.recovery.fsck.rows import (
    CONSUMER_SHAPE,
    GROUP_SHAPE,
    ORDER_SHAPE,
    OWNED_SHAPE,
    PAGE_SHAPE,
    LeaseRow,
    Member,
    NameOf,
    PageRow,
    Rows,
    numbers_in,
)
from streamkeep.recovery.fsck.single_rows import check_counter
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.fsck.streams import stream_place
from streamkeep.recovery.pages.tree import Tables

_ROWS_OF_GROUPS: Final = (CONSUMERS, PEL, CONSUMER_PEL, PEL_ORDER)
_CONSUMER: Final = MemberKind("consumer", CONSUMER_SHAPE, "SK221", "SK222", "SK223")
_COUNTED: Final = 50_000  # consumers whose NACKs are counted in one walk
_CACHED: Final = 10_000  # consumers whose existence is cached


@dataclass(slots=True)
class GroupFacts:
    """Facts counted over the pages of one group."""

    pending: int = 0
    nacked: int = 0
    highest: StreamId | None = None
    highest_order: int = -1  # the highest update counter
    damaged: bool = False  # a page could not be read, so the counts are incomplete


# --- all groups of the store --------------------------------------------------------------------


def check_group_numbers(tables: Tables) -> Iterator[Finding]:
    """SK202 to SK206: names, numbers and streams of groups; all rows belong to a group."""
    rows = Rows(tables)
    numbers = SortedPairs()
    for row in rows.under(GROUP_SHAPE):
        record = row.record
        prefix = pack_number(row.stream)
        where = f"stream {row.stream} group {quoted(record.name)}"
        if name_key(prefix, record.name) != row.db_key:
            yield finding("SK202", where, "the row has the key of another name")
        if tables.lacks(STREAMS, prefix):
            yield finding("SK203", where, f"stream {row.stream} does not exist")
        numbers.add(record.number, row.stream)
    previous = -1
    for number, stream in numbers:
        if number == previous:
            yield finding("SK204", f"stream {stream}", f"two groups have the number {number}")
        previous = number
    yield from check_counter(tables, NEXT_GROUP, max(0, previous))
    garbage = rows.garbage(GROUP_ROWS)
    known = numbers.firsts()
    for number, _ in garbage:
        if known.has(number):
            yield finding("SK205", f"group {number}", "its rows are listed as garbage")
    if not rows.all_of(GROUPS, GARBAGE):
        return  # the other rows may belong to a group whose number could not be read
    for table in _ROWS_OF_GROUPS:
        known, doomed = numbers.firsts(), garbage.firsts()
        for number in numbers_in(tables, table):
            if not known.has(number) and not doomed.has(number):
                problem = f"it does not exist, but has rows in {TABLES[table].name}"
                yield finding("SK206", f"group {number}", problem)


# --- one group ----------------------------------------------------------------------------------


def check_groups(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    """Check every group of one stream."""
    for row in Rows(tables).under(GROUP_SHAPE, pack_number(number)):
        where = f"{stream_place(number, name)} group {quoted(row.record.name)}"
        yield from guarded(check_group(tables, where, row.record))


def check_group(tables: Tables, where: str, record: GroupRecord) -> Iterator[Finding]:
    """Check one group: its consumers, its pages, its record, its indexes."""
    rows = Rows(tables)
    prefix = pack_number(record.number)
    yield from check_members(rows, _CONSUMER, prefix, record.next_consumer, where)
    facts = GroupFacts()
    yield from walk_pages(rows, where, record, facts)
    yield from check_leases(rows, where, record)
    if facts.damaged or not rows.all_of(*_ROWS_OF_GROUPS):
        return  # counts without the damaged rows would only repeat that they are damaged
    for check in RECORD_CHECKS:
        yield from check(where, record, facts)
    yield from check_consumers(rows, where, record)
    yield from check_order_rows(rows, where, prefix)
    yield from check_owned_rows(rows, where, prefix)


def pages_of(rows: Rows, record: GroupRecord) -> Iterator[PageRow]:
    """Yield the pages of a group: the inline one, then those in `pel`."""
    if record.inline_nacks:
        yield PageRow(b"", 0, 0, record.inline_nacks)
    yield from rows.under(PAGE_SHAPE, pack_number(record.number))


def walk_pages(rows: Rows, where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK201, SK211 to SK214, SK231, SK233: each page is sound, in order, and indexed."""
    owners = Owners(rows, record.number)
    for page in pages_of(rows, record):
        if page.db_key and record.inline_nacks:
            facts.damaged = True
            yield finding("SK213", where, "there are NACKs in its row, and in pages as well")
            return
        place = (
            f"{where} NACK page {page.ms}-{page.seq}" if page.db_key else f"{where} inline NACKs"
        )
        try:
            found = examine_page(page.data, page.ms, page.seq)
        except CorruptionError as error:
            facts.damaged = True
            yield finding("SK211", place, error.problem)
            continue
        if facts.highest is not None and (page.ms, page.seq) <= facts.highest:
            yield finding("SK212", place, f"the page before it contains ID {facts.highest}")
        facts.pending += sum(found.owners.values())
        facts.nacked += found.owners.get(0, 0)
        facts.highest = StreamId(*found.last)
        facts.highest_order = max(facts.highest_order, found.highest_order)
        yield from _check_nacks(where, page, found, owners)
        if page.db_key:
            yield from _check_indexed(rows, place, page, record.number)


def _check_nacks(where: str, page: PageRow, found: PageFacts, owners: Owners) -> Iterator[Finding]:
    """SK201, SK214: owners exist; no ordering time is before the delivery time."""
    missing = {consumer for consumer in found.owners if consumer and owners.lacks(consumer)}
    for index in range(count_nacks(page.data) if missing else 0):
        nack = decode_nack(page.data, index)
        if nack.consumer in missing:
            problem = f"consumer number {nack.consumer} does not exist"
            yield finding("SK201", f"{where} pel {nack.ms}-{nack.seq}", problem)
    for nack in found.misplaced:
        time, sorted_by = nack.delivery_time, order_time(nack.order_key)
        problem = f"the delivery time is {time}, the ordering time is {sorted_by}"
        yield finding("SK214", f"{where} pel {nack.ms}-{nack.seq}", problem)


class Owners:
    """Looks up whether consumers of a group exist."""

    def __init__(self, rows: Rows, group: int) -> None:
        self._rows = rows
        self._prefix = pack_number(group)
        self._known: dict[int, bool] = {}

    def lacks(self, consumer: int) -> bool:
        """Return whether there is certainly no consumer with this number."""
        found = self._known.get(consumer)
        if found is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            found = self._known[consumer] = self._look(consumer)
        return found

    def _look(self, consumer: int) -> bool:
        rows, prefix = self._rows, self._prefix
        name_of = rows.get(CONSUMER_SHAPE, number_key(prefix, consumer))
        if isinstance(name_of, NameOf):
            member = rows.get(CONSUMER_SHAPE, name_key(prefix, name_of.name))
            if isinstance(member, Member) and member.number == consumer:
                return False
        for row in rows.under(CONSUMER_SHAPE, prefix):  # its second row is missing or wrong
            if isinstance(row, Member) and row.number == consumer:
                return False
        return rows.all_of(CONSUMERS)


def _check_indexed(rows: Rows, where: str, page: PageRow, group: int) -> Iterator[Finding]:
    """SK231, SK233: both indexes have rows for a page."""
    earliest = first_order_key(page.data)
    row = rows.get(ORDER_SHAPE, pack_number(group) + earliest)
    if row is None:
        named = not rows.lacks(ORDER_SHAPE, pack_number(group) + earliest)
    else:  # damage: two pages have the same earliest order, or the row itself is wrong (SK232)
        other = None if row.page_key == page.db_key else rows.get(PAGE_SHAPE, row.page_key)
        named = other is None or not _begins_with(other.data, earliest)
    if not named:
        yield finding("SK231", where, "pel_order has no row for its earliest NACK")
    for consumer in sorted(owners_of(page.data)):
        if rows.lacks(OWNED_SHAPE, owned_key(group, consumer, page.ms, page.seq)):
            problem = f"consumer_pel has no row for it and consumer number {consumer}"
            yield finding("SK233", where, problem)


def _begins_with(page: bytes, order_key: bytes) -> bool:
    try:
        return first_order_key(page) == order_key
    except CorruptionError:
        return False  # `walk_pages` reports it


# --- the indexes against the pages --------------------------------------------------------------


def check_order_rows(rows: Rows, where: str, prefix: bytes) -> Iterator[Finding]:
    """SK232: each row of pel_order names a page by its earliest NACK."""
    for row in rows.under(ORDER_SHAPE, prefix):
        page = rows.get(PAGE_SHAPE, row.page_key)
        if page is None or first_order_key(page.data) != row.order_key:
            place = f"{where} pel_order {row.order_key.hex()}"
            problem = f"not the earliest NACK of a page {_page_id(row.page_key)}"
            yield finding("SK232", place, problem)


def check_owned_rows(rows: Rows, where: str, prefix: bytes) -> Iterator[Finding]:
    """SK234: each row of consumer_pel names a page with NACKs of its consumer."""
    for row in rows.under(OWNED_SHAPE, prefix):
        page = rows.get(PAGE_SHAPE, row.page_key)
        if page is None or not owns(page.data, row.consumer):
            place = f"{where} consumer_pel {_page_id(row.page_key)}"
            problem = f"consumer number {row.consumer} owns no NACK of such a page"
            yield finding("SK234", place, problem)


def _page_id(page_key: bytes) -> str:
    _, ms, seq = unpack_node_key(page_key)
    return f"{ms}-{seq}"


# --- the record against the facts ---------------------------------------------------------------

Check = Callable[[str, GroupRecord, GroupFacts], Iterator[Finding]]


def check_pending(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK207, SK208: the counts of all NACKs and of unowned NACKs are right."""
    if record.pending != facts.pending:
        problem = f"pending is {record.pending}, counted {facts.pending}"
        yield finding("SK207", where, problem)
    if record.nacked != facts.nacked:
        problem = f"{record.nacked} unowned NACKs, counted {facts.nacked}"
        yield finding("SK208", where, problem)


def check_counters(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK215, SK216: the next update counter is not in use; entries_read is at least -1."""
    if record.next_order <= facts.highest_order:
        problem = f"the next update counter is {record.next_order}, found {facts.highest_order}"
        yield finding("SK215", where, problem)
    if record.entries_read < UNKNOWN:
        problem = f"entries_read is {record.entries_read}, expected at least {UNKNOWN}"
        yield finding("SK216", where, problem)


RECORD_CHECKS: tuple[Check, ...] = (check_pending, check_counters)


# --- consumers ----------------------------------------------------------------------------------


def check_consumers(rows: Rows, where: str, record: GroupRecord) -> Iterator[Finding]:
    """SK209, SK210: the counts of consumers, and of the NACKs that each owns, are right."""
    prefix = pack_number(record.number)
    members = SortedPairs()
    counted = 0
    for row in rows.under(CONSUMER_SHAPE, prefix):
        if isinstance(row, Member):
            members.add(row.number, row.held)
            counted += 1
    if record.consumers != counted:
        yield finding("SK209", where, f"{record.consumers} consumers, counted {counted}")
    following = iter(members)
    while some := dict(islice(following, _COUNTED)):
        owned = dict.fromkeys(some, 0)
        for page in pages_of(rows, record):
            for consumer, count in count_owners(page.data).items():
                if consumer in owned:
                    owned[consumer] += count
        for number, held in some.items():
            if held != owned[number]:
                place = f"{where} consumer {_name_of(rows, prefix, number)}"
                yield finding("SK210", place, f"pending is {held}, counted {owned[number]}")


def check_leases(rows: Rows, where: str, record: GroupRecord) -> Iterator[Finding]:
    """SK224: the row of a lease belongs to a consumer and to deliveries that were made."""
    owners = Owners(rows, record.number)
    for row in rows.under(CONSUMER_SHAPE, leases_prefix(pack_number(record.number))):
        if isinstance(row, LeaseRow):
            place = f"{where} consumer number {row.consumer}"
            if owners.lacks(row.consumer):
                yield finding("SK224", place, "it has a lease, but does not exist")
            elif row.order > record.next_order:
                problem = f"a lease from update counter {row.order} on"
                yield finding("SK224", place, f"{problem}, the next one is {record.next_order}")


def _name_of(rows: Rows, prefix: bytes, number: int) -> str:
    row = rows.get(CONSUMER_SHAPE, number_key(prefix, number))
    return quoted(row.name) if isinstance(row, NameOf) else f"number {number}"
