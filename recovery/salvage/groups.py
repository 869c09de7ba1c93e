"""Step two of a repair, what belongs to consumers and producers: groups, and idempotent XADD.

NACKs are primary data: owner, delivery time and delivery count. So are the names and times of
consumers, and the leases under which they were given entries. If the owner of a NACK is lost, the
NACK stays pending for a new consumer. Each message has two rows with the same content, by message
ID and by order; either is enough. The engine makes all else, and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Final, NamedTuple

from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.engine.tables.group import Group, create_group, find_group
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import pack_id
from streamkeep.format.humanize import count_text
from streamkeep.format.rows import nacks as nack_rows
from streamkeep.format.rows import producers as producer_rows
from streamkeep.format.rows.extension import Idempotence, idempotence_of
from streamkeep.format.rows.group_records import UNKNOWN, GroupRecord
from streamkeep.format.rows.nacks import Nack
from streamkeep.format.rows.producers import Message
from streamkeep.format.rows.records import GROUP_ROWS, IDEMPOTENCE_ROWS, encode_number
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.fsck.groups import pages_of
from streamkeep.recovery.salvage.found import Found, is_live
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.search import garbage_note
from streamkeep.recovery.salvage.streams import written

_GROUP: Final = b"G"  # note: the number of a group
_MESSAGES: Final = b"I"  # note: a number under which a stream stores its messages
_NACK: Final = b"P"  # note: a NACK by group and ID
_ORDER: Final = b"Q"  # note: group, order key and ID of a NACK
_ORDER_SIZE: Final = 12
_NUMBER_SIZE: Final = 8
_NUMBER_AT: Final = 9  # in the key of a row under a number
_PREFIX_SIZE: Final = 12
_BATCH: Final = 20_000  # NACKs that a transaction writes

Leases = list[tuple[int, int, int]]  # consumer, update counter, lease
Remembered = list[tuple[bytes, list[Message]]]  # by producer, the oldest first


# --- consumers and producers ----------------------------------------------------------------------


class Member(NamedTuple):
    """A consumer of a group, or a producer of a stream."""

    name: bytes
    is_new: bool  # its name was lost
    record: shapes.Member | None  # None if its record was lost


def read_members(
    found: Found,
    shape: shapes.Shape[shapes.Member | bytes | int],
    prefix: bytes,
    needed: set[int],
    dropped: Callable[[bytes], None] = lambda name: None,
) -> dict[int, Member]:
    """Return the members whose keys begin with `prefix`, by number.

    A member has a row under its name, with its number and its record, and a row under its number,
    with its name. Either is enough to find the other.

    Args:
        needed: numbers that must have a member.
        dropped: called with names whose number is in use by another name, or 0.
    """
    members: dict[int, Member] = {}
    names: dict[int, bytes] = {}
    taken: set[bytes] = set()
    for db_key, row in found.under(shape, prefix):
        if isinstance(row, bytes):
            names[int.from_bytes(db_key[_NUMBER_AT:], "big")] = row
        elif isinstance(row, shapes.Member):
            own_key = keys.name_key(prefix, row.name)
            other = own_key != db_key and found.get(shape.table, own_key) is not None
            if row.name in taken or other:
                continue  # another row of the name counts
            if row.number == 0 or row.number in members:
                dropped(row.name)
                continue
            taken.add(row.name)
            members[row.number] = Member(row.name, False, row)
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
    for db_key, record in found.under(shapes.GROUP_SHAPE, prefix):  # `move_groups` has the others
        own_key = keys.name_key(prefix, record.name)
        other = own_key != db_key and found.get(keys.GROUPS, own_key) is not None
        if not other and record.name not in done:
            done.add(record.name)
            _group(found, out, number, name, record)


def _group(
    found: Found, out: NewStore, stream: int, stream_name: bytes, record: GroupRecord
) -> None:
    where = f"group {quoted(record.name)}"
    prefix = keys.pack_number(record.number)
    nacks: Iterator[Nack] = iter(())
    owned: Counter[int] = Counter()
    members: dict[int, Member] = {}
    leases: Leases = []
    if found.noted(_GROUP + prefix) is not None:
        what = f"pending entries and consumers of {where}"
        found.lose(stream, f"{what}: another group has the same number")
    else:
        found.note(_GROUP + prefix)
        owned, nacks = _nacks(found, record)

        def dropped(name: bytes) -> None:
            found.lose(stream, f"consumer {quoted(name)} of {where}: its number is in use")

        members = read_members(found, shapes.CONSUMER_SHAPE, prefix, set(owned), dropped)
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
    _create(out.txn(), stream_name, record, members, leases)
    while some := list(islice(nacks, _BATCH)):
        txn = out.txn(len(some) * nack_rows.NACK_SIZE)
        group: Group | None = find_group(txn, written(txn, stream_name), record.name)
        assert group is not None
        for nack in some:
            owner = members.get(nack.consumer)
            group.put(nack, None if owner is None else group.find_consumer(owner.name))


def _nacks(found: Found, record: GroupRecord) -> tuple[Counter[int], Iterator[Nack]]:
    """Return how many NACKs each consumer owns, and the NACKs, ascending by ID.

    All valid ones, each ID once, with an order of its own. Notes sort them: there may be millions.
    """
    owned: Counter[int] = Counter()
    group = keys.pack_number(record.number)
    for _, page in pages_of(found.under, record):
        for nack in _nacks_in(page):
            nack_id = pack_id(*nack.id())
            if found.noted(_NACK + group + nack_id) is None:
                found.note(_NACK + group + nack_id, _encoded(nack))
                found.note(_ORDER + group + nack.order_key + nack_id)
                owned[nack.consumer] += 1
    taken = -1
    for key, _ in found.notes(_ORDER + group):
        order_key, note = key[:_ORDER_SIZE], _NACK + group + key[_ORDER_SIZE:]
        taken = max(taken + 1, int.from_bytes(order_key, "big"))
        nack = nack_rows.decode_nack(found.noted(note) or b"", 0)
        nack.order_key = taken.to_bytes(_ORDER_SIZE, "big")
        if nack.order_key != order_key:
            found.note(note, _encoded(nack))
        record.next_order = max(record.next_order, nack.order() + 1)
    return owned, (nack_rows.decode_nack(value, 0) for _, value in found.notes(_NACK + group))


def _leases(found: Found, record: GroupRecord, members: Container[int]) -> Leases:
    """Return the leases of consumers that exist, for deliveries that were made.

    What others said is lost without harm: those entries can then be claimed by idle time.
    """
    leases: Leases = []
    prefix = keys.leases_prefix(keys.pack_number(record.number))
    for db_key, lease in found.under(shapes.CONSUMER_SHAPE, prefix):
        if isinstance(lease, int):
            consumer, order = keys.unpack_lease_key(db_key)
            if consumer in members and order <= record.next_order:
                leases.append((consumer, order, lease))
    return leases


def move_groups(found: Found) -> None:
    """Move groups without a stream, and rows of groups that do not exist, to lost+found."""
    for db_key, value in found.rows(keys.GROUPS):
        try:
            record = shapes.parse_row(shapes.GROUP_SHAPE, db_key, value)
            if is_live(found, keys.unpack_number(db_key[:_NUMBER_SIZE])):
                continue
            found.note(_GROUP + keys.pack_number(record.number))
            what = f"group {quoted(record.name)} of a stream that does not exist"
        except CorruptionError as error:
            what = f"a group that cannot be read: {error.problem}"
        found.lost.keep_value("group", what, value, key=db_key.hex())
        found.report.other.append(what)
    for table, what in ((keys.CONSUMERS, "consumer"), (keys.PEL, "NACK page")):
        for number, rows in move_orphans(found, table, _GROUP, GROUP_ROWS, what):
            count = count_text(rows, f"{what} row")
            found.report.other.append(f"{count} of group {number}, which is lost")


def _encoded(one: Nack) -> bytes:
    given = one.ms, one.seq, one.consumer, one.delivery_time, one.delivery_count
    return nack_rows.encode_nack(*given, one.order_key)


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


# --- idempotent XADD ------------------------------------------------------------------------------


def write_messages(found: Found, out: NewStore, number: int, name: bytes) -> None:
    record = found.record(number)
    if record is None:
        if found.get(keys.STREAMS, keys.pack_number(number)) is not None:
            found.lose(number, "its producers and tracked messages")
        return
    try:
        state = idempotence_of(record.extension, "stream")
    except CorruptionError:
        found.lose(number, "its producers and tracked messages")
        return
    remembered: Remembered = []
    owner = _MESSAGES + keys.pack_number(state.number)
    if state.number and found.noted(owner) is not None:
        problem = "another stream uses their number"
        found.lose(number, f"its producers and tracked messages: {problem}")
    elif state.number:
        found.note(owner)
        remembered = _remembered(found, number, state)
    if state.encode() != Idempotence().encode():
        txn = out.txn()
        tracker = Tracker(txn, written(txn, name))
        now = tracker.state
        now.duration, now.maxsize = state.duration, state.maxsize
        for producer, messages in remembered:
            for one in messages:
                tracker.track(producer, one.iid, one.ms, one.seq)
        now.added, now.duplicates = state.added, state.duplicates
        tracker.save()


def _remembered(found: Found, stream: int, state: Idempotence) -> Remembered:
    prefix = keys.pack_number(state.number)
    numbers = {
        int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
        for table in (keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER)
        for db_key, _ in found.rows(table, prefix)
    } - {0}
    messages = {number: _messages_of(found, state, number) for number in numbers}
    needed = {number for number, some in messages.items() if some}
    members = read_members(found, shapes.PRODUCER_SHAPE, prefix, needed)
    kept: Remembered = []
    count = 0
    for number, member in sorted(members.items()):
        if number in needed:
            if member.is_new:
                found.lose(stream, f"the name of a producer, which is now {quoted(member.name)}")
            kept.append((member.name, messages[number][-state.maxsize :]))
            count += len(messages[number])
    if count < state.tracked:
        what = count_text(state.tracked - count, "tracked message")
        found.lose(stream, f"{what}: XADD adds an entry again if its producer sends it again")
    return kept


def _messages_of(found: Found, state: Idempotence, producer: int) -> list[Message]:
    """Return the messages of a producer, each once, the oldest first."""
    orders: dict[int, Message] = {}
    prefix = producer_rows.producer_prefix(state.number, producer)
    for shape in (shapes.MESSAGE_ORDER_SHAPE, shapes.MESSAGE_SHAPE):
        for db_key, message in found.under(shape, prefix):
            if db_key in (
                producer_rows.order_key(state.number, producer, message.order),
                producer_rows.message_key(state.number, producer, message.iid),
            ):
                orders.setdefault(message.order, message)
    newest = {message.iid: message for _, message in sorted(orders.items())}
    return sorted(newest.values(), key=lambda one: one.order)


def move_messages(found: Found) -> None:
    """Move messages and producers that belong to no stream to lost+found."""
    for table in (keys.PRODUCERS, keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER):
        for _, rows in move_orphans(found, table, _MESSAGES, IDEMPOTENCE_ROWS, "message"):
            count = count_text(rows, "message row")
            found.report.other.append(f"{count} whose stream is unknown")


def _create(
    txn: WriteTxn,
    stream_name: bytes,
    before: GroupRecord,
    members: dict[int, Member],
    leases: Leases,
) -> None:
    """Create a group with its consumers, which keep their numbers, and their leases."""
    group = create_group(txn, written(txn, stream_name), before.name, before.last_id())
    record = group.record
    record.entries_read = max(UNKNOWN, before.entries_read)
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
        txn.put_row(keys.CONSUMERS, db_key, encode_number(lease))
