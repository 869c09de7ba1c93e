"""Waiting: how a blocked call sleeps and is woken, without missing an entry.

1. Run the command. If it returns something, the call ends.
2. Register a ticket in the wait table (`wait_table`). From now on a commit notifies the call.
3. Look at the store, for commits that came before step 2.
4. Sleep at a bell (`notifier`) until a notification, a timer or the deadline; a second at most.
5. The notification took the ticket out of the table. Run the command; if it finds nothing, go to
   step 2.

`Waiters.steps` is this loop as a generator, which itself never sleeps: a thread (`Waiters.block`)
and an event loop (`async_waiters`) run the same steps. A look reads one snapshot and changes
nothing, so waiting costs no commits. It ends at once if no commit was made since the last one. The
time at which a waiting consumer was seen is written with its first entry, or after a tenth of a
second. The call keeps its place in the queue.

A consumer that had to wait the last time begins the next call with step 2, and runs its command
when the look finds something. Where consumers are faster than producers, a command that finds
nothing would otherwise take the store's write lock once per entry.

A call that is notified but then does not run its command (after an interrupt, in a cancelled task,
after an error) notifies the next in the queue, because the entry that it was woken for is still
there. A process that is killed cannot do that. The others find the entry at their next look, a
second later at most.

There may be no wait table: in a folder without write access, on a system without named pipes, or if
more calls wait than it has rows. Then the same loop looks every few milliseconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Final

from streamkeep.engine.blocking.calls import BlockingCall, Wait, Waiter
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.notify.notifier import ALARM, Bell
from streamkeep.engine.notify.wait_table import CLAIM, GROUP, IMPATIENT_S, READ, Event, WaitTable
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.read_txn import ReadTxn

WAITERS_FOLDER: Final = "waiters"
FALLBACK_S: Final = 1.0
NOTE: Final = -1.0
SEEN_WITHIN_S: Final = 0.1  # by then it is written that a waiting consumer was seen
_FIRST_POLL_S: Final = 0.0005
_LONGEST_POLL_S: Final = 0.05
_MOST_WAITERS: Final = 1024
_MOST_SPARE: Final = 32

Look = Callable[[ReadTxn, BlockingCall, int], tuple[int, int]]
Read = Callable[[Look, BlockingCall, int], tuple[int, int]]  # runs `Look` on a snapshot
Check = Callable[[], object]  # raises when the wait must end
Steps = Generator[tuple[int, float], bool, bool]


class Waiters:
    """The blocked calls of one environment, which its stores and threads share."""

    def __init__(self, store: Folder, context: EngineContext, read: Read) -> None:
        self._store = store
        self._context = context
        self._read = read  # runs a function on a snapshot
        # Reentrant, so that it knows its thread: see `Ending.check_may_close`.
        self.lock = make_reentrant_lock("waiters")
        self._bells: set[Bell] = set()
        self._open_after = 0.0  # when to try again to open the wait table
        self._spare: list[Bell] = []  # those among them that no call uses
        # Consumers that had to wait the last time. The one that called longest ago is first.
        self._waited: dict[Waiter, None] = {}

    def open_wait_table(self) -> WaitTable:
        """Open the wait table if it is not open, and return it; one without rows if that fails."""
        context = self._context
        with self.lock:
            now = time.monotonic()
            if not context.wait_table.is_open() and not context.closed and now >= self._open_after:
                try:
                    context.wait_table = WaitTable(
                        self._store.make_folder(WAITERS_FOLDER, durable=False)
                    )
                except TimeoutError:  # a process that has its lock is stopped
                    self._open_after = now + IMPATIENT_S
                except OSError:  # such as a read-only folder; calls wait without the table
                    pass
            return context.wait_table

    # --- bells ------------------------------------------------------------------------------

    def take_bell(self) -> Bell | None:
        """Return a bell for one caller at a time; None if there cannot be one."""
        wait_table = self.open_wait_table()
        with self.lock:
            if self._spare:
                return self._spare.pop()
            try:
                bell = wait_table.open_bell()
            except (OSError, AttributeError):  # no table, no descriptors left; no named pipes
                return None
            self._bells.add(bell)
            return bell

    def give_back(self, bell: Bell | None, *, keep: bool) -> None:
        """Take back the bell of a caller.

        Args:
            keep: keep it for the next wait. To make a bell costs three times as much as to wake its
                reader, and a consumer that was just served comes back. One that was not served may
                be the last, and `waiters/` is to be empty if no call waits.
        """
        if bell is None:
            return
        with self.lock:
            if keep and not self._context.closed and len(self._spare) < _MOST_SPARE:
                self._spare.append(bell)
            else:
                self._bells.discard(bell)
                bell.close()

    def alarm(self) -> None:
        """Wake all waiting calls of this process: a store was closed, or an iteration is to end."""
        with self.lock:
            for bell in self._bells:
                bell.notify(ALARM)

    def close(self) -> None:
        """Remove the unused bells, and wake the calls at the others, which then end."""
        self.alarm()
        self.remove_recycled()
        with self.lock:
            for bell in self._bells:  # a task gives its own back when the folder is closed
                bell.remove()
            self._context.wait_table.close()

    def remove_recycled(self) -> None:
        with self.lock:
            for bell in self._spare:
                self._bells.discard(bell)
                bell.close()
            self._spare.clear()

    def abandon(self) -> None:
        """In a forked child, forget the bells and the table of the parent."""
        self.lock = make_reentrant_lock("waiters")
        for bell in self._bells:
            bell.abandon()
        self._bells.clear()
        self._spare.clear()
        self._context.wait_table.abandon()

    # --- the wait ---------------------------------------------------------------------------

    def deadline(self, timeout_ms: int) -> float:
        """Return the time at which a wait that begins now ends."""
        if timeout_ms == 0:
            return float("inf")
        return self._context.clock.monotonic() + timeout_ms / 1000

    def steps(self, wait: Wait, bell: Bell | None, deadline: float, check: Check) -> Steps:
        """Wait until the call is to run again; return False when the deadline has passed.

        It yields the ticket to sleep with and the seconds to sleep at most, and expects to be sent
        whether that ticket was notified. If it yields NOTE instead of seconds, `call.note` is to
        run in a write transaction. Close the generator if the wait ends early.

        Args:
            check: is called before each sleep, and raises to end the wait.

        Raises:
            StoreError: the store was deleted or moved, which each look but the first finds out.
        """
        context, call = self._context, wait.call
        now = context.clock.monotonic
        ticket = wait.registered = 0
        try:
            if bell:
                ticket = wait.register(context.wait_table, bell.number)
            seen = call.looked
            if call.claims_dead:
                seen = -1  # a lease may have died since the command ran, which is no commit
                if context.leases is not None:
                    with suppress(OSError):  # the folder is not writable: there are no consumers
                        context.leases.watch(self.open_wait_table(), self._note_death)
            died = context.deaths
            due = float("inf")
            if call.unseen and not wait.note_at:
                wait.note_at = now() + SEEN_WITHIN_S
            poll_s = _FIRST_POLL_S
            pause = -1
            looks = first = True
            while True:
                check()
                if not first and context.control is not None:
                    context.control.check_not_moved()  # no one commits to a store that is gone
                if call.unseen and not first and min(wait.note_at, deadline) <= now():
                    yield ticket, NOTE
                    continue
                if call.claims_dead and died != context.deaths:
                    died = context.deaths
                    looks, seen = True, -1
                if looks:
                    commit, pause = self._read(_look, call, -1 if now() >= due else seen)
                    if commit != seen or pause >= 0:
                        due = now() + pause / 1000 if pause > 0 else float("inf")
                    if pause == 0:
                        break
                    seen = commit
                first = False
                left = min(deadline, due) - now()
                # After a sleep that ended for the note, a new entry is for the head of the queue.
                looks = not (ticket and call.unseen) or due <= now()
                if call.unseen:
                    left = min(left, wait.note_at - now())
                    if left <= 0:
                        continue
                if deadline <= now():
                    break
                nap = max(0.0, min(left, FALLBACK_S))
                if not ticket:
                    nap = min(nap, poll_s)
                    poll_s = min(poll_s * 1.3, _LONGEST_POLL_S)
                if context.write_lock is not None:
                    context.write_lock.release_unused()
                if (yield ticket, nap):
                    if wait.late:  # it may be that one, and the rows are still in the table
                        wait.late = not context.wait_table.unregister(ticket)
                    wait.owes = True
                    wait.registered = 0
                    return True
            notified = bool(ticket) and not context.wait_table.unregister(ticket)
            wait.owes = notified
            wait.registered = 0
        except BaseException:
            # Not `ticket`: an interrupt may come before it is known here.
            if wait.registered and not context.wait_table.unregister(wait.registered):
                self.pass_on(call)
            raise
        wait.late |= notified
        return pause == 0 or notified

    def pass_on(self, call: BlockingCall) -> None:
        """Notify the next in the queue after a call that was notified and does not run."""
        events: list[Event] = []
        for key, group, kind in call.interests():
            if kind != READ:
                events.append(Event(key, group, GROUP, 1))
            if kind == CLAIM:  # the notification may have been for an entry that only claims take
                events.append(Event(key, group, CLAIM, 1))
        if events:
            self._context.wait_table.notify({}, events)

    def _note_death(self) -> None:
        """Make all waiting calls of this process look at the store."""
        self._context.deaths += 1
        self.alarm()

    # --- in a thread ------------------------------------------------------------------------

    def block(
        self,
        attempt: Callable[[], Found],
        note: Callable[[], object],
        call: BlockingCall,
        timeout_ms: int,
        check: Check,
    ) -> Found:
        """Run `attempt`, at least once, until it returns something or the time is over.

        Args:
            note: runs `call.note`.
        """
        call.may_wait = True
        wait = Wait(call)
        waiter = call.waiter()
        ran = waiter not in self._waited
        result: Found = []
        if ran:
            result = attempt()
            if result:
                return result
        else:
            call.unseen = True
        self._context.check_not_writing()  # no one else could commit while it waits
        deadline = self.deadline(timeout_ms)
        try:
            while not result and self._wait(wait, note, deadline, check):
                ran = wait.owes = True
                result = attempt()
                wait.owes = False
            if not ran:
                result = attempt()
        except BaseException:
            if wait.owes:
                self.pass_on(call)
            raise
        self._expect(waiter, wait.slept)
        return result

    def _expect(self, waiter: Waiter | None, waits: bool) -> None:
        if waiter is None:
            return
        with self.lock:
            self._waited.pop(waiter, None)
            if waits:
                self._waited[waiter] = None
                if len(self._waited) > _MOST_WAITERS:  # the first may never call again
                    del self._waited[next(iter(self._waited))]

    def _wait(self, wait: Wait, note: Callable[[], object], deadline: float, check: Check) -> bool:
        bell: Bell | None = None
        steps: Steps | None = None
        again = False
        try:
            bell = self.take_bell()
            steps = self.steps(wait, bell, deadline, check)
            ticket, nap = next(steps)
            while True:
                if nap == NOTE:
                    note()
                    ticket, nap = steps.send(False)
                else:
                    wait.slept = True
                    ticket, nap = steps.send(_sleep(bell, ticket, nap))
        except StopIteration as end:
            again = bool(end.value)
            return again
        finally:
            try:
                if steps is not None:
                    steps.close()
            finally:
                self.give_back(bell, keep=again)


def _look(txn: ReadTxn, call: BlockingCall, seen: int) -> tuple[int, int]:
    """Return the newest commit and the pause of the call; -1 if that commit was `seen` before."""
    commit = txn.newest_commit()
    return commit, -1 if commit == seen else call.pause(txn)


def _sleep(bell: Bell | None, ticket: int, seconds: float) -> bool:
    """Sleep until the ticket is notified or the time is over; return whether it was notified."""
    if bell is None:
        threading.Event().wait(seconds)
        return False
    if not bell.poller.poll(math.ceil(seconds * 1000)):
        return False
    notifications = bell.notifications()  # also those too late for an earlier wait, and alarms
    return ticket != ALARM and ticket in notifications
