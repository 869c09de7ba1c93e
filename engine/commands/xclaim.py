"""XCLAIM, XAUTOCLAIM, and the CLAIM option of XREADGROUP. Compiled by mypyc."""

from __future__ import annotations

from streamkeep.engine.commands.xrange import exists, read_ids
from streamkeep.engine.model.existing import existing_group, shown
from streamkeep.engine.model.group import Group
from streamkeep.engine.model.pel_walks import OrderWalk
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import Txn, WriteTxn
from streamkeep.format.core.errors import CommandError, InvalidIdError
from streamkeep.format.core.id_codec import parse_id
from streamkeep.format.rows.group_records import Consumer
from streamkeep.format.rows.nacks import MAX_COUNT, Nack, count_nacks, decode_nack, position_of

Id = tuple[int, int]

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
    ) -> None:
        self.idle = idle
        self.time = time
        self.retrycount = retrycount
        self.force = force
        self.last_id = last_id
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
        group.give(
            ms,
            seq,
            consumer,
            delivery_time=since,
            delivery_count=count,
            sort_by_time=sort_by_time,
        )
        group.was_active(consumer, now_ms)
        claimed.append(entry_id if justid else entry)
    group.save()
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
) -> Claimed:
    """Claim entries that are pending from `start` on and idle long enough (XAUTOCLAIM).

    At most `count` entries are claimed or found to be gone, and ten times as many are visited.
    """
    if not 0 < count <= MOST_COUNT:
        raise CommandError("COUNT must be > 0")
    stream, group = existing_group(txn, name, group_name)
    now_ms = txn.now_ms()
    consumer = group.see_consumer(consumer_name, now_ms)
    visited, cursor = _visit(txn, stream, group, start, count, min_idle, now_ms)
    entries: list[object] = []
    gone: list[Id] = []
    found = read_ids(txn, stream, [nack.id() for nack in visited], shape)
    for nack in visited:
        entry = found.get(nack.id())
        if entry is None:
            group.ack(nack.ms, nack.seq)
            gone.append(nack.id())
            continue
        if not _is_due(nack, min_idle, now_ms):
            continue
        again = nack.delivery_count if justid else min(nack.delivery_count + 1, MAX_COUNT)
        group.give(nack.ms, nack.seq, consumer, delivery_time=now_ms, delivery_count=again)
        group.was_active(consumer, now_ms)
        entries.append(nack.id() if justid else entry)
    group.save()
    return Claimed(cursor, entries, gone)


def _is_due(nack: Nack, min_idle: int, now_ms: int) -> bool:
    return nack.consumer == 0 or nack.idle_ms(now_ms) >= min_idle


def _visit(
    txn: WriteTxn,
    stream: Stream,
    group: Group,
    start: Id,
    count: int,
    min_idle: int,
    now_ms: int,
) -> tuple[list[Nack], Id]:
    """Return the NACKs that XAUTOCLAIM visits, and the ID of the first that it does not.

    NACKs that are due, or whose entry is gone, count against `count`.
    """
    visited: list[Nack] = []
    results = 0
    pel = group.pel
    page = pel.page_from(*start)
    while page is not None:
        data = page.data
        place = position_of(data, *start)
        nacks = [decode_nack(data, index) for index in range(place, count_nacks(data))]
        young = [nack.id() for nack in nacks if not _is_due(nack, min_idle, now_ms)]
        alive = read_ids(txn, stream, young, -1)
        for nack in nacks:
            if results == count or len(visited) == VISITS_PER_RESULT * count:
                return visited, nack.id()
            visited.append(nack)
            if _is_due(nack, min_idle, now_ms) or nack.id() not in alive:
                results += 1
        page = pel.page_following(page)
    return visited, (0, 0)


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
