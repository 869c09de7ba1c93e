"""Group commit: calls that wait for the disk at the same time share a transaction and a sync.

A call that finds nobody at work leads: it runs its command, and those of all who came meanwhile, in
one transaction, syncs the journal once, and hands out the results. Whoever comes while a leader
works stands in the queue; the first in the queue leads next.

A few callers take turns: the next leader begins when the one before has committed, and its command
runs while the disk is at work for that one. With more callers processor time is what is scarce, and
a commit takes as much of it as several calls. So the leader of a large batch leads until the disk
has it: meanwhile as many callers gather as will share the next commit.

A command that breaks a rule of Redis changes nothing, so it fails for its own caller only. Any
other failure undoes the shared transaction, and each command runs again in one of its own.

A caller that is interrupted (Ctrl-C) while another thread has its command in hand is told of that
when the leader is done: what has not happened then never will. Compiled by mypyc.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from streamkeep.engine.system.failures import copy_of
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError

_MANY: Final = 8  # calls in a batch for which the next one waits until it is on disk


class Call:
    """A command of one caller, and what became of it."""

    def __init__(self, command: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.command = command
        self.args = args
        self.lock: threading.Lock | None = None  # held while the call stands in the queue
        self.batch: list[Call] = []  # those that it leads
        self.led = False  # another has it in hand, and will wake it
        self.woken = False
        self.finished = False  # else its leader was interrupted by a signal
        self.txn: WriteTxn | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, txn: WriteTxn) -> None:
        """Run the command."""
        self.txn = txn
        self.error = None
        try:
            self.result = self.command(txn, *self.args)
        except CommandError as error:
            self.error = error

    def run_alone(self, txn: WriteTxn) -> None:
        """Run the command in a transaction of its own."""
        self.txn = txn
        self.result = self.command(txn, *self.args)

    def answer(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result

    def stand(self) -> None:
        """Have `wait` wait for `wake`."""
        self.lock = threading.Lock()
        self.lock.acquire()

    def wait(self) -> None:
        """Return when there is a result, or it is the turn of the call to lead."""
        assert self.lock is not None
        self.lock.acquire()

    def wake(self) -> None:
        """Have the caller look; does no harm when it is called twice."""
        self.woken = True
        if self.lock is not None:
            try:  # noqa: SIM105  # `suppress` costs as much as the rest of a call
                self.lock.release()
            except RuntimeError:
                pass  # it was woken before


def run_calls(txn: WriteTxn, calls: list[Call]) -> WriteTxn:
    """Run all calls in one transaction; return it, to be waited for."""
    txn.durable = True
    for call in calls:
        call.run(txn)
    return txn


class GroupCommit:
    """The queue of one environment.

    An interrupt may come between any two steps. Whatever a leader has taken on is noted in its
    call before, and `_leave`, which may be run twice, gives it back.

    Args:
        write: `Environment.write_alone`.
    """

    def __init__(self, write: Callable[..., Any]) -> None:
        self._write = write
        self._mutex = threading.Lock()
        self._queue: list[Call] = []
        self._leader: Call | None = None

    def run(self, command: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a command; return its result when it is on disk."""
        call = Call(command, args)
        try:
            self._take_part(call)
        except BaseException:
            if call.led and not call.woken:
                call.wait()
            raise
        return call.answer() if call.finished else self._finish(call)

    def _take_part(self, call: Call) -> None:
        """Have a call run: lead, or be led."""
        try:
            with self._mutex:
                leads = self._leader is None
                if leads:
                    self._leader = call
                else:
                    call.stand()
                    self._queue.append(call)
            if not leads:
                call.wait()
                if not call.finished:
                    with self._mutex:
                        leads = self._leader is call
            if leads:
                self._lead(call)
        finally:
            try:  # here, since an interrupt may come where a function begins
                self._leave(call)
            except BaseException:
                self._leave(call)
                raise

    def _finish(self, call: Call) -> Any:
        """Do what an interrupted leader has left undone."""
        if call.txn is None or not call.txn.committed:
            return self.run(call.command, call.args)
        call.txn.wait()
        return call.answer()

    def _lead(self, own: Call) -> None:
        """Run `own` and all that stand in the queue."""
        if own.lock is not None:  # else the queue was empty a moment ago
            with self._mutex:
                batch = [call for call in self._queue if call is not own]
                for call in batch:
                    call.led = True
                own.batch, self._queue = batch, []
        calls = [own, *own.batch]
        try:
            self._run(calls)
        except Exception as error:
            for call in calls:  # each raises it in a thread of its own
                if call.error is None:
                    call.error = error if call is own else copy_of(error)
        for call in calls:
            call.finished = True

    def _leave(self, call: Call) -> None:
        """Give back the lead, and have those that were led look at what came out."""
        if call.lock is not None and not call.finished:
            with self._mutex:
                if call in self._queue:
                    self._queue.remove(call)
                    call.led = False
        for one in call.batch:
            one.wake()
        if self._leader is call:  # behind those, who may be back for the next batch
            self._hand_over(call)

    def _hand_over(self, call: Call) -> None:
        """Have the first in the queue lead next, if it was this call that led."""
        with self._mutex:
            if self._leader is call:
                first = self._queue[0] if self._queue else None
                if first is not None:
                    first.wake()
                self._leader = first

    def _run(self, calls: list[Call]) -> None:
        try:
            txn: WriteTxn = self._write(run_calls, (calls,), False, False)
        except Exception:
            together = calls[0].txn
            if len(calls) == 1 or (together is not None and together.committed):
                raise
            self._run_apart(calls)
        else:
            if len(calls) < _MANY:
                self._hand_over(calls[0])
            txn.wait()

    def _run_apart(self, calls: list[Call]) -> None:
        """Run each call in a transaction of its own, since they failed together."""
        for call in calls:
            call.error = None
            try:
                self._write(call.run_alone, (), True, False)
            except Exception as error:
                call.error = error
