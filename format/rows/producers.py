"""Rows of `producers`, `idempotency` and `idempotency_order`: the entry that each message became.

Keys begin with the `number` in the stream's idempotence section.

    producers          number, name of the producer           PRODUCER_ROW, whole name
    producers          number, 02, producer number            whole name
    idempotency        number, producer number, message ID    MESSAGE_ROW, whole message ID
    idempotency_order  number, producer number, order         MESSAGE_ROW, whole message ID
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple

from xxhash import xxh3_128_intdigest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER, check_number, name_key
from streamkeep.format.core.layout import Layout

_PREFIX: Final = struct.Struct(">QI")
_ORDER: Final = struct.Struct(">QIQ")
_HALF: Final = 1 << 64

order_key = _ORDER.pack  # number, producer number, order


class Producer(NamedTuple):
    """One producer of a stream: number, tracked messages, order of the next message."""

    number: Annotated[int, "I", "number of the producer in its stream"]
    tracked: Annotated[int, "Q", "number of its messages that are tracked"]
    next_order: Annotated[int, "Q", "order of its next message, from 0 on"]

    def encode(self, name: bytes) -> bytes:
        """Return the body of its row.

        Raises:
            CorruptionError: the counter fell below zero, because it had been wrong before.
        """
        if self.tracked < 0:
            problem = f"{self.tracked} tracked messages; run `streamkeep repair`"
            raise CorruptionError("producer row", problem)
        return PRODUCER_ROW.struct.pack(*self) + name


PRODUCER_ROW: Final = Layout.of("producer row", Producer)


class Message(NamedTuple):
    """One tracked message: ID of its entry, order among its producer's messages, message ID."""

    ms: Annotated[int, "Q", "ID of the entry that the message became"]
    seq: Annotated[int, "Q"]
    order: Annotated[int, "Q", "its position among the messages of its producer"]
    iid: bytes

    def encode(self) -> bytes:
        return MESSAGE_ROW.struct.pack(*self[:3]) + self.iid


MESSAGE_ROW: Final = Layout.of("message row", Message)


def message_key(number: int, producer: int, iid: bytes) -> bytes:
    return name_key(_PREFIX.pack(number, producer), iid)


def producer_prefix(number: int, producer: int) -> bytes:
    return _PREFIX.pack(number, producer)


def decode_producer(body: bytes, where: str) -> tuple[Producer, bytes]:
    """Parse a row of `producers`; return the producer and its name."""
    producer = Producer(*PRODUCER_ROW.unpack(body, where, more=True))
    check_number(producer.number, LAST_MEMBER, where)
    check_number(producer.tracked, LAST_NUMBER, where)
    check_number(producer.next_order, LAST_NUMBER + 1, where)
    return producer, body[PRODUCER_ROW.size :]


def decode_message(body: bytes, where: str) -> Message:
    fields = MESSAGE_ROW.unpack(body, where, more=True)
    message = Message._make((*fields, body[MESSAGE_ROW.size :]))
    check_number(message.order, LAST_NUMBER, where)
    return message


def decode_ordered(db_key: bytes, body: bytes, where: str) -> Message:
    """Parse a row of `idempotency_order` and check that its key has the order of its message."""
    message = decode_message(body, where)
    order = unpack_order_key(db_key)[2]
    if message.order != order:
        raise CorruptionError(where, f"message with order {message.order}, expected {order}")
    return message


def unpack_order_key(data: bytes) -> tuple[int, int, int]:
    """Return number, producer number and order of a key in `idempotency_order`."""
    if len(data) != _ORDER.size:
        raise CorruptionError("LMDB key", f"{len(data)} bytes, expected {_ORDER.size}")
    number, producer, order = _ORDER.unpack(data)
    check_number(producer, LAST_MEMBER, "LMDB key")
    return number, producer, order


def content_iid(flat: list[bytes]) -> bytes:
    """Return the message ID that IDMPAUTO makes from `[field, value, ...]`, as Redis makes it.

    It combines sum and xor of the pairs' hashes, so it does not depend on the order of the pairs.
    """
    sum_low = sum_high = xor_low = xor_high = 0
    for name, value in zip(flat[0::2], flat[1::2], strict=True):
        digest = xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        low, high = digest % _HALF, digest // _HALF
        sum_low, sum_high = (sum_low + low) % _HALF, (sum_high + high) % _HALF
        xor_low, xor_high = xor_low ^ low, xor_high ^ high
    low_half = sum_low ^ _rotated(xor_high)
    high_half = sum_high ^ _rotated(xor_low)
    return low_half.to_bytes(8, "little") + high_half.to_bytes(8, "little")


def _rotated(value: int) -> int:
    return (value << 1 | value >> 63) % _HALF
