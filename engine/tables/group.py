"""One consumer group as a transaction sees it: its record, its consumers, its pending entries.

A group is attached to the write transaction that found it, which saves it at commit. Between
transactions the group stays decoded, as streams do; of its NACK pages only the current one.

All counters of a group and its consumers change in this class, except that `lag.advance` counts
what was read. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.tables.lease_rows import (
    drop_leases,
    newest_lease,
    newest_leases,
    tidy_leases,
)
from streamkeep.engine.tables.pel import Pel
from streamkeep.engine.tables.read_cursor import ReadCursor
from streamkeep.engine.tables.scan import bodies_with, rows_with
from streamkeep.engine.txn.context import CachedRow
from streamkeep.engine.txn.read_txn import FOUND, ReadTxn, Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import is_ascending
from streamkeep.format.rows import group_records
from streamkeep.format.rows.nacks import MAX_COUNT, OWNED, Nack, encode_run, make_order_key
from streamkeep.format.rows.records import GROUP_ROWS, encode_garbage, encode_number

NEXT_GROUP: Final = b"next_group_number"
DEAD_FOR_MS: Final = 86_400_000  # after this, consumers of dead leases go if nothing is pending
_MOST_TIME: Final = OWNED - 1
_LOOKED_AT: Final = 100  # consumers, each time that one begins to use a new lease


class Group(CachedRow):
    """A consumer group of a stream.

    `save` compares the record with the stored row. Consumers may be many: those whose counters or
    times changed are in a table of their own until `save`.
    """

    def __init__(self, txn: Txn, stream: Stream, record: group_records.GroupRecord) -> None:
        self.txn = txn
        self.stream_number = stream.number
        self.stream_key: bytes = stream.db_key
        self.record = record
        self.prefix: bytes = keys.pack_number(record.number)
        self.pel = Pel(txn, record)
        self.resume = ReadCursor()
        self.stored = b""  # the value of its row
        self._stored_body = b""  # the record in it
        self._consumers: dict[bytes, group_records.Consumer] = {}
        self._changed: dict[
            bytes, group_records.Consumer
        ] = {}  # those of them that `save` must write
        self._names: dict[int, bytes] = {}
        self._leases: dict[int, int] = {}  # the newest lease of each consumer, by its number

    def enter(self, txn: WriteTxn) -> None:
        """Continue in a later transaction."""
        self.txn = txn
        self.pel.enter(txn)

    def writer(self) -> WriteTxn:
        """Return the transaction, which must be a write transaction."""
        txn = self.txn
        if not isinstance(txn, WriteTxn):
            raise TypeError("a read transaction changes nothing")
        return txn

    # --- how far it has read ----------------------------------------------------------------

    def last_id(self) -> tuple[int, int]:
        return self.record.last_ms, self.record.last_seq

    def set_last_id(self, last_id: tuple[int, int]) -> None:
        self.record.last_ms, self.record.last_seq = last_id

    def set_entries_read(self, count: int) -> None:
        self.record.entries_read = count

    # --- consumers --------------------------------------------------------------------------

    def find_consumer(self, name: bytes) -> group_records.Consumer | None:
        consumer = self._consumers.get(name)
        if consumer is None:
            db_key = keys.name_key(self.prefix, name)
            body = self.txn.get_row(keys.CONSUMERS, db_key, self._where())
            if body is None:
                return None
            consumer = group_records.decode_consumer(body, self._where())
            if consumer.name != name:
                raise CorruptionError(self._where(), f"the row of {name!r} holds another name")
            self._consumers[name] = consumer
        return consumer

    def make_consumer(self, name: bytes, now_ms: int) -> group_records.Consumer:
        """Return a consumer, created if it is missing; its times stay as they are."""
        consumer = self.find_consumer(name)
        if consumer is None:
            number = self.record.next_consumer
            keys.check_number(number, keys.LAST_MEMBER, self._where())
            consumer = group_records.Consumer(name, number, now_ms)
            self._consumers[name] = consumer
            self._changed[name] = consumer
            self.record.next_consumer += 1
            self.record.consumers += 1
            self.writer().put_row(keys.CONSUMERS, keys.number_key(self.prefix, number), name)
        return consumer

    def see_consumer(self, name: bytes, now_ms: int) -> group_records.Consumer:
        """Return a consumer, created if it is missing, and note that it was seen."""
        consumer = self.make_consumer(name, now_ms)
        self.saw(consumer, now_ms)
        return consumer

    def saw(self, consumer: group_records.Consumer, now_ms: int) -> None:
        consumer.seen_time = now_ms
        self._changed[consumer.name] = consumer

    def was_active(self, consumer: group_records.Consumer, now_ms: int) -> None:
        consumer.active_time = now_ms
        self._changed[consumer.name] = consumer

    def remove_consumer(self, consumer: group_records.Consumer) -> None:
        """Remove a consumer that owns no pending entry."""
        txn = self.writer()
        txn.delete(keys.CONSUMERS, keys.name_key(self.prefix, consumer.name))
        txn.delete(keys.CONSUMERS, keys.number_key(self.prefix, consumer.number))
        drop_leases(txn, self.prefix, consumer.number)
        self._leases.pop(consumer.number, None)
        del self._consumers[consumer.name]
        self._changed.pop(consumer.name, None)
        self._names.pop(consumer.number, None)
        self.record.consumers -= 1

    def remove_idle(self, number: int) -> None:
        """Remove the consumer with a number, unless it has something pending."""
        consumer = self._owner(number)
        if consumer is not None and not consumer.pending:
            self.remove_consumer(consumer)

    def hold(self, consumer: group_records.Consumer, lease: int) -> None:
        """Note under which lease a consumer is given entries from now on; 0 for none.

        Costs a row when that changes, which is once for each process that uses the consumer.
        """
        number = consumer.number
        known = self._leases.get(number, -1)
        if known < 0:
            known = newest_lease(self.txn, self.prefix, number)
        if known != lease:
            txn = self.writer()
            tidy_leases(txn, self.pel, consumer)
            db_key = keys.lease_key(self.prefix, number, self.record.next_order)
            txn.put_row(keys.CONSUMERS, db_key, encode_number(lease))
            self._remove_dead(consumer)
        self._leases[number] = lease

    def newest_lease(self, consumer: group_records.Consumer) -> int:
        """Return the lease under which a consumer was given entries last; 0 if that is unknown."""
        return newest_lease(self.txn, self.prefix, consumer.number)

    def _remove_dead(self, newcomer: group_records.Consumer) -> None:
        """Remove some consumers that died long ago and have nothing pending.

        It happens when a process begins to consume, so groups do not grow with each process.
        """
        leases = self.txn.context.leases
        if leases is None:
            return
        before_ms = self.txn.now_ms() - DEAD_FOR_MS
        for number, lease in newest_leases(self.txn, self.prefix, _LOOKED_AT):
            if number == newcomer.number or not lease:
                continue
            consumer = self._owner(number)
            if (
                consumer is not None
                and not consumer.pending
                and max(consumer.seen_time, consumer.active_time) < before_ms
                and leases.is_dead(lease)
            ):
                self.remove_consumer(consumer)

    def consumers(self) -> list[group_records.Consumer]:
        everyone: dict[bytes, group_records.Consumer] = {}
        for db_key, value in rows_with(self.txn, keys.CONSUMERS, self.prefix):
            if keys.is_name_key(db_key):
                body = row_body(keys.CONSUMERS, db_key, value, self._where())
                consumer = group_records.decode_consumer(body, self._where())
                everyone[consumer.name] = self._consumers.get(consumer.name, consumer)
        for name, consumer in self._consumers.items():  # those not written yet
            everyone[name] = consumer
        return [everyone[name] for name in sorted(everyone)]

    def consumer_name(self, number: int) -> bytes:
        """Return the name of the consumer with a number; empty for 0, which means no owner."""
        if number == 0:
            return b""
        name = self._names.get(number)
        if name is None:
            db_key = keys.number_key(self.prefix, number)
            name = self.txn.get_row(keys.CONSUMERS, db_key, self._where())
            if name is None:
                raise CorruptionError(self._where(), f"consumer {number} does not exist")
            self._names[number] = name
        return name

    def _owner(self, number: int) -> group_records.Consumer | None:
        if number == 0:
            return None
        consumer = self.find_consumer(self.consumer_name(number))
        if consumer is None:
            raise CorruptionError(self._where(), f"consumer {number} has no record")
        return consumer

    def _where(self) -> str:
        return f"group {self.record.number}"

    # --- pending entries --------------------------------------------------------------------

    def give(
        self,
        ms: int,
        seq: int,
        consumer: group_records.Consumer,
        *,
        delivery_time: int,
        delivery_count: int,
        sort_by_time: bool = False,
    ) -> None:
        """Make an entry pending for a consumer, and no longer for the one that had it before.

        Args:
            sort_by_time: sort it in by `delivery_time`, after equal times; otherwise it becomes
                the last in the order of delivery.
        """
        record = self.record
        time = min(delivery_time, _MOST_TIME)
        order_time = time if sort_by_time else max(time, record.last_order_time)
        record.last_order_time = max(order_time, record.last_order_time)
        key = make_order_key(True, order_time, record.next_order)
        record.next_order += 1
        count = min(delivery_count, MAX_COUNT)
        self.put(Nack(ms, seq, consumer.number, time, count, key), consumer)

    def deliver(
        self, ids: list[tuple[int, int]], consumer: group_records.Consumer, now_ms: int
    ) -> None:
        """Make entries, ascending, pending for a consumer, delivered for the first time."""
        highest = self.pel.highest()
        if (
            highest is not None and ids[0] <= highest
        ):  # last_delivered_id was lowered by XGROUP SETID
            for ms, seq in ids:
                self.give(ms, seq, consumer, delivery_time=now_ms, delivery_count=1)
            return
        record = self.record
        time = min(now_ms, _MOST_TIME)
        record.last_order_time = max(time, record.last_order_time)
        run = encode_run(ids, consumer.number, time, record.last_order_time, record.next_order)
        self.pel.append_run(ids[0], run, consumer.number)
        count = len(ids)
        record.next_order += count
        self._count_pending(consumer, count)

    def give_back(self, ms: int, seq: int, delivery_count: int) -> None:
        """Make an entry pending without an owner: the last of the NACK zone."""
        record = self.record
        key = make_order_key(False, 0, record.next_order)
        record.next_order += 1
        self.put(Nack(ms, seq, 0, 0, delivery_count, key), None)

    def put(self, nack: Nack, consumer: group_records.Consumer | None) -> None:
        """Add a NACK of a consumer, or of none, in the place of that of the same entry."""
        former = self.pel.put(nack)
        if former is not None:
            self._count_pending(self._owner(former.consumer), -1)
        self._count_pending(consumer, 1)

    def ack(self, ms: int, seq: int) -> bool:
        """Remove an entry from the pending entries; return whether it was there."""
        nack = self.pel.remove(ms, seq)
        if nack is None:
            return False
        self._count_pending(self._owner(nack.consumer), -1)
        return True

    def ack_many(self, ids: list[tuple[int, int]]) -> int:
        """Remove entries from the pending entries; return how many were there."""
        acknowledged = 0
        if not is_ascending(ids):
            ids = sorted(set(ids))
        for number, count in self.pel.remove_many(ids).items():
            acknowledged += count
            self._count_pending(self._owner(number), -count)
        return acknowledged

    def _count_pending(self, owner: group_records.Consumer | None, count: int) -> None:
        """Count pending entries of the group, and of their owner if they have one."""
        self.record.pending += count
        if owner is None:
            self.record.nacked += count
        else:
            owner.pending += count
            self._changed[owner.name] = owner

    # --- writing ----------------------------------------------------------------------------

    def save(self) -> None:
        self.pel.flush()
        txn = self.writer()
        for name, consumer in self._changed.items():
            txn.put_row(keys.CONSUMERS, keys.name_key(self.prefix, name), consumer.encode())
        self._changed.clear()
        body = self.record.encode()
        if body != self._stored_body:
            db_key = keys.name_key(self.stream_key, self.record.name)
            self.note_stored(with_checksum(keys.GROUPS, db_key, body), body)
            txn.put(keys.GROUPS, db_key, self.stored)

    def note_stored(self, value: bytes, body: bytes) -> None:
        """Note the value of its row, and the record in it."""
        self.stored = value
        self._stored_body = body


def load_group(txn: Txn, stream: Stream, name: bytes) -> Group | None:
    where = f"group {name!r} of stream {stream.number}"
    db_key = keys.name_key(stream.db_key, name)
    value = txn.get(keys.GROUPS, db_key)
    if value is None:
        return None
    body = row_body(keys.GROUPS, db_key, value, where)
    record = group_records.decode_group(body, where)
    if record.name != name:
        raise CorruptionError(where, "the row holds another name")
    group = Group(txn, stream, record)
    group.note_stored(value, body)
    return group


def find_group(txn: Txn, stream: Stream, name: bytes) -> Group | None:
    """Return the group `name` of a stream with the changes of this transaction."""
    key = (stream.number, name)
    if isinstance(txn, ReadTxn):
        groups = txn.found_groups
        known = None if groups is None else groups.get(key)
        if isinstance(known, Group):
            return known
        group = load_group(txn, stream, name)
        if group is not None and groups is not None and len(groups) < FOUND:
            groups[key] = group
        return group
    assert isinstance(txn, WriteTxn)
    cached_rows = txn.find_attached(key)
    if isinstance(cached_rows, Group):
        if cached_rows.txn is not txn:
            cached_rows.enter(txn)
        return cached_rows
    group = load_group(txn, stream, name)
    if group is not None:
        txn.attach(key, group)
    return group


def create_group(txn: WriteTxn, stream: Stream, name: bytes, last_id: tuple[int, int]) -> Group:
    txn.group_counts = {}
    number = txn.take_number(NEXT_GROUP)
    group = Group(txn, stream, group_records.GroupRecord(name, number, last_id[0], last_id[1]))
    txn.attach((stream.number, name), group)
    group.save()
    return group


def destroy_group(txn: WriteTxn, stream: Stream, group: Group) -> None:
    """Remove a group at once; its consumers and pending entries become garbage."""
    name = group.record.name
    txn.group_counts = {}
    txn.detach((stream.number, name))
    txn.delete(keys.GROUPS, keys.name_key(stream.db_key, name))
    txn.add_garbage(encode_garbage(GROUP_ROWS, group.record.number))


def count_groups(txn: Txn, stream: Stream) -> int:
    """Return the number of groups of a stream: to count 1,000 takes 0.6 ms, so that is kept."""
    count = txn.group_counts.get(stream.number)
    if count is None:
        rows = bodies_with(txn, keys.GROUPS, stream.db_key, f"groups of {stream.number}")
        count = txn.group_counts[stream.number] = sum(1 for _ in rows)
    return count


def groups_of(txn: Txn, stream: Stream) -> list[Group]:
    where = f"groups of {stream.number}"
    rows = bodies_with(txn, keys.GROUPS, stream.db_key, where)
    names = [group_records.decode_group(body, where).name for _, body in rows]
    groups: list[Group] = []
    for name in sorted(names):
        group = find_group(txn, stream, name)
        if group is not None:
            groups.append(group)
    return groups
