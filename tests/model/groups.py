"""Consumer groups of the model: pending entries, their two orders, and the arithmetic of lag.

A group's pending entries list (PEL) is ordered by ID. A second order is that of delivery, oldest
first, by which XREADGROUP CLAIM walks. It begins with the entries that XNACK has returned, which no
consumer owns, first in, first out. Then come the owned entries by delivery time; of two equal
times, the later update is last.

An entry that is delivered "now" goes to the end, also when the clock has gone back. For entries
that XCLAIM IDLE and TIME sort in later, it counts as if it had the time of the newest update, as in
the engine. In Redis, their place depends on the last entry at that moment. While the clock does not
go back, there is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from model.values import ZERO, Id

UNKNOWN = -1  # entries_read, if it is unknown
NEVER = -1  # active_time of a consumer that was never given anything
MOST_DELIVERIES = (1 << 63) - 1


class Counters(Protocol):
    """What the arithmetic needs to know of a stream."""

    last_id: Id
    max_deleted_id: Id
    entries_added: int

    @property
    def length(self) -> int: ...

    @property
    def first_id(self) -> Id: ...


@dataclass
class Nack:
    """One pending entry; `owner` is None when XNACK gave it back."""

    id: Id
    owner: bytes | None
    delivery_time: int
    delivery_count: int
    order_time: int  # the time that it is sorted by

    def idle(self, now_ms: int) -> int:
        """Return for how long it has been pending: not less than 0, if the clock went back."""
        return max(0, now_ms - self.delivery_time)


@dataclass
class Consumer:
    """One consumer; which entries it has pending is for the group to say."""

    seen_time: int
    active_time: int = NEVER


@dataclass
class Group:
    """One consumer group."""

    last_id: Id
    entries_read: int = UNKNOWN
    pending: dict[Id, Nack] = field(default_factory=dict)
    order: list[Id] = field(default_factory=list)  # of delivery
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    newest: int = 0  # the highest order_time there ever was

    def consumer(self, name: bytes, now_ms: int) -> Consumer:
        """Return a consumer, created when missing, and note that it was seen."""
        consumer = self.consumers.setdefault(name, Consumer(now_ms))
        consumer.seen_time = now_ms
        return consumer

    def by_id(self, owner: bytes | None = None) -> list[Nack]:
        """Return the pending entries by ID: of one consumer, or all."""
        return [
            nack for _, nack in sorted(self.pending.items()) if owner is None or nack.owner == owner
        ]

    def unowned(self) -> int:
        """Return how many entries are in the zone of those given back."""
        return sum(nack.owner is None for nack in self.pending.values())

    def forget(self, entry_id: Id) -> bool:
        """Take an entry off the pending list; say whether it was there."""
        if entry_id not in self.pending:
            return False
        del self.pending[entry_id]
        self.order.remove(entry_id)
        return True

    def give_now(self, entry_id: Id, owner: bytes, now_ms: int, count: int) -> None:
        """Make an entry pending for `owner` since now: the last in the order of delivery."""
        self.forget(entry_id)
        self.newest = max(self.newest, now_ms)
        self.pending[entry_id] = Nack(entry_id, owner, now_ms, count, self.newest)
        self.order.append(entry_id)

    def give_at(self, entry_id: Id, owner: bytes, time_ms: int, count: int) -> None:
        """Make an entry pending for `owner` since a time, and sort it in after its equals."""
        self.forget(entry_id)
        place = len(self.order)
        while place > 0:
            before = self.pending[self.order[place - 1]]
            if before.owner is None or before.order_time <= time_ms:
                break
            place -= 1
        self.order.insert(place, entry_id)
        self.newest = max(self.newest, time_ms)
        self.pending[entry_id] = Nack(entry_id, owner, time_ms, count, time_ms)

    def give_back(self, entry_id: Id, count: int) -> None:
        """Leave an entry pending without an owner: the last of its zone."""
        self.forget(entry_id)
        self.order.insert(self.unowned(), entry_id)
        self.pending[entry_id] = Nack(entry_id, None, 0, count, 0)

    # --- how far the group has read ---------------------------------------------------------

    def advance(self, stream: Counters, entry_id: Id) -> None:
        """Note that the entry, which is above last_id, was delivered."""
        countable = self.entries_read != UNKNOWN and self.last_id >= stream.first_id
        if countable and not has_tombstones(stream, self.last_id):
            self.entries_read += 1
        elif stream.entries_added:
            self.entries_read = estimate_read(stream, entry_id)
        self.last_id = entry_id

    def lag(self, stream: Counters) -> int | None:
        """Return how many entries the group has not read yet; None if that is unknown."""
        if stream.entries_added == 0 or stream.length == 0:
            return 0
        if self.last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
            return stream.length
        if self.entries_read != UNKNOWN and not has_tombstones(stream, self.last_id):
            return stream.entries_added - self.entries_read
        estimate = estimate_read(stream, self.last_id)
        return None if estimate == UNKNOWN else stream.entries_added - estimate


def has_tombstones(stream: Counters, start: Id) -> bool:
    """Say whether an entry from `start` on was deleted, as far as the stream remembers."""
    return stream.length > 0 and stream.max_deleted_id != ZERO and start <= stream.max_deleted_id


def estimate_read(stream: Counters, entry_id: Id) -> int:
    """Return how many entries were ever added up to `entry_id`, or UNKNOWN."""
    if stream.entries_added == 0:
        return 0
    if stream.length == 0 and entry_id <= stream.last_id:
        return stream.entries_added
    if entry_id != ZERO and entry_id < stream.max_deleted_id:
        return UNKNOWN
    if entry_id == stream.last_id:
        return stream.entries_added
    if entry_id > stream.last_id:
        return UNKNOWN
    if stream.max_deleted_id == ZERO or stream.max_deleted_id < stream.first_id:
        if entry_id < stream.first_id:
            return stream.entries_added - stream.length
        if entry_id == stream.first_id:
            return stream.entries_added - stream.length + 1
    return UNKNOWN
