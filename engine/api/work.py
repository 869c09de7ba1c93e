"""Functions of a program that run as commands: in a shared transaction, or when there is work.

`Store.apply` runs a function of a transaction as a command does: calls of other threads and tasks
share its commit and its sync. `Store.apply_when` waits until the function returns something, as
XREADGROUP with BLOCK does, and `Store.read_when` does so for a function that only reads. Programs
that are built on a store, such as the queue, make their own commands with these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from streamkeep.engine.api.command_base import CommandBase, Key
from streamkeep.engine.api.follow import Stop
from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.blocking.calls import BlockingCall, Waiter
from streamkeep.engine.commands.arguments import check_block, to_bytes
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.notify.wait_table import GROUP, READ, Interest
from streamkeep.engine.store.command import Command, Write, wait
from streamkeep.engine.txn.read_txn import ReadTxn, Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.format.core.values import as_given

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Result = TypeVar("Result")
Item = TypeVar("Item")  # what the list that a function of `apply_when` returns consists of
Work = Callable[[Transaction[Any]], Result]
Look = Callable[[Snapshot[Any]], int]
WakeOn = Sequence[tuple[Key, Key | None]]  # keys, with a group for those that wake one consumer


class When(NamedTuple):
    """When a function that waits for work may find some.

    Attributes:
        look: says so on a snapshot: 0 for now, else the number of milliseconds, or -1 if only a
            commit can change that.
        wake_on: (key, group) of the streams whose new entries wake one consumer of the group, and
            (key, None) for keys that `Transaction.wake` wakes.
        waiter: names the caller. One that had to wait the last time looks before it runs the
            function, which spares a transaction that finds nothing.
        claims_dead: the function also claims what processes that have died had, so their deaths
            wake it.
    """

    look: Look
    wake_on: WakeOn
    waiter: tuple[Key, ...] = ()
    claims_dead: bool = False


class SharedTransaction(Transaction[Any]):
    """A transaction that other calls may share, so that it neither commits nor aborts it."""

    def _run(self, command: Command[Result]) -> Result:
        self._check_usable()  # what comes after the end would be lost
        return command.result(command.run(self._txn, *command.args))

    def abort(self) -> None:
        """Refuse: other calls may share the transaction."""
        raise TypeError("a shared transaction is undone by an exception of its function")


def _applied(
    txn: WriteTxn, store: Store[Any], work: Work[Result], as_bytes: bool = False
) -> Result:
    shared = SharedTransaction(store, txn)
    if as_bytes:
        shared._set_decode(False)
    try:
        return work(shared)
    except CommandError:
        # One command that raises it has changed nothing; a function of several ones may have.
        txn.half_done = True
        raise


def apply_bytes(store: Store[Any], work: Work[Result], *, frees: bool) -> Command[Result]:
    """Return the command of `Store.apply` for a function whose results are bytes."""
    command: Command[Result] = Write(_applied, (store, work, store._decode))
    command.frees = frees
    return command


class WorkCall(BlockingCall):
    """A function of a transaction that runs until it returns something."""

    def __init__(self, store: Store[Any], work: Work[list[Item]], when: When) -> None:
        if not isinstance(when, When):
            raise ArgumentError(f"when must be a streamkeep.When, not {as_given(when)}")
        self.writes = True  # here: the compiled base does not see attributes of this class
        self.claims_dead = when.claims_dead
        self._store = store
        self._work = cast("Work[Found]", work)  # a reply that only its caller understands
        self._look = when.look
        self._interests = _interests(when.wake_on)
        self._waiter = tuple(to_bytes(one, "waiter") for one in when.waiter)

    def run(self, txn: Txn) -> Found:
        """Run the function."""
        assert isinstance(txn, WriteTxn)
        return _applied(txn, self._store, self._work)

    def note(self, txn: WriteTxn) -> None:
        """Note nothing: the function itself does."""
        self.unseen = False

    def waiter(self) -> Waiter | None:
        """Return the name of the caller that waits."""
        return self._waiter or None

    def pause(self, txn: Txn) -> int:
        """Return when the function may find something."""
        assert isinstance(txn, ReadTxn)
        return self._look(Snapshot(self._store, txn))

    def interests(self) -> list[Interest]:
        """Return the keys."""
        return self._interests


class LookCall(BlockingCall):
    """A function of a snapshot that runs until it returns something."""

    def __init__(
        self, store: Store[Any], look: Callable[[Snapshot[Any]], list[Item]], wake_on: WakeOn
    ) -> None:
        self._store = store
        self._read = cast("Callable[[Snapshot[Any]], Found]", look)
        self._interests = _interests(wake_on)

    def run(self, txn: Txn) -> Found:
        """Run the function."""
        assert isinstance(txn, ReadTxn)
        return self._read(Snapshot(self._store, txn))

    def pause(self, txn: Txn) -> int:
        """Return 0 if the function finds something."""
        return 0 if self.run(txn) else -1

    def interests(self) -> list[Interest]:
        """Return the keys."""
        return self._interests


class WorkCommands(CommandBase[Text]):
    """Functions of a program as commands; a base of `Store`."""

    def _origin(self) -> Store[Text]:
        """Return the store that functions get transactions of."""
        raise NotImplementedError

    def _waits(self, sync: Sync | None) -> bool:
        raise NotImplementedError

    def _run(self, command: Command[Result], durable: bool | None = None) -> Result:
        raise NotImplementedError

    def apply(self, work: Work[Result], *, frees: bool = False, sync: Sync | None = None) -> Result:
        """Run `work(txn)` in a transaction, which calls of other threads may share.

        All of it happens, or nothing when it raises. It differs from `transaction` in two ways:
        callers that come at the same time share one commit and one sync, and `work` may run twice,
        so it must change nothing but the transaction. It may run in another thread.

        Args:
            frees: `work` makes room, so that it may use the reserve of a full store.
            sync: a sync mode for this call, instead of that of the store.
        """
        command: Command[Result] = Write(_applied, (self._origin(), work))
        command.frees = frees
        return self._run(command, self._waits(sync))

    def apply_when(
        self,
        work: Work[list[Item]],
        when: When,
        *,
        block: int = 0,
        stop: Stop | None = None,
        sync: Sync | None = None,
    ) -> list[Item]:
        """Run `work(txn)` as `apply` does, until it returns something that is not empty.

        Between attempts the caller sleeps, without polling, until a commit concerns it.

        Args:
            when: when `work` may find something, and which commits can change that.
            block: how many milliseconds to wait at most; 0 for no limit.
            stop: asked before each sleep, at least once a second; True ends the wait.
            sync: a sync mode for this call, instead of that of the store.

        Returns:
            What `work` returned; [] when the time is over, or after `stop`.
        """
        call = WorkCall(self._origin(), work, when)
        command = wait(call, check_block("apply_when", block), stop=stop)
        return cast("list[Item]", self._run(command, self._waits(sync)))

    def read_when(
        self, look: Callable[[Snapshot[Text]], list[Item]], wake_on: WakeOn, *, block: int = 0
    ) -> list[Item]:
        """Run `look(snapshot)` until it returns something that is not empty; otherwise sleep.

        Args:
            wake_on: as in `When`.
            block: as for `apply_when`.
        """
        call = LookCall(self._origin(), look, wake_on)
        return cast("list[Item]", self._run(wait(call, check_block("read_when", block))))


def _interests(wake_on: WakeOn) -> list[Interest]:
    found: list[Interest] = []
    for pair in wake_on:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"wake_on must be (key, group) pairs, not {as_given(pair)}")
        key, group = to_bytes(pair[0], "a key of wake_on"), pair[1]
        if group is None:
            found.append((key, b"", READ))
        else:
            found.append((key, to_bytes(group, "a group of wake_on"), GROUP))
    return list(dict.fromkeys(found))
