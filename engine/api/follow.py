"""Endless reads: `follow` a stream, `consume` as a member of a group, `changes` of the store.

A plan says which call comes next (`call`), and what its result means: `take` returns its entries,
or None if the iteration ends. It neither runs the call nor waits, so that the store and its asyncio
twin iterate by the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

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
    from streamkeep.engine.feed.effects import Commit

Stop = Callable[[], bool]
Batch = Sequence[Any]


class Stopped(Exception):
    """`stop` returned True while a call waited."""


class Plan(Protocol):
    """What an iteration does next."""

    def call(self) -> BlockingCall:
        """Return the next call."""

    def wait_ms(self) -> int | None:
        """Return how long it may wait; 0 without limit, None not at all."""

    def take(self, found: Found) -> Batch | None:
        """Return what its result means; None if the iteration ends."""

    def close(self) -> None:
        """End the iteration."""


class Following:
    """The entries of one stream above an ID, which is then that of the last entry."""

    def __init__(
        self,
        name: bytes,
        after: xread.ReadId,
        count: int,
        shape: int,
        history: bool,
        block_ms: int | None,
    ) -> None:
        self._block_ms = block_ms
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

    def wait_ms(self) -> int | None:
        return self._block_ms

    def take(self, found: Found) -> Batch | None:
        """Return the entries; if there are none, the time is over."""
        if not found:
            return None
        entries: Batch = found[0][1]
        self._after = _last_id(entries)
        return entries

    def close(self) -> None:
        """Do nothing: nothing is open between two calls."""


class Consuming:
    """The pending entries of a consumer, the oldest first, and then new entries of its group."""

    def __init__(self, name: bytes, delivery: xreadgroup.Delivery, block_ms: int | None) -> None:
        self._block_ms = block_ms
        self._name = name
        self._delivery = delivery
        self._position: xreadgroup.Position = (0, 0)

    def call(self) -> BlockingCall:
        """Return XREADGROUP with an ID in the history, or with `>`."""
        return GroupCall([(self._name, self._position)], self._delivery, None, None)

    def wait_ms(self) -> int | None:
        return self._block_ms if self._position == xreadgroup.NEW else None

    def take(self, found: Found) -> Batch | None:
        """Return the entries; after the end of the history, continue with new ones."""
        entries = [_delivered(parts) for parts in found[0][1]] if found else []
        if self._position == xreadgroup.NEW:
            return entries or None
        self._position = _last_id(entries) if entries else xreadgroup.NEW
        return entries

    def close(self) -> None:
        """Do nothing: nothing is open between two calls."""


class FollowCommands(CommandBase[Text]):
    """Endless reads of a stream, of a consumer, of all commits; a base of `Store`."""

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
        with self._reading() as txn:
            ((_, after),) = xread.freeze(txn, streams)
        plan = Following(name, after, wanted, self._shape, history, _block_ms(block))
        return self._iterate(plan, stop or (lambda: False))

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
        plan = Consuming(to_bytes(key, "key"), delivery, _block_ms(block))
        return self._iterate(plan, stop or (lambda: False))

    def changes(
        self,
        from_commit: int | str | bytes | None = None,
        *,
        block: int | None = None,
        stop: Stop | None = None,
    ) -> Iterator[Commit[Text]]:
        """Iterate over the commits of the store after one, each with what it changed in streams.

        This is the feed for search indexes, caches and auditors. Use it as `for commit in
        store.changes(number, block=0):`, and keep `commit.position` with what you make of the
        commit. A reader that goes on there misses nothing and repeats nothing. Commits of all
        processes come, in their order, and whole. Where the feed cannot go on, it raises.

        It begins at the call. From then on, the store holds the journal for this reader (up to 4
        GiB) until the iteration ends or its process dies, so that no slow reader loses its place.
        Writers never wait for it. A commit may come before it is on disk, as for other readers.

        The feed can go on after the newest commit, and after those before it that were made since
        the last checkpoint: the last five seconds, while the store is written to. A reader that may
        be away for longer reads a copy that `streamkeep ship` keeps, with
        `streamkeep.recovery.changes`.

        Args:
            from_commit: the `number` or the `position` of the last commit that was read. A position
                also proves that the store has made that commit, as it may not have after a restore.
                "$": begin after the newest commit. None: after the oldest one that is possible.
            block: end after this many milliseconds without a commit; 0: never. None: do not wait,
                end after the newest commit.
            stop: as with `follow`.

        Raises:
            ChangesGoneError: what followed the commit is gone, or the store never made it. Its
                message names the commits, its `oldest` is where the feed can begin.
            StoreClosedError: the store was closed during the iteration.
        """
        from streamkeep.engine.feed.feed import Feed  # a store without readers need not load it

        store = self._origin()
        store._check_open()
        feed = Feed(
            store._environment,
            from_commit,
            _block_ms(block),
            self._as_text,
            decode=self._decode,
            durable=store._read_durable,
        )
        return self._iterate(feed, stop or (lambda: False))

    def _origin(self) -> Store[Text]:
        raise NotImplementedError

    def _iterate(self, plan: Plan, stop: Stop) -> Iterator[Any]:
        """Yield what a plan finds.

        Args:
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
