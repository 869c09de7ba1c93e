"""Step two of a repair, idempotent XADD: make producers and messages of the new store agree.

Each message has two rows with the same content, by message ID and by order; one can be rebuilt from
the other. Producers have two rows as well. All counters are derived.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    PRODUCERS,
    STREAMS,
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
from streamkeep.recovery.salvage.members import new_name, read_members
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
        had, kept = state.tracked, 0
        prefix = pack_number(state.number)
        members = read_members(self.out, PRODUCERS, prefix, _decode_producer)
        taken = {name for name, _ in members.known.values()}
        rows: dict[bytes, bytes] = {}
        found: list[int] = []
        for number in sorted({*members.names, *members.known, *self._with_messages(state)}):
            messages, too_many = self._messages_of(state, number)
            had -= too_many
            if not messages:
                continue
            name, producer = members.known.get(number, (members.names.get(number), None))
            if name is None or (producer is None and name in taken):
                name = new_name(number, taken)
                losses.append(f"the name of a producer, which is now {quoted(name)}")
            taken.add(name)
            found.append(number)
            kept += len(messages)
            following = max(0 if producer is None else producer.next_order, messages[-1].order + 1)
            row = Producer(number, len(messages), following)
            rows[name_key(prefix, name)] = row.encode(name)
            rows[number_key(prefix, number)] = name
        if self.out.replace(PRODUCERS, prefix, rows):
            self.report.rebuild("producers")
        if kept < had:
            count = count_text(had - kept, "tracked message")
            losses.append(f"{count}: XADD adds an entry again if its producer sends it again")
        state.tracked, state.producers = kept, len(found)
        state.next_producer = max(state.next_producer, max(found, default=0) + 1)

    def _with_messages(self, state: Idempotence) -> set[int]:
        return {
            int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
            for table in (IDEMPOTENCY, IDEMPOTENCY_ORDER)
            for db_key, _ in self.out.rows(table, pack_number(state.number))
        }

    def _messages_of(self, state: Idempotence, producer: int) -> tuple[list[Message], int]:
        """Give each message of a producer both rows, except the oldest above idmp-maxsize.

        Returns:
            The messages, the oldest first, and how many were too many.
        """
        prefix = producer_prefix(state.number, producer)

        def keys(message: Message) -> dict[int, bytes]:
            return {
                IDEMPOTENCY_ORDER: order_key(state.number, producer, message.order),
                IDEMPOTENCY: message_key(state.number, producer, message.iid),
            }

        newest: dict[bytes, Message] = {}  # by message ID
        orders: dict[int, Message] = {}
        for table in (IDEMPOTENCY_ORDER, IDEMPOTENCY):
            for db_key, value in self.out.rows(table, prefix) if producer else ():
                with suppress(CorruptionError):
                    message = decode_message(open_row(table, db_key, value, "message"), "message")
                    if keys(message)[table] == db_key:
                        orders.setdefault(message.order, message)
        for _, message in sorted(orders.items()):
            newest[message.iid] = message
        read = sorted(newest.values(), key=lambda one: one.order)
        messages = read[-state.maxsize :]
        changed = False
        for table in (IDEMPOTENCY_ORDER, IDEMPOTENCY):
            rows = {keys(message)[table]: message.encode() for message in messages}
            changed |= self.out.replace(table, prefix, rows)
        if changed:
            self.report.rebuild("messages")
        return messages, len(read) - len(messages)


def _decode_producer(body: bytes) -> tuple[int, bytes, Producer]:
    producer, name = decode_producer(body, "producer")
    return producer.number, name, producer
