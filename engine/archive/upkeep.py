"""`maintain`: retention of all streams, dropping of old segments, forgetting of old messages."""

from __future__ import annotations

from typing import NamedTuple

from streamkeep.engine.archive.garbage import collect
from streamkeep.engine.archive.segments import drop
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.commands.retention import enforce_step, has_limits
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.idempotency_sweep import BEGIN, SweepPlace, has_messages, sweep_step
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.keys import IDEMPOTENCY_ORDER
from streamkeep.format.segment.manifest import SegmentRecord


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
    report = MaintenanceReport()
    for name in environment.read(_with_limits):
        trimmed = 0
        while step := environment.write(enforce_step, name, frees=True):
            trimmed += step
            environment.settle()
        if trimmed:
            report = report._replace(trimmed=report.trimmed + trimmed, streams=report.streams + 1)
    forgotten = 0
    for name in environment.read(_with_messages):
        place: SweepPlace | None = BEGIN
        while place is not None:
            count, place = environment.write(sweep_step, name, place, frees=True)
            forgotten += count
            environment.settle()
    report = report._replace(forgotten=forgotten)
    doomed = environment.read(_too_old, environment.context.clock.now_ms())
    if doomed:
        report = report._replace(dropped=len(drop(environment, doomed, wait=wait)))
    collect(environment)
    return report


def _with_limits(txn: Txn) -> list[bytes]:
    return [name for name, number in iter_keys(txn) if has_limits(txn.load_numbered(number, name))]


def _with_messages(txn: Txn) -> list[bytes]:
    if not txn.rows(IDEMPOTENCY_ORDER):
        return []
    return [name for name, number in iter_keys(txn) if has_messages(txn, name, number)]


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
