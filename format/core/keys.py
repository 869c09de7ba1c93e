"""The tables of a store (LMDB sub-databases), and how their keys are built.

Numbers are big-endian, so that LMDB's byte order is the order of IDs. Streams, groups and
consumers are identified by numbers that are never reused; only the row that maps a name to its
number has the name as its key.

Names are arbitrary bytes, may be empty, and may be longer than an LMDB key (511 bytes):

    short name   prefix, 00, name
    long name    prefix, 01, first bytes of the name, BLAKE2b-256 of the whole name

The long form is used if the short form would not fit. The row's value ends with the whole name.

The numbers of the tables, the shapes of keys and the rule for names are permanent.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError

META: Final = 0
KEYS: Final = 1
STREAMS: Final = 2
NODES: Final = 3
GROUPS: Final = 4
CONSUMERS: Final = 5
PEL: Final = 6
CONSUMER_PEL: Final = 7
PEL_ORDER: Final = 8
PRODUCERS: Final = 9
IDEMPOTENCY: Final = 10
IDEMPOTENCY_ORDER: Final = 11
GARBAGE: Final = 13
RETIRED: Final = 14
SEGMENTS: Final = 15
ERASURES: Final = 17
ROWS: Final = 18
NAMES: Final = 19


class Table(NamedTuple):
    """One sub-database."""

    name: str
    key: str
    value: str


TABLES: Final[dict[int, Table]] = {
    META: Table("meta", "text", "format version, store UUID, epoch, counters"),
    KEYS: Table("keys", "name of the stream", "stream number, whole name"),
    STREAMS: Table("streams", "stream number", "envelope: stream record and the tail node"),
    NODES: Table("nodes", "stream number, ms, seq", "envelope: one full macro node"),
    GROUPS: Table("groups", "stream number, name of the group", "group record, whole name"),
    CONSUMERS: Table(
        "consumers", "group number, name of the consumer", "consumer record, whole name"
    ),
    PEL: Table("pel", "group number, ms, seq", "NACK page that begins with this ID"),
    CONSUMER_PEL: Table(
        "consumer_pel",
        "group number, consumer number, ms, seq",
        "empty: the consumer owns NACKs of that page",
    ),
    PEL_ORDER: Table(
        "pel_order", "group number, order of delivery", "key of the page with that NACK"
    ),
    PRODUCERS: Table("producers", "stream number, producer", "counters"),
    IDEMPOTENCY: Table("idempotency", "stream number, producer, message", "entry ID"),
    IDEMPOTENCY_ORDER: Table(
        "idempotency_order", "stream number, producer, order", "message, for expiry"
    ),
    GARBAGE: Table("garbage", "number", "rows or files that are removed in bounded steps"),
    RETIRED: Table(
        "retired",
        "stream number, ms, seq",
        "envelope: a trimmed node that is not archived yet; or the name of a deleted stream",
    ),
    SEGMENTS: Table("segments", "stream number, first ID", "manifest record of one segment"),
    ERASURES: Table("erasures", "stream number, ms, seq", "when this entry was erased"),
    ROWS: Table("rows", "size of the space u8, space, key", "what a program stored in the space"),
    NAMES: Table("names", "stream number", "whole name of the stream, in case `keys` is damaged"),
}

# Numbers are given one after the other, from 1 on. No store comes near these limits, so a higher
# number is damage. Decoders check it, so no other code has to check that the next number fits.
# Permanent.
LAST_NUMBER: Final = (1 << 63) - 1  # of a stream, a group, or any other counter of `meta`
LAST_MEMBER: Final = (1 << 32) - 2  # of a consumer in its group, of a producer in its stream

MAX_DB_KEY: Final = 511
_DIGEST_SIZE: Final = 32

_U64: Final = struct.Struct(">Q")
_NODE: Final = struct.Struct(">QQQ")

pack_number = _U64.pack
node_key = _NODE.pack  # stream number, ms, seq


def unpack_number(data: bytes) -> int:
    """Return the number of an 8-byte key; raise CorruptionError for any other key."""
    _check_size(data, _U64.size)
    number: int = _U64.unpack(data)[0]
    check_number(number, LAST_NUMBER, "LMDB key")
    return number


def unpack_node_key(data: bytes) -> tuple[int, int, int]:
    """Return stream number, ms and seq of a 24-byte key; raise CorruptionError."""
    _check_size(data, _NODE.size)
    number, ms, seq = _NODE.unpack(data)
    check_number(number, LAST_NUMBER, "LMDB key")
    return number, ms, seq


def _check_size(data: bytes, size: int) -> None:
    if len(data) != size:
        raise CorruptionError("LMDB key", f"{len(data)} bytes, expected {size}")


def name_key(prefix: bytes, name: bytes) -> bytes:
    """Return the LMDB key for `name` after `prefix` (empty, or the number of the owner)."""
    room = MAX_DB_KEY - len(prefix) - 1
    if len(name) <= room:
        return prefix + b"\0" + name
    digest = hashlib.blake2b(name, digest_size=_DIGEST_SIZE).digest()
    return prefix + b"\1" + name[: room - _DIGEST_SIZE] + digest


# --- groups -------------------------------------------------------------------------------------

_NUMBERED: Final = b"\2"  # sorts after the 00 and 01 of names
_LEASED: Final = b"\3"
_LEASE: Final = struct.Struct(">cIQ")
_LEASE_KEY_SIZE: Final = _U64.size + _LEASE.size
_CONSUMER: Final = struct.Struct(">I")
_OWNED: Final = struct.Struct(">QIQQ")

_ORDERED_KEY_SIZE: Final = 20  # of `pel_order` and `idempotency_order`: number, 12 bytes of order
_UNNUMBERED: Final = (META, KEYS, ROWS)
_KEY_SIZES: Final = {  # minimum and maximum in bytes
    META: (1, MAX_DB_KEY),
    KEYS: (1, MAX_DB_KEY),
    STREAMS: (_U64.size, _U64.size),
    NODES: (_NODE.size, _NODE.size),
    GROUPS: (_U64.size + 1, MAX_DB_KEY),
    CONSUMERS: (_U64.size + 1, MAX_DB_KEY),
    PEL: (_NODE.size, _NODE.size),
    CONSUMER_PEL: (_OWNED.size, _OWNED.size),
    PEL_ORDER: (_ORDERED_KEY_SIZE, _ORDERED_KEY_SIZE),
    PRODUCERS: (_U64.size + 1, MAX_DB_KEY),
    IDEMPOTENCY: (_U64.size + _CONSUMER.size + 1, MAX_DB_KEY),
    IDEMPOTENCY_ORDER: (_ORDERED_KEY_SIZE, _ORDERED_KEY_SIZE),
    GARBAGE: (_U64.size, _U64.size),
    RETIRED: (_NODE.size, _NODE.size),
    SEGMENTS: (_NODE.size, _NODE.size),
    ERASURES: (_NODE.size, _NODE.size),
    ROWS: (3, MAX_DB_KEY),
    NAMES: (_U64.size, _U64.size),
}

page_key = _NODE.pack  # group number, ms, seq
owned_key = _OWNED.pack  # group number, consumer number, ms, seq


def number_key(prefix: bytes, number: int) -> bytes:
    """Return the key of the row that maps the number of a consumer or producer to its name."""
    return prefix + _NUMBERED + _CONSUMER.pack(number)


def is_name_key(db_key: bytes) -> bool:
    """Return whether a key with an 8-byte prefix belongs to a name, not to a number or a lease."""
    return db_key[8:9] not in (_NUMBERED, _LEASED)


def lease_key(prefix: bytes, consumer: int, order: int) -> bytes:
    """Return the key of the row for what a consumer was given from an update counter on."""
    return prefix + _LEASE.pack(_LEASED, consumer, order)


def leases_prefix(prefix: bytes, consumer: int = 0) -> bytes:
    """Return the beginning of the keys of all leases of a group, or of one consumer."""
    if consumer:
        return prefix + _LEASED + _CONSUMER.pack(consumer)
    return prefix + _LEASED


def is_lease_key(db_key: bytes) -> bool:
    return db_key[8:9] == _LEASED


def unpack_lease_key(data: bytes) -> tuple[int, int]:
    """Return consumer number and update counter of a lease key; raise CorruptionError."""
    _check_size(data, _LEASE_KEY_SIZE)
    _, consumer, order = _LEASE.unpack_from(data, _U64.size)
    return int(consumer), int(order)


def space_prefix(space: bytes) -> bytes:
    """Return what the keys of a space in `rows` begin with."""
    return bytes((len(space),)) + space


def check_key(table: int, db_key: bytes) -> None:
    """Raise CorruptionError unless a key has the size of its table and its numbers are valid."""
    least, most = _KEY_SIZES[table]
    if not least <= len(db_key) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise CorruptionError("LMDB key", f"{len(db_key)} bytes, expected {expected}")
    if table not in _UNNUMBERED:
        number: int = _U64.unpack_from(db_key)[0]
        check_number(number, LAST_NUMBER, "LMDB key")
    if table == ROWS and not 0 < db_key[0] < len(db_key) - 1:
        raise CorruptionError("LMDB key", f"a space of {db_key[0]} bytes in {len(db_key)} bytes")
    if table == CONSUMERS and is_lease_key(db_key):
        consumer, order = unpack_lease_key(db_key)
        check_number(consumer, LAST_MEMBER, "LMDB key")
        check_number(order, LAST_NUMBER, "LMDB key")
    elif table in (CONSUMERS, PRODUCERS) and not is_name_key(db_key):
        if is_lease_key(db_key):
            raise CorruptionError("LMDB key", "a producer has no lease")
        if len(db_key) != _U64.size + 1 + _CONSUMER.size:
            size = _U64.size + 1 + _CONSUMER.size
            problem = f"{len(db_key)} bytes for the number of a consumer or producer"
            raise CorruptionError("LMDB key", f"{problem}, expected {size}")
        check_number(int.from_bytes(db_key[-_CONSUMER.size :], "big"), LAST_MEMBER, "LMDB key")
    elif table in (CONSUMER_PEL, IDEMPOTENCY, IDEMPOTENCY_ORDER):
        member: int = _CONSUMER.unpack_from(db_key, _U64.size)[0]
        check_number(member, LAST_MEMBER, "LMDB key")


def fits(table: int, db_key: bytes) -> bool:
    try:
        check_key(table, db_key)
    except CorruptionError:
        return False
    return True


def check_number(number: int, last: int, where: str) -> None:
    if number > last:
        raise CorruptionError(where, f"number {number}, expected at most {last}")


def unpack_owned_key(data: bytes) -> tuple[int, int, int, int]:
    """Return group number, consumer number, ms and seq of a key in `consumer_pel`."""
    _check_size(data, _OWNED.size)
    group, consumer, ms, seq = _OWNED.unpack(data)
    return group, consumer, ms, seq
