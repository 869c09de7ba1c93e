"""Consumer groups: deliver and acknowledge, the cost of pending entries, destroying a group."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import streamkeep
from benchmarks.common import Report, best, entries, median_us, scratch, unpinned

KEY = b"s"
GROUP = b"workers"
OTHER = b"others"  # of the same stream, with nothing pending
CONSUMER = b"ann"
BATCH = 1000
HOUR_MS = 3_600_000
# COUNT of a cycle, and how many entries per second are the least.
CYCLES = ((1, 20_000), (10, 150_000), (100, 400_000))

Store = streamkeep.Store[bytes]


class Size(NamedTuple):
    """How much work: entries per measured cycle run, and entries left pending."""

    delivered: int
    pending: int


FULL = Size(200_000, 2_000_000)
QUICK = Size(20_000, 50_000)


def fill(store: Store, count: int) -> None:
    """Append entries in batches."""
    batch = entries(BATCH)
    for _ in range(count // BATCH):
        store.xadd_many(KEY, batch)


def deliver(store: Store, count: int, group: bytes = GROUP) -> list[bytes]:
    """Deliver up to `count` new entries; return their IDs."""
    found = store.xreadgroup(group, CONSUMER, {KEY: b">"}, count=count)
    return [entry.id for entry in found[0][1]] if found else []


def cycle(store: Store, count: int, group: bytes = GROUP) -> int:
    """Deliver and acknowledge, a transaction each; return how many entries there were."""
    ids = deliver(store, count, group)
    if ids:
        store.xack(KEY, group, *ids)
    return len(ids)


def cycles(report: Report, size: Size) -> None:
    """Measure cycles of XREADGROUP and XACK without sync."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        fill(store, size.delivered)
        store.xgroup_create(KEY, GROUP, id=0)
        for count, least in CYCLES:
            total = min(size.delivered, 20_000 * count)

            def run(count: int = count, total: int = total) -> None:
                store.xgroup_setid(KEY, GROUP, 0)
                done = 0
                while done < total:
                    done += cycle(store, count)

            with unpinned(store):
                rate = total / best(run, 3)
            report.figure(
                f"xreadgroup and xack, COUNT {count}, nothing pinned",
                rate,
                "entries/s",
                least=least,
            )
            rate = total / best(run, 3)
            report.figure("  as users run it", rate, "entries/s")


def pending(report: Report, size: Size) -> None:
    """Measure what many pending entries take, and what they do to the commands."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        calls = 2_000
        fill(store, size.pending + 4 * calls)
        store.xgroup_create(KEY, GROUP, id=0)
        store.xgroup_create(KEY, OTHER, id=0)
        before = store.used_bytes - store.reusable_bytes
        left = size.pending
        start = time.perf_counter()
        while left > 0:
            left -= len(deliver(store, min(left, BATCH)))
        rate = size.pending / (time.perf_counter() - start)
        taken = store.used_bytes - store.reusable_bytes - before
        report.figure(f"deliver {size.pending:,}, {BATCH:,} at a time", rate, "entries/s")
        report.figure("  disk per pending entry", taken / size.pending, "bytes")
        empty, full = alternate(
            lambda: cycle(store, 1, OTHER), lambda: cycle(store, 1, GROUP), calls
        )
        report.figure("cycle of COUNT 1, nothing else pending", empty, "us, median")
        report.figure(f"  with {size.pending:,} pending", full, "us, median")
        report.figure("  against nothing pending", full / empty, "times", most=1.5)
        _young(report, store, size.pending)
        start = time.perf_counter()
        store.xgroup_destroy(KEY, GROUP)
        duration_ms = (time.perf_counter() - start) * 1000
        report.figure(f"xgroup_destroy with {size.pending:,} pending", duration_ms, "ms")


def alternate(
    first: Callable[[], object], second: Callable[[], object], calls: int
) -> tuple[float, float]:
    """Return the median duration of two calls in microseconds, measured in turns of 50 calls."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * calls // 50):
        call, into = ((first, times[0]), (second, times[1]))[turn % 2]
        for _ in range(50):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    return tuple(statistics.median(into) * 1e6 for into in times)  # type: ignore[return-value]


def _young(report: Report, store: Store, count: int) -> None:
    """Try to claim where every entry is too young."""

    def sweep() -> None:
        cursor = b"0-0"
        while True:
            cursor, claimed, _ = store.xautoclaim(KEY, GROUP, b"bob", HOUR_MS, cursor)
            assert not claimed
            if cursor == b"0-0":
                return

    one = median_us(lambda: store.xautoclaim(KEY, GROUP, b"bob", HOUR_MS), 100)
    report.figure("xautoclaim, all too young: one call of COUNT 100", one, "us, median")
    report.figure("  all calls from end to end", count / best(sweep, 1), "entries/s")
    streams = {KEY: b">"}
    claim = median_us(
        lambda: store.xreadgroup(GROUP, b"bob", streams, count=1, claim_min_idle_time=HOUR_MS),
        100,
    )
    report.figure("xreadgroup with CLAIM, all too young", claim, "us, median")
