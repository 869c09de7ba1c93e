"""Rows of `producers`, `idempotency` and `idempotency_order`: which message became which entry.

Keys begin with the number that the stream's idempotence section names.

    producers          number, name of the producer           PRODUCER_ROW, whole name
    producers          number, 02, producer number            whole name
    idempotency        number, producer number, message ID    MESSAGE_ROW, whole message ID
    idempotency_order  number, producer number, order         MESSAGE_ROW, whole message ID
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_128_intdigest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER, check_number, name_key
from streamkeep.format.core.layout import Field, Layout

PRODUCER_ROW: Final = Layout(
    "producer row",
    (
        Field("number", "I", "the producer, within its stream"),
        Field("tracked", "Q", "messages of it that are remembered"),
        Field("next_order", "Q", "order of its next message, from 0 on"),
    ),
)

MESSAGE_ROW: Final = Layout(
    "message row",
    (
        Field("ms", "Q", "ID of the entry that the message became"),
        Field("seq", "Q", ""),
        Field("order", "Q", "when it came, among the messages of its producer"),
    ),
)

_PRODUCER: Final = PRODUCER_ROW.struct
_MESSAGE: Final = MESSAGE_ROW.struct
_PREFIX: Final = struct.Struct(">QI")
_ORDER: Final = struct.Struct(">QIQ")
_HALF: Final = 1 << 64

order_key = _ORDER.pack  # number, producer number, order


class Producer(NamedTuple):
    """One producer of a stream: its number, how many messages are tracked, the next order."""

    number: int
    tracked: int
    next_order: int

    def encode(self, name: bytes) -> bytes:
        """Return the body of its row.

        Raises:
            CorruptionError: more was forgotten than it had said that there was.
        """
        if self.tracked < 0:
            problem = f"{self.tracked} messages; run `streamkeep repair`"
            raise CorruptionError("producer row", problem)
        return _PRODUCER.pack(*self) + name


class Message(NamedTuple):
    """One tracked message: the entry it became, and when it came among the producer's."""

    ms: int
    seq: int
    order: int
    iid: bytes

    def encode(self) -> bytes:
        """Return the body of its rows."""
        return _MESSAGE.pack(self.ms, self.seq, self.order) + self.iid


def message_key(number: int, producer: int, iid: bytes) -> bytes:
    """Return the key of a message in `idempotency`."""
    return name_key(_PREFIX.pack(number, producer), iid)


def producer_prefix(number: int, producer: int) -> bytes:
    """Return what the keys of a producer's messages begin with."""
    return _PREFIX.pack(number, producer)


def decode_producer(body: bytes, where: str) -> tuple[Producer, bytes]:
    """Parse a row of `producers`; return the producer and its name."""
    if len(body) < _PRODUCER.size:
        raise CorruptionError(where, f"a producer's row of {len(body)} bytes")
    producer = Producer(*_PRODUCER.unpack_from(body))
    check_number(producer.number, LAST_MEMBER, where)
    check_number(producer.tracked, LAST_NUMBER, where)
    check_number(producer.next_order, LAST_NUMBER + 1, where)
    return producer, body[_PRODUCER.size :]


def decode_message(body: bytes, where: str) -> Message:
    """Parse a row of `idempotency` or `idempotency_order`."""
    if len(body) < _MESSAGE.size:
        raise CorruptionError(where, f"a message's row of {len(body)} bytes")
    ms, seq, order = _MESSAGE.unpack_from(body)
    check_number(order, LAST_NUMBER, where)
    return Message(ms, seq, order, body[_MESSAGE.size :])


def decode_ordered(db_key: bytes, body: bytes, where: str) -> Message:
    """Parse a row of `idempotency_order`, which stands under the order of its message."""
    message = decode_message(body, where)
    if message.order != unpack_order_key(db_key)[2]:
        raise CorruptionError(where, f"the row holds the message with the order {message.order}")
    return message


def unpack_order_key(data: bytes) -> tuple[int, int, int]:
    """Return number, producer number and order of a key in `idempotency_order`."""
    if len(data) != _ORDER.size:
        raise CorruptionError("LMDB key", f"{len(data)} bytes, not {_ORDER.size}")
    number, producer, order = _ORDER.unpack(data)
    check_number(producer, LAST_MEMBER, "LMDB key")
    return number, producer, order


def content_iid(flat: list[bytes]) -> bytes:
    """Return the message ID that IDMPAUTO makes from field, value, field, value, ...

    It does not depend on the order of the pairs: sum and xor of their hashes, halves crossed.
    """
    sum_low = sum_high = xor_low = xor_high = 0
    for name, value in zip(flat[0::2], flat[1::2], strict=True):
        digest = xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        low, high = digest % _HALF, digest // _HALF
        sum_low, sum_high = (sum_low + low) % _HALF, (sum_high + high) % _HALF
        xor_low, xor_high = xor_low ^ low, xor_high ^ high
    low_half = sum_low ^ _turned(xor_high)
    high_half = sum_high ^ _turned(xor_low)
    return low_half.to_bytes(8, "little") + high_half.to_bytes(8, "little")


def _turned(value: int) -> int:
    return (value << 1 | value >> 63) % _HALF
