"""Make groups, consumers and pending entries agree again, in the new store.

NACKs are primary: each says who owns it, when it was delivered and how often. A consumer's names
and times are primary, too; all counters and both indexes over the pages are derived. A NACK whose
owner is gone stays pending: for a consumer with another name.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    is_name_key,
    name_key,
    number_key,
    owned_key,
    pack_number,
    page_key,
)
from streamkeep.format.rows.group_records import (
    UNKNOWN,
    Consumer,
    GroupRecord,
    decode_consumer,
    decode_group,
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
from streamkeep.recovery.salvage.new_store import BulkStore

_OWNER: Final = b"G"  # note: the group, by number, and the key of its row
_NUMBER_SIZE: Final = 8


class GroupRebuilder:
    """Rebuilds all groups of a new store."""

    def __init__(self, out: BulkStore, report: Report, lost: LostAndFound) -> None:
        self.out = out
        self.report = report
        self.lost = lost
        self.highest = 0  # group number

    def run(self) -> None:
        """Rebuild everything."""
        for db_key, value in self.out.rows(GROUPS):
            with suppress(CorruptionError):  # `_place` drops it
                self.highest = max(self.highest, _decode(db_key, value).number)
        for db_key, value in self.out.rows(GROUPS):
            self._place(db_key, value)
        for db_key, value in self.out.rows(GROUPS):
            self._group(db_key, _decode(db_key, value))
        self._orphans()

    # --- all groups ---------------------------------------------------------------------------

    def _place(self, db_key: bytes, value: bytes) -> None:
        """Each group belongs to a stream, stands under its name, and has a number of its own."""
        try:
            record = _decode(db_key, value)
        except CorruptionError as error:
            self._drop(db_key, value, f"a group that cannot be read: {error.problem}")
            return
        prefix = db_key[:_NUMBER_SIZE]
        if self.out.get(STREAMS, prefix) is None:
            self._drop(db_key, value, f"group {quoted(record.name)} of a stream that is gone")
            return
        place = name_key(prefix, record.name)
        if place != db_key:
            self.out.delete(GROUPS, db_key)
            if self.out.get(GROUPS, place) is not None:
                return
            self.report.rebuild("groups under the key of another name")
            self.out.put_row(GROUPS, place, record.encode())
        owner = self.out.noted(_OWNER + pack_number(record.number))
        if owner is not None and owner != place:
            self._renumber(place, record)
        else:
            self.out.note(_OWNER + pack_number(record.number), place)

    def _renumber(self, db_key: bytes, record: GroupRecord) -> None:
        """Give a group whose number another one has a new one, with no pending entries."""
        number = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
        what = f"pending entries and consumers of group {quoted(record.name)}"
        self.report.stream(number).notes.append(f"{what}: another has its number")
        self.highest += 1
        record.number = self.highest
        self.out.put_row(GROUPS, db_key, record.encode())
        self.out.note(_OWNER + pack_number(record.number), db_key)

    def _drop(self, db_key: bytes, value: bytes, what: str) -> None:
        self.out.delete(GROUPS, db_key)
        self.lost.keep_value("group", what, value, key=db_key.hex())
        self.report.other.append(what)

    def _orphans(self) -> None:
        """Rows of groups that do not exist go to lost+found."""
        for table, what in ((CONSUMERS, "consumer"), (PEL, "NACK page")):
            number, rows = -1, 0
            for db_key, value in self.out.rows(table):
                if self.out.noted(_OWNER + db_key[:_NUMBER_SIZE]) is not None:
                    continue
                group = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
                if group != number:
                    self._tell_orphans(what, number, rows)
                    number, rows = group, 0
                rows += 1
                self.highest = max(self.highest, group)
                self.lost.keep_value(what, "its group is lost", value, key=db_key.hex())
                self.out.delete(table, db_key)
            self._tell_orphans(what, number, rows)

    def _tell_orphans(self, what: str, number: int, rows: int) -> None:
        if rows:
            self.report.other.append(f"{rows} rows ({what}) of group {number}, which is lost")

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
            losses.append(f"{had - record.pending} pending entries of {where}")
        if had_consumers > record.consumers:
            losses.append(f"{had_consumers - record.consumers} consumers of {where}")
        record.next_order = max(record.next_order, highest_order + 1)
        record.entries_read = max(UNKNOWN, record.entries_read)
        if record.encode() != before:
            self.report.rebuild("group records")
            self.out.put_row(GROUPS, db_key, record.encode())

    def _pages(self, record: GroupRecord, losses: list[str], where: str) -> int:
        """Make the pages sound and sorted, and index them; return the highest update counter."""
        prefix = pack_number(record.number)
        highest: tuple[int, int] | None = None
        highest_order = -1
        pending = nacked = 0
        nacks: list[Nack] = []
        if record.inline_nacks:
            nacks = list(_nacks_in(record.inline_nacks))
            good = _encoded(nacks)
            if any(self.out.rows(PEL, prefix)):
                record.inline_nacks = b""  # they join the others
                for nack in nacks:
                    self._join(record.number, nack)
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
            good = self._sound_page(db_key, body, highest)
            if not good:
                self.out.delete(PEL, db_key)
                continue
            good = self._with_own_order(prefix, good)
            ms, seq = _key_id(db_key)
            first = decode_nack(good, 0).id()
            fits = first >= (ms, seq) and (highest is None or (ms, seq) > highest)
            place = db_key if fits else page_key(record.number, *first)
            if good != body or place != db_key:
                self.report.rebuild("NACK pages")
                self.out.delete(PEL, db_key)
                self.out.put_row(PEL, place, good)
            found = examine_page(good, *_key_id(place))
            highest = found.last
            highest_order = max(highest_order, found.highest_order)
            pending += sum(found.owners.values())
            nacked += found.owners.get(0, 0)
            self.out.put_row(PEL_ORDER, prefix + first_order_key(good), place[_NUMBER_SIZE:])
            for consumer in owners_of(good):
                self.out.put_row(
                    CONSUMER_PEL, owned_key(record.number, consumer, *_key_id(place)), b""
                )
        record.pending, record.nacked = pending, nacked
        return highest_order

    def _with_own_order(self, prefix: bytes, page: bytes) -> bytes:
        """Return a page whose earliest NACK has an order that no page before it is known by."""
        while self.out.get(PEL_ORDER, prefix + (taken := first_order_key(page))) is not None:
            nacks = list(_nacks_in(page))
            nack = next(one for one in nacks if one.order_key == taken)
            nack.order_key = taken[:6] + ((nack.order() + 1) % ORDERS).to_bytes(6, "big")
            page = _encoded(nacks)
        return page

    def _join(self, group: int, nack: Nack) -> None:
        """Give a NACK a page of its own, unless a page has its ID."""
        db_key = page_key(group, *nack.id())
        if self.out.get(PEL, db_key) is None:
            self.out.put_row(PEL, db_key, _encoded([nack]))

    def _sound_page(self, db_key: bytes, body: bytes, highest: tuple[int, int] | None) -> bytes:
        """Return a page as it should be; a sound one that is in its place, as it is."""
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
        """Names and numbers lead to each other, every owner exists, and counts are right."""
        numbers: dict[int, bytes] = {}
        for db_key, value in self.out.rows(CONSUMERS, prefix):
            body = open_row(CONSUMERS, db_key, value, "consumer")
            if not is_name_key(db_key):
                continue
            try:
                consumer = decode_consumer(body, "consumer")
            except CorruptionError:
                self.out.delete(CONSUMERS, db_key)
                continue
            place = name_key(prefix, consumer.name)
            if place == db_key and numbers.get(consumer.number) == consumer.name:
                continue  # it was put here a moment ago
            if place != db_key and self.out.get(CONSUMERS, place) is not None:
                self.report.rebuild("consumers")
                self.out.delete(CONSUMERS, db_key)
                continue  # under its own key there is one: seen, or still to come
            if consumer.number in numbers or consumer.number == 0:
                self.out.delete(CONSUMERS, db_key)
                losses.append(f"consumer {quoted(consumer.name)} of {where}: its number is taken")
                continue
            numbers[consumer.number] = consumer.name
            held = owned.get(consumer.number, 0)
            if place != db_key or consumer.pending != held:
                self.report.rebuild("consumers")
                self.out.delete(CONSUMERS, db_key)
                consumer.pending = held
                self.out.put_row(CONSUMERS, place, consumer.encode())
        self._lost_names(prefix, owned, numbers, losses, where)
        self._number_rows(prefix, numbers)
        record.consumers = len(numbers)
        record.next_consumer = max(record.next_consumer, max(numbers, default=0) + 1)

    def _lost_names(
        self,
        prefix: bytes,
        owned: dict[int, int],
        numbers: dict[int, bytes],
        losses: list[str],
        where: str,
    ) -> None:
        """A consumer whose row is gone: its name may stand in its second row."""
        names = {}
        for db_key, value in self.out.rows(CONSUMERS, prefix):
            if not is_name_key(db_key):
                name = open_row(CONSUMERS, db_key, value, "consumer")
                names[int.from_bytes(db_key[_NUMBER_SIZE + 1 :], "big")] = name
        taken = set(numbers.values())
        for number in sorted({*owned, *names} - set(numbers)):
            name = names.get(number, b"lost+found-%d" % number)
            if number == 0 or (number not in owned and name in taken):
                continue
            if name in taken:
                name = b"lost+found-%d" % number
            while name in taken:
                name += b"'"
            consumer = Consumer(name, number, 0)
            consumer.pending = owned.get(number, 0)
            self.out.put_row(CONSUMERS, name_key(prefix, name), consumer.encode())
            numbers[number] = name
            taken.add(name)
            if number not in names:
                losses.append(
                    f"the name of a consumer of {where}: its {consumer.pending} pending entries "
                    f"belong to {quoted(name)} now"
                )
            else:
                losses.append(f"the times of consumer {quoted(name)} of {where}")

    def _number_rows(self, prefix: bytes, numbers: dict[int, bytes]) -> None:
        for db_key, value in self.out.rows(CONSUMERS, prefix):
            if is_name_key(db_key):
                continue
            number = int.from_bytes(db_key[_NUMBER_SIZE + 1 :], "big")
            if numbers.get(number) != open_row(CONSUMERS, db_key, value, "consumer"):
                self.report.rebuild("names of consumers")
                self.out.delete(CONSUMERS, db_key)
        for number, name in numbers.items():
            db_key = number_key(prefix, number)
            if self.out.get(CONSUMERS, db_key) is None:
                self.report.rebuild("names of consumers")
                self.out.put_row(CONSUMERS, db_key, name)


def _decode(db_key: bytes, value: bytes) -> GroupRecord:
    return decode_group(open_row(GROUPS, db_key, value, "group"), "group")


def _key_id(db_key: bytes) -> tuple[int, int]:
    return int.from_bytes(db_key[8:16], "big"), int.from_bytes(db_key[16:24], "big")


def _nacks_in(page: bytes) -> Iterator[Nack]:
    """Yield the NACKs of a page that make sense, sorted, each ID once."""
    whole = len(page) // NACK_SIZE * NACK_SIZE
    nacks = [decode_nack(page[:whole], index) for index in range(whole // NACK_SIZE)]
    previous = None
    for nack in sorted(nacks, key=lambda one: (one.id(), one.order_key)):
        if nack.id() == previous or nack.delivery_count > MAX_COUNT:
            continue
        previous = nack.id()
        if nack.consumer > LAST_MEMBER:
            nack.consumer = 0  # nobody has such a number, nor can have
        if nack.delivery_time >= OWNED:
            nack.delivery_time = 0  # nobody knows when: whoever asks may claim it
        if nack.order() >= ORDERS:
            nack.order_key = nack.order_key[:6] + (nack.order() % ORDERS).to_bytes(6, "big")
        yield nack


def _encoded(nacks: list[Nack]) -> bytes:
    """Return a page of NACKs, each sorted into the order of delivery by a time it may have."""
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
