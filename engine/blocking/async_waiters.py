"""All waiting tasks of an event loop share one pipe, which the loop watches.

A thousand blocked tasks take one file descriptor and no thread. Each notification has the ticket of
the task that it wakes. The steps of a wait are those of `waiters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streamkeep.engine.blocking.calls import Wait
from streamkeep.engine.blocking.waiters import NOTE, Check, Waiters
from streamkeep.engine.notify.notifier import ALARM, Bell


class Sleeper:
    """One task that waits with a ticket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self.notified = False

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def sleep(self, seconds: float) -> bool:
        """Sleep until woken or the time is over; return whether the ticket was notified."""
        if not self.notified:
            self._future = self._loop.create_future()
            timer = self._loop.call_later(seconds, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
        return self.notified


class WatchedBell:
    """A bell that an event loop watches while tasks wait at it."""

    def __init__(self, bell: Bell, loop: asyncio.AbstractEventLoop) -> None:
        self.bell = bell
        self.users = 0
        self.loop = loop
        self.sleepers: dict[int, Sleeper] = {}  # by their tickets
        loop.add_reader(bell.handle, self._on_notification)

    def _on_notification(self) -> None:
        for ticket in self.bell.notifications():
            if ticket == ALARM:
                for sleeper in self.sleepers.values():
                    sleeper.wake()
            elif ticket in self.sleepers:
                self.sleepers[ticket].notified = True
                self.sleepers[ticket].wake()


class AsyncWaiters:
    """The waiting tasks of one asyncio store."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._bells: dict[asyncio.AbstractEventLoop, WatchedBell] = {}

    async def wait(
        self, wait: Wait, note: Callable[[], Awaitable[None]], deadline: float, check: Check
    ) -> bool:
        """Wait until the call is to run again; return False when the deadline has passed.

        Args:
            note: runs the `note` of the call.
        """
        watched = self._enter()
        steps = self._waiters.steps(wait, watched.bell if watched else None, deadline, check)
        sleeper: Sleeper | None = None
        ticket = 0
        again = False
        try:
            ticket, nap = next(steps)
            if watched and ticket:
                sleeper = watched.sleepers[ticket] = Sleeper(watched.loop)
            while True:
                if nap == NOTE:
                    await note()
                    _, nap = steps.send(False)
                elif sleeper is None:
                    await asyncio.sleep(nap)
                    _, nap = steps.send(False)
                else:
                    _, nap = steps.send(await sleeper.sleep(nap))
        except StopIteration as end:
            again = bool(end.value)
            return again
        finally:
            steps.close()
            if watched:
                watched.sleepers.pop(ticket, None)
                self._leave(watched, keep=again)

    def _enter(self) -> WatchedBell | None:
        loop = asyncio.get_running_loop()
        watched = self._bells.get(loop)
        if watched is None:
            bell = self._waiters.take_bell()
            if bell is None:
                return None
            watched = self._bells[loop] = WatchedBell(bell, loop)
        watched.users += 1
        return watched

    def _leave(self, watched: WatchedBell, *, keep: bool) -> None:
        watched.users -= 1
        if not watched.users:
            watched.loop.remove_reader(watched.bell.handle)
            del self._bells[watched.loop]  # which may be closed, where no loop runs
            self._waiters.give_back(watched.bell, keep=keep)
