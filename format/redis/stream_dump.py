"""Streams in Redis's serialization: the value in RDB files and DUMP payloads (Redis: `rdb.c`).

The payload of DUMP and RESTORE:

    type u8 | value | RDB version u16 LE | CRC-64 of all before, u64 LE

The value of a stream; `since` is the type number that added a step:

    since  step
    -----  ------------------------------------------------------------------------------------
       15  number of nodes; for each its key (16 bytes, as a string) and its listpack
       15  length; last_id
       19  first_id; max_deleted_id; entries_added
       15  number of groups; for each: name; last_id
       19      entries_read (-1 as 64 bits of ones)
       15      number of pending entries; for each its ID, delivery time, delivery count
       15      number of consumers; for each its name, seen time
       21          active time
       15          number of entries it owns, and their IDs
       27      number of unowned entries, and their IDs, oldest first
       26  idmp-duration; idmp-maxsize; number of producers; for each its name, number of messages,
           and for each message its ID and entry ID; iids-added; iids-duplicates

Numbers and halves of IDs are lengths, names are strings (`rdb_values`); the IDs of pending entries
are 16 bytes big-endian, times 8 bytes little-endian.

Nodes are copied unchanged in both directions. A reader checks every byte of a node
(`check.validate`) and all other values (`stream_parts.problem_of_*`). Damage raises only
`CorruptionError`, and needs time and memory in proportion to the size of the input.

A writer omits or replaces what an older type cannot store, and counts it in `Losses`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.node.check import validate
from streamkeep.format.node.listpack_check import convert_backlens
from streamkeep.format.redis.rdb_values import Source, crc64, put_length, put_string
from streamkeep.format.redis.stream_parts import (
    NO_MESSAGES,
    NOBODY,
    ConsumerPart,
    Counters,
    GroupPart,
    Messages,
    Node,
    Part,
    Parts,
    Pending,
    ProducerPart,
    problem_of_counters,
    problem_of_group,
    problem_of_messages,
)
from streamkeep.format.rows.group_records import UNKNOWN

# Type numbers; Redis calls them STREAM_LISTPACKS, _2, _3, _4 and _5.
TYPE_1: Final = 15
TYPE_2: Final = 19
TYPE_3: Final = 21
TYPE_4: Final = 26
TYPE_5: Final = 27
STREAM_TYPES: Final = (TYPE_1, TYPE_2, TYPE_3, TYPE_4, TYPE_5)


class Target(NamedTuple):
    """The newest formats that a server reads: stream type, RDB version, form of backlens."""

    kind: int
    rdb_version: int
    newer_backlens: bool


# By the oldest Redis that reads the format. Every Valkey reads "7.2".
TARGETS: Final[dict[str, Target]] = {
    "5.0": Target(TYPE_1, 9, False),
    "7.0": Target(TYPE_2, 10, False),
    "7.2": Target(TYPE_3, 11, False),
    "8.6": Target(TYPE_4, 13, False),
    "8.8": Target(TYPE_5, 14, False),
    "8.10": Target(TYPE_5, 15, True),
}
NEWEST: Final = "8.10"
MAX_RDB_VERSION: Final = 15  # of Redis; Valkey's versions begin at 80
_VALKEY_VERSIONS: Final = range(80, 82)

_FOOTER: Final = struct.Struct("<HQ")
_RAW_ID: Final = struct.Struct(">QQ")
_NACK: Final = struct.Struct(">QQ8s")
_TIME: Final = struct.Struct("<q")
_MINUS_ONE: Final = MAX  # entries_read, as a length
_PIECE: Final = 1 << 16
NOBODYS_OWNER: Final = b"nobody"  # the consumer that owns unowned entries in types below 27
UNOWNED_LOSS: Final = "unowned pending entry, now owned by consumer 'nobody'"
READ_LOSS: Final = "entries_read of a group"
EXPIRY_LOSS: Final = "time of a stream to expire"


class Losses(dict[str, int]):
    """What the target format cannot store: a description in the singular, and how often.

    Attributes:
        newer: whether the format of a newer server can store some of it.
    """

    newer = False

    def add(self, what: str, count: int = 1, *, newer: bool = False) -> None:
        """Count something that cannot be stored.

        Args:
            newer: whether the format of a newer server can store it.
        """
        if count:
            self[what] = self.get(what, 0) + count
            self.newer |= newer

    def add_messages(self, messages: Messages) -> None:
        """Count what idempotent XADD remembers, for a server before 8.6."""
        count = sum(len(one.messages) for one in messages.producers)
        self.add("tracked message of a producer", count, newer=True)
        if not count and messages != NO_MESSAGES:
            self.add("stream without its settings of idempotent XADD", newer=True)


# --- reading ------------------------------------------------------------------------------------


def open_payload(payload: bytes, where: str) -> tuple[int, Source]:
    """Check version and checksum of a DUMP payload; return its type and the value's source.

    Raises:
        CorruptionError: the payload is damaged, or has a newer RDB version than this version of
            Streamkeep reads.
    """
    if len(payload) < 1 + _FOOTER.size:
        problem = f"truncated: {len(payload)} bytes, expected at least {1 + _FOOTER.size}"
        raise CorruptionError(where, problem)
    version, checksum = _FOOTER.unpack_from(payload, len(payload) - _FOOTER.size)
    check_rdb_version(version, where)
    computed = crc64(payload[:-8])
    if checksum not in (computed, 0):  # 0: the writer has checksums disabled
        raise CorruptionError(where, f"CRC-64 is {checksum:016x}, computed {computed:016x}")
    return payload[0], Source.of(payload[1 : -_FOOTER.size], where)


def check_stream_type(kind: int, where: str) -> None:
    if kind not in STREAM_TYPES:
        raise CorruptionError(where, f"type {kind} is not a stream", offset=0)


def read_payload(payload: bytes, where: str) -> Parts:
    kind, source = open_payload(payload, where)
    check_stream_type(kind, where)
    yield from read_value(source, kind)
    if not source.ends():
        source.fail("extra bytes after the end of the stream")


def check_rdb_version(version: int, where: str) -> None:
    """Raise CorruptionError for an RDB version that this version of Streamkeep cannot read."""
    if not 1 <= version <= MAX_RDB_VERSION and version not in _VALKEY_VERSIONS:
        problem = f"RDB version {version}, expected at most {MAX_RDB_VERSION}"
        raise CorruptionError(where, problem)


def read_value(source: Source, kind: int) -> Parts:
    end = _End()
    for _ in range(source.length()):
        node = _read_node(source, end)
        if node is not None:
            yield node
    counters = _read_counters(source, kind, end)
    yield counters
    names: set[bytes] = set()
    for _ in range(counters.groups):
        group = _read_group(source, kind)
        if group.name in names:
            source.fail(f"group {group.name!r} is repeated")
        names.add(group.name)
        yield group
    if kind >= TYPE_4:
        yield _read_messages(source)


class _End:
    """Live entries and last slot of the nodes read so far."""

    def __init__(self) -> None:
        self.live = 0
        self.last_slot: Id | None = None


def _read_node(source: Source, end: _End) -> Node | None:
    """Return the next node; None for one without live entries, which Redis 7.0 may write."""
    key = source.string()
    if len(key) != _RAW_ID.size:
        source.fail(f"the key of a macro node has {len(key)} bytes, expected {_RAW_ID.size}")
    ms, seq = _RAW_ID.unpack(key)
    data = source.string()
    if end.last_slot is not None and (ms, seq) <= end.last_slot:
        source.fail(f"macro node {ms}-{seq} is out of order")
    try:
        ids = validate(data, ms, seq, True)
    except CorruptionError as error:
        source.fail(f"macro node {ms}-{seq}: {error}")
    end.live += int(ids.live)
    end.last_slot = max(ids.last_slot, (ms, seq))
    return Node(ms, seq, data, ids) if ids.live else None


def _read_id(source: Source) -> Id:
    return source.length(), source.length()


def _read_counters(source: Source, kind: int, end: _End) -> Counters:
    length = source.length()
    last_id = _read_id(source)
    first_id = max_deleted_id = entries_added = None
    if kind >= TYPE_2:
        first_id, max_deleted_id = _read_id(source), _read_id(source)
        entries_added = source.length()
    if length != end.live:
        source.fail(f"the length is {length}, the macro nodes contain {end.live} entries")
    counters = Counters(length, last_id, first_id, max_deleted_id, entries_added, source.length())
    problem = problem_of_counters(counters, end.last_slot)
    if problem:
        source.fail(problem)
    return counters


def _read_time(source: Source) -> int:
    time: int = _TIME.unpack(source.take(_TIME.size))[0]
    return time


def _read_group(source: Source, kind: int) -> GroupPart:
    name = source.string()
    last_id = _read_id(source)
    entries_read: int | None = None
    if kind >= TYPE_2:
        number = source.length()
        entries_read = UNKNOWN if number == _MINUS_ONE else number
    times, counts = _read_pending(source)
    owners: dict[Id, int] = {}
    consumers: list[ConsumerPart] = []
    names: set[bytes] = set()
    for index in range(source.length()):
        consumer, seen = source.string(), _read_time(source)
        if consumer in names:
            source.fail(f"group {name!r}: consumer {consumer!r} is repeated")
        names.add(consumer)
        active = _read_time(source) if kind >= TYPE_3 else seen
        consumers.append(ConsumerPart(consumer, seen, active))
        for _ in range(source.length()):
            _own(source, times, owners, index)
    zone: list[Id] = []
    if kind >= TYPE_5:
        for _ in range(source.length()):
            zone.append(_own(source, times, owners, NOBODY))
    if len(owners) != len(times):
        one = next(one for one in times if one not in owners)
        source.fail(f"group {name!r}: the pending entry {one[0]}-{one[1]} has no consumer")
    pending = [
        Pending(one[0], one[1], owners[one], 0 if owners[one] == NOBODY else time, counts[position])
        for position, (one, time) in enumerate(times.items())
    ]
    group = GroupPart(name, last_id, entries_read, consumers, pending, zone)
    problem = problem_of_group(group)
    if problem:
        source.fail(f"group {name!r}: {problem}")
    return group


def _read_pending(source: Source) -> tuple[dict[Id, int], list[int]]:
    """Return delivery times by ID, and delivery counts in the same order."""
    times: dict[Id, int] = {}
    counts: list[int] = []
    previous: Id = (-1, 0)
    for _ in range(source.length()):
        ms, seq, raw = _NACK.unpack(source.take(_NACK.size))
        if (ms, seq) <= previous:
            source.fail(f"the pending entry {ms}-{seq} is out of order")
        previous = (ms, seq)
        times[previous] = _TIME.unpack(raw)[0]
        counts.append(source.length())
    return times, counts


def _own(source: Source, times: dict[Id, int], owners: dict[Id, int], owner: int) -> Id:
    """Read the ID of a pending entry and record `owner` as its only owner."""
    ms, seq = _RAW_ID.unpack(source.take(_RAW_ID.size))
    one = (ms, seq)
    if one not in times:
        source.fail(f"a consumer owns {ms}-{seq}, which is not pending in its group")
    if one in owners:
        source.fail(f"two consumers own {ms}-{seq}")
    owners[one] = owner
    return one


def _read_messages(source: Source) -> Messages:
    duration, maxsize = source.length(), source.length()
    producers: list[ProducerPart] = []
    for _ in range(source.length()):
        name = source.string()
        messages = [
            (source.string(), source.length(), source.length()) for _ in range(source.length())
        ]
        if messages:  # Redis removes a producer only some time after its last message expired
            producers.append(ProducerPart(name, messages))
    found = Messages(duration, maxsize, producers, source.length(), source.length())
    problem = problem_of_messages(found)
    if problem:
        source.fail(problem)
    return found


# --- writing ------------------------------------------------------------------------------------


def write_payload(parts: Iterable[Part], nodes: int, target: Target, losses: Losses) -> bytes:
    """Return the DUMP payload of a stream.

    Args:
        nodes: number of macro nodes among the parts.
        losses: receives what the target cannot store.
    """
    value = b"".join(write_value(parts, nodes, target, losses))
    body = bytes([target.kind]) + value + target.rdb_version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def write_value(
    parts: Iterable[Part], nodes: int, target: Target, losses: Losses
) -> Iterator[bytes]:
    """Yield the value of a stream, piece by piece; see `write_payload`."""
    kind = target.kind
    out = bytearray()
    put_length(out, nodes)
    messages: Messages | None = None
    for part in parts:
        if isinstance(part, Node):
            put_string(out, _RAW_ID.pack(part.ms, part.seq))
            put_string(out, convert_backlens(part.data, target.newer_backlens))
        elif isinstance(part, Counters):
            _put_counters(out, part, kind, losses)
        elif isinstance(part, GroupPart):
            yield from _put_group(out, part, kind, losses)
        else:
            messages = part
        if len(out) >= _PIECE:
            yield bytes(out)
            out.clear()
    if kind >= TYPE_4:
        _put_messages(out, messages)
    elif messages is not None:
        losses.add_messages(messages)
    yield bytes(out)


def _put_id(out: bytearray, one: Id) -> None:
    put_length(out, one[0])
    put_length(out, one[1])


def _put_counters(out: bytearray, counters: Counters, kind: int, losses: Losses) -> None:
    put_length(out, counters.length)
    _put_id(out, counters.last_id)
    deleted = counters.max_deleted_id or (0, 0)
    added = counters.length if counters.entries_added is None else counters.entries_added
    if kind >= TYPE_2:
        _put_id(out, counters.first_id or (0, 0))
        _put_id(out, deleted)
        put_length(out, added)
    elif deleted != (0, 0) or added != counters.length:
        losses.add("stream without its max_deleted_id and entries_added", newer=True)
    put_length(out, counters.groups)


def _put_group(out: bytearray, group: GroupPart, kind: int, losses: Losses) -> Iterator[bytes]:
    """Append a group to `out`; yield the content of `out` whenever it has grown large."""
    substitute = NOBODY  # index of the consumer that gets the unowned entries
    if group.zone and kind < TYPE_5:
        losses.add(UNOWNED_LOSS, len(group.zone), newer=True)
        substitute = len(group.consumers)
        group = _with_owner(group)
    put_string(out, group.name)
    _put_id(out, group.last_id)
    if kind >= TYPE_2:
        read = group.entries_read
        put_length(out, _MINUS_ONE if read is None or read <= UNKNOWN else read)
    elif group.entries_read not in (None, UNKNOWN):
        losses.add(READ_LOSS, newer=True)
    owned = [bytearray() for _ in group.consumers]
    put_length(out, len(group.pending))
    for one in group.pending:
        raw = _RAW_ID.pack(one.ms, one.seq)
        out += raw
        out += _TIME.pack(one.delivery_time)
        put_length(out, one.delivery_count)
        owner = substitute if one.consumer == NOBODY else one.consumer
        if owner != NOBODY:
            owned[owner] += raw
        if len(out) >= _PIECE:
            yield bytes(out)
            out.clear()
    put_length(out, len(group.consumers))
    for consumer, ids in zip(group.consumers, owned, strict=True):
        put_string(out, consumer.name)
        out += _TIME.pack(consumer.seen_time)
        if kind >= TYPE_3:
            out += _TIME.pack(consumer.active_time)
        elif consumer.active_time != consumer.seen_time:
            losses.add("active time of a consumer", newer=True)
        put_length(out, len(ids) // _RAW_ID.size)
        out += ids
    if kind >= TYPE_5:
        put_length(out, len(group.zone))
        for ms, seq in group.zone:
            out += _RAW_ID.pack(ms, seq)


def _with_owner(group: GroupPart) -> GroupPart:
    """Return the group with one more consumer, which gets the unowned entries.

    Their delivery time is 0, so the next XAUTOCLAIM of any consumer returns them.
    """
    name = NOBODYS_OWNER
    taken = {consumer.name for consumer in group.consumers}
    while name in taken:
        name += b"_"
    return group._replace(consumers=[*group.consumers, ConsumerPart(name, 0)], zone=[])


def _put_messages(out: bytearray, messages: Messages | None) -> None:
    found = messages or NO_MESSAGES
    put_length(out, found.duration)
    put_length(out, found.maxsize)
    put_length(out, len(found.producers))
    for producer in found.producers:
        put_string(out, producer.name)
        put_length(out, len(producer.messages))
        for iid, ms, seq in producer.messages:
            put_string(out, iid)
            _put_id(out, (ms, seq))
    put_length(out, found.added)
    put_length(out, found.duplicates)
