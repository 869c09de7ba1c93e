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
from streamkeep.format.core.id_codec import Id
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
    INLINE_NACKS,
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
        if not self._is_sound(record):
            self._rewrite(record)
            self.report.rebuild("NACK pages")
        owned = self._index(record)
        self._consumers(prefix, record, owned, losses, where)
        if had > record.pending:
            count = count_text(had - record.pending, "pending entry", "pending entries")
            losses.append(f"{count} of {where}")
        if had_consumers > record.consumers:
            count = count_text(had_consumers - record.consumers, "consumer")
            losses.append(f"{count} of {where}")
        record.entries_read = max(UNKNOWN, record.entries_read)
        if record.encode() != before:
            self.report.rebuild("group records")
            self.out.put_row(GROUPS, db_key, record.encode())

    def _pages_of(self, record: GroupRecord) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and body of the pages; the key is b"" for the NACKs in the group's own row."""
        if record.inline_nacks:
            yield b"", record.inline_nacks
        for db_key, value in self.out.rows(PEL, pack_number(record.number)):
            yield db_key, open_row(PEL, db_key, value, "NACK page")

    def _is_sound(self, record: GroupRecord) -> bool:
        """Return whether the pages can stay as they are."""
        highest: Id | None = None
        orders: set[bytes] = set()  # of the earliest NACKs, by which pages are found
        for db_key, page in self._pages_of(record):
            if db_key and record.inline_nacks:
                return False
            try:
                found = examine_page(page, *_key_id(db_key))
            except CorruptionError:
                return False
            order = first_order_key(page)
            above = highest is None or _key_id(db_key) > highest
            if found.misplaced or not above or order in orders:
                return False
            orders.add(order)
            highest = found.last
        return True

    def _rewrite(self, record: GroupRecord) -> None:
        """Write all valid NACKs into new pages, each ID once, with an order of its own."""
        nacks: dict[Id, Nack] = {}
        for _, page in self._pages_of(record):
            for nack in _nacks_in(page):
                nacks.setdefault(nack.id(), nack)
        taken = -1
        for nack in sorted(nacks.values(), key=lambda one: one.order_key):
            taken = max(taken + 1, int.from_bytes(nack.order_key, "big"))
            nack.order_key = taken.to_bytes(len(nack.order_key), "big")
        ids = sorted(nacks)
        pages: dict[bytes, bytes] = {}
        if len(ids) <= INLINE_NACKS:
            record.inline_nacks = b"".join(_encoded(nacks[one]) for one in ids)
        else:
            record.inline_nacks = b""
            for at in range(0, len(ids), PAGE_NACKS):
                page = b"".join(_encoded(nacks[one]) for one in ids[at : at + PAGE_NACKS])
                pages[page_key(record.number, *ids[at])] = page
        self.out.replace(PEL, pack_number(record.number), pages)

    def _index(self, record: GroupRecord) -> dict[int, int]:
        """Index and count the NACKs; return how many each consumer owns."""
        prefix = pack_number(record.number)
        owned: dict[int, int] = {}
        for db_key, page in self._pages_of(record):
            place = _key_id(db_key)
            found = examine_page(page, *place)
            record.next_order = max(record.next_order, found.highest_order + 1)
            for consumer, count in found.owners.items():
                owned[consumer] = owned.get(consumer, 0) + count
            if db_key:
                self.out.put_row(PEL_ORDER, prefix + first_order_key(page), db_key[_NUMBER_SIZE:])
                for consumer in owners_of(page):
                    self.out.put_row(CONSUMER_PEL, owned_key(record.number, consumer, *place), b"")
        record.pending, record.nacked = sum(owned.values()), owned.pop(0, 0)
        return owned

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


def _key_id(db_key: bytes) -> Id:
    return int.from_bytes(db_key[8:16], "big"), int.from_bytes(db_key[16:24], "big")


def _nacks_in(page: bytes) -> Iterator[Nack]:
    """Yield the valid NACKs of a page, with values that are possible."""
    for index in range(len(page) // NACK_SIZE):
        nack = decode_nack(page[index * NACK_SIZE : (index + 1) * NACK_SIZE], 0)
        if nack.delivery_count > MAX_COUNT:
            continue
        if nack.consumer > LAST_MEMBER:
            nack.consumer = 0  # no consumer can have such a number
        owned = nack.consumer != 0
        if not owned or nack.delivery_time >= OWNED:
            nack.delivery_time = 0  # unknown: any consumer may claim it
        by = max(nack.delivery_time, order_time(nack.order_key)) if owned else 0
        nack.order_key = make_order_key(owned, by, nack.order() % ORDERS)
        yield nack


def _encoded(nack: Nack) -> bytes:
    return encode_nack(
        nack.ms, nack.seq, nack.consumer, nack.delivery_time, nack.delivery_count, nack.order_key
    )
