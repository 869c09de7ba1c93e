"""Reading a stream from the store in parts: for DUMP, for files, for comparisons.

See `format/redis/stream_parts.py` for the parts. They are read in one transaction, on
demand: only one node or one group at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.pel_walks import OrderWalk
from streamkeep.engine.tables.scan import bodies_with, rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import IDEMPOTENCY_ORDER, PRODUCERS, is_name_key, pack_number
from streamkeep.format.redis import stream_parts as parts
from streamkeep.format.redis.stream_dump import TARGETS, Losses, write_payload
from streamkeep.format.rows.extension import IDEMPOTENCE, idempotence_of, split_sections
from streamkeep.format.rows.nacks import Nack, count_nacks, decode_nack
from streamkeep.format.rows.producers import decode_message, decode_producer, producer_prefix

# What DUMP writes: the first of these that stores all of a stream.
_LOSSLESS: Final = ("7.2", "8.6", "8.8")


def stream_parts(txn: Txn, stream: Stream, *, in_order: bool = False) -> parts.Parts:
    """Yield the parts of a stream; `in_order` is that of `group_part`."""
    walk = NodeWalk(txn, stream)
    found = walk.first()
    while found:
        yield parts.Node(walk.ms, walk.seq, walk.load())
        found = walk.next()
    groups = groups_of(txn, stream)
    yield counters_of(stream, len(groups))
    for group in groups:
        yield group_part(group, in_order=in_order)
    messages = messages_of(txn, stream)
    if messages is not None:
        yield messages


def counters_of(stream: Stream, groups: int) -> parts.Counters:
    record = stream.record
    return parts.Counters(
        record.length,
        record.last_id(),
        record.first_id(),
        record.max_deleted_id(),
        record.entries_added,
        groups,
    )


def pending_of(group: Group) -> Iterator[Nack]:
    """Yield the pending entries of a group, ascending by ID."""
    for data in _pages_of(group):
        for index in range(count_nacks(data)):
            yield decode_nack(data, index)


def _pages_of(group: Group) -> Iterator[bytes]:
    page = group.pel.page_after(b"")
    while page is not None:
        yield page.data
        page = group.pel.page_following(page)


def delivered_order(group: Group) -> Iterator[Nack]:
    """Yield the pending entries of a group by delivery, those without an owner first."""
    walk = OrderWalk(group.pel)
    while (nack := walk.next()) is not None:
        yield nack


def zone_of(group: Group) -> list[Id]:
    """Return the IDs without an owner, in the order in which they were released."""
    ids: list[Id] = []
    if group.record.nacked:
        for nack in delivered_order(group):
            if nack.consumer:
                break
            ids.append(nack.id())
    return ids


class _PendingOf:
    """The pending entries of a group, read from its pages: there may be millions."""

    def __init__(self, group: Group, places: dict[int, int], in_order: bool) -> None:
        self._group = group
        self._places = places  # of consumers, by their numbers
        self._walk = delivered_order if in_order else pending_of

    def __iter__(self) -> Iterator[parts.Pending]:
        for nack in self._walk(self._group):
            place = self._places.get(nack.consumer)
            if place is None:
                where = f"group {self._group.record.number}"
                raise CorruptionError(where, f"consumer {nack.consumer} does not exist")
            yield parts.Pending(nack.ms, nack.seq, place, nack.delivery_time, nack.delivery_count)

    def __len__(self) -> int:
        return sum(count_nacks(data) for data in _pages_of(self._group))


def group_part(group: Group, *, in_order: bool = False) -> parts.GroupPart:
    """Return a group with everything that belongs to it; pending entries are read when needed.

    Args:
        in_order: pending entries in the order of delivery, instead of ascending by ID.
    """
    record = group.record
    consumers = group.consumers()
    places = {consumer.number: place for place, consumer in enumerate(consumers)}
    places[0] = parts.NOBODY
    return parts.GroupPart(
        record.name,
        record.last_id(),
        record.entries_read,
        [parts.ConsumerPart(one.name, one.seen_time, one.active_time) for one in consumers],
        _PendingOf(group, places, in_order),
        zone_of(group),
    )


def messages_of(txn: Txn, stream: Stream) -> parts.Messages | None:
    """Return what idempotent XADD remembers of a stream; None if it was never used."""
    where = f"stream {stream.number}"
    extension = stream.record.extension
    if IDEMPOTENCE not in split_sections(extension, where):
        return None
    state = idempotence_of(extension, where)
    producers: list[parts.ProducerPart] = []
    if state.number:
        for db_key, value in rows_with(txn, PRODUCERS, pack_number(state.number)):
            if is_name_key(db_key):
                producer, name = decode_producer(row_body(PRODUCERS, db_key, value, where), where)
                prefix = producer_prefix(state.number, producer.number)
                rows = bodies_with(txn, IDEMPOTENCY_ORDER, prefix, where)
                messages = [decode_message(body, where) for _, body in rows]
                triples = [(one.iid, one.ms, one.seq) for one in messages]
                producers.append(parts.ProducerPart(name, triples))
    producers.sort()
    return parts.Messages(state.duration, state.maxsize, producers, state.added, state.duplicates)


def dump(txn: Txn, name: bytes, server: str | None) -> bytes | None:
    """Return the DUMP payload of a stream; None when it is missing.

    Args:
        server: the Redis that is to read it, which drops what that cannot store; None for the
            oldest one that loses nothing.
    """
    stream = txn.find_stream(name)
    if stream is None:
        return None
    payload = b""
    for target in _LOSSLESS if server is None else (server,):
        losses = Losses()
        payload = write_payload(stream_parts(txn, stream), stream.nodes(), TARGETS[target], losses)
        if not losses:
            break
    return payload
