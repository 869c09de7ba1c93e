"""Idempotent XADD (IDMP, IDMPAUTO), XCFGSET and XIDMPRECORD.

The messages of each producer are tracked with the IDs of their entries. A known message adds no
entry. The oldest message is forgotten when the producer has more than idmp-maxsize, and each
message idmp-duration seconds after the time of its entry. Redis forgets in the background. Here
each idempotent XADD forgets the expired messages of its own producer, and of one other producer, in
turn, and `maintain` forgets all; until then, XADD and XINFO leave an expired message out.

All rows of a stream have keys with one number. When the settings change, the stream takes a new
number, which forgets all messages at once; the rows with the old number become garbage.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice
from typing import Final

from streamkeep.engine.commands.xrange import exists
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.scan import bodies_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CommandError, CorruptionError
from streamkeep.format.rows import producers as rows
from streamkeep.format.rows.extension import (
    IDEMPOTENCE,
    MAX_DURATION,
    MAX_MAXSIZE,
    Idempotence,
    idempotence_of,
    with_section,
)
from streamkeep.format.rows.records import IDEMPOTENCE_ROWS, encode_garbage

NEXT_IDEMPOTENCE: Final = b"next_idempotence_number"
_WHERE: Final = "idempotency"
_OTHERS: Final = 100  # messages of another producer forgotten per XADD


class Tracker:
    """The messages that one stream remembers, in one write transaction; call `save` at the end."""

    def __init__(self, txn: WriteTxn, stream: Stream) -> None:
        self.txn = txn
        self.stream = stream
        self.state: Idempotence = idempotence_of(stream.record.extension, _WHERE)

    def save(self) -> None:
        """Write settings and counters into the stream record."""
        record = self.stream.record
        record.extension = with_section(record.extension, IDEMPOTENCE, self.state.encode())

    def find(self, producer_name: bytes, iid: bytes, now_ms: int) -> tuple[int, int] | None:
        """Return the ID of the entry of a message; None also if `expire` would forget it now."""
        producer = self._producer(producer_name)
        message = None if producer is None else self._message(producer, iid)
        if producer is None or message is None:
            return None
        limit = self._limit(now_ms)
        if message.ms <= limit:
            for other in self._in_order(producer.number):
                if other.ms > limit:
                    break
                if other.order == message.order:
                    return None
        return message.ms, message.seq

    def track(self, producer_name: bytes, iid: bytes, ms: int, seq: int) -> None:
        """Remember a message, which is not known, and count it; forget the oldest when there are
        too many.
        """
        state = self.state
        if state.number == 0:
            state.number = self.txn.take_number(NEXT_IDEMPOTENCE)
        producer = self._producer(producer_name)
        if producer is None:
            keys.check_number(state.next_producer, keys.LAST_MEMBER, _WHERE)
            producer = rows.Producer(state.next_producer, 0, 0)
            self.txn.put_row(keys.PRODUCERS, self._number_key(producer.number), producer_name)
            state.next_producer += 1
            state.producers += 1
        message = rows.Message(ms, seq, producer.next_order, iid)
        txn = self.txn
        txn.put_row(
            keys.IDEMPOTENCY, rows.message_key(state.number, producer.number, iid), message.encode()
        )
        txn.put_row(
            keys.IDEMPOTENCY_ORDER,
            rows.order_key(state.number, producer.number, message.order),
            message.encode(),
        )
        state.tracked += 1
        state.added += 1
        count = producer.tracked + 1
        if count > state.maxsize:
            for oldest in list(islice(self._in_order(producer.number), count - state.maxsize)):
                self._forget_message(producer.number, oldest)
                count -= 1
        self._put_producer(producer_name, rows.Producer(producer.number, count, message.order + 1))

    def expire(self, producer_name: bytes, now_ms: int) -> None:
        """Forget the expired messages of a producer, and of another one, in turn."""
        if self.state.number == 0:
            return
        limit = self._limit(now_ms)
        producer = self._producer(producer_name)
        if producer is not None:
            self._expire_one(producer_name, producer, limit, producer.tracked)
        # The producer after the one that was looked at last.
        number = self._next_producer(self.state.swept + 1)
        if number < 0:
            number = self._next_producer(0)
        if number < 0:
            return
        self.state.swept = number
        name = self._name_of(number)
        other = None if name is None else self._producer(name)
        if name is not None and other is not None:
            self._expire_one(name, other, limit, _OTHERS)

    def _limit(self, now_ms: int) -> int:
        """Return the highest time of an entry whose message has expired."""
        return now_ms - self.state.duration * 1000

    def forget_expired(self, start: int, producers: int, messages: int) -> tuple[int, int]:
        """Forget expired messages of some producers from number `start` on.

        Args:
            producers: how many to look at, at most.
            messages: how many to forget, at most.

        Returns:
            How many were forgotten, and the producer to continue with, or -1 at the end.
        """
        limit = self._limit(self.txn.now_ms())
        before = self.state.tracked
        at = start
        while (at := self._next_producer(at)) >= 0:
            left = messages - (before - self.state.tracked)
            if producers == 0 or left <= 0:
                return before - self.state.tracked, at
            producers -= 1
            name = self._name_of(at)
            producer = None if name is None else self._producer(name)
            if name is not None and producer is not None:
                self._expire_one(name, producer, limit, left)
                if before - self.state.tracked >= messages:
                    return before - self.state.tracked, at  # some of its messages may be left
            at += 1
        return before - self.state.tracked, -1

    def _next_producer(self, start: int) -> int:
        """Return the first producer with messages whose number is at least `start`, or -1."""
        number = self.state.number
        cursor = self.txn.cursor(keys.IDEMPOTENCY_ORDER)
        if start > keys.LAST_MEMBER or not cursor.set_range(rows.order_key(number, start, 0)):
            return -1
        db_key = cursor.key()
        return (
            rows.unpack_order_key(db_key)[1] if db_key.startswith(keys.pack_number(number)) else -1
        )

    def reset(self, duration: int, maxsize: int) -> None:
        """Change the settings, and forget all producers."""
        state = self.state
        if state.number:
            self.txn.add_garbage(encode_garbage(IDEMPOTENCE_ROWS, state.number))
        state.number = state.producers = state.tracked = state.swept = 0
        state.next_producer = 1
        state.duration = duration
        state.maxsize = maxsize

    def forget(self, number: int, order: int, ids: Container[tuple[int, int]]) -> None:
        """Forget a message, if it is still there and became one of the entries `ids`."""
        body = self.txn.get_row(
            keys.IDEMPOTENCY_ORDER, rows.order_key(self.state.number, number, order), _WHERE
        )
        name = self._name_of(number)
        if body is None or name is None:
            return
        message = rows.decode_message(body, _WHERE)
        producer = self._producer(name)
        if producer is not None and (message.ms, message.seq) in ids:
            self._forget_message(number, message)
            self._put_producer(name, producer._replace(tracked=producer.tracked - 1))

    # --- rows -------------------------------------------------------------------------------

    def _producer_key(self, name: bytes) -> bytes:
        return keys.name_key(keys.pack_number(self.state.number), name)

    def _producer(self, name: bytes) -> rows.Producer | None:
        if self.state.number == 0:
            return None
        body = self.txn.get_row(keys.PRODUCERS, self._producer_key(name), _WHERE)
        if body is None:
            return None
        producer, whole = rows.decode_producer(body, _WHERE)
        if whole != name:
            raise CorruptionError(_WHERE, f"the row of producer {name!r} holds another name")
        return producer

    def _put_producer(self, name: bytes, producer: rows.Producer) -> None:
        """Write the row of a producer, or remove it with its last message."""
        db_key = self._producer_key(name)
        if producer.tracked:
            self.txn.put_row(keys.PRODUCERS, db_key, producer.encode(name))
        else:
            self.txn.delete(keys.PRODUCERS, db_key)
            self.txn.delete(keys.PRODUCERS, self._number_key(producer.number))
            self.state.producers -= 1

    def _message(self, producer: rows.Producer, iid: bytes) -> rows.Message | None:
        db_key = rows.message_key(self.state.number, producer.number, iid)
        body = self.txn.get_row(keys.IDEMPOTENCY, db_key, _WHERE)
        if body is None:
            return None
        message = rows.decode_message(body, _WHERE)
        if message.iid != iid:
            raise CorruptionError(_WHERE, "the row of a message holds another message")
        return message

    def _in_order(self, producer: int) -> Iterator[rows.Message]:
        """Yield the messages of a producer in the order in which they came."""
        prefix = rows.producer_prefix(self.state.number, producer)
        for db_key, body in bodies_with(self.txn, keys.IDEMPOTENCY_ORDER, prefix, _WHERE):
            yield rows.decode_ordered(db_key, body, _WHERE)

    def _forget_message(self, producer: int, message: rows.Message) -> None:
        number = self.state.number
        self.txn.delete(keys.IDEMPOTENCY_ORDER, rows.order_key(number, producer, message.order))
        self.txn.delete(keys.IDEMPOTENCY, rows.message_key(number, producer, message.iid))
        self.state.tracked -= 1

    def _expire_one(self, name: bytes, producer: rows.Producer, limit: int, most: int) -> None:
        """Forget messages of one producer whose entry's time is not after `limit`."""
        gone: list[rows.Message] = []
        for message in self._in_order(producer.number):
            if len(gone) >= most or message.ms > limit:
                break
            gone.append(message)
        for message in gone:
            self._forget_message(producer.number, message)
        if gone:
            self._put_producer(name, producer._replace(tracked=producer.tracked - len(gone)))

    def _name_of(self, number: int) -> bytes | None:
        return self.txn.get_row(keys.PRODUCERS, self._number_key(number), _WHERE)

    def _number_key(self, number: int) -> bytes:
        return keys.number_key(keys.pack_number(self.state.number), number)


def find_messages(
    txn: Txn, stream: Stream, ids: Container[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the messages that became one of the entries `ids`, as (producer, order)."""
    number = idempotence_of(stream.record.extension, _WHERE).number
    if number == 0:
        return []
    found = []
    for db_key, body in bodies_with(txn, keys.IDEMPOTENCY_ORDER, keys.pack_number(number), _WHERE):
        message = rows.decode_message(body, _WHERE)
        if (message.ms, message.seq) in ids:
            found.append((rows.unpack_order_key(db_key)[1], message.order))
    return found


def count_lasting(txn: Txn, stream: Stream) -> tuple[int, int]:
    """Return how many producers and messages are remembered, without those that have expired."""
    state = idempotence_of(stream.record.extension, _WHERE)
    producers, messages = state.producers, state.tracked
    limit = txn.now_ms() - state.duration * 1000
    prefix = keys.pack_number(state.number)
    cursor = txn.cursor(keys.IDEMPOTENCY_ORDER)
    more = messages > 0 and cursor.set_range(prefix)
    while more and cursor.key().startswith(prefix):
        _, producer, _ = rows.unpack_order_key(cursor.key())
        own = rows.producer_prefix(state.number, producer)
        lasts = False
        while more and not lasts and (db_key := cursor.key()).startswith(own):
            body = row_body(keys.IDEMPOTENCY_ORDER, db_key, cursor.value(), _WHERE)
            lasts = rows.decode_ordered(db_key, body, _WHERE).ms > limit
            if not lasts:
                messages -= 1
                more = cursor.next()
        producers -= not lasts
        if lasts:
            more = producer < keys.LAST_MEMBER and cursor.set_range(
                rows.producer_prefix(state.number, producer + 1)
            )
    return producers, messages


def check_idempotent(producer: bytes, iid: bytes | None, any_id: bool) -> None:
    """Raise as Redis does for the options IDMP (with `iid`) and IDMPAUTO (without)."""
    option = "IDMPAUTO" if iid is None else "IDMP"
    if not producer:
        raise CommandError(f"syntax error, {option} requires a non-empty producer ID")
    if iid == b"":
        raise CommandError("syntax error, IDMP requires a non-empty idempotent ID")
    if not any_id:
        raise CommandError("syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")


def check_limits(duration: int | None, maxsize: int | None) -> None:
    """Raise for a value that XCFGSET does not take."""
    if duration is not None and not 1 <= duration <= MAX_DURATION:
        raise CommandError("IDMP-DURATION must be between 1 and 86400 seconds")
    if maxsize is not None and not 1 <= maxsize <= MAX_MAXSIZE:
        raise CommandError("IDMP-MAXSIZE must be between 1 and 10000 entries")


def xcfgset(txn: WriteTxn, name: bytes, duration: int | None, maxsize: int | None) -> bytes:
    """Set idmp-duration (seconds) and idmp-maxsize of a stream (XCFGSET).

    When a value really changes, all producers of the stream are forgotten.
    """
    stream = existing_stream(txn, name)
    check_limits(duration, maxsize)
    if duration is None and maxsize is None:
        raise CommandError("At least one parameter must be specified")
    tracker = Tracker(txn, stream)
    state = tracker.state
    wanted = (
        state.duration if duration is None else duration,
        state.maxsize if maxsize is None else maxsize,
    )
    if wanted != (state.duration, state.maxsize):
        tracker.reset(*wanted)
        tracker.save()
    return b"OK"


def xidmprecord(
    txn: WriteTxn, name: bytes, producer: bytes, iid: bytes, entry_id: tuple[int, int]
) -> bytes:
    """Remember that a message became an entry that exists (XIDMPRECORD)."""
    if not producer:
        raise CommandError("producer ID must be non-empty")
    if not iid:
        raise CommandError("idempotent ID must be non-empty")
    stream = existing_stream(txn, name)
    if not exists(txn, stream, *entry_id):
        raise CommandError("No such message in stream")
    tracker = Tracker(txn, stream)
    known = tracker.find(producer, iid, txn.now_ms())
    if known is None:
        tracker.expire(producer, txn.now_ms())
        tracker.track(producer, iid, *entry_id)
        tracker.save()
    elif known != entry_id:
        raise CommandError("IID already exists for this producer with a different stream ID")
    return b"OK"
