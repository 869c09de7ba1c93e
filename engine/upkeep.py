"""The one thread of an open store: steady points, syncs of the mode "interval", spare files.

It sleeps without a timeout while nothing is committed. The first commit wakes it; from then on it
looks twice a second, and falls asleep again when the store has been quiet for a while: then it
makes a last steady point and lets the pin go, so that an idle process keeps no pages from being
reused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Final

import lmdb

from streamkeep.engine.shared import Shared
from streamkeep.engine.steady import SteadyPoints
from streamkeep.format.errors import StreamkeepError

BUDGET_BYTES: Final = 256 << 20
POINT_EVERY_S: Final = 5.0
IDLE_S: Final = 2.0
_TICK_S: Final = 0.5

log = logging.getLogger("streamkeep")


class Bell:
    """As `threading.Event`, which keeps its lock when an interrupt comes in the middle of `set`."""

    def __init__(self) -> None:
        self._silent = threading.Lock()  # released by a ring, until somebody has heard it
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or the next to wait."""
        with contextlib.suppress(RuntimeError):
            self._silent.release()

    def wait(self, seconds: float = -1) -> None:
        """Return at a ring that nobody has heard yet, or after so many seconds."""
        self._silent.acquire(timeout=seconds)


def pause(interval_s: float | None, since_sync_s: float) -> float:
    """Return how long to sleep: a tick, but never past the next sync of the mode "interval"."""
    if interval_s is None:
        return _TICK_S
    return max(0.0, min(_TICK_S, interval_s - since_sync_s))


class Upkeep:
    """The thread; it begins with the first commit."""

    def __init__(self, shared: Shared, points: SteadyPoints) -> None:
        self._shared = shared
        self._points = points
        self._wake = Bell()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._start_lock = threading.Lock()
        self._intervals: list[float] = []  # of the stores with sync="interval", in seconds

    def add_interval(self, seconds: float) -> None:
        """Sync the journal as often as this from now on."""
        self._intervals.append(seconds)
        if self._shared.watched:
            self._wake.ring()  # it may be about to sleep for longer

    def remove_interval(self, seconds: float) -> None:
        """Take back `add_interval`."""
        self._intervals.remove(seconds)

    def notice(self) -> None:
        """There are commits, or many bytes since the last steady point."""
        self._shared.watched = True
        if self._thread is None:
            with self._start_lock:
                if self._thread is None and not self._stopping:
                    thread = threading.Thread(
                        target=self._run, name="streamkeep-upkeep", daemon=True
                    )
                    self._thread = thread
                    thread.start()
        self._wake.ring()

    def stop(self) -> None:
        """End the thread."""
        with self._start_lock:
            self._stopping = True
        self._wake.ring()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            if not self._stopping:
                self._watch()

    def _watch(self) -> None:
        """Serve the store until it has been quiet for a while."""
        shared = self._shared
        last_point = changed = time.monotonic()
        synced = last_point
        seen = -1
        erasures = shared.erasures
        interval = min(self._intervals, default=None)
        failure = ""
        while not self._stopping:
            try:
                now = time.monotonic()
                journal = shared.journal
                assert journal is not None
                if shared.last_commit != seen:
                    seen, changed = shared.last_commit, now
                interval = min(self._intervals, default=None)
                if interval is not None and now - synced >= interval:
                    synced = now
                    journal.sync(shared.last_commit)
                journal.prepare_spare()
                quiet = now - changed >= IDLE_S
                due = now - last_point >= POINT_EVERY_S
                in_the_way = journal.head.erasures() != erasures  # our pin keeps erased pages
                erasures = journal.head.erasures()
                if quiet or due or in_the_way or shared.unsteady_bytes >= BUDGET_BYTES:
                    shared.unsteady_bytes = 0
                    self._points.make()
                    last_point = now
                if quiet and self._points.unpin_if_idle():
                    shared.watched = False
                    if shared.last_commit == seen:
                        return
                    shared.watched = True
            except (StreamkeepError, lmdb.Error, OSError) as error:
                if str(error) != failure:
                    log.error("upkeep of the store failed: %s", error)
                failure = str(error)
                if not isinstance(error, lmdb.Error):  # else it may pass: no reader slot, say
                    shared.watched = False
                    return  # the next write says it, too
            self._wake.wait(pause(interval, time.monotonic() - synced))
