"""A whole stream in parts, for transfers between stores, files and Redis servers.

The parts have the order of Redis's own formats:

    Node *          its macro nodes, ascending
    Counters        its counters as in XINFO STREAM, and the number of groups
    GroupPart *     its groups by name, each with consumers and pending entries
    Messages        the tracked messages of idempotent XADD; may be missing

A source returns an iterator of parts, and a sink consumes it in this order. So a stream of any size
is transferred with one node, or one group, in memory.

The `problem_of_*` functions check the values of parts that came from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.node.node import NodeIds
from streamkeep.format.rows import extension
from streamkeep.format.rows.group_records import NEVER, UNKNOWN
from streamkeep.format.rows.nacks import MAX_COUNT, OWNED

NOBODY: Final = -1  # `consumer` of an unowned pending entry
MAX_TIME: Final = OWNED - 1  # the highest delivery time that `rows.nacks` can store
_I64_MAX: Final = (1 << 63) - 1


class Node(NamedTuple):
    """One macro node: its key, its listpack, and the result of `check.validate` if it was run."""

    ms: int
    seq: int
    data: bytes
    ids: NodeIds | None = None


class Counters(NamedTuple):
    """The counters of a stream; None for those that the source does not contain."""

    length: int
    last_id: Id
    first_id: Id | None
    max_deleted_id: Id | None
    entries_added: int | None
    groups: int


class ConsumerPart(NamedTuple):
    """One consumer of a group; times in Unix milliseconds."""

    name: bytes
    seen_time: int
    active_time: int = NEVER


class Pending(NamedTuple):
    """One pending entry; `consumer` is an index into the group's consumers, or NOBODY."""

    ms: int
    seq: int
    consumer: int
    delivery_time: int
    delivery_count: int


class PendingEntries(Protocol):
    """The pending entries of a group: a list, or an object that reads them at each iteration."""

    def __iter__(self) -> Iterator[Pending]:
        """Yield the pending entries, ascending by ID."""

    def __len__(self) -> int:
        """Return the number of pending entries."""


class GroupPart(NamedTuple):
    """One group.

    Attributes:
        last_id: last_delivered_id.
        entries_read: -1 if unknown; None if the source does not contain it.
        pending: ascending by ID, or for a copy in the order of delivery.
        zone: IDs of the unowned pending entries, in the order in which they were given back.
    """

    name: bytes
    last_id: Id
    entries_read: int | None
    consumers: list[ConsumerPart]
    pending: PendingEntries
    zone: list[Id]


class ProducerPart(NamedTuple):
    """One producer: (message ID, ms, seq) of its tracked messages, oldest first."""

    name: bytes
    messages: list[tuple[bytes, int, int]]


class Messages(NamedTuple):
    """Settings, producers and counters of idempotent XADD; the duration is in seconds."""

    duration: int
    maxsize: int
    producers: list[ProducerPart]
    added: int
    duplicates: int


NO_MESSAGES: Final = Messages(extension.DEFAULT_DURATION, extension.DEFAULT_MAXSIZE, [], 0, 0)

Part = Node | Counters | GroupPart | Messages
Parts = Iterator[Part]


def problem_of_counters(counters: Counters, last_slot: Id | None) -> str:
    """Return the first problem of the counters of a stream; "" if there is none.

    Args:
        last_slot: ID of the last slot of the last node; None for a stream without nodes.
    """
    last = counters.last_id
    if max(last) > MAX or min(last) < 0:
        return f"last_generated_id {last[0]}-{last[1]} is out of range"
    if last_slot is not None and last_slot > last:
        return "last_generated_id {}-{} is below the entry {}-{}".format(*last, *last_slot)
    deleted = counters.max_deleted_id
    if deleted is not None and not (0, 0) <= deleted <= last:
        return "max_deleted_id {}-{} is above last_generated_id {}-{}".format(*deleted, *last)
    added = counters.entries_added
    if added is not None and not counters.length <= added <= _I64_MAX:
        return f"entries_added is {added}, expected at least the length, {counters.length}"
    return ""


def problem_of_group(group: GroupPart) -> str:
    """Return the first problem of the numbers of a group; "" if there is none."""
    if not (0, 0) <= group.last_id <= (MAX, MAX):
        return "last_delivered_id {}-{} is out of range".format(*group.last_id)
    if group.entries_read is not None and not UNKNOWN <= group.entries_read <= _I64_MAX:
        return f"entries_read is {group.entries_read}, expected {UNKNOWN} to {_I64_MAX}"
    for consumer in group.consumers:
        if consumer.seen_time < 0 or consumer.active_time < NEVER:
            return f"consumer {consumer.name!r} has a time before 1970"
    for one in group.pending:
        if not 0 <= one.delivery_time <= MAX_TIME:
            return f"the delivery time of {one.ms}-{one.seq} is {one.delivery_time}, out of range"
        if not 0 <= one.delivery_count <= MAX_COUNT:
            return f"the delivery count of {one.ms}-{one.seq} is {one.delivery_count}, out of range"
    return ""


def problem_of_messages(found: Messages) -> str:
    """Return the first problem of producers and messages; "" if there is none."""
    if not 1 <= found.duration <= extension.MAX_DURATION:
        return f"idmp-duration is {found.duration}, expected 1 to {extension.MAX_DURATION}"
    if not 1 <= found.maxsize <= extension.MAX_MAXSIZE:
        return f"idmp-maxsize is {found.maxsize}, expected 1 to {extension.MAX_MAXSIZE}"
    if not (0 <= found.added <= MAX and 0 <= found.duplicates <= MAX):
        return f"iids-added {found.added} or iids-duplicates {found.duplicates} is out of range"
    names: set[bytes] = set()
    for producer in found.producers:
        name, messages = producer
        if name in names:
            return f"producer {name!r} is repeated"
        names.add(name)
        if len(messages) > found.maxsize:
            problem = f"{len(messages)} messages, expected at most {found.maxsize}"
            return f"producer {name!r} has {problem}"
        iids = {iid for iid, _, _ in messages}
        if len(iids) < len(messages):
            return f"producer {name!r} repeats a message"
        if any(max(ms, seq) > MAX for _, ms, seq in messages):
            return f"producer {name!r} has a message with an ID out of range"
    return ""
