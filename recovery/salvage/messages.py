"""Step two of a repair, idempotent XADD: write what a stream remembers of its producers.

Each message has two rows with the same content, by message ID and by order, and producers have two
as well. Either is enough. The engine makes all of them anew, and counts.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.humanize import count_text
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.rows import producers as producer_rows
from streamkeep.format.rows.extension import Idempotence, idempotence_of
from streamkeep.format.rows.producers import Message
from streamkeep.format.rows.records import IDEMPOTENCE_ROWS, decode_stream_record
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.salvage.found import Found
from streamkeep.recovery.salvage.groups import move_orphans, read_members
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.streams import written

_OWNER: Final = b"I"  # note: a number under which a stream stores its messages
_NUMBER_SIZE: Final = 8
_PREFIX_SIZE: Final = 12

Remembered = list[tuple[bytes, list[Message]]]  # by producer, the oldest first


def write_messages(found: Found, out: NewStore, number: int, name: bytes) -> None:
    value = found.get(keys.STREAMS, keys.pack_number(number))
    if value is None:
        return
    try:
        record = decode_stream_record(decode_envelope(value, "stream").record, "stream")
        state = idempotence_of(record.extension, "stream")
    except CorruptionError:
        found.lose(number, "its producers and tracked messages")
        return
    remembered: Remembered = []
    owner = _OWNER + keys.pack_number(state.number)
    if state.number and found.noted(owner) is not None:
        problem = "another stream uses their number"
        found.lose(number, f"its producers and tracked messages: {problem}")
    elif state.number:
        found.note(owner)
        remembered = _remembered(found, number, state)
    if state.encode() != Idempotence().encode():
        out.write(partial(_remember, name, state, remembered))


def _remembered(found: Found, stream: int, state: Idempotence) -> Remembered:
    prefix = keys.pack_number(state.number)
    numbers = {
        int.from_bytes(db_key[_NUMBER_SIZE:_PREFIX_SIZE], "big")
        for table in (keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER)
        for db_key, _ in found.rows(table, prefix)
    } - {0}
    messages = {number: _messages_of(found, state, number) for number in numbers}
    needed = {number for number, some in messages.items() if some}
    members = read_members(found, keys.PRODUCERS, prefix, _decode_producer, needed)
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
    for table in (keys.IDEMPOTENCY_ORDER, keys.IDEMPOTENCY):
        for db_key, value in found.rows(
            table, producer_rows.producer_prefix(state.number, producer)
        ):
            with suppress(CorruptionError):
                message = producer_rows.decode_message(
                    row_body(table, db_key, value, "message"), "message"
                )
                own_keys = (
                    producer_rows.order_key(state.number, producer, message.order),
                    producer_rows.message_key(state.number, producer, message.iid),
                )
                if db_key in own_keys:
                    orders.setdefault(message.order, message)
    newest = {message.iid: message for _, message in sorted(orders.items())}
    return sorted(newest.values(), key=lambda one: one.order)


def move_messages(found: Found) -> None:
    """Move messages and producers that belong to no stream to lost+found."""
    for table in (keys.PRODUCERS, keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER):
        for _, rows in move_orphans(found, table, _OWNER, IDEMPOTENCE_ROWS, "message"):
            count = count_text(rows, "message row")
            found.report.other.append(f"{count} whose stream is unknown")


def _decode_producer(body: bytes) -> tuple[int, bytes, None]:
    producer, name = producer_rows.decode_producer(body, "producer")
    return producer.number, name, None


def _remember(name: bytes, before: Idempotence, producers: Remembered, txn: WriteTxn) -> None:
    tracker = Tracker(txn, written(txn, name))
    state = tracker.state
    state.duration, state.maxsize = before.duration, before.maxsize
    for producer, messages in producers:
        for one in messages:
            tracker.track(producer, one.iid, one.ms, one.seq)
    state.added, state.duplicates = before.added, before.duplicates
    tracker.save()
