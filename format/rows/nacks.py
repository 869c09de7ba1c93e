"""NACK pages: the pending entries of a group, up to 43 per row.

A page is a sorted array of NACKs of fixed size: a NACK is found by binary search, and is added or
removed without decoding the others. The pages of a group are disjoint: an ID belongs to the last
page whose key is not above it. The key is the first ID that the page had when it was created; it
does not change when that NACK is removed.

The order of delivery is 12 bytes that are compared as such: the ordering time with its top bit
set, then an update counter of the group. An unowned NACK has the ordering time 0. So the unowned
NACKs come first, in the order in which they were given back, then the owned NACKs by time and, for
equal times, by update counter. The ordering time is the delivery time, except that an update with
the current time never sorts before an earlier one, even if the clock went back.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import (
    below,
    bits,
    low16,
    low32,
    pack_id,
    u16_at,
    u32_at,
    unsigned,
)
from streamkeep.format.core.keys import LAST_MEMBER
from streamkeep.format.core.layout import Field, Layout

NACK: Final = Layout(
    "NACK",
    (
        Field("ms", "Q", "entry ID"),
        Field("seq", "Q", ""),
        Field("order_time", "6s", "u48: 2^47 + ordering time; 0 if unowned"),
        Field("order", "6s", "u48: update counter of the group"),
        Field("delivery_time", "6s", "u48: Unix milliseconds; 0 if unowned"),
        Field("delivery_count", "Q", "number of deliveries"),
        Field("consumer", "I", "number of the owner; 0 if unowned"),
    ),
)
_SIZE: Final[i64] = NACK.size
NACK_SIZE: Final = NACK.size
PAGE_NACKS: Final = 43  # two pages with their keys fill one LMDB leaf
INLINE_NACKS: Final = 16  # up to this number they are stored in the row of the group

ORDER_KEY_AT: Final[i64] = 16
_TIME_AT: Final[i64] = 28
_COUNT_AT: Final[i64] = 34
_CONSUMER_AT: Final[i64] = 42

OWNED: Final = 1 << 47  # bit of the ordering time; every time is below
ORDERS: Final = 1 << 47  # every update counter is below; no group comes near
MAX_COUNT: Final = (1 << 63) - 1  # of deliveries

_EMPTY: Final = "the page is empty, expected at least one NACK"


class Nack:
    """One pending entry.

    Attributes:
        ms, seq: the entry ID.
        consumer: number of the owner; 0 if unowned.
        delivery_time: Unix milliseconds; 0 if unowned.
        delivery_count: number of deliveries.
        order_key: 12 bytes that sort in the order of delivery.
    """

    def __init__(
        self,
        ms: int,
        seq: int,
        consumer: int,
        delivery_time: int,
        delivery_count: int,
        order_key: bytes,
    ) -> None:
        self.ms = ms
        self.seq = seq
        self.consumer = consumer
        self.delivery_time = delivery_time
        self.delivery_count = delivery_count
        self.order_key = order_key

    def id(self) -> tuple[int, int]:
        return self.ms, self.seq

    def order(self) -> int:
        """Return the update counter in its order key."""
        return int.from_bytes(self.order_key[6:], "big")

    def idle_ms(self, now_ms: int) -> int:
        """Return the milliseconds since delivery; 0 if the clock went back."""
        return max(0, now_ms - self.delivery_time)


def make_order_key(owned: bool, order_time: int, order: int) -> bytes:
    """Return the 12 bytes that sort a NACK in the order of delivery."""
    time = OWNED | order_time if owned else 0
    return (time << 48 | order).to_bytes(12, "big")


def order_time(order_key: bytes) -> int:
    """Return the ordering time of an owned NACK; 0 for an unowned one."""
    time = int.from_bytes(order_key[:6], "big")
    return time & ~OWNED


def encode_nack(
    ms: int, seq: int, consumer: int, delivery_time: int, delivery_count: int, order_key: bytes
) -> bytes:
    writer = BytesWriter()
    write_i64_be(writer, bits(ms))
    write_i64_be(writer, bits(seq))
    writer.write(order_key)
    time = i64(delivery_time)
    write_i16_be(writer, low16(time >> 32))
    write_i32_be(writer, low32(time & 0xFFFFFFFF))
    write_i64_be(writer, i64(delivery_count))
    write_i32_be(writer, low32(i64(consumer)))
    return writer.getvalue()


def encode_run(
    ids: list[tuple[int, int]], consumer: int, delivery_time: int, order_time: int, first_order: int
) -> bytes:
    """Return the NACKs of entries that one call delivers to a consumer for the first time."""
    writer = BytesWriter()
    start = bits((OWNED | order_time) << 16)
    order = i64(first_order)
    time = i64(delivery_time)
    high = low16(time >> 32)
    low = low32(time & 0xFFFFFFFF)
    owner = low32(i64(consumer))
    for ms, seq in ids:
        write_i64_be(writer, bits(ms))
        write_i64_be(writer, bits(seq))
        write_i64_be(writer, start | (order >> 32))
        write_i32_be(writer, low32(order & 0xFFFFFFFF))
        write_i16_be(writer, high)
        write_i32_be(writer, low)
        write_i64_be(writer, 1)
        write_i32_be(writer, owner)
        order += 1
    return writer.getvalue()


def remove_ids(page: bytes, ids: list[tuple[int, int]]) -> tuple[bytes, dict[int, int]]:
    """Remove from a page the NACKs with these IDs, which are ascending and without duplicates.

    Returns:
        The remaining NACKs; and of the removed ones how many each consumer owned, 0 for unowned.
    """
    owners: dict[int, int] = {}
    kept: list[bytes] = []
    index: i64 = 0
    total: i64 = len(ids)
    size: i64 = len(page) // _SIZE * _SIZE
    at: i64 = 0
    kept_from: i64 = 0
    owner: i64 = 0  # owner of the last NACKs found, and how many they are
    owned: i64 = 0
    while at < size and index < total:
        one = ids[index]
        wanted_ms = bits(one[0])
        wanted_seq = bits(one[1])
        ms = read_i64_be(page, at)
        seq = read_i64_be(page, at + 8)
        if ms == wanted_ms and seq == wanted_seq:
            consumer = _consumer(page, at)
            if consumer != owner:
                if owned:
                    owners[int(owner)] = owners.get(int(owner), 0) + int(owned)
                owner = consumer
                owned = 0
            owned += 1
            if kept_from < at:
                kept.append(page[kept_from:at])
            at += _SIZE
            kept_from = at
            index += 1
        elif below(wanted_ms, wanted_seq, ms, seq):
            index += 1
        else:
            at += _SIZE
    if owned:
        owners[int(owner)] = owners.get(int(owner), 0) + int(owned)
    if kept_from < size:
        kept.append(page[kept_from:])
    return b"".join(kept), owners


def _consumer(page: bytes, at: i64) -> i64:
    return u32_at(page, at + _CONSUMER_AT)


def _time(page: bytes, at: i64) -> i64:
    return u16_at(page, at + _TIME_AT) << 32 | u32_at(page, at + _TIME_AT + 2)


def decode_nack(page: bytes, index: int) -> Nack:
    """Return the NACK at an index of a page; raise CorruptionError beyond its end."""
    at: i64 = i64(index) * _SIZE
    if at + _SIZE > len(page) or at < 0:
        problem = f"NACK {index} is out of range ({len(page) // NACK_SIZE} NACKs)"
        raise CorruptionError("NACK page", problem)
    return Nack(
        unsigned(read_i64_be(page, at)),
        unsigned(read_i64_be(page, at + 8)),
        int(_consumer(page, at)),
        int(_time(page, at)),
        unsigned(read_i64_be(page, at + _COUNT_AT)),
        page[at + ORDER_KEY_AT : at + _TIME_AT],
    )


def count_nacks(page: bytes) -> int:
    """Return the number of NACKs in a page; raise CorruptionError for a truncated page."""
    if len(page) % NACK_SIZE:
        raise CorruptionError("NACK page", f"{len(page)} bytes, expected a multiple of {NACK_SIZE}")
    return len(page) // NACK_SIZE


def position_of(page: bytes, ms: int, seq: int) -> int:
    """Return how many NACKs of a page have an ID below `ms-seq`."""
    wanted_ms = bits(ms)
    wanted_seq = bits(seq)
    low: i64 = 0
    high: i64 = len(page) // _SIZE
    while low < high:
        middle: i64 = (low + high) // 2
        at: i64 = middle * _SIZE
        if below(read_i64_be(page, at), read_i64_be(page, at + 8), wanted_ms, wanted_seq):
            low = middle + 1
        else:
            high = middle
    return int(low)


def id_at(page: bytes, index: int) -> tuple[int, int]:
    """Return the ID of the NACK at an index of a page."""
    at: i64 = i64(index) * _SIZE
    return unsigned(read_i64_be(page, at)), unsigned(read_i64_be(page, at + 8))


def find(page: bytes, ms: int, seq: int) -> int:
    """Return the index of the NACK `ms-seq` in a page, or -1."""
    index = position_of(page, ms, seq)
    at: i64 = i64(index) * _SIZE
    return index if page[at : at + 16] == pack_id(ms, seq) else -1


def next_idle(page: bytes, index: int, latest: int) -> int:
    """Return the index of the first NACK from one on that is unowned, or was delivered by `latest`.

    Returns:
        The number of NACKs when there is none.
    """
    at: i64 = i64(index) * _SIZE
    most = i64(latest)
    while at + _SIZE <= len(page) and _time(page, at) > most and _consumer(page, at):
        at += _SIZE
    return int(at // _SIZE)


def consumer_at(page: bytes, index: int) -> int:
    """Return the number of the owner of the NACK at an index of a page."""
    return int(_consumer(page, i64(index) * _SIZE))


def owns(page: bytes, consumer: int) -> bool:
    wanted: i64 = i64(consumer)
    at: i64 = 0
    while at + _SIZE <= len(page):
        if _consumer(page, at) == wanted:
            return True
        at += _SIZE
    return False


def owners_of(page: bytes) -> set[int]:
    """Return the numbers of all consumers that own a NACK of a page."""
    owners: set[int] = set()
    at: i64 = 0
    while at + _SIZE <= len(page):
        consumer = _consumer(page, at)
        if consumer:
            owners.add(int(consumer))
        at += _SIZE
    return owners


def first_order_key(page: bytes) -> bytes:
    """Return the lowest order key of a page; raise CorruptionError for an empty or cut page."""
    if count_nacks(page) == 0:
        raise CorruptionError("NACK page", _EMPTY)
    lowest: i64 = 0  # offset of the NACK
    high = read_i64_be(page, ORDER_KEY_AT)
    low = u32_at(page, ORDER_KEY_AT + 8)
    at: i64 = _SIZE
    while at + _SIZE <= len(page):
        at_high = read_i64_be(page, at + ORDER_KEY_AT)
        at_low = u32_at(page, at + ORDER_KEY_AT + 8)
        if below(at_high, at_low, high, low):
            high = at_high
            low = at_low
            lowest = at
        at += _SIZE
    return page[lowest + ORDER_KEY_AT : lowest + _TIME_AT]


class PageFacts:
    """Facts about a valid page, for fsck.

    Attributes:
        last: the ID of its last NACK.
        highest_order: the highest update counter.
        owners: how many NACKs each consumer owns; 0 counts the unowned ones.
        misplaced: NACKs whose ordering time is before their delivery, and unowned NACKs that have
            a time.
    """

    def __init__(self) -> None:
        self.last = (0, 0)
        self.highest_order = -1
        self.owners: dict[int, int] = {}
        self.misplaced: list[Nack] = []


def examine_page(page: bytes, ms: int, seq: int) -> PageFacts:
    """Check that a page is a sorted array of NACKs from `ms-seq` on; return facts about it."""
    if count_nacks(page) == 0:
        raise CorruptionError("NACK page", _EMPTY)
    facts = PageFacts()
    owners = facts.owners
    for index in range(count_nacks(page)):
        nack = decode_nack(page, index)
        one, order = nack.id(), nack.order()
        if index > 0 and one <= facts.last:
            raise CorruptionError("NACK page", f"ID {nack.ms}-{nack.seq} is out of order")
        if one < (ms, seq):
            raise CorruptionError("NACK page", f"ID {nack.ms}-{nack.seq} is below the page's key")
        problem = ""
        if (nack.order_key[0] & 0x80 != 0) != (nack.consumer != 0):
            problem = "only one of order key and owner says that it is owned"
        elif nack.delivery_count > MAX_COUNT:
            problem = f"delivery count {nack.delivery_count}, expected at most {MAX_COUNT}"
        elif nack.delivery_time >= OWNED or order >= ORDERS or nack.consumer > LAST_MEMBER:
            problem = "time, update counter or owner is too high"
        if problem:
            raise CorruptionError("NACK page", f"ID {nack.ms}-{nack.seq}: {problem}")
        facts.last = one
        facts.highest_order = max(facts.highest_order, order)
        owners[nack.consumer] = owners.get(nack.consumer, 0) + 1
        sorted_by = order_time(nack.order_key)
        late = nack.delivery_time > sorted_by
        if late or (nack.consumer == 0 and (nack.delivery_time != 0 or sorted_by != 0)):
            facts.misplaced.append(nack)
    return facts
