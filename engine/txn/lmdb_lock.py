"""LMDB's write lock among processes: asking for it, giving it up, and waiting for it.

A process that defers commits keeps LMDB's lock. Another one says in the control file that it waits,
to write or to read. A writer gets the lock after SLICE_S, a reader after the command that is
running. A process that has given the lock up for a writer lets others go first, for a moment.

LMDB waits for its lock without a limit. So where a process that defers has the lock, the thread of
the deferred transactions waits for it (`image_thread`), and its caller gives up if that is a
`LongWait`. Any other process has the lock for one commit, or for a transaction of its user, so a
thread waits for it directly. A transaction may take long, so a caller gives up only if the process
defers or is stopped. Compiled by mypyc.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import lmdb

from streamkeep.engine.journal.control_file import WANTED_TO_READ, WANTED_TO_WRITE, ControlFile
from streamkeep.engine.system.long_wait import LMDB_LOCK, LongWait, users_of
from streamkeep.engine.txn.image_thread import ImageThread, Task

SLICE_S: Final = 0.0005  # how long a process keeps the lock that another one waits for
_YIELD_S: Final = 0.001  # how long a process lets others go first, at most
_YIELD_STEP_S: Final = 0.00002


class LmdbLock:
    """The lock of one environment, as this process shares it with others.

    Attributes:
        wait: the wait of a thread of this process for the lock.
    """

    def __init__(self, raw: lmdb.Environment) -> None:
        self.wait = LongWait(LMDB_LOCK, lambda: users_of(self.raw))
        self.raw = raw
        self._yields = False  # another process waits for the lock that this one has used

    def give_way(self, wanted: int, age: float, *, wakes: bool, overdue: bool) -> bool:
        """Return whether a deferred transaction must end now, for the use of others.

        Args:
            wanted: what another process waits for; see `ControlFile.wanted`.
            age: seconds since the transaction began.
            wakes: readers wait for what its last commit added.
            overdue: it may not last any longer while other processes have the store open.
        """
        if not (wakes or overdue or wanted == WANTED_TO_READ or (wanted and age >= SLICE_S)):
            return False
        self._yields = wanted == WANTED_TO_WRITE
        return True

    def begin(self, control: ControlFile, image: ImageThread) -> lmdb.Transaction[bytes]:
        """Begin a transaction of LMDB that belongs to the calling thread.

        Raises:
            StoreLockedError: a process that defers has the lock, and is probably stopped.
        """
        self._ask(control)
        if control.deferring() and image.start():  # it may be stopped: do not block
            self.have(image, self._begin_and_end)
        with self.wait:
            raw = self.raw.begin(None, None, True, False)
        self._got(control)
        return raw

    def have(self, image: ImageThread, call: Callable[[Task], None]) -> None:
        """Have the thread make a call that needs the lock.

        Raises:
            StoreLockedError: a process that defers, or is stopped, has had the lock for too long.
        """
        with self.wait:
            image.do(call, check=self.wait.check)

    def begin_for(self, task: Task, control: ControlFile) -> lmdb.Transaction[bytes] | None:
        """Begin a transaction of the calling thread, for a task; None if its caller gave up."""
        self._ask(control)
        raw = self.raw.begin(None, None, True, False)
        if not task.is_wanted():
            raw.commit()  # nothing was written
            return None
        self._got(control)
        return raw

    def let_others(self, control: ControlFile) -> None:
        """Let a process that waits for the lock have it first, if this one has just had it."""
        if self._yields:
            self._yields = False
            deadline = time.monotonic() + _YIELD_S
            while control.wanted() and time.monotonic() < deadline:
                time.sleep(_YIELD_STEP_S)

    def _ask(self, control: ControlFile) -> None:
        if control.is_shared() and not control.wanted():
            control.want(WANTED_TO_WRITE)

    def _got(self, control: ControlFile) -> None:
        """Note that this process has the lock, which others waited for as well."""
        if control.wanted():
            control.want(0)
        if control.deferring():
            control.defer(0)  # of a process that has died

    def _begin_and_end(self, task: Task) -> None:
        raw = self.raw.begin(None, None, True, False)
        raw.commit()  # nothing was written
