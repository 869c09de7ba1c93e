"""`maintain`: retention of all streams, dropping of old segments, forgetting of old messages."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final, NamedTuple

from streamkeep.engine.archive.archiver import DEFAULT_OPTIONS, archive
from streamkeep.engine.archive.garbage import collect
from streamkeep.engine.archive.publish import publish
from streamkeep.engine.archive.segments import drop
from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.commands.retention import enforce_step, has_limits
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StoreClosedError, StoreLockedError
from streamkeep.format.core.keys import IDEMPOTENCY_ORDER
from streamkeep.format.rows.extension import idempotence_of
from streamkeep.format.segment.manifest import SegmentRecord

PRODUCERS_AT_ONCE: Final = 200  # in one transaction that forgets messages
MESSAGES_AT_ONCE: Final = 500


class MaintenanceReport(NamedTuple):
    """The result of a call of `maintain`.

    Attributes:
        trimmed: the number of trimmed entries, over all streams.
        streams: the number of trimmed streams.
        dropped: the number of dropped segments, which were too old.
        forgotten: the number of forgotten messages of idempotent XADD, which had expired.
    """

    trimmed: int = 0
    streams: int = 0
    dropped: int = 0
    forgotten: int = 0


def maintain(environment: Environment, *, wait: bool = True) -> MaintenanceReport:
    """Do everything that is due, in transactions of a bounded number of nodes or messages.

    The files of dropped segments are removed, also those that an earlier call has left.

    Args:
        wait: wait for an archiver that is at work, before segments are dropped; otherwise raise
            StoreLockedError.
    """
    trimmed = streams = forgotten = dropped = 0
    for name in environment.read(_with_limits):
        before = trimmed
        while step := environment.write(enforce_step, name, frees=True):
            trimmed += step
            environment.settle()
        streams += trimmed > before
    for name in environment.read(_with_messages):
        following = 0
        while following >= 0:
            count, following = environment.write(_forget_step, name, following, frees=True)
            forgotten += count
            environment.settle()
    doomed = environment.read(_too_old, environment.context.clock.now_ms())
    if doomed:
        dropped = len(drop(environment, doomed, wait=wait))
    collect(environment)
    return MaintenanceReport(trimmed, streams, dropped, forgotten)


def _with_limits(txn: Txn) -> list[bytes]:
    return [name for name, number in iter_keys(txn) if has_limits(txn.load_numbered(number, name))]


def _with_messages(txn: Txn) -> list[bytes]:
    if not txn.rows(IDEMPOTENCY_ORDER):
        return []
    return [
        name
        for name, number in iter_keys(txn)
        if idempotence_of(txn.load_numbered(number, name).record.extension, "stream").tracked
    ]


def _forget_step(txn: WriteTxn, name: bytes, start: int) -> tuple[int, int]:
    """Forget some of the expired messages of a stream, from a producer on.

    Returns:
        How many were forgotten, and the producer to continue with, or -1 at the end.
    """
    stream = txn.find_stream(name)
    if stream is None:
        return 0, -1
    tracker = Tracker(txn, stream)
    count, following = tracker.forget_expired(start, PRODUCERS_AT_ONCE, MESSAGES_AT_ONCE)
    if count:
        tracker.save()
    return count, following


def _too_old(txn: Txn, now_ms: int) -> list[SegmentRecord]:
    """Return the segments whose newest entry is older than their stream's limit for the archive."""
    doomed = []
    for name, number in iter_keys(txn):
        policy = txn.load_numbered(number, name).retention()
        if policy is None or policy.archive_max_age_ms is None:
            continue
        oldest = now_ms - policy.archive_max_age_ms
        for record in iter_segments(txn, number):
            if record.last_ms >= oldest:
                break
            doomed.append(record)
    return doomed


# --- the thread of a store ------------------------------------------------------------------------

WORTH_A_FILE: Final = 4 << 20  # bytes of nodes
PATIENCE: Final = 20  # each 20th round also archives streams below that size
_WORK: Final = "archiving"


class ArchiveThread:
    """Maintains and archives a store at regular intervals: `streamkeep.open(archive_every="1m")`.

    Each round enforces retention and archives; if the archive is kept in an object store, it also
    brings that up to date. Entries that are too few for a file remain retired, where history shows
    them, until they are enough or have waited for some rounds. A round never waits for another
    archiver of any process: where it would have to, it ends. No error ends the thread: a failed
    round is logged, reported by `Store.durability`, and tried again.
    """

    def __init__(self, environment: Environment, every_s: float) -> None:
        self._environment = environment
        self._every_s = every_s
        self._stopping = threading.Event()
        self._rounds = 0
        self._thread = threading.Thread(target=self._run, name="streamkeep-archive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            error = self._environment.failures.attempt(_WORK, self._round)
            if isinstance(error, StoreClosedError):
                return

    def _round(self) -> None:
        self._rounds += 1
        least = 0 if self._rounds % PATIENCE == 0 else WORTH_A_FILE
        options = DEFAULT_OPTIONS._replace(least_bytes=least)
        with suppress(StoreLockedError):  # another archiver is at work
            maintain(self._environment, wait=False)
            archive(self._environment, options, wait=False)
            publish(self._environment, wait=False)
