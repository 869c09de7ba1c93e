"""Checks of consumer groups: names and numbers, pending entries, and the indexes over them.

Each group's pages are walked once; the walk yields what is wrong with them and collects
`GroupFacts`, against which the group record is held. The pages are walked again to count what each
consumer owns, once for every `_COUNTED` consumers. Then each row of the two indexes is held against
the page that it names. Memory is bounded by one page, and those counts.

What Redis lets happen is no finding. A group's last_delivered_id may be any ID (XGROUP SETID),
entries_read may be above entries_added (in what an older Redis dumped), and a pending ID may be
above last_delivered_id (SETID, FORCE), gone from the stream, and even above its last_generated_id:
XSETID may go back in a stream whose entries were all trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamkeep.engine.model.group import NEXT_GROUP
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
_COUNTED: Final = 50_000  # consumers whose NACKs are counted at a time
_REMEMBERED: Final = 10_000  # consumers of which we remember whether they exist


@dataclass(slots=True)
class GroupFacts:
    """What the pages of one group really hold."""

    pending: int = 0
    nacked: int = 0
    highest: StreamId | None = None
    highest_order: int = -1  # of the update counters
    damaged: bool = False  # a page could not be read, so counts are not comparable


# --- all groups of the store --------------------------------------------------------------------


def check_group_numbers(tables: Tables) -> Iterator[Finding]:
    """SK202 to SK206: names, numbers and streams of groups; nothing belongs to no group."""
    rows = Rows(tables)
    numbers = SortedPairs()
    for row in rows.under(GROUP_SHAPE):
        record = row.record
        prefix = pack_number(row.stream)
        where = f"stream {row.stream} group {quoted(record.name)}"
        if name_key(prefix, record.name) != row.db_key:
            yield finding("SK202", where, "it stands under the key of another name")
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
        return  # the number of a group is not known, and what is left may be its rows
    for table in _ROWS_OF_GROUPS:
        known, doomed = numbers.firsts(), garbage.firsts()
        for number in numbers_in(tables, table):
            if not known.has(number) and not doomed.has(number):
                yield finding(
                    "SK206", f"group {number}", f"rows of {TABLES[table].name} without it"
                )


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
    if facts.damaged or not rows.all_of(*_ROWS_OF_GROUPS):
        return  # what is left would only repeat what was said
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
    """SK201, SK211 to SK214, SK231, SK233: each page is sound, above the one before, indexed."""
    owners = Owners(rows, record.number)
    for page in pages_of(rows, record):
        if page.db_key and record.inline_nacks:
            facts.damaged = True
            yield finding("SK213", where, "NACKs stand in its row, and in pages as well")
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
            yield finding("SK212", place, f"the page before holds {facts.highest}")
        facts.pending += sum(found.owners.values())
        facts.nacked += found.owners.get(0, 0)
        facts.highest = StreamId(*found.last)
        facts.highest_order = max(facts.highest_order, found.highest_order)
        yield from _check_nacks(where, page, found, owners)
        if page.db_key:
            yield from _check_indexed(rows, place, page, record.number)


def _check_nacks(where: str, page: PageRow, found: PageFacts, owners: Owners) -> Iterator[Finding]:
    """SK201, SK214: owners exist; a NACK is sorted by its delivery time or later."""
    missing = {consumer for consumer in found.owners if consumer and owners.lacks(consumer)}
    for index in range(count_nacks(page.data) if missing else 0):
        nack = decode_nack(page.data, index)
        if nack.consumer in missing:
            problem = f"consumer number {nack.consumer} does not exist"
            yield finding("SK201", f"{where} pel {nack.ms}-{nack.seq}", problem)
    for nack in found.misplaced:
        time, sorted_by = nack.delivery_time, order_time(nack.order_key)
        problem = f"its delivery time is {time}, its ordering time {sorted_by}"
        yield finding("SK214", f"{where} pel {nack.ms}-{nack.seq}", problem)


class Owners:
    """Which consumers of a group exist."""

    def __init__(self, rows: Rows, group: int) -> None:
        self._rows = rows
        self._prefix = pack_number(group)
        self._known: dict[int, bool] = {}

    def lacks(self, consumer: int) -> bool:
        """Say whether there is surely no consumer with this number."""
        found = self._known.get(consumer)
        if found is None:
            if len(self._known) >= _REMEMBERED:
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
    """SK231, SK233: both indexes know a page."""
    earliest = first_order_key(page.data)
    row = rows.get(ORDER_SHAPE, pack_number(group) + earliest)
    if row is None:
        named = not rows.lacks(ORDER_SHAPE, pack_number(group) + earliest)
    else:  # of two pages with the same earliest order, it names one; else it is wrong itself
        other = None if row.page_key == page.db_key else rows.get(PAGE_SHAPE, row.page_key)
        named = other is None or not _begins_with(other.data, earliest)
    if not named:
        yield finding("SK231", where, "no row of pel_order names it by its earliest NACK")
    for consumer in sorted(owners_of(page.data)):
        if rows.lacks(OWNED_SHAPE, owned_key(group, consumer, page.ms, page.seq)):
            problem = f"no row of consumer_pel names it for consumer number {consumer}"
            yield finding("SK233", where, problem)


def _begins_with(page: bytes, order_key: bytes) -> bool:
    try:
        return first_order_key(page) == order_key
    except CorruptionError:
        return False  # reported where that page is walked


# --- the indexes against the pages --------------------------------------------------------------


def check_order_rows(rows: Rows, where: str, prefix: bytes) -> Iterator[Finding]:
    """SK232: each row of pel_order names a page by its earliest NACK."""
    for row in rows.under(ORDER_SHAPE, prefix):
        page = rows.get(PAGE_SHAPE, row.page_key)
        if page is None or first_order_key(page.data) != row.order_key:
            place = f"{where} pel_order {row.order_key.hex()}"
            problem = f"it is not the earliest NACK of a page {_shown(row.page_key)}"
            yield finding("SK232", place, problem)


def check_owned_rows(rows: Rows, where: str, prefix: bytes) -> Iterator[Finding]:
    """SK234: each row of consumer_pel names a page with NACKs of its consumer."""
    for row in rows.under(OWNED_SHAPE, prefix):
        page = rows.get(PAGE_SHAPE, row.page_key)
        if page is None or not owns(page.data, row.consumer):
            place = f"{where} consumer_pel {_shown(row.page_key)}"
            problem = f"consumer number {row.consumer} owns nothing of such a page"
            yield finding("SK234", place, problem)


def _shown(page_key: bytes) -> str:
    _, ms, seq = unpack_node_key(page_key)
    return f"{ms}-{seq}"


# --- the record against the facts ---------------------------------------------------------------

Check = Callable[[str, GroupRecord, GroupFacts], Iterator[Finding]]


def check_pending(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK207, SK208: the group counts its NACKs, and those that nobody owns."""
    if record.pending != facts.pending:
        problem = f"{record.pending} are pending, counted {facts.pending}"
        yield finding("SK207", where, problem)
    if record.nacked != facts.nacked:
        problem = f"{record.nacked} belong to nobody, counted {facts.nacked}"
        yield finding("SK208", where, problem)


def check_counters(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK215, SK216: what comes next is new, and what was read is a number of entries."""
    if record.next_order <= facts.highest_order:
        problem = f"the next update is {record.next_order}, found {facts.highest_order}"
        yield finding("SK215", where, problem)
    if record.entries_read < UNKNOWN:
        yield finding("SK216", where, f"entries_read is {record.entries_read}")


RECORD_CHECKS: tuple[Check, ...] = (check_pending, check_counters)


# --- consumers ----------------------------------------------------------------------------------


def check_consumers(rows: Rows, where: str, record: GroupRecord) -> Iterator[Finding]:
    """SK209, SK210: the group counts its consumers, each consumer the NACKs that it owns."""
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
                yield finding("SK210", place, f"it owns {held} NACKs, counted {owned[number]}")


def _name_of(rows: Rows, prefix: bytes, number: int) -> str:
    row = rows.get(CONSUMER_SHAPE, number_key(prefix, number))
    return quoted(row.name) if isinstance(row, NameOf) else f"number {number}"
