"""XREAD and XREADGROUP as calls that may wait: what to run, and what could end the wait.

As in Redis, the whole command runs again whenever something happened that could concern it, and
ends the wait when it returns something or raises. So a call never reasons about *what* happened.
Compiled by mypyc.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.reply_budget import Found, ReplyBudget
from streamkeep.engine.notify.wait_table import CLAIM, GROUP, READ, Interest, WaitTable
from streamkeep.engine.txn.txn import Txn, WriteTxn

Waiter = tuple[bytes, ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockingCall:
    """One call of a command that may wait; `run` any number of times."""

    writes = False
    reads_history = False
    may_wait = False  # it waits where it has nothing to return
    unseen = False  # it has left no trace: should it wait for long, `note` does
    unseen_until = 0.0  # when, on the monotonic clock; 0 when that has not been decided
    looked = -1  # the newest commit when it found nothing; -1 when that is unknown
    ticket = 0  # its place in the queue, which it keeps until it is served; 0 before it waits
    up = 0  # the same while it is on the board
    rung_late = False  # a ring for the ticket came when the call was awake already
    slept = False  # it had to wait
    owes = False  # it was woken, and has not run since: should it not, others must be

    def run(self, txn: WriteTxn) -> Found:
        """Run the whole command; [] when it has nothing to return."""
        raise NotImplementedError

    def note(self, txn: WriteTxn) -> None:
        """Write what `run` has left unwritten, though it has nothing to return."""

    def waiter(self) -> Waiter | None:
        """Return who waits, if such a call may wait before it has run; see `Lobby.block`."""
        return None

    def pause(self, txn: Txn) -> int:
        """Return in how many milliseconds `run` may have something to do; 0 for at once, -1 when
        only a commit can change that. Reads only.
        """
        raise NotImplementedError

    def interests(self) -> list[Interest]:
        """Return what to put up on the board."""
        raise NotImplementedError

    def register(self, wait_table: WaitTable, bell: int) -> int:
        """Begin a wait at a door; return its ticket, 0 when the board is full.

        No interrupt comes between the board and `up`, which says what is to be taken down.
        """
        self.up = wait_table.register(bell, self.interests(), self.ticket)
        self.ticket = self.up or self.ticket
        return self.up


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadCall(BlockingCall):
    """A call of XREAD; `$` is what it was when the call first ran."""

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
        """Run XREAD."""
        found = xread.xread(txn, self._streams, self._count, ReplyBudget(*self._most), self._shape)
        if not found:
            self._streams = xread.freeze(txn, self._streams)
        return found

    def pause(self, txn: Txn) -> int:
        """Say whether XREAD would find something."""
        return 0 if xread.ready(txn, self._streams) else -1

    def interests(self) -> list[Interest]:
        """Return the keys."""
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
        self._most = max_count or 0, max_size or 0

    def run(self, txn: WriteTxn) -> Found:
        """Run XREADGROUP.

        A consumer that finds nothing was seen, which is to be written. When the call waits, that
        comes later (`Lobby.steps`): mostly it is woken soon, and given something.
        """
        lazy = self.may_wait and self._delivery.min_idle is None
        budget = ReplyBudget(*self._most)
        found = xreadgroup.xreadgroup(txn, self._streams, self._delivery, budget, lazy)
        self.unseen = lazy and not found
        self.looked = txn.commit_number - 1 if self.unseen else -1
        return found

    def note(self, txn: WriteTxn) -> None:
        """Write that the consumer was seen."""
        xreadgroup.note_seen(txn, self._streams, self._delivery)
        self.unseen = False

    def waiter(self) -> Waiter | None:
        """Return the consumer; it leaves no trace for a moment, unless it claims.

        One that reads again what is pending does not wait.
        """
        delivery = self._delivery
        if delivery.min_idle is not None:
            return None
        if any([position != xreadgroup.NEW for _, position in self._streams]):
            return None
        return delivery.group_name, delivery.consumer_name, *[name for name, _ in self._streams]

    def pause(self, txn: Txn) -> int:
        """Say when XREADGROUP may find something, or raise."""
        delivery = self._delivery
        return xreadgroup.pause(txn, self._streams, delivery.group_name, delivery.min_idle)

    def interests(self) -> list[Interest]:
        """Return the keys with the group."""
        delivery = self._delivery
        kind = GROUP if delivery.min_idle is None else CLAIM
        return list(dict.fromkeys((name, delivery.group_name, kind) for name, _ in self._streams))
