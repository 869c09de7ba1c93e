"""The checkpointer thread of an open store: checkpoints, and syncs of the mode "interval".

Opening starts the thread. While nothing is committed, it only looks once a second whether a thread
of this process waits for a process that is stopped. A commit wakes it, and then it checks twice a
second what is due. When the store has been quiet for a while, it makes a last checkpoint
and releases the pin, so that an idle process does not keep pages from being reused. While it is
awake it also looks for old snapshots.

No error ends the thread. A failure is logged, reported by `Store.durability`, and tried again; the
sync is tried at its next interval, whatever else fails. Only after a failed sync is there nothing
to do: the journal refuses all writes until the store has been recovered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.checkpoint.old_readers import OldReaders
from streamkeep.engine.system.failures import Failures
from streamkeep.engine.system.locks import Wakeup, make_reentrant_lock
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext
from streamkeep.format.core.errors import RecoveryNeededError, StoreLockedError

CHECKPOINT_EVERY_S: Final = 5.0
IDLE_S: Final = 2.0
CHORES_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 1.0
_TICK_S: Final = 0.5


class Checkpointer:
    """The thread, which is started when the store is opened."""

    def __init__(
        self,
        context: EngineContext,
        checkpoints: Checkpoints,
        make: Callable[[], object],
        failures: Failures,
    ) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._make = make  # makes a checkpoint, after whatever must be repaired first
        self._failures = failures
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._start_lock = make_reentrant_lock("checkpointer")
        self._old_readers = OldReaders(checkpoints)
        self._intervals: list[float] = []  # of the stores with sync="interval", in seconds
        # What the thread knows while it is awake; times are those of `time.monotonic`.
        self._synced = 0.0  # when the last sync began
        self._begun = 0.0  # when the last checkpoint began
        self._failed = False  # whether that checkpoint failed
        self._seen = -1  # the newest commit
        self._changed = 0.0  # when it was seen
        self._erasures = 0
        self._chores_at = 0.0
        self._quiet = False  # nothing is due before the next commit

    def add_interval(self, seconds: float) -> None:
        """Sync the journal at least this often from now on."""
        self._intervals.append(seconds)
        if self._context.watched:
            self._wakeup.notify()  # it may be about to sleep for longer

    def remove_interval(self, seconds: float) -> None:
        self._intervals.remove(seconds)

    def notice(self) -> None:
        """Wake the thread: there are commits, or many bytes since the last checkpoint."""
        self._context.watched = True
        self.start()
        self._wakeup.notify()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            with self._start_lock:
                if self._thread is None and not self._stopping:
                    self._failures.attempt("the start of the checkpointer thread", self._start)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="streamkeep-checkpointer", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._context.watched = False  # the next commit tries again
            raise
        self._thread = thread

    def stop(self) -> None:
        with self._start_lock:
            self._stopping = True
        self._wakeup.notify()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                notified = self._wakeup.wait(LOOK_EVERY_S)
                self._context.wait.report()
                if notified and not self._is_over():
                    self._stay_awake()
        finally:
            if not self._stopping:  # it was ended from outside; the next commit starts another
                self._thread = None
                self._context.watched = False

    def _is_over(self) -> bool:
        return self._stopping or self._context.closed != ""

    def _stay_awake(self) -> None:
        """Do what is due until the store has been quiet for a while."""
        self._synced = self._changed = self._begun = time.monotonic()
        self._seen = -1
        self._failed = self._quiet = False
        self._erasures = self._context.erasures
        self._chores_at = self._synced + CHORES_EVERY_S
        while not (self._is_over() or self._quiet):
            self._failures.attempt("a round of the checkpointer", self._round)
            if not self._quiet:
                pause, interval = _TICK_S, min(self._intervals, default=None)
                if interval is not None:  # not past the next sync of this mode
                    left = interval - (time.monotonic() - self._synced)
                    pause = max(0.0, min(_TICK_S, left))
                self._wakeup.wait(pause)

    def _round(self) -> None:
        context, attempt = self._context, self._failures.attempt
        journal = context.journal_or_raise()
        now = time.monotonic()
        if context.last_commit != self._seen:
            self._seen, self._changed = context.last_commit, now
        failed: Exception | None = None
        interval = min(self._intervals, default=None)
        if interval is not None and now - self._synced >= interval:
            self._synced = now
            sync = journal.syncs.wait_for
            failed = attempt("the sync of the journal", sync, context.last_commit)
        journal.control.look_for_others()
        context.wait.report()
        if now >= self._chores_at:
            self._chores_at = now + CHORES_EVERY_S
            # Who waits for no sync writes on, and nobody would find it.
            attempt("the look at the folder of the store", journal.control.check_not_moved)
            attempt("the look at readers", self._old_readers)
        quiet = now - self._changed >= IDLE_S
        due = now - self._begun >= CHECKPOINT_EVERY_S
        in_the_way = journal.control.erasures() != self._erasures  # the pin keeps erased pages
        early = quiet or in_the_way or context.bytes_since_checkpoint >= BUDGET_BYTES
        if due or (early and not self._failed):
            self._erasures = journal.control.erasures()
            self._begun = now
            context.bytes_since_checkpoint = 0
            error = attempt("the checkpoint", self._make_checkpoint, quiet)
            self._failed = error is not None  # then the next one is made only at its regular time
            failed = error or failed
        if isinstance(failed, RecoveryNeededError):
            context.watched = False
            self._quiet = True  # the next write raises the same error

    def _make_checkpoint(self, quiet: bool) -> None:
        """Make a checkpoint; release the pin if the store is quiet."""
        context = self._context
        try:
            self._make()
        except StoreLockedError:
            if not self._stopping:
                raise
            return  # the thread that closes the store deals with it
        if quiet and self._checkpoints.unpin_if_idle():
            self._checkpoints.release_room()
            context.watched = False
            self._quiet = context.last_commit == self._seen
            context.watched = not self._quiet
