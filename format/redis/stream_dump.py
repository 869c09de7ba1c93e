"""Streams as Redis writes them into RDB files and DUMP payloads.

A payload of DUMP, which RESTORE takes:

    type u8 | value | RDB version u16 LE | CRC-64 of all before, u64 LE

The value of a stream; `since` is the type that added a step:

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
       27      number of entries that nobody owns, and their IDs, oldest first
       26  idmp-duration; idmp-maxsize; number of producers; for each its name, number of messages,
           and for each message its ID and entry ID; iids-added; iids-duplicates

Numbers and halves of IDs are lengths, names are strings (`rdb_values`); the IDs of pending entries
are 16 bytes big-endian, times 8 bytes little-endian.

Nodes are taken over as they are, in both directions: `node_check.validate` sees every byte of one
that comes in. Everything else that comes in is checked for what must hold in any store (`check_*`
below), so that damage gives `CorruptionError` and nothing else, in time and memory that are in
proportion to the bytes that are really there.

What an older type has no place for is left out or replaced when writing; `Losses` counts it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX
from streamkeep.format.node.check import validate
from streamkeep.format.node.listpack import spell_backlens
from streamkeep.format.redis.crc64 import crc64
from streamkeep.format.redis.rdb_values import Source, put_length, put_string
from streamkeep.format.redis.stream_parts import (
    NO_MESSAGES,
    NOBODY,
    ConsumerPart,
    Counters,
    GroupPart,
    Id,
    Messages,
    Node,
    Part,
    Parts,
    Pending,
    ProducerPart,
)
from streamkeep.format.rows.extension import MOST_DURATION, MOST_MAXSIZE
from streamkeep.format.rows.group_records import NEVER, UNKNOWN
from streamkeep.format.rows.nacks import MAX_COUNT, OWNED

# Type numbers; Redis calls them STREAM_LISTPACKS, _2, _3, _4 and _5.
TYPE_1: Final = 15
TYPE_2: Final = 19
TYPE_3: Final = 21
TYPE_4: Final = 26
TYPE_5: Final = 27
STREAM_TYPES: Final = (TYPE_1, TYPE_2, TYPE_3, TYPE_4, TYPE_5)


class Target(NamedTuple):
    """What a server reads: stream type, RDB version, generation of backlens."""

    kind: int
    rdb_version: int
    newer_backlens: bool


# By the oldest server that reads it. Every Valkey reads "7.2".
TARGETS: Final[dict[str, Target]] = {
    "5.0": Target(TYPE_1, 9, False),
    "7.0": Target(TYPE_2, 10, False),
    "7.2": Target(TYPE_3, 11, False),
    "8.6": Target(TYPE_4, 13, False),
    "8.8": Target(TYPE_5, 14, False),
    "8.10": Target(TYPE_5, 15, True),
}
NEWEST: Final = "8.10"
MOST_RDB_VERSION: Final = 15  # of Redis; Valkey counts from 80 on
_VALKEY_VERSIONS: Final = range(80, 82)

_FOOTER: Final = struct.Struct("<HQ")
_RAW_ID: Final = struct.Struct(">QQ")
_NACK: Final = struct.Struct(">QQ8s")
_TIME: Final = struct.Struct("<q")
_MINUS_ONE: Final = MAX  # entries_read, as a length
_I64_MAX: Final = (1 << 63) - 1
_MOST_TIME: Final = OWNED - 1  # a delivery time that a NACK of ours holds
_PIECE: Final = 1 << 16
NOBODYS_OWNER: Final = b"nobody"  # who gets the entries that nobody owns in types below 27


class Losses(dict[str, int]):
    """What found no place, and how often.

    Attributes:
        newer: whether a newer server has a place for some of it.
    """

    newer = False

    def add(self, what: str, count: int = 1, *, newer: bool = False) -> None:
        """Count something that found no place.

        Args:
            newer: a newer server has one.
        """
        if count:
            self[what] = self.get(what, 0) + count
            self.newer |= newer


# --- reading ------------------------------------------------------------------------------------


def open_payload(payload: bytes, where: str) -> tuple[int, Source]:
    """Check the envelope of a DUMP payload; return the type and the source of the value.

    Raises:
        CorruptionError: also for another type than a stream, and for an RDB version that is newer
            than what this version of Streamkeep knows.
    """
    if len(payload) < 1 + _FOOTER.size:
        raise CorruptionError(where, f"a payload of {len(payload)} bytes is cut off")
    version, checksum = _FOOTER.unpack_from(payload, len(payload) - _FOOTER.size)
    check_rdb_version(version, where)
    computed = crc64(payload[:-8])
    if checksum not in (computed, 0):  # 0: none was made
        raise CorruptionError(where, f"CRC-64 is {checksum:016x}, computed {computed:016x}")
    kind = payload[0]
    if kind not in STREAM_TYPES:
        raise CorruptionError(where, f"type {kind} is no stream", offset=0)
    return kind, Source.of(payload[1 : -_FOOTER.size], where)


def read_payload(payload: bytes, where: str) -> Parts:
    """Yield the parts of a DUMP payload; raise CorruptionError."""
    kind, source = open_payload(payload, where)
    yield from read_value(source, kind)
    if not source.ends():
        source.fail("bytes behind the end of the stream")


def check_rdb_version(version: int, where: str) -> None:
    """Raise for an RDB version that does not exist yet."""
    if not 1 <= version <= MOST_RDB_VERSION and version not in _VALKEY_VERSIONS:
        problem = f"RDB version {version}, up to {MOST_RDB_VERSION} is known"
        raise CorruptionError(where, problem)


def read_value(source: Source, kind: int) -> Parts:
    """Yield the parts of a stream's value; raise CorruptionError."""
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
            source.fail(f"group {group.name!r} stands here twice")
        names.add(group.name)
        yield group
    if kind >= TYPE_4:
        yield _read_messages(source)


class _End:
    """What the nodes so far add up to."""

    def __init__(self) -> None:
        self.live = 0
        self.last_slot: Id | None = None


def _read_node(source: Source, end: _End) -> Node | None:
    """Return the next node; None for one without live entries, which Redis 7.0 may leave."""
    key = source.string()
    if len(key) != _RAW_ID.size:
        source.fail(f"the key of a macro node has {len(key)} bytes, not {_RAW_ID.size}")
    ms, seq = _RAW_ID.unpack(key)
    data = source.string()
    if end.last_slot is not None and (ms, seq) <= end.last_slot:
        source.fail(f"macro node {ms}-{seq} does not begin above the one before it")
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
        source.fail(f"the length is {length}, the macro nodes hold {end.live} entries")
    counters = Counters(length, last_id, first_id, max_deleted_id, entries_added, source.length())
    problem = problem_of_counters(counters, end.last_slot)
    if problem:
        source.fail(problem)
    return counters


def problem_of_counters(counters: Counters, last_slot: Id | None) -> str:
    """Return what is wrong with counters of a stream whose last entry is `last_slot`, or ""."""
    last = counters.last_id
    if max(last) > MAX or min(last) < 0:
        return f"last_generated_id {last[0]}-{last[1]} is out of range"
    if last_slot is not None and last_slot > last:
        return "last_generated_id {}-{} is below the ID {}-{} of an entry".format(*last, *last_slot)
    deleted = counters.max_deleted_id
    if deleted is not None and not (0, 0) <= deleted <= last:
        return "max_deleted_id {}-{} is above last_generated_id {}-{}".format(*deleted, *last)
    added = counters.entries_added
    if added is not None and not counters.length <= added <= _I64_MAX:
        return f"entries_added is {added}, with {counters.length} entries there"
    return ""


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
        consumer = _read_consumer(source, kind)
        if consumer.name in names:
            source.fail(f"group {name!r}: consumer {consumer.name!r} stands here twice")
        names.add(consumer.name)
        consumers.append(consumer)
        for _ in range(source.length()):
            _own(source, times, owners, index)
    zone: list[Id] = []
    if kind >= TYPE_5:
        for _ in range(source.length()):
            zone.append(_own(source, times, owners, NOBODY))
    if len(owners) != len(times):
        one = next(one for one in times if one not in owners)
        source.fail(f"group {name!r}: entry {one[0]}-{one[1]} is pending for nobody")
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
            source.fail(f"the pending entry {ms}-{seq} does not rise")
        previous = (ms, seq)
        times[previous] = _TIME.unpack(raw)[0]
        counts.append(source.length())
    return times, counts


def _read_consumer(source: Source, kind: int) -> ConsumerPart:
    name = source.string()
    seen = _read_time(source)
    return ConsumerPart(name, seen, _read_time(source) if kind >= TYPE_3 else seen)


def _own(source: Source, times: dict[Id, int], owners: dict[Id, int], owner: int) -> Id:
    """Take the ID of a pending entry that `owner` has, and nobody else."""
    ms, seq = _RAW_ID.unpack(source.take(_RAW_ID.size))
    one = (ms, seq)
    if one not in times:
        source.fail(f"a consumer owns {ms}-{seq}, which is not pending in its group")
    if one in owners:
        source.fail(f"two consumers own {ms}-{seq}")
    owners[one] = owner
    return one


def problem_of_group(group: GroupPart) -> str:
    """Return what is wrong with numbers of a group, or ""."""
    if not (0, 0) <= group.last_id <= (MAX, MAX):
        return "last_delivered_id is out of range"
    if group.entries_read is not None and not UNKNOWN <= group.entries_read <= _I64_MAX:
        return f"entries_read is {group.entries_read}"
    for consumer in group.consumers:
        if consumer.seen_time < 0 or consumer.active_time < NEVER:
            return f"consumer {consumer.name!r} was seen before 1970"
    for one in group.pending:
        if not 0 <= one.delivery_time <= _MOST_TIME:
            return f"the delivery time of {one.ms}-{one.seq} is {one.delivery_time}"
        if not 0 <= one.delivery_count <= MAX_COUNT:
            return f"the delivery count of {one.ms}-{one.seq} is {one.delivery_count}"
    return ""


def _read_messages(source: Source) -> Messages:
    duration, maxsize = source.length(), source.length()
    producers: list[ProducerPart] = []
    for _ in range(source.length()):
        name = source.string()
        messages = [
            (source.string(), source.length(), source.length()) for _ in range(source.length())
        ]
        if messages:  # Redis forgets producers some time after their last message
            producers.append(ProducerPart(name, messages))
    found = Messages(duration, maxsize, producers, source.length(), source.length())
    problem = problem_of_messages(found)
    if problem:
        source.fail(problem)
    return found


def problem_of_messages(found: Messages) -> str:
    """Return what is wrong with producers and messages, or ""."""
    if not 1 <= found.duration <= MOST_DURATION:
        return f"idmp-duration is {found.duration}, not 1 to {MOST_DURATION}"
    if not 1 <= found.maxsize <= MOST_MAXSIZE:
        return f"idmp-maxsize is {found.maxsize}, not 1 to {MOST_MAXSIZE}"
    if not (0 <= found.added <= MAX and 0 <= found.duplicates <= MAX):
        return "a counter of messages is out of range"
    names: set[bytes] = set()
    for producer in found.producers:
        if producer.name in names:
            return f"producer {producer.name!r} stands there twice"
        names.add(producer.name)
        if len(producer.messages) > found.maxsize:
            return f"producer {producer.name!r} has {len(producer.messages)} messages"
        iids = {iid for iid, _, _ in producer.messages}
        if len(iids) < len(producer.messages):
            return f"producer {producer.name!r} has a message twice"
        if any(max(ms, seq) > MAX for _, ms, seq in producer.messages):
            return f"producer {producer.name!r} has a message with an impossible ID"
    return ""


# --- writing ------------------------------------------------------------------------------------


def write_payload(parts: Iterable[Part], nodes: int, target: Target, losses: Losses) -> bytes:
    """Return the DUMP payload of a stream.

    Args:
        nodes: how many there are among the parts.
        losses: gets what the target has no place for.
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
            put_string(out, spell_backlens(part.data, target.newer_backlens))
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
        count = sum(len(one.messages) for one in messages.producers)
        losses.add("message of a producer", count, newer=True)
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
        losses.add("stream whose max_deleted_id and entries_added are lost", newer=True)
    put_length(out, counters.groups)


def _put_group(out: bytearray, group: GroupPart, kind: int, losses: Losses) -> Iterator[bytes]:
    """Append a group to `out`; yield what that has gathered, where it is much."""
    nobodys = NOBODY
    if group.zone and kind < TYPE_5:
        losses.add("pending entry of nobody, now of a consumer", len(group.zone), newer=True)
        nobodys = len(group.consumers)
        group = _with_owner(group)
    put_string(out, group.name)
    _put_id(out, group.last_id)
    if kind >= TYPE_2:
        read = group.entries_read
        put_length(out, _MINUS_ONE if read is None or read <= UNKNOWN else read)
    owned = [bytearray() for _ in group.consumers]
    put_length(out, len(group.pending))
    for one in group.pending:
        raw = _RAW_ID.pack(one.ms, one.seq)
        out += raw
        out += _TIME.pack(one.delivery_time)
        put_length(out, one.delivery_count)
        place = nobodys if one.consumer == NOBODY else one.consumer
        if place != NOBODY:
            owned[place] += raw
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
    """Return a group with one more consumer, for the entries that nobody owns.

    Their delivery time is 0, so that XAUTOCLAIM gives them to the next who asks.
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
