"""Checks of consumer groups: names and numbers, pending entries, and the indexes over them.

Each group's consumers and pages are walked once; the walk yields what is wrong with them and
collects `GroupFacts`, against which the group record is held. Then each row of the two indexes is
held against the page that it names. Memory is bounded by one page, the consumers of one group,
and the numbers of all groups.

What Redis lets happen is no finding. A group's last_delivered_id may be any ID (XGROUP SETID),
entries_read may be above entries_added (ENTRIESREAD, or XSETID afterwards), and a pending ID may
be above last_delivered_id (SETID, FORCE), gone from the stream, and even above its
last_generated_id: XSETID may go back in a stream whose entries were all trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from streamkeep.engine.group import NEXT_GROUP
from streamkeep.engine.txn import Txn
from streamkeep.format.entry import StreamId
from streamkeep.format.errors import CorruptionError
from streamkeep.format.group_records import UNKNOWN, GroupRecord
from streamkeep.format.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    PEL,
    PEL_ORDER,
    STREAMS,
    TABLES,
    name_key,
    owned_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.nacks import (
    Nack,
    count_nacks,
    decode_nack,
    first_order_key,
    order_time,
    owners_of,
    owns,
    validate_page,
)
from streamkeep.format.records import GROUP_ROWS
from streamkeep.recovery.catalogue import finding, guarded
from streamkeep.recovery.check_members import MemberKind, check_members
from streamkeep.recovery.check_rows import check_counter
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.rows import (
    CONSUMER_SHAPE,
    GROUP_SHAPE,
    ORDER_SHAPE,
    OWNED_SHAPE,
    PAGE_SHAPE,
    Member,
    PageRow,
    Rows,
    numbers_in,
)

_ROWS_OF_GROUPS: Final = (CONSUMERS, PEL, CONSUMER_PEL, PEL_ORDER)
_CONSUMER: Final = MemberKind("consumer", CONSUMER_SHAPE, "SK221", "SK222", "SK223")
_ORDER_BITS: Final = 48


@dataclass(slots=True)
class GroupFacts:
    """What the rows of one group really hold."""

    consumers: dict[int, Member]
    everyone: bool  # all consumers could be read
    owned: dict[int, int] = field(default_factory=dict)  # NACKs by owner; 0 is nobody
    highest: StreamId | None = None
    highest_order: int = -1  # of the update counters
    damaged: bool = False  # a page could not be read, so counts are not comparable


# --- all groups of the store --------------------------------------------------------------------


def check_group_numbers(txn: Txn) -> Iterator[Finding]:
    """SK202 to SK206: names, numbers and streams of groups; nothing belongs to no group."""
    rows = Rows(txn)
    numbers: set[int] = set()
    streams = txn.cursor(STREAMS)
    for row in rows.under(GROUP_SHAPE):
        record = row.record
        prefix = pack_number(row.stream)
        where = f"stream {row.stream} group {record.name!r}"
        if name_key(prefix, record.name) != row.db_key:
            yield finding("SK202", where, "it stands under the key of another name")
        if not streams.set_key(prefix):
            yield finding("SK203", where, f"stream {row.stream} does not exist")
        if record.number in numbers:
            yield finding("SK204", where, f"another group has the number {record.number}")
        numbers.add(record.number)
    yield from check_counter(txn, NEXT_GROUP, max(numbers, default=0))
    garbage = rows.garbage(GROUP_ROWS)
    for number in sorted(numbers & garbage):
        yield finding("SK205", f"group {number}", "its rows are listed as garbage")
    if rows.unreadable:
        return  # the number of a group is not known, and what is left may be its rows
    for table in _ROWS_OF_GROUPS:
        for number in numbers_in(txn, table):
            if number not in numbers and number not in garbage:
                yield finding(
                    "SK206", f"group {number}", f"rows of {TABLES[table].name} without it"
                )


# --- one group ----------------------------------------------------------------------------------


def check_groups(txn: Txn, number: int, name: bytes) -> Iterator[Finding]:
    """Check every group of one stream."""
    for row in Rows(txn).under(GROUP_SHAPE, pack_number(number)):
        where = f"stream {name!r} group {row.record.name!r}"
        yield from guarded(check_group(txn, where, row.record))


def check_group(txn: Txn, where: str, record: GroupRecord) -> Iterator[Finding]:
    """Check one group: its consumers, its pages, its record, its indexes."""
    rows = Rows(txn)
    prefix = pack_number(record.number)
    yield from check_members(rows, _CONSUMER, prefix, record.next_consumer, where)
    members = rows.under(CONSUMER_SHAPE, prefix)
    consumers = {row.number: row for row in members if isinstance(row, Member)}
    facts = GroupFacts(consumers, everyone=rows.unreadable == 0)
    yield from walk_pages(rows, where, record, facts)
    if facts.damaged or rows.unreadable:
        return  # what is left would only repeat what was said
    for check in RECORD_CHECKS:
        yield from check(where, record, facts)
    yield from check_order_rows(rows, where, prefix)
    yield from check_owned_rows(rows, where, prefix)


def walk_pages(
    rows: Rows,
    where: str,
    record: GroupRecord,
    facts: GroupFacts,
) -> Iterator[Finding]:
    """SK201, SK211 to SK214, SK231, SK233: each page is sound, above the one before, indexed."""
    inline = record.inline_nacks
    if inline:
        yield from _check_page(where, PageRow(b"", 0, 0, inline), facts)
    for page in rows.under(PAGE_SHAPE, pack_number(record.number)):
        if inline:
            facts.damaged = True
            yield finding("SK213", where, "NACKs stand in its row, and in pages as well")
            return
        yield from _check_page(where, page, facts)
        if not facts.damaged:
            yield from _check_indexed(rows, _page_place(where, page), page, record.number)


def _page_place(where: str, page: PageRow) -> str:
    return f"{where} NACK page {page.ms}-{page.seq}" if page.db_key else f"{where} inline NACKs"


def _check_page(where: str, page: PageRow, facts: GroupFacts) -> Iterator[Finding]:
    """Check one page; add what it holds to the facts."""
    page_place = _page_place(where, page)
    try:
        validate_page(page.data, page.ms, page.seq)
        nacks = [decode_nack(page.data, index) for index in range(count_nacks(page.data))]
    except CorruptionError as error:
        facts.damaged = True
        yield finding("SK211", page_place, error.problem)
        return
    if not nacks:
        facts.damaged = True
        yield finding("SK211", page_place, "it holds nothing")
        return
    if facts.highest is not None and (page.ms, page.seq) <= facts.highest:
        yield finding("SK212", page_place, f"the page before holds {facts.highest}")
    for nack in nacks:
        place = f"{where} pel {nack.ms}-{nack.seq}"
        if nack.consumer and facts.everyone and nack.consumer not in facts.consumers:
            yield finding("SK201", place, f"consumer number {nack.consumer} does not exist")
        yield from _check_time(place, nack)
        facts.owned[nack.consumer] = facts.owned.get(nack.consumer, 0) + 1
        facts.highest_order = max(facts.highest_order, _order(nack))
    facts.highest = StreamId(*nacks[-1].id())


def _order(nack: Nack) -> int:
    """Return the update counter of a NACK."""
    return int.from_bytes(nack.order_key, "big") % (1 << _ORDER_BITS)


def _check_time(where: str, nack: Nack) -> Iterator[Finding]:
    """SK214: a NACK is sorted by its delivery time or later; one that nobody owns has none."""
    time, sorted_by = nack.delivery_time, order_time(nack.order_key)
    if time > sorted_by or (nack.consumer == 0 and (time, sorted_by) != (0, 0)):
        problem = f"its delivery time is {time}, its ordering time {sorted_by}"
        yield finding("SK214", where, problem)


def _check_indexed(rows: Rows, where: str, page: PageRow, group: int) -> Iterator[Finding]:
    """SK231, SK233: both indexes know a page."""
    if rows.lacks(ORDER_SHAPE, pack_number(group) + first_order_key(page.data)):
        yield finding("SK231", where, "no row of pel_order names it by its earliest NACK")
    for consumer in sorted(owners_of(page.data)):
        if rows.lacks(OWNED_SHAPE, owned_key(group, consumer, page.ms, page.seq)):
            problem = f"no row of consumer_pel names it for consumer number {consumer}"
            yield finding("SK233", where, problem)


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
    counted = sum(facts.owned.values())
    if record.pending != counted:
        yield finding("SK207", where, f"{record.pending} are pending, counted {counted}")
    nacked = facts.owned.get(0, 0)
    if record.nacked != nacked:
        yield finding("SK208", where, f"{record.nacked} belong to nobody, counted {nacked}")


def check_consumers(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK209, SK210: the group counts its consumers, each consumer the NACKs that it owns."""
    counted = len(facts.consumers)
    if record.consumers != counted:
        yield finding("SK209", where, f"{record.consumers} consumers, counted {counted}")
    for number, consumer in facts.consumers.items():
        owned = facts.owned.get(number, 0)
        if consumer.held != owned:
            place = f"{where} consumer {consumer.name!r}"
            yield finding("SK210", place, f"it owns {consumer.held} NACKs, counted {owned}")


def check_counters(where: str, record: GroupRecord, facts: GroupFacts) -> Iterator[Finding]:
    """SK215, SK216: what comes next is new, and what was read is a number of entries."""
    if record.next_order <= facts.highest_order:
        problem = f"the next update is {record.next_order}, found {facts.highest_order}"
        yield finding("SK215", where, problem)
    if record.entries_read < UNKNOWN:
        yield finding("SK216", where, f"entries_read is {record.entries_read}")


RECORD_CHECKS: tuple[Check, ...] = (check_pending, check_consumers, check_counters)
