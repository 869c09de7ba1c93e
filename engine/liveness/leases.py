"""The leases of a store as one process sees them: its own, and the state of others.

`take` makes the lease of this process when it first consumes. `state` answers for any number. The
lock decides. A number that was once found dead stays dead, so only that is remembered; what a
`DeathWatch` watches counts as alive until the watch has seen its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from streamkeep.engine.liveness.lease_file import (
    Lease,
    State,
    forget_work,
    holder_of,
    lease_numbers,
    new_number,
    remove_dead,
    work_of,
)
from streamkeep.engine.liveness.marks import Marks
from streamkeep.engine.liveness.watch import DeathWatch
from streamkeep.engine.notify.wait_table import WaitTable, replaced
from streamkeep.engine.system.lmdb_errors import translate_os, translated
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.safe_files import Folder

LEASES_FOLDER: Final = "leases"
LEASES_KEY: Final = b"\0leases"  # what a watch waits for in the wait table: a new lease
_HOLD_AGAIN_S: Final = 1.0


class Leases:
    """The leases of one store in this process."""

    def __init__(self, store: Folder) -> None:
        self._store = store
        self._lock = make_reentrant_lock("leases")
        self._own: Lease | None = None
        # Set before the file has its name. A thread that opened and closed the file of its own
        # process would release the lock, so it reads this after it has listed the names.
        self._own_number = 0
        self._folder: Folder | None = None  # of the files, once there is one
        self._held_at = 0.0
        self._watch: DeathWatch | None = None
        self._closed = False
        # Of leases that are known to be dead. Threads add to it in one step and need no lock.
        self._dead: set[int] = set()

    def take(self, wait_table: WaitTable) -> int:
        """Return the number of this process's lease, which is made at the first call.

        Raises:
            StoreError: there can be no lease, such as on a full disk.
        """
        own = self._own
        if own is not None and time.monotonic() - self._held_at < _HOLD_AGAIN_S:
            return own.number
        with self._lock:
            if self._closed:
                return 0
            try:
                if self._own is None:
                    folder = self._store.make_folder(LEASES_FOLDER, durable=False)
                    self._folder = folder
                    self._own_number = new_number()
                    self._own = Lease(folder, self._own_number)
                    remove_dead(folder, self._own.number)
                    if wait_table.has_readers():
                        wait_table.notify({}, [replaced(LEASES_KEY)])
                else:
                    self._own.hold()
            except OSError as error:
                raise translate_os(error) from error
            self._held_at = time.monotonic()
            return self._own.number

    def state(self, number: int) -> State:
        """Return the state of a lease; UNKNOWN for 0, which means no lease."""
        if number == 0:
            return State.UNKNOWN
        own, watch = self._own, self._watch
        if own is not None and own.number == number:
            return State.ALIVE
        if number in self._dead:
            return State.DEAD
        if watch is not None and watch.watches(number):
            return State.ALIVE
        state = holder_of(self._open_folder(), number).state
        if state is State.DEAD:
            self._dead.add(number)
        elif watch is not None:
            watch.look_again()  # it has not seen this lease yet
        return state

    def is_dead(self, number: int) -> bool:
        """Return whether the process of a lease is dead for certain."""
        return self.state(number) is State.DEAD

    def _open_folder(self) -> Folder:
        folder = self._folder
        if folder is None:
            folder = self._store.folder(LEASES_FOLDER, missing_ok=True)
            if folder.handle >= 0:
                self._folder = folder
        return folder

    # --- what processes work on -------------------------------------------------------------

    def marks(self) -> Marks | None:
        """Return where this process writes what it works on; None if it has no lease."""
        with self._lock:
            return None if self._own is None else self._own.marks()

    def work_of_the_dead(self) -> dict[bytes, int]:
        """Return the marks of what dead processes were working on, and the lease of each."""
        found: dict[bytes, int] = {}
        with translated(system=True):
            folder = self._open_folder()
            for number in lease_numbers(folder):
                if number != self._own_number and self.is_dead(number):
                    found.update(dict.fromkeys(work_of(folder, number), number))
        return found

    def forget_work(self, marks: Mapping[bytes, int]) -> None:
        """Forget marks of dead processes, given with their leases."""
        for number in set(marks.values()):
            forget_work(self._open_folder(), number, marks.keys())

    # --- the watch --------------------------------------------------------------------------

    def watch(self, wait_table: WaitTable, on_death: Callable[[], None]) -> None:
        """Begin to watch all other processes that have a lease, unless this process does so.

        Args:
            on_death: called in the watching thread after a lease has died.
        """
        if self._watch is not None:
            return
        with self._lock:
            if self._watch is None and not self._closed:
                folder = self._store.make_folder(LEASES_FOLDER, durable=False)
                self._folder = folder
                self._watch = DeathWatch(
                    folder, wait_table, LEASES_KEY, lambda: self._own_number, self._dead, on_death
                )

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End this process's lease: what it has pending may be claimed as that of a dead one."""
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        with self._lock:
            own = self._end()
            if own is not None:
                own.close()

    def abandon(self) -> None:
        """In a forked child, leave lease and watch to the parent."""
        self._lock = make_reentrant_lock("leases")
        own = self._end()
        if own is not None:
            own.abandon()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()
        self._folder = None

    def _end(self) -> Lease | None:
        """Take no lease from now on; return this process's own, which the caller ends."""
        self._closed = True
        own, self._own = self._own, None
        self._own_number = 0
        return own
