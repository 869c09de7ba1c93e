"""Endless reads: `follow` a stream, `consume` as a member of a group.

A plan says which call comes next (`call`), and what its result means: `take` returns its entries,
or None if the iteration ends. It neither runs the call nor waits, so that the store and its asyncio
twin iterate by the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from streamkeep.engine.api.command_base import CommandBase, Key, RangeId, after_text
from streamkeep.engine.blocking.calls import BlockingCall, GroupCall, HistoryCall, ReadCall
from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.arguments import check_block, check_count, to_bytes
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.format.core.entry import DeliveredEntry, Entry, Text
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.id_codec import parse_id
from streamkeep.format.core.values import as_given

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Stop = Callable[[], bool]
Batch = Sequence[Entry[Any]]


class Stopped(Exception):
    """`stop` returned True while a call waited."""


class Following:
    """The entries of one stream above an ID, which is then that of the last entry."""

    waits = True  # whether the next call may wait for entries

    def __init__(
        self, name: bytes, after: xread.ReadId, count: int, shape: int, history: bool
    ) -> None:
        self._history = history
        self._name = name
        self._after = after
        self._count = count
        self._shape = shape

    def call(self) -> BlockingCall:
        """Return XREAD, or a read of history, from the last entry on."""
        if self._history:
            return HistoryCall(self._name, self._after, self._count, self._shape)
        return ReadCall([(self._name, self._after)], self._count, None, None, self._shape)

    def take(self, found: Found) -> Batch | None:
        """Return the entries; if there are none, the time is over."""
        if not found:
            return None
        entries: Batch = found[0][1]
        self._after = _last_id(entries)
        return entries


class Consuming:
    """The pending entries of a consumer, the oldest first, and then new entries of its group."""

    waits = False

    def __init__(self, name: bytes, delivery: xreadgroup.Delivery) -> None:
        self._name = name
        self._delivery = delivery
        self._position: xreadgroup.Position = (0, 0)

    def call(self) -> BlockingCall:
        """Return XREADGROUP with an ID in the history, or with `>`."""
        return GroupCall([(self._name, self._position)], self._delivery, None, None)

    def take(self, found: Found) -> Batch | None:
        """Return the entries; after the end of the history, continue with new ones."""
        entries = [_delivered(parts) for parts in found[0][1]] if found else []
        if self.waits:
            return entries or None
        if entries:
            self._position = _last_id(entries)
        else:
            self._position = xreadgroup.NEW
            self.waits = True
        return entries


Plan = Following | Consuming


class FollowCommands(CommandBase[Text]):
    """Endless reads of a stream and of a consumer; a base of `Store`."""

    def follow(
        self,
        key: Key,
        start: RangeId = "$",
        *,
        count: int | None = 100,
        block: int | None = 0,
        stop: Stop | None = None,
        history: bool = False,
    ) -> Iterator[Entry[Text]]:
        """Iterate over the entries of a stream as they are added.

        Use it as `for entry in store.follow(key):`. The stream need not exist yet. Between entries
        the iteration sleeps. It holds no snapshot and no lock, so it may run without limit and be
        left at any time.

        Args:
            start: begin above this ID: 0 for the oldest entry, `+` for the newest, `$` for the
                first that is added after this call; or with a time, as in `xrange`.
            count: read at most this many at once.
            block: end after this many milliseconds without an entry; 0: never. None: do not wait,
                end after the newest entry.
            stop: called after each entry, and at least once a second; True ends the iteration.
                `threading.Event().is_set` lets another thread end it.
            history: also return entries that were trimmed while the stream archived, as `xrange`
                does. From 0, the iteration begins with the oldest segment. Entries that are trimmed
                before the iteration comes to them are not missed.

        Raises:
            StoreClosedError: the store was closed during the iteration.
        """
        name = to_bytes(key, "key")
        wanted = check_count("XREAD", "count", count)
        streams = [(name, xread.parse_read_id(after_text("start", start, self._now_ms)))]
        txn, must_close = self._begin_scan()
        try:
            ((_, after),) = xread.freeze(txn, streams)
        finally:
            if must_close:
                txn.close()
        plan = Following(name, after, wanted, self._shape, history)
        return self._iterate(plan, _block_ms(block), stop or (lambda: False))

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
        claim: Literal["dead"] | None = None,
    ) -> Iterator[DeliveredEntry[Text]]:
        """Iterate over the entries that a group delivers to one consumer: a worker's loop.

        The consumer's pending entries come first: those it got before it stopped or crashed. New
        entries follow, as XREADGROUP delivers them. Acknowledge each with `xack` when it is
        processed. Entries that were not acknowledged come again in the consumer's next iteration.
        `entry.delivery_count` is how often an entry was delivered, this time included.

        Args:
            count: take at most this many from the group at once. If the loop is left early, the
                rest stays pending, and comes first in the next iteration.
            block: end after this many milliseconds without an entry; 0: never. None: do not wait.
            claim_min_idle_time: also take over entries that any consumer has had pending for this
                many milliseconds.
            claim: "dead": also take over what processes that have died had pending, at once, and
                what was returned by `xnack`; never what a live process has. See `xreadgroup`.
            noack: new entries do not become pending, so they are delivered at most once.
            stop: as with `follow`.

        An entry that was deleted while it was pending has no fields; acknowledge it, too.

        Raises:
            NoSuchGroupError: the stream or the group does not exist, or was removed.
        """
        delivery = xreadgroup.Delivery(
            to_bytes(groupname, "groupname"),
            to_bytes(consumername, "consumername"),
            check_count("XREADGROUP", "count", count),
            bool(noack),
            xreadgroup.check_claims(claim_min_idle_time, _claims_dead(claim)),
            self._shape,
            _claims_dead(claim),
            self._lease(),
            counted=True,
        )
        plan = Consuming(to_bytes(key, "key"), delivery)
        entries = self._iterate(plan, _block_ms(block), stop or (lambda: False))
        return cast("Iterator[DeliveredEntry[Text]]", entries)

    def _iterate(self, plan: Plan, block_ms: int | None, stop: Stop) -> Iterator[Entry[Text]]:
        """Yield what a plan finds.

        Args:
            block_ms: how long to wait for the next entries; 0 without limit, None not at all.
            stop: returns True when the iteration is to end.
        """
        raise NotImplementedError


def _delivered(parts: tuple[Any, ...]) -> DeliveredEntry[Any]:
    entry: Entry[Any] = Entry(*parts[:2])
    return DeliveredEntry.of(entry, 1 + parts[3] if len(parts) > 2 else 1)


def _block_ms(block: int | None) -> int | None:
    return None if block is None else check_block("XREAD", block)


def checking(store: Store[bytes] | Store[str], stop: Stop | None) -> Callable[[], None]:
    """Return a function for a wait to call before each sleep; it raises when the wait must end."""

    def check() -> None:
        store._check_open()
        if stop is not None and stop():
            raise Stopped

    return check


def _claims_dead(claim: object) -> bool:
    if claim not in (None, "dead"):
        raise ArgumentError(f"claim must be 'dead' or None, not {as_given(claim)}")
    return claim is not None


def _last_id(entries: Batch) -> tuple[int, int]:
    return parse_id(to_bytes(entries[-1].id), 0)
