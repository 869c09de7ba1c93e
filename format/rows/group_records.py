"""Rows of `groups` and `consumers`.

The key of a row contains the name, and the row ends with the whole name. Each consumer has a
second row that maps its number to its name, under group number, 02, consumer number.

The third kind of row says under which lease a consumer was given entries: under group number, 03,
consumer number, update counter (u64), the number of the lease (u64; 0 for none). It holds for the
NACKs of the consumer from this update counter on, up to that of the consumer's next such row. NACKs
before the first such row belong to no known lease.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import bits, low32, u16_at, u32_at, unsigned
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER, check_number
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.nacks import ORDERS, OWNED
from streamkeep.format.rows.records import decode_number

UNKNOWN: Final = -1  # entries_read that cannot be determined
NEVER: Final = -1  # active_time of a consumer that never received an entry

GROUP_RECORD: Final = Layout(
    "group record",
    (
        Field("number", "Q", "number of the group"),
        Field("last_ms", "Q", "last_delivered_id"),
        Field("last_seq", "Q", ""),
        Field("entries_read", "q", "entries read; -1 when unknown"),
        Field("pending", "Q", "NACKs in the PEL"),
        Field("nacked", "Q", "unowned NACKs among them"),
        Field("next_order", "Q", "next update counter for the order of delivery"),
        Field("last_order_time", "Q", "ordering time of the newest update"),
        Field("next_consumer", "I", "number of the next consumer, from 1 on"),
        Field("consumers", "I", "number of consumers"),
        Field("inline_size", "H", "bytes of NACKs that follow, before the name"),
    ),
)

CONSUMER_RECORD: Final = Layout(
    "consumer record",
    (
        Field("number", "I", "number of the consumer in its group"),
        Field("seen_time", "q", "Unix milliseconds of the last attempt"),
        Field("active_time", "q", "Unix milliseconds of the last success; -1: never"),
        Field("pending", "Q", "NACKs that it owns"),
    ),
)


class Consumer:
    """One consumer; see `CONSUMER_RECORD`."""

    def __init__(self, name: bytes, number: int, seen_time: int) -> None:
        self.name = name
        self.number = number
        self.seen_time = seen_time
        self.active_time = NEVER
        self.pending = 0

    def encode(self) -> bytes:
        writer = BytesWriter()
        write_i32_be(writer, low32(i64(self.number)))
        write_i64_be(writer, i64(self.seen_time))
        write_i64_be(writer, i64(self.active_time))
        write_i64_be(writer, bits(self.pending))
        writer.write(self.name)
        return writer.getvalue()


def decode_consumer(body: bytes, where: str) -> Consumer:
    if len(body) < CONSUMER_RECORD.size:
        problem = f"consumer record of {len(body)} bytes, expected at least {CONSUMER_RECORD.size}"
        raise CorruptionError(where, problem)
    number, seen, active, pending = CONSUMER_RECORD.struct.unpack_from(body)
    check_number(number, LAST_MEMBER, where)
    consumer = Consumer(body[CONSUMER_RECORD.size :], number, seen)
    consumer.active_time = active
    consumer.pending = pending
    return consumer


def decode_lease(body: bytes, where: str) -> int:
    """Parse the body of the row of a lease; 0 means no lease."""
    lease = decode_number(body, where)
    check_number(lease, LAST_NUMBER, where)
    return lease


class GroupRecord:
    """The counters of one group; see `GROUP_RECORD`."""

    def __init__(self, name: bytes, number: int, last_ms: int, last_seq: int) -> None:
        self.name = name
        self.number = number
        self.last_ms = last_ms
        self.last_seq = last_seq
        self.entries_read = UNKNOWN
        self.pending = 0
        self.nacked = 0
        self.next_order = 0
        self.last_order_time = 0
        self.next_consumer = 1
        self.consumers = 0
        self.inline_nacks = b""  # all NACKs while there are few; `pel` has no rows then

    def last_id(self) -> tuple[int, int]:
        return self.last_ms, self.last_seq

    def encode(self) -> bytes:
        writer = BytesWriter()
        write_i64_be(writer, bits(self.number))
        write_i64_be(writer, bits(self.last_ms))
        write_i64_be(writer, bits(self.last_seq))
        write_i64_be(writer, i64(self.entries_read))
        write_i64_be(writer, bits(self.pending))
        write_i64_be(writer, bits(self.nacked))
        write_i64_be(writer, bits(self.next_order))
        write_i64_be(writer, bits(self.last_order_time))
        write_i32_be(writer, low32(i64(self.next_consumer)))
        write_i32_be(writer, low32(i64(self.consumers)))
        write_i16_be(writer, i16(len(self.inline_nacks)))  # at most INLINE_NACKS: below 2^15
        writer.write(self.inline_nacks)
        writer.write(self.name)
        return writer.getvalue()


def decode_group(body: bytes, where: str) -> GroupRecord:
    """Parse the body of a group's row, laid out as `GROUP_RECORD`."""
    if len(body) < GROUP_RECORD.size:
        problem = f"group record of {len(body)} bytes, expected at least {GROUP_RECORD.size}"
        raise CorruptionError(where, problem)
    group = GroupRecord(
        b"",
        unsigned(read_i64_be(body, 0)),
        unsigned(read_i64_be(body, 8)),
        unsigned(read_i64_be(body, 16)),
    )
    group.entries_read = int(read_i64_be(body, 24))
    group.pending = unsigned(read_i64_be(body, 32))
    group.nacked = unsigned(read_i64_be(body, 40))
    group.next_order = unsigned(read_i64_be(body, 48))
    group.last_order_time = unsigned(read_i64_be(body, 56))
    group.next_consumer = int(u32_at(body, 64))
    group.consumers = int(u32_at(body, 68))
    check_number(group.number, LAST_NUMBER, where)
    check_number(group.consumers, LAST_MEMBER, where)
    if group.next_order > ORDERS or group.last_order_time >= OWNED:
        found = f"update counter {group.next_order}, ordering time {group.last_order_time}"
        raise CorruptionError(where, f"{found}: the limit is 2^47")
    inline_size = int(u16_at(body, 72))
    name_at = GROUP_RECORD.size + inline_size
    if len(body) < name_at:
        problem = f"group record of {len(body)} bytes, expected at least {name_at}"
        raise CorruptionError(where, problem)
    group.inline_nacks = body[GROUP_RECORD.size : name_at]
    group.name = body[name_at:]
    return group
