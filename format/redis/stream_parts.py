"""A whole stream in parts, as it travels between stores, files and Redis servers.

The order is always the same, and it is that of Redis's own formats:

    Node *          its macro nodes, ascending
    Counters        what XINFO says of it, and how many groups follow
    GroupPart *     its groups by name, each with consumers and pending entries
    Messages        what idempotent XADD remembers; may be missing

Whoever has a stream gives out an iterator of parts, whoever takes one consumes it in this order.
So a stream of any size moves with one node, or one group, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from streamkeep.format.node.node import NodeIds
from streamkeep.format.rows.extension import DEFAULT_DURATION, DEFAULT_MAXSIZE
from streamkeep.format.rows.group_records import NEVER

Id = tuple[int, int]

NOBODY: Final = -1  # `consumer` of a pending entry that nobody owns


class Node(NamedTuple):
    """One macro node: its key, its listpack, and what a check of every byte found; None: none."""

    ms: int
    seq: int
    data: bytes
    ids: NodeIds | None = None


class Counters(NamedTuple):
    """The counters of a stream. None: the source does not say; see `format/redis/stream_dump`."""

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
    """The pending entries of a group, as often as they are asked for: a list, or read each time."""

    def __iter__(self) -> Iterator[Pending]:
        """Yield them, ascending by ID."""

    def __len__(self) -> int:
        """Return how many there are."""


class GroupPart(NamedTuple):
    """One group. `pending` ascends by ID; `zone` are the IDs that nobody owns, oldest first.

    `entries_read` is -1 when unknown, and None when the source does not say.
    """

    name: bytes
    last_id: Id
    entries_read: int | None
    consumers: list[ConsumerPart]
    pending: PendingEntries
    zone: list[Id]


class ProducerPart(NamedTuple):
    """One producer: (message ID, ms, seq) of what is remembered of it, oldest first."""

    name: bytes
    messages: list[tuple[bytes, int, int]]


class Messages(NamedTuple):
    """Settings, producers and counters of idempotent XADD; the duration is in seconds."""

    duration: int
    maxsize: int
    producers: list[ProducerPart]
    added: int
    duplicates: int


NO_MESSAGES: Final = Messages(DEFAULT_DURATION, DEFAULT_MAXSIZE, [], 0, 0)

Part = Node | Counters | GroupPart | Messages
Parts = Iterator[Part]
