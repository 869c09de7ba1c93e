"""The one thread of an open store: checkpoints, syncs of the mode "interval", spare files.

It sleeps without a timeout while nothing is committed. The first commit wakes it; from then on it
looks twice a second, and falls asleep again when the store has been quiet for a while: then it
makes a last checkpoint and lets the pin go, so that an idle process keeps no pages from being
reused.

While it is awake it also runs chores that the store gives it. It sleeps no longer than until the
next of them is due.

No error ends it: what failed is logged, reported by `Store.durability`, and tried again; the sync
at its next interval, whatever else fails. Only when a sync has failed nothing is left to do: the
journal refuses all writes until the store has been recovered.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.system.failures import Failures
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.errors import RecoveryNeededError

BUDGET_BYTES: Final = 256 << 20
CHECKPOINT_EVERY_S: Final = 5.0
IDLE_S: Final = 2.0
CHORES_EVERY_S: Final = 1.0
_TICK_S: Final = 0.5

_SYNC: Final = "the sync of the journal"
_SPARE: Final = "the preparation of a journal file"
_POINT: Final = "the checkpoint"
_ROUND: Final = "the upkeep"
_THREAD: Final = "the start of the checkpointer thread"


class Bell:
    """As `threading.Event`, which keeps its lock when an interrupt comes in the middle of `set`."""

    def __init__(self) -> None:
        self._silent = threading.Lock()  # released by a ring, until somebody has heard it
        self._silent.acquire()

    def notify(self) -> None:
        """Wake the thread that waits, or the next to wait."""
        with contextlib.suppress(RuntimeError):
            self._silent.release()

    def wait(self, seconds: float = -1) -> bool:
        """Return at a ring that nobody has heard yet, or after so many seconds; say which."""
        return self._silent.acquire(timeout=seconds)


def pause(interval_s: float | None, since_sync_s: float) -> float:
    """Return how long to sleep: a tick, but never past the next sync of the mode "interval"."""
    if interval_s is None:
        return _TICK_S
    return max(0.0, min(_TICK_S, interval_s - since_sync_s))


class _Watch:
    """What the thread knows while it serves the store; times are by `time.monotonic`."""

    def __init__(self, now: float, erasures: int, chores_at: float) -> None:
        self.synced = now
        self.changed = now  # when the newest commit was seen
        self.seen = -1  # that commit
        self.last_checkpoint = now  # when the last checkpoint was begun
        self.failed = False  # that one
        self.erasures = erasures
        self.chores_at = chores_at
        self.over = False  # nothing will be due before the next commit


class Checkpointer:
    """The thread; it begins with the first commit."""

    def __init__(
        self, context: EngineContext, checkpoints: Checkpoints, failures: Failures
    ) -> None:
        self._shared = context
        self._checkpoints = checkpoints
        self._failures = failures
        self._wake = Bell()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._start_lock = threading.Lock()
        self._chores: list[tuple[str, Callable[[], object]]] = []
        self._pauses: list[Callable[[], float | None]] = []
        self._intervals: list[float] = []  # of the stores with sync="interval", in seconds

    def add_chore(
        self,
        work: str,
        run: Callable[[], object],
        pause_s: Callable[[], float | None] | None = None,
    ) -> None:
        """Have the thread run something about once a second while it is awake.

        Args:
            work: what it is, for messages.
            pause_s: returns after how many seconds the thread must be awake for it; None for never.
        """
        self._chores.append((work, run))
        if pause_s is not None:
            self._pauses.append(pause_s)

    def add_interval(self, seconds: float) -> None:
        """Sync the journal as often as this from now on."""
        self._intervals.append(seconds)
        if self._shared.watched:
            self._wake.notify()  # it may be about to sleep for longer

    def remove_interval(self, seconds: float) -> None:
        """Take back `add_interval`."""
        self._intervals.remove(seconds)

    def notice(self) -> None:
        """There are commits, or many bytes since the last checkpoint."""
        self._shared.watched = True
        if self._thread is None:
            with self._start_lock:
                if self._thread is None and not self._stopping:
                    self._failures.attempt(_THREAD, self._start)
        self._wake.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="streamkeep-upkeep", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._shared.watched = False  # the next commit tries again
            raise
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        with self._start_lock:
            self._stopping = True
        self._wake.notify()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                rung = self._wake.wait(self._idle_pause())
                if not self._stopping:
                    self._watch(chores=not rung)
        finally:
            if not self._stopping:  # ended from outside: the next commit begins another
                self._thread = None
                self._shared.watched = False

    def _idle_pause(self) -> float:
        """Return how long to sleep while nothing is committed; -1 for until it is."""
        pauses = [seconds for pause_s in self._pauses if (seconds := pause_s()) is not None]
        return min([*pauses, threading.TIMEOUT_MAX]) if pauses else -1

    def _watch(self, *, chores: bool = False) -> None:
        """Serve the store until it has been quiet for a while.

        Args:
            chores: begin with them, since a chore is what the thread is awake for.
        """
        now = time.monotonic()
        watch = _Watch(now, self._shared.erasures, now if chores else now + CHORES_EVERY_S)
        while not (self._stopping or watch.over):
            self._failures.attempt(_ROUND, self._round, watch)
            if not watch.over:
                interval = min(self._intervals, default=None)
                self._wake.wait(pause(interval, time.monotonic() - watch.synced))

    def _round(self, watch: _Watch) -> None:
        """Do what is due."""
        context, attempt = self._shared, self._failures.attempt
        journal = context.journal
        assert journal is not None
        now = time.monotonic()
        if context.last_commit != watch.seen:
            watch.seen, watch.changed = context.last_commit, now
        failed: Exception | None = None
        interval = min(self._intervals, default=None)
        if interval is not None and now - watch.synced >= interval:
            watch.synced = now
            failed = attempt(_SYNC, journal.sync, context.last_commit)
        attempt(_SPARE, journal.prepare_recycled)
        if now >= watch.chores_at:
            watch.chores_at = now + CHORES_EVERY_S
            for work, run in self._chores:
                attempt(work, run)
        quiet = now - watch.changed >= IDLE_S
        due = now - watch.last_checkpoint >= CHECKPOINT_EVERY_S
        in_the_way = journal.control.erasures() != watch.erasures  # our pin keeps erased pages
        early = quiet or in_the_way or context.bytes_since_checkpoint >= BUDGET_BYTES
        if due or (early and not watch.failed):
            watch.erasures = journal.control.erasures()
            watch.last_checkpoint = now
            context.bytes_since_checkpoint = 0
            error = attempt(_POINT, self._make_point, watch, quiet)
            watch.failed = error is not None  # then the next one waits for its time
            failed = error or failed
        if isinstance(failed, RecoveryNeededError):
            context.watched = False
            watch.over = True  # the next write says it, too

    def _make_point(self, watch: _Watch, quiet: bool) -> None:
        """Make a checkpoint; let the pin go where the store is quiet."""
        context = self._shared
        self._checkpoints.make()
        if quiet and self._checkpoints.unpin_if_idle():
            context.watched = False
            watch.over = context.last_commit == watch.seen
            context.watched = not watch.over
