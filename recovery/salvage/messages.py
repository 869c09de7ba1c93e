"""Step two of a repair, idempotent XADD: make producers and messages of the new store agree.

Each message has two rows with the same content, by message ID and by order; one can be rebuilt from
the other. Producers have two rows as well. All counters are derived.
"""

from __future__ import annotations

from typing import Final

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    PRODUCERS,
    STREAMS,
    is_name_key,
    name_key,
    number_key,
    pack_number,
    unpack_number,
)
from streamkeep.format.humanize import count_text
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.rows.extension import IDEMPOTENCE, Idempotence, idempotence_of, with_section
from streamkeep.format.rows.producers import (
    Message,
    Producer,
    decode_message,
    decode_producer,
    message_key,
    order_key,
    producer_prefix,
)
from streamkeep.format.rows.records import StreamRecord, decode_stream_record
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore

_OWNER: Final = b"I"  # note: a number under which a stream stores its messages
_NUMBER_SIZE: Final = 8
_PREFIX_SIZE: Final = 12
_TABLES: Final = (PRODUCERS, IDEMPOTENCY, IDEMPOTENCY_ORDER)


class MessageRebuilder:
    """Rebuilds the producers and messages of all streams of a new store."""

    def __init__(self, out: BulkStore, report: Report, lost: LostAndFound, epoch: int) -> None:
        self.out = out
        self.report = report
        self.lost = lost
        self.epoch = epoch
        self.highest = 0  # the highest number in use

    def run(self) -> None:
        """Rebuild everything."""
        for db_key, value in self.out.rows(STREAMS):
            self._stream(unpack_number(db_key), value)
        self._orphans()

    def _orphans(self) -> None:
        """Move rows that belong to no stream to lost+found."""
        for table in _TABLES:
            rows = 0
            for db_key, value in self.out.rows(table):
                if self.out.noted(_OWNER + db_key[:_NUMBER_SIZE]) is None:
                    rows += 1
                    self.lost.keep_value("message", "its stream is lost", value, key=db_key.hex())
                    self.out.delete(table, db_key)
            if rows:
                count = count_text(rows, "message row")
                self.report.other.append(f"{count} whose stream is unknown")

    def _stream(self, number: int, value: bytes) -> None:
        envelope = decode_envelope(value, "stream")
        record = decode_stream_record(envelope.record, "stream")
        try:
            state = idempotence_of(record.extension, "stream")
        except CorruptionError:
            self.report.stream(number).notes.append("its producers and tracked messages")
            record.extension = with_section(record.extension, IDEMPOTENCE, Idempotence().encode())
            state = idempotence_of(record.extension, "stream")
        before = state.encode()
        if state.number:
            self._messages(number, state)
        if state.encode() == before:
            return
        self.report.rebuild("counters of producers")
        record.extension = with_section(record.extension, IDEMPOTENCE, state.encode())
        self._put(number, value, record)

    def _put(self, number: int, value: bytes, record: StreamRecord) -> None:
        old = decode_envelope(value, "stream")
        new = encode_envelope(
            number, old.ms, old.seq, self.epoch, 1, record.encode(), old.listpack, old.trimmed
        )
        self.out.put(STREAMS, pack_number(number), new)

    def _messages(self, number: int, state: Idempotence) -> None:
        losses = self.report.stream(number).notes
        if self.out.noted(_OWNER + pack_number(state.number)) is not None:
            losses.append("its producers and tracked messages: another stream uses their number")
            state.number = state.producers = state.tracked = state.swept = 0
            state.next_producer = 1
            return
        self.out.note(_OWNER + pack_number(state.number), b"")
        self.highest = max(self.highest, state.number)
        had = state.tracked
        self._pair_messages(state)
        if state.tracked < had:
            count = count_text(had - state.tracked, "tracked message")
            losses.append(f"{count}: XADD adds an entry again if its producer sends it again")
        producers = self._producers(state, losses)
        state.producers = len(producers)
        state.next_producer = max(state.next_producer, max(producers, default=0) + 1)

    def _pair_messages(self, state: Idempotence) -> None:
        """Make the two rows of each message agree; prefer the one in `idempotency_order`."""
        prefix = pack_number(state.number)
        for db_key, value in self.out.rows(IDEMPOTENCY_ORDER, prefix):
            producer = int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
            message = _message(IDEMPOTENCY_ORDER, db_key, value)
            place = None if message is None else order_key(state.number, producer, message.order)
            if message is None or place != db_key or producer == 0:
                self.out.delete(IDEMPOTENCY_ORDER, db_key)
                continue
            own = message_key(state.number, producer, message.iid)
            present = self.out.get(IDEMPOTENCY, own)
            known = None if present is None else _message(IDEMPOTENCY, own, present)
            if known == message:
                continue
            self.report.rebuild("messages")
            if known is not None and known.order > message.order:
                self.out.delete(IDEMPOTENCY_ORDER, db_key)  # an older order of the same message
            else:
                self.out.put_row(IDEMPOTENCY, own, message.encode())
        tracked = 0
        for db_key, value in self.out.rows(IDEMPOTENCY, prefix):
            producer = int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
            message = _message(IDEMPOTENCY, db_key, value)
            own = b"" if message is None else message_key(state.number, producer, message.iid)
            if message is None or own != db_key or producer == 0:
                self.report.rebuild("messages")
                self.out.delete(IDEMPOTENCY, db_key)
                continue
            place = order_key(state.number, producer, message.order)
            present = self.out.get(IDEMPOTENCY_ORDER, place)
            if present is None:
                self.report.rebuild("messages")
                self.out.put_row(IDEMPOTENCY_ORDER, place, message.encode())
            elif _message(IDEMPOTENCY_ORDER, place, present) != message:
                self.report.rebuild("messages")
                self.out.delete(IDEMPOTENCY, db_key)
                continue
            tracked += 1
        state.tracked = tracked

    def _producers(self, state: Idempotence, losses: list[str]) -> dict[int, bytes]:
        """Give every producer with messages both rows, and remove the others; return the names."""
        prefix = pack_number(state.number)
        names: dict[int, bytes] = {}
        rows: dict[int, tuple[bytes, Producer]] = {}
        for db_key, value in self.out.rows(PRODUCERS, prefix):
            body = open_row(PRODUCERS, db_key, value, "producer")
            if not is_name_key(db_key):
                names[int.from_bytes(db_key[_NUMBER_SIZE + 1 :], "big")] = body
                continue
            try:
                producer, name = decode_producer(body, "producer")
            except CorruptionError:
                self.out.delete(PRODUCERS, db_key)
                continue
            if producer.number in rows or name_key(prefix, name) != db_key:
                self.report.rebuild("producers")
                self.out.delete(PRODUCERS, db_key)
                if producer.number in rows:
                    continue
            rows[producer.number] = (name, producer)
        found: dict[int, bytes] = {}
        taken: set[bytes] = set()
        for number in sorted({*names, *rows, *self._with_messages(state)}):
            counted, highest = self._count(state.number, number)
            while counted > state.maxsize:
                self._forget_oldest(state, number)
                counted -= 1
            name, producer = rows.get(number, (names.get(number, b""), Producer(number, 0, 0)))
            if counted and (name in taken or (number not in rows and number not in names)):
                name = b"lost+found-%d" % number
                while name in taken:
                    name += b"'"
                losses.append(f"the name of a producer, which is now {quoted(name)}")
            if counted == 0:
                self._remove(prefix, number, name)
                continue
            found[number] = name
            taken.add(name)
            self._put_producer(prefix, name, producer, counted, highest)
        return found

    def _with_messages(self, state: Idempotence) -> set[int]:
        return {
            int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
            for db_key, _ in self.out.rows(IDEMPOTENCY_ORDER, pack_number(state.number))
        }

    def _forget_oldest(self, state: Idempotence, producer: int) -> None:
        """Remove the oldest message of a producer that has more than idmp-maxsize."""
        prefix = producer_prefix(state.number, producer)
        for db_key, value in self.out.rows(IDEMPOTENCY_ORDER, prefix):
            message = _message(IDEMPOTENCY_ORDER, db_key, value)
            assert message is not None
            self.report.rebuild("messages")
            self.out.delete(IDEMPOTENCY_ORDER, db_key)
            self.out.delete(IDEMPOTENCY, message_key(state.number, producer, message.iid))
            state.tracked -= 1
            return

    def _count(self, number: int, producer: int) -> tuple[int, int]:
        counted, highest = 0, -1
        for db_key, _ in self.out.rows(IDEMPOTENCY_ORDER, producer_prefix(number, producer)):
            counted += 1
            highest = int.from_bytes(db_key[_PREFIX_SIZE:], "big")
        return counted, highest

    def _remove(self, prefix: bytes, number: int, name: bytes) -> None:
        self.report.rebuild("producers")
        self.out.delete(PRODUCERS, number_key(prefix, number))
        value = self.out.get(PRODUCERS, name_key(prefix, name))
        if value is not None:
            body = open_row(PRODUCERS, name_key(prefix, name), value, "producer")
            if decode_producer(body, "producer")[0].number == number:
                self.out.delete(PRODUCERS, name_key(prefix, name))

    def _put_producer(
        self, prefix: bytes, name: bytes, producer: Producer, counted: int, highest: int
    ) -> None:
        right = Producer(producer.number, counted, max(producer.next_order, highest + 1))
        place = name_key(prefix, name)
        if right != producer or self.out.get(PRODUCERS, place) is None:
            self.report.rebuild("producers")
            self.out.put_row(PRODUCERS, place, right.encode(name))
        number_place = number_key(prefix, producer.number)
        stored = self.out.get_row(PRODUCERS, number_place, "producer")
        if stored != name:
            self.report.rebuild("names of producers")
            self.out.put_row(PRODUCERS, number_place, name)


def _message(table: int, db_key: bytes, value: bytes) -> Message | None:
    try:
        return decode_message(open_row(table, db_key, value, "message"), "message")
    except CorruptionError:
        return None
