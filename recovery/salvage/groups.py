"""Step two of a repair, groups: make groups, consumers and pending entries of the new store agree.

NACKs are primary data: owner, delivery time and delivery count. So are the names and times of
consumers. All counters and both indexes over the pages are derived. If the owner of a NACK is lost,
the NACK stays pending for a new consumer.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Final

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GROUPS,
    LAST_MEMBER,
    PEL,
    PEL_ORDER,
    STREAMS,
    leases_prefix,
    name_key,
    number_key,
    owned_key,
    pack_number,
    page_key,
    unpack_lease_key,
)
from streamkeep.format.humanize import count_text
from streamkeep.format.rows.group_records import (
    UNKNOWN,
    Consumer,
    GroupRecord,
    decode_consumer,
    decode_group,
    decode_lease,
)
from streamkeep.format.rows.nacks import (
    MAX_COUNT,
    NACK_SIZE,
    ORDERS,
    OWNED,
    PAGE_NACKS,
    Nack,
    decode_nack,
    encode_nack,
    examine_page,
    first_order_key,
    make_order_key,
    order_time,
    owners_of,
)
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.members import new_name, read_members
from streamkeep.recovery.salvage.new_store import BulkStore

_OWNER: Final = b"G"  # note: the number of a group; value: the key of its row
_NUMBER_SIZE: Final = 8


class GroupRebuilder:
    """Rebuilds all groups of a new store."""

    def __init__(self, out: BulkStore, report: Report, lost: LostAndFound) -> None:
        self.out = out
        self.report = report
        self.lost = lost
        self.highest = 0  # the highest group number

    def run(self) -> None:
        """Rebuild everything."""
        for db_key, value in self.out.rows(GROUPS):
            with suppress(CorruptionError):  # `_fix_row` drops it
                self.highest = max(self.highest, _decode(db_key, value).number)
        for db_key, value in self.out.rows(GROUPS):
            self._fix_row(db_key, value)
        for db_key, value in self.out.rows(GROUPS):
            self._group(db_key, _decode(db_key, value))
        self._orphans()

    # --- all groups ---------------------------------------------------------------------------

    def _fix_row(self, db_key: bytes, value: bytes) -> None:
        """Give a group its own key and number, or drop it if it has no stream."""
        try:
            record = _decode(db_key, value)
        except CorruptionError as error:
            self._drop(db_key, value, f"a group that cannot be read: {error.problem}")
            return
        prefix = db_key[:_NUMBER_SIZE]
        if self.out.get(STREAMS, prefix) is None:
            self._drop(
                db_key, value, f"group {quoted(record.name)} of a stream that does not exist"
            )
            return
        own_key = name_key(prefix, record.name)
        if own_key != db_key:
            self.out.delete(GROUPS, db_key)
            if self.out.get(GROUPS, own_key) is not None:
                return
            self.report.rebuild("keys of groups")
            self.out.put_row(GROUPS, own_key, record.encode())
        owner = self.out.noted(_OWNER + pack_number(record.number))
        if owner is not None and owner != own_key:
            self._renumber(own_key, record)
        else:
            self.out.note(_OWNER + pack_number(record.number), own_key)

    def _renumber(self, db_key: bytes, record: GroupRecord) -> None:
        """Give a group that shares its number with another one a new number and an empty PEL."""
        number = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
        what = f"pending entries and consumers of group {quoted(record.name)}"
        self.report.stream(number).notes.append(f"{what}: another group has the same number")
        self.highest += 1
        record.number = self.highest
        self.out.put_row(GROUPS, db_key, record.encode())
        self.out.note(_OWNER + pack_number(record.number), db_key)

    def _drop(self, db_key: bytes, value: bytes, what: str) -> None:
        self.out.delete(GROUPS, db_key)
        self.lost.keep_value("group", what, value, key=db_key.hex())
        self.report.other.append(what)

    def _orphans(self) -> None:
        """Move rows of groups that do not exist to lost+found."""
        for table, what in ((CONSUMERS, "consumer"), (PEL, "NACK page")):
            number, rows = -1, 0
            for db_key, value in self.out.rows(table):
                if self.out.noted(_OWNER + db_key[:_NUMBER_SIZE]) is not None:
                    continue
                group = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
                if group != number:
                    self._report_orphans(what, number, rows)
                    number, rows = group, 0
                rows += 1
                self.highest = max(self.highest, group)
                self.lost.keep_value(what, "its group is lost", value, key=db_key.hex())
                self.out.delete(table, db_key)
            self._report_orphans(what, number, rows)

    def _report_orphans(self, what: str, number: int, rows: int) -> None:
        if rows:
            count = count_text(rows, f"{what} row")
            self.report.other.append(f"{count} of group {number}, which is lost")

    # --- one group ----------------------------------------------------------------------------

    def _group(self, db_key: bytes, record: GroupRecord) -> None:
        before = record.encode()
        prefix = pack_number(record.number)
        where = f"group {quoted(record.name)}"
        losses = self.report.stream(int.from_bytes(db_key[:_NUMBER_SIZE], "big")).notes
        had, had_consumers = record.pending, record.consumers
        highest_order = self._pages(record, losses, where)
        owned = self._owned(record)
        self._consumers(prefix, record, owned, losses, where)
        if had > record.pending:
            count = count_text(had - record.pending, "pending entry", "pending entries")
            losses.append(f"{count} of {where}")
        if had_consumers > record.consumers:
            count = count_text(had_consumers - record.consumers, "consumer")
            losses.append(f"{count} of {where}")
        record.next_order = max(record.next_order, highest_order + 1)
        record.entries_read = max(UNKNOWN, record.entries_read)
        if record.encode() != before:
            self.report.rebuild("group records")
            self.out.put_row(GROUPS, db_key, record.encode())

    def _pages(self, record: GroupRecord, losses: list[str], where: str) -> int:
        """Fix and index the pages, and count their NACKs; return the highest update counter."""
        prefix = pack_number(record.number)
        highest: tuple[int, int] | None = None
        highest_order = -1
        pending = nacked = 0
        nacks: list[Nack] = []
        if record.inline_nacks:
            nacks = list(_nacks_in(record.inline_nacks))
            good = _encoded(nacks)
            if any(self.out.rows(PEL, prefix)):
                record.inline_nacks = b""  # they go to pages of their own
                for nack in nacks:
                    self._put_single(record.number, nack)
            else:
                if good != record.inline_nacks:
                    self.report.rebuild("NACK pages")
                record.inline_nacks = good
                for nack in nacks:
                    pending += 1
                    nacked += nack.consumer == 0
                    highest_order = max(highest_order, nack.order())
        for db_key, value in self.out.rows(PEL, prefix):
            body = open_row(PEL, db_key, value, "NACK page")
            good = self._fixed_page(db_key, body, highest)
            if not good:
                self.out.delete(PEL, db_key)
                continue
            good = self._with_unique_order(prefix, good)
            ms, seq = _key_id(db_key)
            first = decode_nack(good, 0).id()
            fits = first >= (ms, seq) and (highest is None or (ms, seq) > highest)
            new_key = db_key if fits else page_key(record.number, *first)
            if good != body or new_key != db_key:
                self.report.rebuild("NACK pages")
                self.out.delete(PEL, db_key)
                self.out.put_row(PEL, new_key, good)
            found = examine_page(good, *_key_id(new_key))
            highest = found.last
            highest_order = max(highest_order, found.highest_order)
            pending += sum(found.owners.values())
            nacked += found.owners.get(0, 0)
            self.out.put_row(PEL_ORDER, prefix + first_order_key(good), new_key[_NUMBER_SIZE:])
            for consumer in owners_of(good):
                self.out.put_row(
                    CONSUMER_PEL, owned_key(record.number, consumer, *_key_id(new_key)), b""
                )
        record.pending, record.nacked = pending, nacked
        return highest_order

    def _with_unique_order(self, prefix: bytes, page: bytes) -> bytes:
        """Return the page, changed so that no page before it has the same earliest order."""
        while self.out.get(PEL_ORDER, prefix + (taken := first_order_key(page))) is not None:
            nacks = list(_nacks_in(page))
            nack = next(one for one in nacks if one.order_key == taken)
            nack.order_key = taken[:6] + ((nack.order() + 1) % ORDERS).to_bytes(6, "big")
            page = _encoded(nacks)
        return page

    def _put_single(self, group: int, nack: Nack) -> None:
        """Store a NACK in its own page, unless a page has its ID as the key."""
        db_key = page_key(group, *nack.id())
        if self.out.get(PEL, db_key) is None:
            self.out.put_row(PEL, db_key, _encoded([nack]))

    def _fixed_page(self, db_key: bytes, body: bytes, highest: tuple[int, int] | None) -> bytes:
        """Return a page without invalid NACKs and IDs up to `highest`; a sound page unchanged."""
        try:
            found = examine_page(body, *_key_id(db_key))
            if not found.misplaced and (highest is None or decode_nack(body, 0).id() > highest):
                return body
        except CorruptionError:
            pass
        nacks = [nack for nack in _nacks_in(body) if highest is None or nack.id() > highest]
        return _encoded(nacks[:PAGE_NACKS])

    def _owned(self, record: GroupRecord) -> dict[int, int]:
        owned: dict[int, int] = {}
        for page in self._pages_of(record):
            for index in range(len(page) // NACK_SIZE):
                consumer = decode_nack(page, index).consumer
                if consumer:
                    owned[consumer] = owned.get(consumer, 0) + 1
        return owned

    def _pages_of(self, record: GroupRecord) -> Iterator[bytes]:
        if record.inline_nacks:
            yield record.inline_nacks
        for db_key, value in self.out.rows(PEL, pack_number(record.number)):
            yield open_row(PEL, db_key, value, "NACK page")

    # --- consumers ------------------------------------------------------------------------------

    def _consumers(
        self,
        prefix: bytes,
        record: GroupRecord,
        owned: dict[int, int],
        losses: list[str],
        where: str,
    ) -> None:
        """Make names, numbers and counters of consumers agree, and create missing owners."""
        members = read_members(self.out, CONSUMERS, prefix, _decode_consumer)
        for dropped in members.dropped:
            losses.append(f"consumer {quoted(dropped)} of {where}: its number is in use")
        consumers = {number: consumer for number, (_, consumer) in members.known.items()}
        taken = {consumer.name for consumer in consumers.values()}
        for number in sorted({*owned, *members.names} - {0, *consumers}):
            known = members.names.get(number)
            if known in taken and number not in owned:
                continue
            if known is not None and known not in taken:
                name = known
                losses.append(f"the times of consumer {quoted(name)} of {where}")
            else:
                name = new_name(number, taken)
                count = count_text(owned[number], "pending entry", "pending entries")
                losses.append(
                    f"the name of a consumer of {where}: {quoted(name)} now owns its {count}"
                )
            taken.add(name)
            consumers[number] = Consumer(name, number, 0)
        rows = self._leases(prefix, record, consumers)
        for number, consumer in consumers.items():
            consumer.pending = owned.get(number, 0)
            rows[name_key(prefix, consumer.name)] = consumer.encode()
            rows[number_key(prefix, number)] = consumer.name
        if self.out.replace(CONSUMERS, prefix, rows):
            self.report.rebuild("consumers")
        record.consumers = len(consumers)
        record.next_consumer = max(record.next_consumer, max(consumers, default=0) + 1)

    def _leases(
        self, prefix: bytes, record: GroupRecord, consumers: Container[int]
    ) -> dict[bytes, bytes]:
        """Return the rows of leases of consumers that exist, for deliveries that were made.

        What others said is lost without harm: those entries can then be claimed by idle time.
        """
        found: dict[bytes, bytes] = {}
        for db_key, value in self.out.rows(CONSUMERS, leases_prefix(prefix)):
            with suppress(CorruptionError):
                consumer, order = unpack_lease_key(db_key)
                body = open_row(CONSUMERS, db_key, value, "lease")
                decode_lease(body, "lease")
                if consumer in consumers and order <= record.next_order:
                    found[db_key] = body
        return found


def _decode_consumer(body: bytes) -> tuple[int, bytes, Consumer]:
    consumer = decode_consumer(body, "consumer")
    return consumer.number, consumer.name, consumer


def _decode(db_key: bytes, value: bytes) -> GroupRecord:
    return decode_group(open_row(GROUPS, db_key, value, "group"), "group")


def _key_id(db_key: bytes) -> tuple[int, int]:
    return int.from_bytes(db_key[8:16], "big"), int.from_bytes(db_key[16:24], "big")


def _nacks_in(page: bytes) -> Iterator[Nack]:
    """Yield the valid NACKs of a page, sorted, each ID once; correct values out of range."""
    whole = len(page) // NACK_SIZE * NACK_SIZE
    nacks = [decode_nack(page[:whole], index) for index in range(whole // NACK_SIZE)]
    previous = None
    for nack in sorted(nacks, key=lambda one: (one.id(), one.order_key)):
        if nack.id() == previous or nack.delivery_count > MAX_COUNT:
            continue
        previous = nack.id()
        if nack.consumer > LAST_MEMBER:
            nack.consumer = 0  # no consumer can have such a number
        if nack.delivery_time >= OWNED:
            nack.delivery_time = 0  # unknown: any consumer may claim it
        if nack.order() >= ORDERS:
            nack.order_key = nack.order_key[:6] + (nack.order() % ORDERS).to_bytes(6, "big")
        yield nack


def _encoded(nacks: list[Nack]) -> bytes:
    """Return a page of NACKs, with the ordering times corrected."""
    page = b""
    for nack in nacks:
        owned = nack.consumer != 0
        time = nack.delivery_time if owned else 0
        order_key = nack.order_key
        zone = order_key[0] & 0x80 != 0
        if zone != owned or (owned and order_time(order_key) < time) or not owned:
            by = max(time, order_time(order_key)) if owned else 0
            order_key = make_order_key(owned, by, nack.order())
        page += encode_nack(nack.ms, nack.seq, nack.consumer, time, nack.delivery_count, order_key)
    return page
