"""Group commit: callers that wait for the disk at the same time share a transaction and a sync.

All threads and asyncio tasks of a process that write to a store share one queue.

1. A thread that finds no leader becomes the leader. It takes the calls that are in the queue, runs
   them with its own in one transaction, syncs the journal once, and hands out the results.
2. Calls that arrive while a leader works wait in the queue. The first of them leads next.
3. A task cannot wait for a disk in its event loop. The writer thread leads in its place.

The next leader of a small batch begins as soon as the batch is committed, and its command runs
while the disk is at work. With many callers processor time is scarce, and a commit takes as much of
it as several calls do. So the leader of a large batch leads until the batch is on disk: in the
meantime, as many callers gather as will share the next commit.

A command that breaks a rule of Redis changes nothing, so it fails for its own caller only. Any
other failure undoes the shared transaction, and each command runs again in one of its own; so does
a refusal after a row was written. So a batch uses the reserve of a full store only if all its
commands make room.

A thread that is interrupted (Ctrl-C) while a leader has its call waits for that leader. The call
has then happened, or it never will. Compiled by mypyc.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from streamkeep.engine.store.command import Command, write_once
from streamkeep.engine.system.failures import copy_of
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.system.long_wait import IN_HANDLER, LOOK_S, LongWait
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, StoreError

if TYPE_CHECKING:
    import asyncio

    from streamkeep.engine.store.environment import Environment

_MANY: Final = 8  # calls in a batch from which on the next batch begins after the sync
_MOST: Final = 512  # calls in a batch
_get_ident: Final = threading.get_ident
_IDLE_S: Final = 1.0  # after which the writer thread ends


class Call:
    """A command of one caller, and its outcome.

    Args:
        durable: the caller waits until the commit is on disk.
    """

    def __init__(self, command: Command[object], durable: bool) -> None:
        self.command = command
        self.durable = durable
        self.thread = 0  # that of the caller; 0 for a task, whose thread does not wait
        self.lock: threading.Lock | None = None  # held while the caller is to wait in the queue
        self.batch: list[Call] = []  # the calls that this one leads
        self.led = False  # a leader has taken it, and will wake it
        self.woken = False
        self.finished = False  # there is an outcome; False if its leader was interrupted
        self.txn: WriteTxn | None = None
        self.result: object = None
        self.error: BaseException | None = None

    def run(self, txn: WriteTxn) -> None:
        self.txn = txn
        self.error = None
        before = txn.count_changes()
        try:
            self.result = self.command.run(txn, *self.command.args)
        except CommandError as error:
            if txn.half_done or txn.count_changes() != before:
                raise  # the others must not commit a part of it
            self.error = error

    def run_or_raise(self, txn: WriteTxn) -> None:
        """Run the command in a transaction that no other call shares."""
        self.txn = txn
        self.result = self.command.run(txn, *self.command.args)

    def answer(self) -> object:
        if self.error is not None:
            raise self.error
        return self.result

    def is_wanted(self) -> bool:
        return True

    def wait(self, leader: LongWait) -> None:
        """Return when the call has an outcome, or is the next leader.

        Args:
            leader: the wait of a leader for another process. While no leader has taken the call,
                it is an error if that takes too long.
        """
        assert self.lock is not None
        while not self.lock.acquire(True, LOOK_S):
            if not self.led:
                leader.check()

    def wake(self) -> None:
        """Let `wait` return. A second call has no effect."""
        self.woken = True
        if self.lock is not None:
            try:  # noqa: SIM105  # `suppress` costs as much as the rest of a call
                self.lock.release()
            except RuntimeError:
                pass  # it was woken before


class TaskCall(Call):
    """A call of an asyncio task, which waits for `future`.

    Args:
        command: None where `work` is given.
        work: what the writer thread runs instead, outside of any transaction.
    """

    def __init__(
        self,
        command: Command[object] | None,
        durable: bool,
        future: asyncio.Future[object],
        work: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(Command(_nothing, ()) if command is None else command, durable)
        self.future = future
        self.work = work

    def is_wanted(self) -> bool:
        return not self.future.cancelled()  # nor is its task

    def resolve(self) -> None:
        """Hand the outcome to the task; in its event loop."""
        if self.future.done():
            return
        error = self.error
        if isinstance(error, StopIteration):  # a future takes any error but this
            self.error = RuntimeError(f"the function raised {error!r}")
            self.error.__cause__ = error
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def _nothing(txn: WriteTxn) -> None:
    """Do nothing; the command of a call that has `work`."""


def run_calls(txn: WriteTxn, calls: list[Call]) -> None:
    for call in calls:
        call.run(txn)


class GroupCommit:
    """The queue of one environment.

    An interrupt may come between any two steps. Whatever a leader takes is noted in its call
    before, and `_leave`, which may run twice, gives it back.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._context = environment.context
        self._mutex = make_lock("group commit")  # protects what follows; held for a few steps only
        self._queue: list[Call] = []
        self._leader: Call | None = None
        self._has_writer = False  # the writer thread runs
        self._writer_leads = False  # ... and has a call of a task in hand
        self._to_writer: queue.SimpleQueue[TaskCall] = queue.SimpleQueue()

    # --- threads ----------------------------------------------------------------------------

    def run(self, command: Command[object]) -> object:
        """Run a command; return its reply when the commit is on disk."""
        self._context.check_not_writing()  # the leader might wait for this thread's transaction
        call = Call(command, True)
        call.thread = _get_ident()
        try:
            self._take_part(call)
        except BaseException:
            if call.led and not call.woken:
                call.wait(self._context.wait)
            raise
        return call.answer() if call.finished else self._finish(call)

    def _take_part(self, call: Call) -> None:
        """Lead, or wait for the outcome of a leader."""
        try:
            with self._mutex:
                leads = self._leader is None
                if leads:
                    self._leader = call
                else:
                    self._check_not_waiting(call.thread)
                    call.lock = threading.Lock()  # which `wake` releases
                    call.lock.acquire()
                    self._queue.append(call)
            if not leads:
                call.wait(self._context.wait)
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

    def _check_not_waiting(self, thread: int) -> None:
        """Raise StoreError if a call of a thread leads or will: a signal has interrupted that."""
        if thread != threading.main_thread().ident:  # no other one runs handlers of signals
            return
        leader = self._leader
        waiting = self._queue if leader is None else [leader, *self._queue]
        for call in waiting:
            if call.thread == thread:
                raise StoreError(
                    "this thread is in a call that writes to the store, which a signal has "
                    f"interrupted; next: {IN_HANDLER}"
                )

    def _finish(self, call: Call) -> object:
        """Do what an interrupted leader has left undone."""
        if call.txn is None or not call.txn.committed:
            self._run_apart([call])
            return call.answer()
        if call.durable:
            call.txn.wait()
        return call.answer()

    # --- tasks ------------------------------------------------------------------------------

    def submit(self, call: TaskCall) -> None:
        """Put a call of a task into the queue; its future gets the outcome."""
        with self._mutex:
            self._start_writer()
            self._queue.append(call)
            if self._leader is None:
                self._choose()

    def _start_writer(self) -> None:
        """Start the writer thread if it does not run; the caller holds the mutex."""
        if not self._has_writer:
            threading.Thread(target=self._write_for_tasks, name="streamkeep", daemon=True).start()
            self._has_writer = True  # not if the system grants no thread: calls would wait

    def _write_for_tasks(self) -> None:
        """Lead for tasks; in the writer thread, which ends when it was idle for a while."""
        while True:
            try:
                call = self._to_writer.get(True, _IDLE_S)
            except queue.Empty:
                with self._mutex:
                    if self._leader is None and not self._queue:
                        self._has_writer = False
                        return
                continue
            self._serve(call)
            with self._mutex:
                self._writer_leads = False
                if self._leader is None:
                    self._choose()

    def _serve(self, call: TaskCall) -> None:
        """Lead with a call, or finish it if its leader was interrupted."""
        try:  # nothing may end the thread: its tasks would never be woken
            if self._leader is call:
                try:
                    self._lead(call)
                finally:
                    self._leave(call)
            if not call.finished:
                call.result = self._finish(call)
        except BaseException as error:
            call.error = error
        if not call.woken:
            call.finished = True
            self._deliver([call])

    def _deliver(self, calls: list[TaskCall]) -> None:
        """Hand outcomes to tasks, with one call into each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[TaskCall]] = {}
        for call in calls:
            if call.finished:
                call.woken = True
                by_loop.setdefault(call.future.get_loop(), []).append(call)
            else:
                with self._mutex:
                    self._start_writer()
                self._to_writer.put(call)
        for loop, its in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, its)
            except RuntimeError:
                continue  # the loop was closed, with all its tasks

    # --- leading ----------------------------------------------------------------------------

    def _choose(self) -> None:
        """Make the next call the leader, and wake it; the caller holds the mutex.

        The writer thread leads with one call at a time. While it waits for the disk, a thread in
        the queue leads, and takes the calls of tasks along.
        """
        self._leader = None
        for call in self._queue:
            if not isinstance(call, TaskCall):
                self._leader = call
                call.wake()
                return
            if not self._writer_leads:
                self._writer_leads = True
                self._leader = call  # before the writer thread looks whether it is
                self._to_writer.put(call)
                return

    def _take(self, own: Call) -> None:
        """Take the calls in the queue into the batch of `own`, up to one that has work."""
        with self._mutex:
            batch: list[Call] = []
            rest: list[Call] = []
            for call in self._queue:
                if call is own:
                    continue
                if rest or len(batch) >= _MOST or _has_work(call) or _has_work(own):
                    rest.append(call)
                elif call.is_wanted():
                    batch.append(call)
            for call in batch:
                call.led = True
            own.batch, self._queue = batch, rest

    def _lead(self, own: Call) -> None:
        """Run `own` and the calls in the queue."""
        if self._queue:  # which it is in, unless it found no leader
            self._take(own)
        calls = [own, *own.batch] if own.is_wanted() else own.batch
        try:
            if isinstance(own, TaskCall) and own.work is not None:
                own.result = own.work()
            elif calls:
                self._run(own, calls)
        except Exception as error:
            for call in calls:  # each raises it in a thread of its own
                if call.error is None:
                    call.error = error if call is own else copy_of(error)
        own.finished = True
        for call in own.batch:
            call.finished = True

    def _leave(self, call: Call) -> None:
        """Give up the lead, and wake the callers of the batch."""
        if call.lock is not None and not call.finished:
            with self._mutex:
                if call in self._queue:
                    self._queue.remove(call)
                    call.led = False
        tasks: list[TaskCall] = []
        if isinstance(call, TaskCall) and call.finished:
            tasks.append(call)
        for one in call.batch:
            if isinstance(one, TaskCall):
                tasks.append(one)
            else:
                one.wake()
        if self._leader is call:  # after the wakes: those callers may be back for the next batch
            self._hand_over(call)
        if tasks:  # at last: event loops are interpreted, so that interrupts end this
            self._deliver(tasks)

    def _hand_over(self, call: Call) -> None:
        """Make the next call the leader, if it was this one that led."""
        with self._mutex:
            if self._leader is call:
                self._choose()

    def _run(self, own: Call, calls: list[Call]) -> None:
        frees = True
        durable = False
        for call in calls:
            frees = frees and call.command.frees
            durable = durable or call.durable
        try:
            write_once(self._environment, run_calls, (calls,), frees, durable)
        except Exception:
            together = calls[0].txn
            if len(calls) == 1 or (together is not None and together.committed):
                raise
            self._run_apart(calls)
        else:
            if durable:
                if len(calls) < _MANY:
                    self._hand_over(own)
                txn = calls[0].txn
                assert txn is not None
                txn.wait()

    def _run_apart(self, calls: list[Call]) -> None:
        """Run each call in a transaction of its own, since they failed together."""
        for call in calls:
            call.error = None
            try:
                self._environment.write(
                    call.run_or_raise, wait=call.durable, frees=call.command.frees
                )
            except Exception as error:
                call.error = error


def _has_work(call: Call) -> bool:
    """Return whether a call has work instead of a command, so that it takes part in no batch."""
    return isinstance(call, TaskCall) and call.work is not None


def _resolve(calls: list[TaskCall]) -> None:
    """Hand outcomes to tasks; in their event loop."""
    for call in calls:
        call.resolve()
