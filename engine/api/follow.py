"""Endless reads: `follow` a stream, `consume` as a member of a group.

A plan says which call comes next and what its result means; it neither runs nor waits, so that
the store and its asyncio twin iterate by the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.command_base import read
from streamkeep.engine.blocking.calls import BlockingCall, GroupCall, ReadCall
from streamkeep.engine.blocking.history_call import HistoryCall
from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.arguments import check_block, check_count, to_bytes, to_id_text
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.id_codec import parse_id

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Stop = Callable[[], bool]


class Stopped(Exception):
    """The iteration was told to end while it waited."""


class Plan:
    """What an iteration does next."""

    waits = True  # whether the next call may wait for entries

    def call(self) -> BlockingCall:
        """Return the next call."""
        raise NotImplementedError

    def take(self, found: list[list[Any]]) -> list[Entry[Any]] | None:
        """Return the entries of its result; None when the iteration ends with it."""
        raise NotImplementedError


class Following(Plan):
    """The entries of one stream above an ID, which moves along."""

    def __init__(
        self, name: bytes, after: xread.ReadId, count: int, shape: int, history: bool
    ) -> None:
        self._history = history
        self._name = name
        self._after = after
        self._count = count
        self._shape = shape

    def call(self) -> BlockingCall:
        """Return XREAD, or a read of history, from where the iteration is."""
        if self._history:
            return HistoryCall(self._name, self._after, self._count, self._shape)
        return ReadCall([(self._name, self._after)], self._count, None, None, self._shape)

    def take(self, found: list[list[Any]]) -> list[Entry[Any]] | None:
        """Return the entries; none came: time is up."""
        if not found:
            return None
        entries: list[Entry[Any]] = found[0][1]
        self._after = _last_id(entries)
        return entries


class Consuming(Plan):
    """What a consumer has pending, from the oldest on; then what the group delivers to it."""

    waits = False

    def __init__(self, name: bytes, delivery: xreadgroup.Delivery) -> None:
        self._name = name
        self._delivery = delivery
        self._position: xreadgroup.Position = (0, 0)

    def call(self) -> BlockingCall:
        """Return XREADGROUP with the place in the history, or with `>`."""
        return GroupCall([(self._name, self._position)], self._delivery, None, None)

    def take(self, found: list[list[Any]]) -> list[Entry[Any]] | None:
        """Return the entries; at the end of the history go on to new ones."""
        entries = [Entry(*parts[:2]) for parts in found[0][1]] if found else []
        if self.waits:
            return entries or None
        if entries:
            self._position = _last_id(entries)
        else:
            self._position = xreadgroup.NEW
            self.waits = True
        return entries


def plan_follow(
    store: Store[Any], key: Any, start: Any, count: int | None, history: bool = False
) -> Plan:
    """Check the arguments of `follow`; `$` means the stream's last ID as it is now."""
    name = to_bytes(key, "key")
    wanted = check_count("XREAD", "count", count)
    streams = [(name, xread.parse_read_id(to_id_text(start)))]
    ((_, after),) = store._run(read(xread.freeze, (streams,)))
    return Following(name, after, wanted, store._shape, history)


def plan_consume(
    store: Store[Any],
    key: Any,
    group: Any,
    consumer: Any,
    count: int | None,
    noack: bool,
    claim_min_idle_time: int | None,
) -> Plan:
    """Check the arguments of `consume`."""
    delivery = xreadgroup.Delivery(
        to_bytes(group, "groupname"),
        to_bytes(consumer, "consumername"),
        check_count("XREADGROUP", "count", count),
        bool(noack),
        xreadgroup.check_idle(claim_min_idle_time),
        store._shape,
    )
    return Consuming(to_bytes(key, "key"), delivery)


def iterate(
    store: Store[Any], plan: Plan, block: int | None, stop: Stop | None
) -> Iterator[Entry[Any]]:
    """Yield what a plan finds.

    Args:
        block: how many milliseconds to wait for the next entries; 0 for ever, None not at all.
        stop: says True when the iteration is to end.
    """
    block_ms = None if block is None else check_block("XREAD", block)
    return _iterate(store, plan, block_ms, stop or never)


def _iterate(
    store: Store[Any], plan: Plan, block_ms: int | None, stop: Stop
) -> Iterator[Entry[Any]]:
    check = checking(store, stop)
    while not stop():
        try:
            found = store._wait_for(
                plan.call(), block_ms if plan.waits else None, check, store._wait
            )
        except Stopped:
            return
        entries = plan.take(found)
        if entries is None:
            return
        for entry in entries:
            yield entry
            if stop():
                return


def checking(store: Store[Any], stop: Stop) -> Callable[[], None]:
    """Return what a wait calls before each sleep: it raises when the wait must end."""

    def check() -> None:
        store._check_open()
        if stop():
            raise Stopped

    return check


def never() -> bool:
    """Stop an iteration at no time."""
    return False


def _last_id(entries: list[Entry[Any]]) -> tuple[int, int]:
    return parse_id(to_bytes(entries[-1].id), 0)
