"""Waiting: how a blocked call sleeps, is woken, and never sleeps through its entry.

    run the command; nothing?
      -> put up a ticket on the board (board.py)      whoever commits from now on rings
      -> look at the store                            whoever committed before is seen
      -> sleep at the door (doors.py)                 until a ring, a timer, the deadline,
                                                      or for a second at most
      -> woken: the ticket is down; run the command, and from the start if it has nothing

`Lobby.steps` is that loop as a generator, which does no sleeping itself: a thread (`Lobby.block`)
and an event loop (async_waiting.py) drive the same steps. A look reads one snapshot and changes
nothing, so that waiting costs no commits; when no commit came since the last look it ends there.
A consumer that is woken soon leaves no trace of having waited either: that it was seen is written
with what it is given, or after a tenth of a second, without giving up its place.

A consumer that had to wait the last time waits at once the next time, and runs its command when
the look says so: a command that finds nothing would take the store's write lock for that, once per
entry where consumers are faster than producers.

Whoever is rung and does not run its command after all (an interrupt, a cancelled task, a failed
run) rings the next in the queue: the work it was woken for is still there. One that is killed
cannot; the others find that work when they look, a second later at the latest.

Where there is no board (a folder without write access, a system without named pipes, more waits
than it has rows) the same loop looks every few milliseconds instead.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Final

from streamkeep.engine.blocking.calls import BlockingCall, Waiter
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.notify.notifier import ALARM, Bell
from streamkeep.engine.notify.wait_table import CLAIM, GROUP, READ, Event, WaitTable
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.txn import ReadTxn

WAITERS_FOLDER: Final = "waiters"
FALLBACK_S: Final = 1.0
NOTE: Final = -1.0
SEEN_WITHIN_S: Final = 0.1  # it is written by then that a consumer which waits was seen
_FIRST_POLL_S: Final = 0.0005
_LONGEST_POLL_S: Final = 0.05
_MOST_WAITERS: Final = 1024
_MOST_SPARE: Final = 32

Look = Callable[[ReadTxn, BlockingCall, int], tuple[int, int]]
Read = Callable[[Look, BlockingCall, int], tuple[int, int]]  # runs `Look` on a snapshot
Check = Callable[[], object]  # raises when the wait must end
Steps = Generator[tuple[int, float], bool, bool]


class Waiters:
    """Where the blocked calls of one environment wait; shared by the stores and threads on it."""

    def __init__(self, store: Folder, context: EngineContext, read: Read) -> None:
        self._store = store
        self._shared = context
        self._read = read  # runs a function on a snapshot
        self._lock = threading.Lock()
        self._doors: set[Bell] = set()
        self._spare: list[Bell] = []
        # Consumers that had to wait the last time; the one that called longest ago comes first.
        self._waited: dict[Waiter, None] = {}

    def open_wait_table(self) -> WaitTable:
        """Return the board, opened if it was not yet; one for nobody where it cannot be."""
        context = self._shared
        with self._lock:
            if not context.wait_table.is_open() and not context.closed:
                with suppress(OSError):  # read-only, say: calls wait without it
                    context.wait_table = WaitTable(
                        self._store.make_folder(WAITERS_FOLDER, durable=False)
                    )
            return context.wait_table

    # --- doors ------------------------------------------------------------------------------

    def take_bell(self) -> Bell | None:
        """Return a door for one caller at a time; None where there cannot be one."""
        wait_table = self.open_wait_table()
        with self._lock:
            if self._spare:
                return self._spare.pop()
            try:
                bell = wait_table.open_bell()
            except (OSError, AttributeError):  # no board, no descriptors left; no named pipes
                return None
            self._doors.add(bell)
            _lobbies.add(self)
            return bell

    def give_back(self, bell: Bell | None, *, keep: bool) -> None:
        """Take a door back.

        Args:
            keep: for the next wait. Making a door costs three times what waking its reader does,
                and a consumer that was just served comes back. One that was not may be the last:
                `waiters/` is empty when nobody waits.
        """
        if bell is None:
            return
        with self._lock:
            if keep and not self._shared.closed and len(self._spare) < _MOST_SPARE:
                self._spare.append(bell)
            else:
                self._doors.discard(bell)
                bell.close()

    def alarm(self) -> None:
        """Have everybody of this process look around: a store was closed, or a loop is to end."""
        with self._lock:
            for bell in self._doors:
                bell.notify(ALARM)

    def close(self) -> None:
        """Remove the doors that nobody sleeps at; wake the others, whose calls then end."""
        self.alarm()
        self.remove_recycled()
        with self._lock:
            self._shared.wait_table.close()
        _lobbies.discard(self)

    def remove_recycled(self) -> None:
        """Remove the doors that nobody sleeps at."""
        with self._lock:
            for bell in self._spare:
                self._doors.discard(bell)
                bell.close()
            self._spare.clear()

    def abandon(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        self._lock = threading.Lock()
        for bell in self._doors:
            bell.abandon()
        self._doors.clear()
        self._spare.clear()
        self._shared.wait_table.abandon()
        _lobbies.discard(self)

    # --- the wait ---------------------------------------------------------------------------

    def deadline(self, timeout_ms: int) -> float:
        """Return when a wait that begins now ends; 0 for never."""
        if timeout_ms == 0:
            return float("inf")
        return self._shared.clock.monotonic() + timeout_ms / 1000

    def steps(
        self,
        call: BlockingCall,
        bell: Bell | None,
        deadline: float,
        check: Check,
    ) -> Steps:
        """Wait until `call` is to run again; False when the deadline has passed.

        Yields the ticket to sleep with and for how many seconds at most; is sent whether it was
        rung. NOTE instead of seconds: `call.note` is to be run, in a write transaction. Close it
        when the wait ends early.

        Args:
            check: is called before each sleep, and raises to end the wait.
        """
        context = self._shared
        now = context.clock.monotonic
        ticket = call.up = 0
        try:
            if bell:
                ticket = call.register(context.wait_table, bell.number)
            seen = call.looked
            due = float("inf")
            if call.unseen and not call.unseen_until:
                call.unseen_until = now() + SEEN_WITHIN_S
            poll_s = _FIRST_POLL_S
            pause = -1
            looks = first = True
            while True:
                check()
                if call.unseen and not first and min(call.unseen_until, deadline) <= now():
                    yield ticket, NOTE
                    continue
                if looks:
                    commit, pause = self._read(_look, call, -1 if now() >= due else seen)
                    if commit != seen or pause >= 0:
                        due = now() + pause / 1000 if pause > 0 else float("inf")
                    if pause == 0:
                        break
                    seen = commit
                first = False
                left = min(deadline, due) - now()
                # Behind a nap for the note no look: what came is for the head of the queue.
                looks = not (ticket and call.unseen)
                if call.unseen:
                    left = min(left, call.unseen_until - now())
                    if left <= 0:
                        continue
                if deadline <= now():
                    break
                nap = max(0.0, min(left, FALLBACK_S))
                if not ticket:
                    nap = min(nap, poll_s)
                    poll_s = min(poll_s * 1.3, _LONGEST_POLL_S)
                if (yield ticket, nap):
                    if call.rung_late:  # perhaps only now, and the rows are still up
                        call.rung_late = not context.wait_table.unregister(ticket)
                    call.owes = True
                    call.up = 0
                    return True
            rung = bool(ticket) and not context.wait_table.unregister(ticket)
            call.owes = rung
            call.up = 0
        except BaseException:
            # Not `ticket`: an interrupt may come before it is known here.
            if call.up and not context.wait_table.unregister(call.up):
                self.pass_on(call)
            raise
        call.rung_late |= rung  # that ring is still to come, or lies at the door
        return pause == 0 or rung

    def pass_on(self, call: BlockingCall) -> None:
        """Ring those behind a call that was rung and has not used it."""
        events: list[Event] = []
        for key, group, kind in call.interests():
            if kind != READ:
                events.append(Event(key, group, GROUP, 1))
            if kind == CLAIM:  # it may have been for a NACKed entry, which not all of them take
                events.append(Event(key, group, CLAIM, 1))
        if events:
            self._shared.wait_table.notify({}, events)

    # --- in a thread ------------------------------------------------------------------------

    def block(
        self,
        attempt: Callable[[], Found],
        note: Callable[[], object],
        call: BlockingCall,
        timeout_ms: int,
        check: Check,
    ) -> Found:
        """Run `attempt`, once at least, until it returns something, or time is up.

        Args:
            note: runs `call.note`.
        """
        call.may_wait = True
        waiter = call.waiter()
        ran = waiter not in self._waited
        result: Found = []
        if ran:
            result = attempt()
            if result:
                return result
        else:
            call.unseen = True
        self._shared.check_not_writing()  # nobody could commit what this call waits for
        deadline = self.deadline(timeout_ms)
        try:
            while not result and self._wait(call, note, deadline, check):
                ran = call.owes = True
                result = attempt()
                call.owes = False
            if not ran:
                result = attempt()
        except BaseException:
            if call.owes:
                self.pass_on(call)
            raise
        self._expect(waiter, call.slept)
        return result

    def _expect(self, waiter: Waiter | None, waits: bool) -> None:
        """Note whether a consumer had to wait."""
        if waiter is None:
            return
        with self._lock:
            self._waited.pop(waiter, None)
            if waits:
                self._waited[waiter] = None
                if len(self._waited) > _MOST_WAITERS:  # the first may never call again
                    del self._waited[next(iter(self._waited))]

    def _wait(
        self, call: BlockingCall, note: Callable[[], object], deadline: float, check: Check
    ) -> bool:
        bell: Bell | None = None
        steps: Steps | None = None
        again = False
        try:
            bell = self.take_bell()
            steps = self.steps(call, bell, deadline, check)
            ticket, nap = next(steps)
            while True:
                if nap == NOTE:
                    note()
                    ticket, nap = steps.send(False)
                else:
                    call.slept = True
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


_lobbies: set[Waiters] = set()  # that have doors


@atexit.register
def _leave_nothing() -> None:
    """Remove the doors of stores that the process did not close."""
    for waiters in list(_lobbies):
        waiters.remove_recycled()


def _look(txn: ReadTxn, call: BlockingCall, seen: int) -> tuple[int, int]:
    """Return the newest commit, and the pause of `call` there; -1 when the commit was `seen`."""
    commit = int(txn.raw.id())
    return commit, -1 if commit == seen else call.pause(txn)


def _sleep(bell: Bell | None, ticket: int, seconds: float) -> bool:
    """Sleep until the ticket is rung, or as long; say whether it was rung."""
    if bell is None:
        threading.Event().wait(seconds)
        return False
    if not bell.poller.poll(math.ceil(seconds * 1000)):
        return False
    notifications = bell.notifications()  # also what rang too late for an earlier wait, and alarms
    return ticket != ALARM and ticket in notifications
