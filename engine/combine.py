"""Group commit: calls that wait for the disk at the same time share a transaction and a sync.

A call that finds nobody at work leads: it runs its command, and those of all who came meanwhile, in
one transaction, syncs the journal once, and hands out the results. Whoever comes while a leader
works stands in the queue; the first in the queue leads next. So a lone caller never waits, and with
many callers a sync serves as many as have come during the one before.

A command that breaks a rule of Redis changes nothing, so it fails for its own caller only. Any
other failure undoes the shared transaction, and each command runs again in one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from streamkeep.engine.txn import WriteTxn
from streamkeep.format.errors import CommandError


class Call:
    """A command of one caller, and what became of it."""

    __slots__ = ("args", "command", "error", "interrupted", "lead", "lock", "result", "txn")

    def __init__(self, command: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.command = command
        self.args = args
        self.lock = threading.Lock()  # held until there is a result, or it is the turn to lead
        self.lead = False
        self.interrupted = False  # the leader was, by a signal
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

    def answer(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def run_calls(txn: WriteTxn, calls: list[Call]) -> WriteTxn:
    """Run all calls in one transaction; return it, to be waited for."""
    for call in calls:
        call.run(txn)
    return txn


class Combiner:
    """The queue of one environment.

    Args:
        write: `Environment.write_alone`.
    """

    def __init__(self, write: Callable[..., Any]) -> None:
        self._write = write
        self._mutex = threading.Lock()
        self._queue: list[Call] = []
        self._busy = False

    def run(self, command: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a command; return its result when it is on disk."""
        call = Call(command, args)
        with self._mutex:
            leads = not self._busy
            if leads:
                self._busy = True
            else:
                call.lock.acquire()
                self._queue.append(call)
        if not leads:
            try:
                call.lock.acquire()
            except BaseException:
                self._leave(call)
                raise
            if call.interrupted:
                return self._finish(call)
            if not call.lead:
                return call.answer()
        return self._lead(call)

    def _finish(self, call: Call) -> Any:
        """Do what an interrupted leader has left undone."""
        if call.txn is None or not call.txn.committed:
            return self.run(call.command, call.args)
        call.txn.wait()
        return call.answer()

    def _lead(self, own: Call) -> Any:
        """Run `own` and all that stand in the queue."""
        with self._mutex:
            calls = [own, *self._queue]
            self._queue = []
        try:
            self._run(calls)
        except Exception as error:
            for call in calls[1:]:
                call.error = call.error or error
            raise
        except BaseException:
            for call in calls[1:]:
                call.interrupted = True
            raise
        finally:
            self._hand_over()
            for call in calls[1:]:
                call.lock.release()
        return own.answer()

    def _run(self, calls: list[Call]) -> None:
        try:
            txn: WriteTxn = self._write(run_calls, (calls,), False, False)
        except Exception:
            if len(calls) == 1:
                raise
            self._run_apart(calls)
        else:
            txn.wait()

    def _run_apart(self, calls: list[Call]) -> None:
        """Run each call in a transaction of its own, since they failed together."""
        for call in calls:
            call.error = None
            try:
                call.result = self._write(call.command, call.args, True, False)
            except Exception as error:
                call.error = error

    def _hand_over(self) -> None:
        """Have the first in the queue lead."""
        with self._mutex:
            if not self._queue:
                self._busy = False
                return
            first = self._queue.pop(0)
            first.lead = True
            first.lock.release()

    def _leave(self, call: Call) -> None:
        """Take a call back whose caller was interrupted, unless it is under way."""
        with self._mutex:
            waiting = call in self._queue
            if waiting:
                self._queue.remove(call)
        if call.lead:
            self._hand_over()
