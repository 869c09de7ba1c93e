"""Step two of a repair, groups: write the groups of a stream, their consumers and NACKs.

NACKs are primary data: owner, delivery time and delivery count. So are the names and times of
consumers, and the leases under which they were given entries. The engine makes all else. If the
owner of a NACK is lost, the NACK stays pending for a new consumer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from streamkeep.engine.tables.group import Group, create_group, find_group
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.humanize import count_text
from streamkeep.format.rows import group_records
from streamkeep.format.rows import nacks as nack_rows
from streamkeep.format.rows.nacks import Nack
from streamkeep.format.rows.records import GROUP_ROWS
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.fsck.groups import page_id
from streamkeep.recovery.salvage.found import Found, is_live
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.search import garbage_note
from streamkeep.recovery.salvage.streams import written

_OWNER: Final = b"G"  # note: the number of a group
_NUMBER_SIZE: Final = 8
_NUMBER_AT: Final = 9  # in the key of a row under a number
_BATCH: Final = 20_000  # NACKs that a transaction writes

T = TypeVar("T")
Leases = list[tuple[int, int, int]]  # consumer, update counter, lease


# --- consumers and producers ----------------------------------------------------------------------


class Member(NamedTuple, Generic[T]):
    """A consumer of a group, or a producer of a stream."""

    name: bytes
    is_new: bool  # its name was lost
    record: T | None  # None if its record was lost


def read_members(
    found: Found,
    table: int,
    prefix: bytes,
    decode: Callable[[bytes], tuple[int, bytes, T]],
    needed: set[int],
    dropped: Callable[[bytes], None] = lambda name: None,
) -> dict[int, Member[T]]:
    """Return the members whose keys begin with `prefix`, by number.

    A member has a row under its name, with its number and its record, and a row under its number,
    with its name. Either is enough to find the other.

    Args:
        decode: returns number, name and record from the body of a row; raises CorruptionError.
        needed: numbers that must have a member.
        dropped: called with names whose number is in use by another name, or 0.
    """
    members: dict[int, Member[T]] = {}
    names: dict[int, bytes] = {}
    taken: set[bytes] = set()
    for db_key, value in found.rows(table, prefix):
        body = row_body(table, db_key, value, "member")
        if keys.is_lease_key(db_key):
            continue
        if not keys.is_name_key(db_key):
            names[int.from_bytes(db_key[_NUMBER_AT:], "big")] = body
            continue
        try:
            number, name, record = decode(body)
        except CorruptionError:
            continue
        own_key = keys.name_key(prefix, name)
        if name in taken or (own_key != db_key and found.get(table, own_key) is not None):
            continue  # another row of the name counts
        if number == 0 or number in members:
            dropped(name)
            continue
        taken.add(name)
        members[number] = Member(name, False, record)
    for number in sorted({*needed, *names} - {0, *members}):
        known = names.get(number)
        if known is not None and known not in taken:
            members[number] = Member(known, False, None)
        elif number in needed:
            known = b"lost+found-%d" % number
            while known in taken:
                known += b"'"
            members[number] = Member(known, True, None)
        else:
            continue
        taken.add(members[number].name)
    return members


def move_orphans(
    found: Found, table: int, owner: bytes, kind: int, what: str
) -> Iterator[tuple[int, int]]:
    """Move the rows of numbers that nothing owns to lost+found; yield each number, and how many."""
    for number in found.numbers(table):
        prefix = keys.pack_number(number)
        known = found.noted(owner + prefix), found.noted(garbage_note(kind, number))
        if known == (None, None):
            rows = 0
            for db_key, value in found.rows(table, prefix):
                found.lost.keep_value(what, "its owner is lost", value, key=db_key.hex())
                rows += 1
            yield number, rows


# --- groups ---------------------------------------------------------------------------------------


def write_groups(found: Found, out: NewStore, number: int, name: bytes) -> None:
    done: set[bytes] = set()
    prefix = keys.pack_number(number)
    for db_key, value in found.rows(keys.GROUPS, prefix):
        with suppress(CorruptionError):  # `move_groups` reports it
            record = _decode(db_key, value)
            own_key = keys.name_key(prefix, record.name)
            other = own_key != db_key and found.get(keys.GROUPS, own_key) is not None
            if not other and record.name not in done:
                done.add(record.name)
                _group(found, out, number, name, record)


def _group(
    found: Found, out: NewStore, stream: int, stream_name: bytes, record: group_records.GroupRecord
) -> None:
    where = f"group {quoted(record.name)}"
    prefix = keys.pack_number(record.number)
    nacks: Iterator[Nack] = iter(())
    owned: Counter[int] = Counter()
    members: dict[int, Member[group_records.Consumer]] = {}
    leases: Leases = []
    if found.noted(_OWNER + prefix) is not None:
        what = f"pending entries and consumers of {where}"
        found.lose(stream, f"{what}: another group has the same number")
    else:
        found.note(_OWNER + prefix)
        owned, nacks = _nacks(found, record)

        def dropped(name: bytes) -> None:
            found.lose(stream, f"consumer {quoted(name)} of {where}: its number is in use")

        members = read_members(found, keys.CONSUMERS, prefix, _decode_consumer, set(owned), dropped)
        for number, member in sorted(members.items()):
            if member.is_new:
                count = count_text(owned[number], "pending entry", "pending entries")
                new = f"{quoted(member.name)} now owns its {count}"
                found.lose(stream, f"the name of a consumer of {where}: {new}")
            elif member.record is None:
                found.lose(stream, f"the times of consumer {quoted(member.name)} of {where}")
        leases = _leases(found, record, members)
    if record.pending > owned.total():
        count = count_text(record.pending - owned.total(), "pending entry", "pending entries")
        found.lose(stream, f"{count} of {where}")
    if record.consumers > len(members):
        count = count_text(record.consumers - len(members), "consumer")
        found.lose(stream, f"{count} of {where}")
    out.write(partial(_create, stream_name, record, members, leases))
    while some := list(islice(nacks, _BATCH)):
        out.write(
            partial(_add, stream_name, record.name, members, some), len(some) * nack_rows.NACK_SIZE
        )


def _pages(found: Found, record: group_records.GroupRecord) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and NACKs of the pages of a group; the key is b"" for those in its own row."""
    if record.inline_nacks:
        yield b"", record.inline_nacks
    for db_key, value in found.rows(keys.PEL, keys.pack_number(record.number)):
        yield db_key, row_body(keys.PEL, db_key, value, "NACK page")


def _count_sound(found: Found, record: group_records.GroupRecord) -> Counter[int] | None:
    """Return how many NACKs each consumer owns; None if there is anything to correct."""
    owned: Counter[int] = Counter()
    highest: Id | None = None
    orders: set[bytes] = set()  # of the earliest NACKs
    for db_key, page in _pages(found, record):
        first = page_id(db_key)
        try:
            facts = nack_rows.examine_page(page, *first)
        except CorruptionError:
            return None
        order = nack_rows.first_order_key(page)
        above = highest is None or (first > highest and not record.inline_nacks)
        if facts.misplaced or order in orders or not above:
            return None
        owned.update(facts.owners)
        orders.add(order)
        highest = facts.last
        record.next_order = max(record.next_order, facts.highest_order + 1)
    return owned


def _nacks(found: Found, record: group_records.GroupRecord) -> tuple[Counter[int], Iterator[Nack]]:
    """Return how many NACKs each consumer owns, and the NACKs, ascending by ID.

    Where there is anything to correct: all valid ones, each ID once, with an order of its own.
    """
    owned = _count_sound(found, record)
    if owned is not None:
        pages = (page for _, page in _pages(found, record))
        return owned, (
            nack_rows.decode_nack(page, at)
            for page in pages
            for at in range(nack_rows.count_nacks(page))
        )
    nacks: dict[Id, Nack] = {}
    for _, page in _pages(found, record):
        for nack in _nacks_in(page):
            nacks.setdefault(nack.id(), nack)
    taken = -1
    for nack in sorted(nacks.values(), key=lambda one: one.order_key):
        taken = max(taken + 1, int.from_bytes(nack.order_key, "big"))
        nack.order_key = taken.to_bytes(len(nack.order_key), "big")
        record.next_order = max(record.next_order, nack.order() + 1)
    owned = Counter(nack.consumer for nack in nacks.values())
    return owned, (nacks[one] for one in sorted(nacks))


def _leases(found: Found, record: group_records.GroupRecord, members: Container[int]) -> Leases:
    """Return the leases of consumers that exist, for deliveries that were made.

    What others said is lost without harm: those entries can then be claimed by idle time.
    """
    leases: Leases = []
    prefix = keys.leases_prefix(keys.pack_number(record.number))
    for db_key, value in found.rows(keys.CONSUMERS, prefix):
        with suppress(CorruptionError):
            consumer, order = keys.unpack_lease_key(db_key)
            lease = group_records.decode_lease(
                row_body(keys.CONSUMERS, db_key, value, "lease"), "lease"
            )
            if consumer in members and order <= record.next_order:
                leases.append((consumer, order, lease))
    return leases


def move_groups(found: Found) -> None:
    """Move groups without a stream, and rows of groups that do not exist, to lost+found."""
    for db_key, value in found.rows(keys.GROUPS):
        try:
            record = _decode(db_key, value)
            if is_live(found, keys.unpack_number(db_key[:_NUMBER_SIZE])):
                continue
            found.note(_OWNER + keys.pack_number(record.number))
            what = f"group {quoted(record.name)} of a stream that does not exist"
        except CorruptionError as error:
            what = f"a group that cannot be read: {error.problem}"
        found.lost.keep_value("group", what, value, key=db_key.hex())
        found.report.other.append(what)
    for table, what in ((keys.CONSUMERS, "consumer"), (keys.PEL, "NACK page")):
        for number, rows in move_orphans(found, table, _OWNER, GROUP_ROWS, what):
            count = count_text(rows, f"{what} row")
            found.report.other.append(f"{count} of group {number}, which is lost")


def _decode_consumer(body: bytes) -> tuple[int, bytes, group_records.Consumer]:
    consumer = group_records.decode_consumer(body, "consumer")
    return consumer.number, consumer.name, consumer


def _decode(db_key: bytes, value: bytes) -> group_records.GroupRecord:
    return group_records.decode_group(row_body(keys.GROUPS, db_key, value, "group"), "group")


def _nacks_in(page: bytes) -> Iterator[Nack]:
    """Yield the valid NACKs of a page, with values that are possible."""
    for index in range(len(page) // nack_rows.NACK_SIZE):
        nack = nack_rows.decode_nack(
            page[index * nack_rows.NACK_SIZE : (index + 1) * nack_rows.NACK_SIZE], 0
        )
        if nack.delivery_count > nack_rows.MAX_COUNT:
            continue
        if nack.consumer > keys.LAST_MEMBER:
            nack.consumer = 0  # no consumer can have such a number
        owned = nack.consumer != 0
        if not owned or nack.delivery_time >= nack_rows.OWNED:
            nack.delivery_time = 0  # unknown: any consumer may claim it
        by = max(nack.delivery_time, nack_rows.order_time(nack.order_key)) if owned else 0
        nack.order_key = nack_rows.make_order_key(owned, by, nack.order() % nack_rows.ORDERS)
        yield nack


# --- transactions ---------------------------------------------------------------------------------


def _create(
    stream_name: bytes,
    before: group_records.GroupRecord,
    members: dict[int, Member[group_records.Consumer]],
    leases: Leases,
    txn: WriteTxn,
) -> None:
    """Create a group with its consumers, which keep their numbers, and their leases."""
    group = create_group(txn, written(txn, stream_name), before.name, before.last_id())
    record = group.record
    record.entries_read = max(group_records.UNKNOWN, before.entries_read)
    record.next_order = before.next_order
    record.last_order_time = before.last_order_time
    for number, member in sorted(members.items()):
        record.next_consumer = number
        known = member.record
        consumer = group.make_consumer(member.name, 0 if known is None else known.seen_time)
        if known is not None:
            group.was_active(consumer, known.active_time)
    record.next_consumer = max(record.next_consumer, before.next_consumer)
    for number, order, lease in leases:
        db_key = keys.lease_key(group.prefix, number, order)
        txn.put_row(keys.CONSUMERS, db_key, group_records.encode_lease(lease))


def _add(
    stream_name: bytes,
    group_name: bytes,
    members: dict[int, Member[group_records.Consumer]],
    nacks: list[Nack],
    txn: WriteTxn,
) -> None:
    group: Group | None = find_group(txn, written(txn, stream_name), group_name)
    assert group is not None
    for nack in nacks:
        member = members.get(nack.consumer)
        group.put(nack, None if member is None else group.find_consumer(member.name))
