"""XREAD and XREADGROUP as calls that may wait: what to run, and what could end the wait.

As in Redis, the whole command runs again after every event that could concern it. The wait ends
when the command returns something or raises. So a call never needs to know which event it was.
Compiled by mypyc.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.history import Unreadable, last_archived, read_history
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries, Found, ReplyBudget
from streamkeep.engine.notify.wait_table import CLAIM, GROUP, READ, Interest, WaitTable
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.id_codec import MAX, next_id
from streamkeep.format.node.ranges import Range

Waiter = tuple[bytes, ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockingCall:
    """One call of a command that may wait. It may run any number of times."""

    writes = False
    reads_history = False
    resp3 = False  # MAXSIZE counts the bytes of RESP3
    may_wait = False  # it will wait if it finds nothing
    unseen = False  # `run` has not written that the consumer was seen; `note` does if it waits long
    claims_dead = False  # it also takes what consumers of dead leases have pending
    looked = -1  # the newest commit when `run` found nothing; -1 if that is unknown

    def run(self, txn: Txn) -> Found:
        """Run the whole command; return [] if it finds nothing.

        If the call `writes`, the transaction does. Compiled code checks the type of an argument
        against this line also where a subclass takes more, so it must name both kinds.
        """
        raise NotImplementedError

    def note(self, txn: WriteTxn) -> None:
        """Write what `run` did not write when it found nothing."""

    def waiter(self) -> Waiter | None:
        """Return the name of the consumer, if the call may wait before it has run.

        See `Waiters.block`.
        """
        return None

    def pause(self, txn: Txn) -> int:
        """Return in how many milliseconds `run` may find something; read only.

        0 means at once, -1 that only a commit can change the result.
        """
        raise NotImplementedError

    def interests(self) -> list[Interest]:
        """Return the rows for the wait table."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Wait:
    """The state of a call that waits. It keeps its place in the queue until the call is served.

    A ticket is first in no table; `register` puts it into the wait table; the notification of a
    commit, or `WaitTable.unregister`, takes it out. A call that was notified owes a run: if it does
    not run, another waiter has to be notified instead (`Waiters.pass_on`).
    """

    def __init__(self, call: BlockingCall) -> None:
        self.call = call
        self.ticket = 0  # its place in the queue; 0 before it waits
        self.registered = 0  # the ticket while it is in the wait table
        self.late = False  # a notification was sent while the call was awake, and is not read yet
        self.owes = False  # it was notified and has not run since
        self.slept = False  # it had to wait
        self.note_at = 0.0  # when `note` is due, on the monotonic clock; 0 before that is decided

    def register(self, wait_table: WaitTable, bell: int) -> int:
        """Enter the wait table; return the ticket, 0 if the table is full.

        No interrupt comes between the table and `registered`, which says what to take out.
        """
        self.registered = wait_table.register(bell, self.call.interests(), self.ticket)
        self.ticket = self.registered or self.ticket
        return self.registered


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadCall(BlockingCall):
    """A call of XREAD. `$` keeps the value that it had when the call first ran."""

    def __init__(
        self,
        streams: list[tuple[bytes, xread.ReadId]],
        count: int,
        max_count: int | None,
        max_size: int | None,
        shape: int,
    ) -> None:
        self._streams = streams
        self._count = count
        self._most = max_count or 0, max_size or 0
        self._shape = shape

    def run(self, txn: Txn) -> Found:
        found = xread.xread(
            txn, self._streams, self._count, ReplyBudget(*self._most, self.resp3), self._shape
        )
        if not found:
            self._streams = xread.freeze(txn, self._streams)
        return found

    def pause(self, txn: Txn) -> int:
        return 0 if xread.ready(txn, self._streams) else -1

    def interests(self) -> list[Interest]:
        return list(dict.fromkeys((name, b"", READ) for name, _ in self._streams))


class GroupCall(BlockingCall):
    """A call of XREADGROUP."""

    writes = True

    def __init__(
        self,
        streams: list[tuple[bytes, xreadgroup.Position]],
        delivery: xreadgroup.Delivery,
        max_count: int | None,
        max_size: int | None,
    ) -> None:
        self._streams = streams
        self._delivery = delivery
        self.claims_dead = delivery.dead
        self._most = max_count or 0, max_size or 0

    def run(self, txn: Txn) -> Found:
        """Run XREADGROUP.

        A consumer that finds nothing was seen, and that has to be written. If the call waits, it is
        written later (`Waiters.steps`), because most calls are soon woken and get something.
        """
        assert isinstance(txn, WriteTxn)
        lazy = self.may_wait and self._delivery.min_idle is None
        budget = ReplyBudget(*self._most, self.resp3)
        found = xreadgroup.xreadgroup(txn, self._streams, self._delivery, budget, lazy)
        self.unseen = lazy and not found
        self.looked = txn.commit_number - 1 if self.unseen else -1
        return found

    def note(self, txn: WriteTxn) -> None:
        """Write that the consumer was seen."""
        xreadgroup.note_seen(txn, self._streams, self._delivery)
        self.unseen = False

    def waiter(self) -> Waiter | None:
        """Return the consumer, unless the call claims, or reads what is already pending."""
        delivery = self._delivery
        if delivery.min_idle is not None:
            return None
        if any([position != xreadgroup.NEW for _, position in self._streams]):
            return None
        return delivery.group_name, delivery.consumer_name, *[name for name, _ in self._streams]

    def pause(self, txn: Txn) -> int:
        """Return when XREADGROUP may find something, or may raise."""
        delivery = self._delivery
        return xreadgroup.pause(
            txn,
            self._streams,
            delivery.group_name,
            delivery.min_idle,
            delivery.dead,
            delivery.owned,
        )

    def interests(self) -> list[Interest]:
        delivery = self._delivery
        kind = CLAIM if delivery.claims() else GROUP
        return list(dict.fromkeys((name, delivery.group_name, kind) for name, _ in self._streams))


class HistoryCall(ReadCall):
    """A read of the entries above an ID in the history of one stream. It waits as XREAD does."""

    reads_history = True

    def __init__(self, name: bytes, after: xread.ReadId, count: int, shape: int) -> None:
        super().__init__([(name, after)], count, None, None, shape)
        self._name = name
        self._after = after

    def run(self, txn: Txn) -> Found:
        """Read the history above the ID, as far as `count` goes."""
        out = self._above(txn, self._count or NO_LIMIT)
        return [[self._name, out]] if out else []

    def pause(self, txn: Txn) -> int:
        """Return 0 if there is an entry, even if it was trimmed after it was added."""
        if super().pause(txn) == 0:
            return 0
        stream = txn.find_stream(self._name)
        if stream is None or last_archived(txn, stream) <= xread.resolve(stream, self._after):
            return -1
        try:
            return 0 if self._above(txn, 1) else -1
        except Unreadable:
            return 0  # `run` raises it

    def _above(self, txn: Txn, limit: int) -> Entries:
        """Return entries of the history above the ID."""
        stream = txn.find_stream(self._name)
        after = xread.resolve(stream, self._after)
        start = next_id(*after)
        out: Entries = []
        if stream is not None and start > after:
            read_history(txn, stream, Range(*start, MAX, MAX, limit, False, self._shape), out)
        return out
