"""The watch of one process over the leases of all others: it learns at once that one has died.

1. For each lease that is alive, open a pidfd of the process that holds the lock. The kernel reports
   that process, so no number in a file can be out of date; after the pidfd is open, the lock is
   asked once more, because a process number may have been reused in between.
2. Sleep until a pidfd reports an exit, until a process takes a new lease (the watch has a row in
   the wait table for that), or for a second.
3. Ask the locks again. The lock decides: a lease is dead when its file is not locked, and the
   kernel releases the lock before it reports the exit.

A process in another PID namespace has no pidfd here. The lock works there as well, and is asked
once a second.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from streamkeep.engine.liveness.lease_file import State, holder_of, lease_numbers
from streamkeep.engine.notify.notifier import ALARM, Bell
from streamkeep.engine.notify.wait_table import READ, WaitTable
from streamkeep.engine.system.safe_files import Folder

LOOK_S: Final = 1.0
_STOP_WITHIN_S: Final = 10.0

log = logging.getLogger("streamkeep")


class DeathWatch:
    """A thread that watches the leases of other processes."""

    def __init__(
        self,
        folder: Folder,
        wait_table: WaitTable,
        key: bytes,
        own: Callable[[], int],
        dead: set[int],
        on_death: Callable[[], None],
    ) -> None:
        """Begin to watch.

        Args:
            key: what a process that takes a new lease notifies in the wait table.
            own: returns the lease of this process, whose file must not be opened.
            dead: where leases are added that have died.
            on_death: called after that.
        """
        self._folder = folder
        self._wait_table = wait_table
        self._key = key
        self._own = own
        self._dead = dead
        self._on_death = on_death
        self._handles: dict[int, int] = {}  # pidfd of each watched lease; -1 if it has none
        self._bell: Bell | None = None
        with suppress(OSError, AttributeError):  # without a wait table it looks once a second
            self._bell = wait_table.open_bell()
        self._stopping = False
        with suppress(OSError):  # the thread looks again
            self._look()
        self._thread = threading.Thread(target=self._run, name="streamkeep leases", daemon=True)
        self._thread.start()

    def watches(self, number: int) -> bool:
        """Return whether a lease was alive when this watch looked last."""
        return number in self._handles

    def look_again(self) -> None:
        """Make the thread look for new leases."""
        if self._bell is not None:
            with suppress(OSError):  # the thread has ended
                self._bell.notify(ALARM)

    def stop(self) -> None:
        self._stopping = True
        self.look_again()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_WITHIN_S)

    def abandon(self) -> None:
        """In a forked child, close the descriptors; the thread exists in the parent only."""
        if self._bell is not None:
            self._bell.abandon()
        for handle in self._handles.values():
            if handle >= 0:
                os.close(handle)
        self._handles.clear()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        told = False
        try:
            while not self._stopping:
                try:
                    self._sleep_and_look()
                    told = False
                except OSError as error:  # such as no descriptors left
                    # No other thread would see a death: the calls that wait look after commits.
                    if not told:
                        log.warning("%s: leases cannot be read: %s", self._folder.path, error)
                    told = True
                    time.sleep(LOOK_S)
                    self._on_death()  # the look may have found one before the error
        except Exception:
            log.exception("%s: the watch over leases ended", self._folder.path)
        finally:
            if self._bell is not None:
                self._bell.close()
            for number in list(self._handles):
                self._forget(number)

    def _sleep_and_look(self) -> None:
        """Sleep until something may have changed, and ask all locks."""
        bell = self._bell
        ticket = 0
        exited: set[int] = set()  # pidfds
        poller = select.poll()
        if bell is not None:
            ticket = self._wait_table.register(bell.number, [(self._key, b"", READ)])
            poller.register(bell.handle, select.POLLIN)
        for handle in self._handles.values():
            if handle >= 0:
                poller.register(handle, select.POLLIN)
        try:
            # A lease that was taken before the registration has notified no watch.
            if not any(number not in self._handles for number in self._others()):
                exited = {handle for handle, _ in poller.poll(math.ceil(LOOK_S * 1000))}
            # Now: all that the death has woken wait for the lock of the table.
            if not self._stopping and self._look(exited):
                self._on_death()
        finally:
            if bell is not None:
                if ticket:
                    self._wait_table.unregister(ticket)
                bell.notifications()

    def _others(self) -> list[int]:
        numbers = lease_numbers(self._folder)
        own = self._own()  # after the list, see `Leases`
        return [number for number in numbers if number != own and number not in self._dead]

    def _look(self, exited: Collection[int] = ()) -> bool:
        """Ask all locks; return whether a lease has died.

        Args:
            exited: pidfds that have reported an exit.
        """
        died = False
        others = self._others()
        for number in {*self._handles} - {*others}:  # its file is gone
            self._forget(number)
            self._dead.add(number)
            died = True
        for number in others:
            holder = holder_of(self._folder, number)
            if holder.state is State.DEAD:
                self._dead.add(number)
                died = True  # also one that was not watched: it died before the first look
                self._forget(number)
                continue
            if self._handles.get(number) in exited:
                self._forget(number)  # another process shares its descriptors, and so its locks
            if self._handles.get(number, -1) < 0:
                self._handles[number] = self._watch_process(number, holder.pid)
        return died

    def _watch_process(self, number: int, pid: int) -> int:
        """Return a pidfd of the process that holds a lease; -1 if there cannot be one."""
        if pid <= 0 or not hasattr(os, "pidfd_open"):
            return -1
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # it has died just now, or there are no descriptors left
            return -1
        if holder_of(self._folder, number).pid != pid:
            os.close(handle)
            return -1
        return handle

    def _forget(self, number: int) -> None:
        handle = self._handles.pop(number, -1)
        if handle >= 0:
            os.close(handle)
