"""XREADGROUP: deliver entries to the consumers of a group.

For each stream, in this order: the consumer is created and seen; an ID other than `>` returns the
history of the consumer; CLAIM takes over entries that have been pending too long; then new entries
follow. Delivered entries are pending, except with NOACK.
"""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.commands import reply_budget
from streamkeep.engine.commands.arguments import to_integer
from streamkeep.engine.commands.xclaim import claim_one, claimable, claimable_dead, idle_left
from streamkeep.engine.commands.xrange import read_ids
from streamkeep.engine.commands.xread import has_above, read_above
from streamkeep.engine.tables.existing import existing_group
from streamkeep.engine.tables.group import Group, find_group
from streamkeep.engine.tables.lag import advance
from streamkeep.engine.tables.pel_walks import owned_by
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.entry import ClaimedEntry, Entry
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.format.core.id_codec import MAX, Id, cut_id, id_text, parse_id
from streamkeep.format.core.values import as_given
from streamkeep.format.node.node import ENTRY, PAIRS, TEXT
from streamkeep.format.rows.group_records import Consumer
from streamkeep.format.rows.nacks import MAX_COUNT, Nack

NEW: Final = ">"
_EXISTS: Final = -1  # the shape of entries that are only searched
_MEANINGLESS: Final = (
    "The {} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
    "consumer by specifying a proper ID, or use the > ID to get new messages. The {} ID would just "
    "return an empty result set."
)
_ENDING: Final = " in XREADGROUP with GROUP option"

_new_tuple: Any = tuple.__new__

Position = Id | str | CommandError  # an ID, NEW, or the error in it


def parse_position(text: bytes) -> Position:
    """Parse an ID argument of XREADGROUP; return an error, which is raised if the group exists."""
    if text == b">":
        return NEW
    try:
        special = cut_id(text)
        if special == b">":
            return NEW
        if special in (b"$", b"+"):
            return CommandError(_MEANINGLESS.format(special.decode(), special.decode()))
        one = parse_id(text, 0)
    except CommandError as error:
        return error
    return NEW if one == (MAX, MAX) else one  # Redis keeps `>` as the highest ID


def check_claims(min_idle: object, dead: object) -> int | None:
    """Check both options that claim; return the idle time, None if it was not given."""
    if min_idle is None:
        return None
    problem = "XREADGROUP claim_min_idle_time must be a non-negative integer"
    if isinstance(min_idle, bool) or not isinstance(min_idle, int) or min_idle < 0:
        raise ArgumentError(f"{problem}, not {as_given(min_idle)}")
    server = "min-idle-time is not an integer or out of range"
    least = to_integer("claim_min_idle_time", min_idle, server)
    if dead:
        raise ArgumentError(
            "XREADGROUP takes claim_dead or claim_min_idle_time, not both: "
            f"claim_dead={as_given(dead)}, claim_min_idle_time={as_given(min_idle)}"
        )
    return least


class Delivery:
    """One call of XREADGROUP: group, consumer and options."""

    def __init__(
        self,
        group_name: bytes,
        consumer_name: bytes,
        count: int,
        noack: bool,
        min_idle: int | None,
        shape: int,
        dead: bool = False,
        lease: int = 0,
        owned: bool = False,
        counted: bool = False,
    ) -> None:
        self.group_name = group_name
        self.consumer_name = consumer_name
        self.most = count or reply_budget.NO_LIMIT
        self.noack = noack
        self.min_idle = min_idle
        self.shape = shape
        self.dead = dead  # first take over what consumers of dead leases have pending
        self.owned = owned  # of the dead only, not what has no consumer
        self.lease = lease  # of the process that consumes; 0 for none
        self.counted = counted  # entries of the history have four parts, as those of CLAIM have

    def claims(self) -> bool:
        """Return whether pending entries of other consumers are taken over."""
        return self.dead or self.min_idle is not None


def xreadgroup(
    txn: WriteTxn,
    streams: list[tuple[bytes, Position]],
    delivery: Delivery,
    budget: reply_budget.ReplyBudget,
    lazy: bool = False,
) -> reply_budget.Found:
    """Return [name, entries] of each stream that has something for the consumer.

    Args:
        lazy: if no stream has anything, do not write that the consumer was seen.
    """
    budget = budget.fresh()  # if the map is full it grows, and the command runs again
    found: list[tuple[Stream, Group]] = []
    for name, position in streams:
        found.append(existing_group(txn, name, delivery.group_name, _ENDING))
        if isinstance(position, CommandError):
            raise position
    result: reply_budget.Found = []
    idle: list[tuple[Group, Consumer]] = []
    claims = delivery.claims()
    for index, (name, position) in enumerate(streams):
        if budget.used_up:
            break
        stream, group = found[index]
        if isinstance(position, tuple):
            claims = False  # also for the following streams, as in Redis
            consumer = group.make_consumer(delivery.consumer_name, txn.now_ms())
            group.saw(consumer, txn.now_ms())
            budget.begin_stream(name)
            entries = _history(txn, stream, group, consumer, position, delivery, budget)
            result.append([name, entries])
            continue
        if delivery.owned:
            known = group.find_consumer(delivery.consumer_name)  # a queue makes it for a job only
        else:
            known = group.make_consumer(delivery.consumer_name, txn.now_ms())
        due: list[tuple[Nack, object]] = []
        if claims:
            most, min_idle = budget.left(delivery.most), delivery.min_idle
            if min_idle is None:
                owned, reader = delivery.owned, 0 if known is None else known.number
                due = claimable_dead(txn, stream, group, most, int(PAIRS), owned, reader)
            else:
                now_ms = txn.now_ms()
                due = claimable(txn, stream, group, min_idle, now_ms, most, int(PAIRS))
        if due or has_above(stream, group.last_id()):
            consumer = group.see_consumer(delivery.consumer_name, txn.now_ms())
            budget.begin_stream(name)
            entries = _take_over(txn, group, consumer, due, delivery, budget)
            extra = (0, 0) if claims else ()
            entries += _deliver(txn, stream, group, consumer, delivery, len(entries), budget, extra)
            budget.end_stream(len(entries))
            result.append([name, entries])
        elif known is not None:
            idle.append((group, known))
    for group, consumer in idle:
        if result or not lazy:
            group.saw(consumer, txn.now_ms())
    return result


def note_seen(txn: WriteTxn, streams: list[tuple[bytes, Position]], delivery: Delivery) -> None:
    """Note that a consumer was seen; deliver nothing."""
    for name, _ in streams:
        _, group = existing_group(txn, name, delivery.group_name, _ENDING)
        group.see_consumer(delivery.consumer_name, txn.now_ms())


def pause(
    txn: Txn,
    streams: list[tuple[bytes, Position]],
    group_name: bytes,
    min_idle: int | None,
    dead: bool = False,
    owned: bool = False,
) -> int:
    """Return in how many milliseconds `xreadgroup` may return entries or raise an error.

    0 means now, and -1 that only a commit can change the result.
    """
    soonest = -1
    for name, _ in streams:
        stream = txn.find_stream(name)
        group = None if stream is None else find_group(txn, stream, group_name)
        if stream is None or group is None or has_above(stream, group.last_id()):
            return 0
        if dead and claimable_dead(txn, stream, group, 1, _EXISTS, owned):
            return 0
        if min_idle is not None:
            left = idle_left(txn, stream, group, min_idle, txn.now_ms())
            if left == 0:
                return 0
            soonest = left if soonest < 0 else min(soonest, left)
    return soonest


def _history(
    txn: WriteTxn,
    stream: Stream,
    group: Group,
    consumer: Consumer,
    after: Id,
    delivery: Delivery,
    budget: reply_budget.ReplyBudget,
) -> reply_budget.Entries:
    """Deliver pending entries above an ID again; entries that are gone have no fields."""
    now_ms = txn.now_ms()
    most = min(budget.left(delivery.most), consumer.pending)
    nacks = owned_by(group.pel, consumer.number, after, most)
    if nacks:
        group.hold(consumer, delivery.lease)
    found = read_ids(txn, stream, [nack.id() for nack in nacks], int(PAIRS))
    entries: reply_budget.Entries = []
    for nack in nacks:
        if budget.used_up:
            break
        entry: Any = found.get(nack.id())
        flat = None if entry is None else entry[2]
        budget.add_entry(nack.ms, nack.seq, flat)
        shape = delivery.shape
        one = (
            _gone(nack, shape)
            if flat is None
            else reply_budget.shape_entry(nack.ms, nack.seq, flat, shape)
        )
        if delivery.counted:
            one = _claimed(one, (nack.idle_ms(now_ms), nack.delivery_count), shape)
        entries.append(one)
        if flat is None:
            continue
        again = min(nack.delivery_count + 1, MAX_COUNT)
        group.give(nack.ms, nack.seq, consumer, delivery_time=now_ms, delivery_count=again)
    budget.end_stream(len(entries))
    return entries


def _gone(nack: Nack, shape: int) -> tuple[object, ...]:
    """Return a pending entry that is gone from the stream: without pairs, or as redis-py does."""
    if shape not in (ENTRY, TEXT):
        return nack.ms, nack.seq, None
    text = id_text(nack.ms, nack.seq)
    return Entry(text.decode(), {}) if shape == TEXT else Entry(text, {})


def _claimed(entry: tuple[object, ...], extra: tuple[int, ...], shape: int) -> tuple[object, ...]:
    """Return an entry with the two numbers that CLAIM adds."""
    whole = (*entry, *extra)
    return _new_tuple(ClaimedEntry, whole) if shape in (ENTRY, TEXT) else whole


def _take_over(
    txn: WriteTxn,
    group: Group,
    consumer: Consumer,
    due: list[tuple[Nack, Any]],
    delivery: Delivery,
    budget: reply_budget.ReplyBudget,
) -> reply_budget.Entries:
    """Claim the due entries; each reply has its former idle time and delivery count."""
    now_ms = txn.now_ms()
    taken: reply_budget.Entries = []
    if due:
        group.hold(consumer, delivery.lease)
    for nack, (ms, seq, flat) in due:
        if budget.used_up:
            break
        extra = (nack.idle_ms(now_ms), nack.delivery_count)
        budget.add_entry(ms, seq, flat, *extra)
        claim_one(group, consumer, nack, now_ms)
        taken.append(
            _claimed(reply_budget.shape_entry(ms, seq, flat, delivery.shape), extra, delivery.shape)
        )
    return taken


def _deliver(
    txn: WriteTxn,
    stream: Stream,
    group: Group,
    consumer: Consumer,
    delivery: Delivery,
    taken: int,
    budget: reply_budget.ReplyBudget,
    extra: tuple[int, ...],
) -> reply_budget.Entries:
    """Deliver new entries: those above the group's last_delivered_id."""
    most = delivery.most - taken
    if most <= 0 or budget.used_up or not has_above(stream, group.last_id()):
        return []
    now_ms = txn.now_ms()
    entries, ids = read_above(
        txn, stream, group.last_id(), most, budget, delivery.shape, extra, group.resume
    )
    advance(stream.record, group.record, ids)
    if not delivery.noack and ids:
        group.hold(consumer, delivery.lease)
        group.deliver(ids, consumer, now_ms)
        group.was_active(consumer, now_ms)
    if not extra:
        return entries
    return [_claimed(entry, extra, delivery.shape) for entry in entries]
