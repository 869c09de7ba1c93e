"""Endless reads: `follow` a stream, `consume` as a member of a group.

A plan says which call comes next and what its result means. It neither runs the call nor waits, so
that the store and its asyncio twin iterate by the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.command_base import CommandBase, Id, Key
from streamkeep.engine.blocking.calls import BlockingCall, GroupCall, ReadCall
from streamkeep.engine.blocking.history_call import HistoryCall
from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.arguments import check_block, check_count, to_bytes, to_id_text
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.format.core.entry import Entry, Text
from streamkeep.format.core.id_codec import parse_id

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Stop = Callable[[], bool]


Batch = list[Entry[Any]]


class Stopped(Exception):
    """The iteration was told to end while it waited."""


class Plan:
    """What an iteration does next."""

    waits = True  # whether the next call may wait for entries

    def call(self) -> BlockingCall:
        """Return the next call."""
        raise NotImplementedError

    def take(self, found: Found) -> Batch | None:
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

    def take(self, found: Found) -> Batch | None:
        """Return the entries; none came: time is up."""
        if not found:
            return None
        entries: Batch = found[0][1]
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

    def take(self, found: Found) -> Batch | None:
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


class FollowCommands(CommandBase[Text]):
    """Reads without an end, of a stream and of a consumer; a base of `Store`."""

    def follow(
        self,
        key: Key,
        start: Id = "$",
        *,
        count: int | None = 100,
        block: int | None = 0,
        stop: Stop | None = None,
        history: bool = False,
    ) -> Iterator[Entry[Text]]:
        """Iterate over the entries of a stream as they come: `for entry in store.follow(key):`.

        The stream need not exist yet. Between entries the iteration sleeps; it holds no snapshot
        and no lock, so that it may run for ever, and be left at any time.

        Args:
            start: begin above this ID: 0 for the oldest entry, `+` for the newest, `$` for the
                first that is added after this call.
            count: read at most this many at once.
            block: end after as many milliseconds without an entry; 0: never. None: do not wait,
                end behind the newest entry.
            stop: asked after each entry, and at least once a second; True ends the iteration.
                `threading.Event().is_set` makes one for another thread.
            history: also what was trimmed while the stream archived, as with `xrange`: from 0 the
                iteration begins with the oldest segment, and nothing that is trimmed before it
                comes there is missed.

        Raises:
            StoreClosedError: the store was closed meanwhile.
        """
        name = to_bytes(key, "key")
        wanted = check_count("XREAD", "count", count)
        streams = [(name, xread.parse_read_id(to_id_text(start)))]
        txn, must_close = self._begin_scan()
        try:
            ((_, after),) = xread.freeze(txn, streams)
        finally:
            if must_close:
                txn.close()
        plan = Following(name, after, wanted, self._shape, history)
        return self._iterate(plan, _block_ms(block), stop or _never)

    def consume(
        self,
        key: Key,
        groupname: Key,
        consumername: Key,
        *,
        count: int | None = 10,
        block: int | None = 0,
        claim_min_idle_time: int | None = None,
        noack: bool = False,
        stop: Stop | None = None,
    ) -> Iterator[Entry[Text]]:
        """Iterate over what a group delivers to one consumer: a worker's loop.

        First comes what the consumer has pending: what it was given before it stopped or crashed.
        Then come new entries, as XREADGROUP delivers them. Acknowledge each with `xack` when it
        is done; what was not comes again in the consumer's next iteration.

        Args:
            count: take at most this many from the group at once. When the loop is left, those it
                has not come to stay pending, first in the next iteration.
            block: end after as many milliseconds without an entry; 0: never. None: do not wait.
            claim_min_idle_time: also take over what any consumer has had pending for as many
                milliseconds; how often it was delivered `xpending_range` tells.
            noack: new entries are not pending: delivered at most once.
            stop: as with `follow`.

        An entry that was deleted while it was pending has no fields; acknowledge it, too.

        Raises:
            NoSuchGroupError: the stream or the group does not exist, or was removed meanwhile.
        """
        delivery = xreadgroup.Delivery(
            to_bytes(groupname, "groupname"),
            to_bytes(consumername, "consumername"),
            check_count("XREADGROUP", "count", count),
            bool(noack),
            xreadgroup.check_idle(claim_min_idle_time),
            self._shape,
        )
        plan = Consuming(to_bytes(key, "key"), delivery)
        return self._iterate(plan, _block_ms(block), stop or _never)

    def _iterate(self, plan: Plan, block_ms: int | None, stop: Stop) -> Iterator[Entry[Text]]:
        """Yield what a plan finds.

        Args:
            block_ms: how long to wait for the next entries; 0 for ever, None not at all.
            stop: returns True when the iteration is to end.
        """
        raise NotImplementedError


def _block_ms(block: int | None) -> int | None:
    return None if block is None else check_block("XREAD", block)


def checking(store: Store[bytes] | Store[str], stop: Stop) -> Callable[[], None]:
    """Return what a wait calls before each sleep: it raises when the wait must end."""

    def check() -> None:
        store._check_open()
        if stop():
            raise Stopped

    return check


def _never() -> bool:
    """Stop an iteration at no time."""
    return False


def _last_id(entries: Batch) -> tuple[int, int]:
    return parse_id(to_bytes(entries[-1].id), 0)
