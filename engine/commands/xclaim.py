"""XCLAIM, XAUTOCLAIM, and the CLAIM option of XREADGROUP. Compiled by mypyc."""

from __future__ import annotations

from streamkeep.engine.commands.xrange import exists, read_ids
from streamkeep.engine.tables.existing import existing_group, shown
from streamkeep.engine.tables.group import Group
from streamkeep.engine.tables.lease_rows import Deliveries
from streamkeep.engine.tables.pel_walks import OrderWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, InvalidIdError
from streamkeep.format.core.id_codec import Id, parse_id
from streamkeep.format.rows.group_records import Consumer
from streamkeep.format.rows.nacks import (
    MAX_COUNT,
    Nack,
    count_nacks,
    decode_nack,
    id_at,
    position_of,
)

MOST_COUNT = (1 << 63) // 16 - 1
VISITS_PER_RESULT = 10
EMPTY_PEL_MS = 50  # pause when nothing is pending, unless the idle time is longer


class ClaimOptions:
    """The options of XCLAIM: None or -1 if they were not given.

    Attributes:
        problem: the error in an option or in the idle time; Redis raises it only after it has found
            the group.
    """

    def __init__(
        self,
        idle: int | None,
        time: int | None,
        retrycount: int,
        force: bool,
        last_id: bytes | None,
        lease: int = 0,
    ) -> None:
        self.idle = idle
        self.time = time
        self.retrycount = retrycount
        self.force = force
        self.last_id = last_id
        self.lease = lease  # of the process that claims; 0 for none
        self.problem: CommandError | None = None

    def delivery_time(self, now_ms: int) -> int:
        """Return the delivery time to set: not in the future, and not before 1970."""
        since = now_ms
        if self.idle is not None:
            since = now_ms - self.idle
        if self.time is not None:
            since = self.time
        return since if 0 <= since <= now_ms else now_ms


def xclaim(
    txn: WriteTxn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    min_idle: int,
    texts: list[bytes],
    options: ClaimOptions,
    shape: int,
    justid: bool,
) -> list[object]:
    """Make a consumer the owner of pending entries; return them, or their IDs (XCLAIM).

    Entries that are gone from the stream are removed from the pending entries.
    """
    stream, group = existing_group(txn, name, group_name)
    if options.problem is not None:
        raise options.problem
    ids = [_claimed_id(text) for text in texts]
    if options.last_id is not None:
        last_id = parse_id(options.last_id, 0)
        if last_id > group.last_id():
            group.set_last_id(last_id)
    now_ms = txn.now_ms()
    since = options.delivery_time(now_ms)
    sort_by_time = options.idle is not None or options.time is not None
    consumer = group.see_consumer(consumer_name, now_ms)
    entries = read_ids(txn, stream, ids, shape)
    claimed: list[object] = []
    for entry_id in ids:
        ms, seq = entry_id
        entry = entries.get(entry_id)
        if entry is None:
            group.ack(ms, seq)
            continue
        nack = group.pel.get(ms, seq)
        count = 1
        if nack is not None:
            count = nack.delivery_count
            if nack.consumer and nack.idle_ms(now_ms) < min_idle:
                continue
        elif not options.force:
            continue
        if options.retrycount >= 0:
            count = options.retrycount
        elif not justid:
            count = min(count + 1, MAX_COUNT)
        if not claimed:
            group.hold(consumer, options.lease)
        group.give(
            ms, seq, consumer, delivery_time=since, delivery_count=count, sort_by_time=sort_by_time
        )
        group.was_active(consumer, now_ms)
        claimed.append(entry_id if justid else entry)
    return claimed


def _claimed_id(text: bytes) -> Id:
    """Parse an ID of XCLAIM; Redis takes any other text for an unknown option."""
    try:
        return parse_id(text, 0)
    except InvalidIdError:
        raise CommandError(f"Unrecognized XCLAIM option '{shown(text)}'") from None


class Claimed:
    """The reply of XAUTOCLAIM: where to continue, entries or IDs, and IDs that are gone."""

    def __init__(self, cursor: Id, entries: list[object], gone: list[Id]) -> None:
        self.cursor = cursor
        self.entries = entries
        self.gone = gone


def xautoclaim(
    txn: WriteTxn,
    name: bytes,
    group_name: bytes,
    consumer_name: bytes,
    min_idle: int,
    start: Id,
    count: int,
    shape: int,
    justid: bool,
    dead: bool = False,
    lease: int = 0,
) -> Claimed:
    """Claim entries that are pending from `start` on and idle long enough (XAUTOCLAIM).

    At most `count` entries are claimed or found to be gone, and ten times as many are visited.

    Args:
        dead: of entries with an owner, only claim those that were delivered under a dead lease.
        lease: of the process that claims; 0 for none.
    """
    if not 0 < count <= MOST_COUNT:
        raise CommandError("COUNT must be > 0")
    stream, group = existing_group(txn, name, group_name)
    now_ms = txn.now_ms()
    consumer = group.see_consumer(consumer_name, now_ms)
    due = Due(min_idle, now_ms, Deliveries(txn, group.pel) if dead else None)
    results, cursor = _visit(txn, stream, group, start, count, due)
    entries: list[object] = []
    gone: list[Id] = []
    found = read_ids(txn, stream, [nack.id() for nack in results], shape)
    for nack in results:
        entry = found.get(nack.id())
        if entry is None:
            group.ack(nack.ms, nack.seq)
            gone.append(nack.id())
            continue
        if not entries:
            group.hold(consumer, lease)
        again = nack.delivery_count if justid else min(nack.delivery_count + 1, MAX_COUNT)
        group.give(nack.ms, nack.seq, consumer, delivery_time=now_ms, delivery_count=again)
        group.was_active(consumer, now_ms)
        entries.append(nack.id() if justid else entry)
    return Claimed(cursor, entries, gone)


class Due:
    """Which NACKs XAUTOCLAIM claims."""

    def __init__(self, min_idle: int, now_ms: int, deliveries: Deliveries | None) -> None:
        self._min_idle = min_idle
        self._now_ms = now_ms
        self._deliveries = deliveries  # if only those of dead leases are claimed

    def includes(self, nack: Nack) -> bool:
        """Return whether a NACK is claimed if its entry exists."""
        if nack.consumer == 0:
            return True
        if nack.idle_ms(self._now_ms) < self._min_idle:
            return False
        return self._deliveries is None or self._deliveries.is_dead(nack)


def _visit(
    txn: WriteTxn, stream: Stream, group: Group, start: Id, count: int, due: Due
) -> tuple[list[Nack], Id]:
    """Return the NACKs that are due or whose entry is gone, at most `count` of them.

    Also return the ID of the first NACK that XAUTOCLAIM does not visit.
    """
    results: list[Nack] = []
    visits = 0
    pel = group.pel
    page = pel.page_from(*start)
    while page is not None:
        data = page.data
        index = position_of(data, *start)
        total = count_nacks(data)
        while index < total:
            left = min(count - len(results), VISITS_PER_RESULT * count - visits)
            if left == 0:
                return results, id_at(data, index)
            nacks = [decode_nack(data, at) for at in range(index, min(index + left, total))]
            index += len(nacks)
            visits += len(nacks)
            young = {nack.id() for nack in nacks if not due.includes(nack)}
            alive = read_ids(txn, stream, list(young), -1)
            results += [nack for nack in nacks if nack.id() not in young or nack.id() not in alive]
        page = pel.page_following(page)
    return results, (0, 0)


def claimable(
    txn: WriteTxn, stream: Stream, group: Group, min_idle: int, now_ms: int, most: int, shape: int
) -> list[tuple[Nack, object]]:
    """Return the NACKs that XREADGROUP CLAIM takes, and their entries, in the order of delivery.

    It ends at the first NACK that is too young. Entries that are gone are skipped and stay pending.
    """
    taken: list[tuple[Nack, object]] = []
    walk = OrderWalk(group.pel)
    while len(taken) < most:
        nack = walk.next()
        if nack is None or nack.idle_ms(now_ms) < min_idle:
            break
        entry = read_ids(txn, stream, [nack.id()], shape).get(nack.id())
        if entry is not None:
            taken.append((nack, entry))
    return taken


def claimable_dead(
    txn: Txn,
    stream: Stream,
    group: Group,
    most: int,
    shape: int,
    owned: bool = False,
    reader: int = 0,
) -> list[tuple[Nack, object]]:
    """Return NACKs that no live process works on, and their entries, at most `most`.

    First those without an owner, then those of dead leases, both in the order of delivery. Of one
    dead consumer, those with the lowest IDs are taken. Entries that are gone stay pending.

    Args:
        owned: without those that have no owner. The caller is a queue, in which each process has a
            consumer of its own, so one that is dead and has nothing pending is removed: with 1,000
            of them each call would take 5 ms. Entries that are gone do not stay pending: their jobs
            would run for ever. Where nothing can be changed, they are returned.
        reader: the number of the consumer that takes them, which is not removed.
    """
    taken: list[tuple[Nack, object]] = []
    if group.record.nacked and not owned:
        walk = OrderWalk(group.pel)
        while len(taken) < most:
            nack = walk.next()
            if nack is None or nack.consumer:
                break
            entry = read_ids(txn, stream, [nack.id()], shape).get(nack.id())
            if entry is not None:
                taken.append((nack, entry))
    if len(taken) == most or group.record.pending == group.record.nacked:
        return taken
    deliveries = Deliveries(txn, group.pel)
    dead: list[tuple[bytes, Nack, object]] = []
    gone: list[Nack] = []
    for consumer in deliveries.dead_consumers():
        seen = 0
        found: list[tuple[bytes, Nack, object]] = []
        for nacks in deliveries.dead_of(consumer):
            seen += len(nacks)
            entries = read_ids(txn, stream, [nack.id() for nack in nacks], shape)
            for nack in nacks:
                if nack.id() in entries:
                    found.append((nack.order_key, nack, entries[nack.id()]))
                elif owned:
                    gone.append(nack)
            if len(found) >= most:
                break
        dead += found
        if not seen and isinstance(txn, WriteTxn):
            if owned and consumer != reader and deliveries.is_ended(consumer):
                group.remove_idle(consumer)
            else:
                deliveries.drop_dead(txn, consumer)
    if gone and isinstance(txn, WriteTxn):
        group.ack_many([nack.id() for nack in gone])
    elif gone:
        return [(gone[0], None)]
    dead.sort(key=lambda one: one[0])
    return taken + [(nack, entry) for _, nack, entry in dead[: most - len(taken)]]


def idle_left(txn: Txn, stream: Stream, group: Group, min_idle: int, now_ms: int) -> int:
    """Return in how many milliseconds CLAIM may find something; 0 if it would now."""
    walk = OrderWalk(group.pel)
    nack = walk.next()
    while nack is not None:
        left = min_idle - (now_ms - nack.delivery_time)
        if left > 0:
            return left
        if exists(txn, stream, nack.ms, nack.seq):
            return 0
        nack = walk.next()
    return max(min_idle, EMPTY_PEL_MS)


def claim_one(group: Group, consumer: Consumer, nack: Nack, now_ms: int) -> None:
    """Make a consumer the owner of one pending entry, as XREADGROUP CLAIM does."""
    group.give(
        nack.ms,
        nack.seq,
        consumer,
        delivery_time=now_ms,
        delivery_count=min(nack.delivery_count + 1, MAX_COUNT),
    )
    group.was_active(consumer, now_ms)
