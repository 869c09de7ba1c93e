"""Stores that do not wait for the disk: commands, groups, processes, minutes of appends, recovery.

SQLite (WAL, synchronous=OFF) takes turns with the appends in the same run. Opening a clean store
and recovering one of a killed process are measured as well, because both read the journal.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Final, NamedTuple

import streamkeep
from benchmarks.common import (
    Child,
    Report,
    best,
    entries,
    in_turns,
    median_us,
    process_figure,
    scratch,
    timed,
)
from benchmarks.compare import ROWS, compare
from benchmarks.embedded import new_sqlite

KEY: Final = b"s"
GROUP: Final = b"workers"
_MIB: Final = 1 << 20
_WORKERS: Final = "one producer, four workers, relaxed"
_LIMIT: Final = 100_000  # entries that stay in the stream of the long run

Store = streamkeep.Store[bytes]


class Size(NamedTuple):
    """How much work."""

    turn: int  # calls per turn
    turns: int
    cycles: int  # of each process
    seconds: float  # of single appends
    recovered: int  # appends of the process that is killed
    large: int  # entries of the stream that is read
    pending: int  # entries


FULL: Final = Size(3000, 20, 20_000, 300.0, 1_100_000, 10_000_000, 2_000_000)
QUICK: Final = Size(500, 4, 500, 3.0, 20_000, 100_000, 50_000)

_READER: Final = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
print("ready", flush=True)
while True:
    store.xrevrange("s", count=1)
    time.sleep(1)
"""
# argv: path, number of appends, key; it then waits until it is killed.
SINGLES: Final = """
import sys, streamkeep
from benchmarks.common import entries
store = streamkeep.open(sys.argv[1], sync="none")
batch = entries(1000)
print("ready", flush=True)
for _ in range(int(sys.argv[2]) // 1000):
    for fields in batch:
        store.xadd(sys.argv[3], fields)
print("done", flush=True)
sys.stdin.readline()
"""


def singles(report: Report, size: Size) -> None:
    """Measure single commands in turns with SQLite's insert."""
    given = cycle(entries(size.turn))
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        table = new_sqlite(folder, "off")
        store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
        calls: list[Callable[[], object]] = [
            lambda: table.append(next(given)),
            lambda: store.xadd(KEY, next(given)),
            lambda: (store.xadd(KEY, next(given)), store.xlen(KEY)),
            lambda: (store.xadd(KEY, next(given)), store.xrevrange(KEY, count=1)),
        ]
        times = in_turns(calls, size.turns, size.turn)
        sqlite, xadd, xlen, read = (1e6 * statistics.median(found) for found in times)
        report.figure("SQLite, WAL, synchronous=OFF, an insert", sqlite, "us, median")
        report.figure("xadd", xadd, "us, median")
        report.figure("  against SQLite", sqlite / xadd, "times", least=2)
        report.figure("xadd, then xlen", xlen, "us, median")
        report.figure("xadd, then xrevrange(count=1)", read, "us, median")
        alone, beside = [], []
        for _ in range(5):  # in turns
            alone.append(_rate(store, size))
            with Child("-c", _READER, folder / "store"):
                beside.append(_rate(store, size))
        rate = statistics.median(beside)
        report.figure("xadd beside a process that reads once a second", rate, "entries/s")
        report.figure("  against xadd alone", rate / statistics.median(alone), "times", least=0.8)


def processes(report: Report, size: Size) -> None:
    """Measure processes that share a store, and two that write in turns."""
    rates: list[float] = []
    for name in (*(one for one in ROWS if "xack" in one and "relaxed" in one), _WORKERS):
        row = ROWS[name]._replace(calls=size.cycles)
        ((turn,),) = compare([sys.executable], row, 1)
        rates.append(turn.rate)
        report.figure(name, turn.rate, "/s")
        if len(row.roles) in (2, 4):
            report.figure("  against one", turn.rate / rates[0], "times")
        if name != _WORKERS:
            report.figure("  slowest hundredth of the calls", turn.p99_us / 1000, "ms", most=15)
            report.figure("  longest call", turn.worst_us / 1000, "ms")


def minutes(report: Report, size: Size) -> None:
    """Append one by one for minutes, in a stream that is trimmed: the data file must stay flat."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        batch = entries(1000)
        sizes: list[float] = []
        own, done = process_figure("write_bytes", "io"), 0
        start = now = time.perf_counter()
        while now - start < size.seconds:
            for fields in batch:
                store.xadd(KEY, fields)
            done += len(batch)
            store.xtrim(KEY, maxlen=_LIMIT)
            now = time.perf_counter()
            if now - start >= size.seconds * (len(sizes) + 1) / 5:
                sizes.append(store.used_bytes / _MIB)
        store.sync()
        os.sync()
        report.figure(f"xadd for {size.seconds:.0f} s", done / (now - start), "entries/s")
        for fifth, mib in enumerate(sizes, start=1):
            report.figure(f"  data file after fifth {fifth}", mib, "MiB", most=256)
        if len(sizes) > 1:
            report.figure("  growth after the first fifth", sizes[-1] / sizes[0], "times", most=1.1)
        written = (process_figure("write_bytes", "io") - own) / done
        report.figure("  written for this process", written, "bytes per entry", most=400)


def openings(report: Report, size: Size) -> None:
    """Measure opening a clean store, and recovering one whose process was killed."""
    with scratch() as folder:
        path = folder / "store"
        with streamkeep.open(path) as store:
            store.xadd_many(KEY, entries(10_000))
        times = []
        for _ in range(20):
            start = time.perf_counter()
            store = streamkeep.open(path)
            times.append((time.perf_counter() - start) * 1000)
            store.close()
        report.figure("opening a clean store", statistics.median(times), "ms, median", most=5)
        killed = folder / "killed"
        with Child("-c", SINGLES, killed, size.recovered, "s") as worker:  # killed at the end
            assert worker.line() == "done"
        start = time.perf_counter()
        with streamkeep.open(killed) as store:
            seconds = time.perf_counter() - start
            recovery = store.durability().last_recovery
            assert recovery is not None
            assert store.xlen(KEY) == size.recovered // 1000 * 1000
            report.figure(f"recovery after {size.recovered:,} single appends", seconds, "s", most=5)
            report.figure("  commits replayed from the journal", recovery.replayed, "")


def _rate(store: Store, size: Size) -> float:
    """Return the single appends per second over at least a second."""
    batch = entries(size.turn)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < 1:
        for fields in batch:
            store.xadd(KEY, fields)
        done += len(batch)
    return done / (time.perf_counter() - start)


def groups(report: Report, size: Size) -> None:
    """Measure XREADGROUP with XACK, and what pending entries take and cost."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        calls = 2_000
        for _ in range((size.pending + 4 * calls) // 1000):
            store.xadd_many(KEY, entries(1000))
        for group in (GROUP, b"others"):
            store.xgroup_create(KEY, group, id=0)
        for count, least in ((1, 20_000), (10, 150_000), (100, 400_000)):
            total = min(size.pending, 20_000 * count)

            def cycles(count: int = count, total: int = total) -> None:
                store.xgroup_setid(KEY, GROUP, 0)
                for _ in range(total // count):
                    _cycle(store, GROUP, count)

            rate = total / best(cycles, 3)
            report.figure(f"xreadgroup and xack, COUNT {count}", rate, "entries/s", least=least)
        store.xgroup_setid(KEY, GROUP, 0)
        before = store.used_bytes - store.reusable_bytes

        def deliver() -> None:
            left = size.pending
            while left > 0:
                found = store.xreadgroup(GROUP, b"c", {KEY: b">"}, count=min(left, 1000))
                left -= len(found[0][1])

        rate = size.pending / timed(deliver)
        taken = store.used_bytes - store.reusable_bytes - before
        report.figure(f"deliver {size.pending:,}, 1,000 at a time", rate, "entries/s")
        report.figure("  disk per pending entry", taken / size.pending, "bytes")
        times: dict[bytes, list[float]] = {b"others": [], GROUP: []}
        for turn in range(2 * calls // 50):
            group = (b"others", GROUP)[turn % 2]
            one = partial(_cycle, store, group, 1)
            times[group] += [timed(one) for _ in range(50)]
        empty, full = (statistics.median(one) * 1e6 for one in times.values())
        report.figure("cycle of COUNT 1, nothing else pending", empty, "us, median")
        report.figure(f"  with {size.pending:,} pending", full, "us, median")
        report.figure("  against nothing pending", full / empty, "times", most=1.5)
        ended = 1000 * timed(lambda: store.xgroup_destroy(KEY, GROUP))
        report.figure(f"xgroup_destroy with {size.pending:,} pending", ended, "ms")


def reads(report: Report, size: Size) -> None:
    """Append in batches, read ranges and points of a large stream, trim it."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        batch = entries(1000)
        start = process_figure("RssAnon")
        rate = size.large / timed(lambda: store.xadd_many(KEY, batch), size.large // len(batch))
        report.figure("xadd_many of 1,000", rate, "entries/s", least=1_000_000)
        memory = [process_figure("RssAnon")]
        with store.snapshot() as snapshot:
            (stat,) = snapshot.stats()
        file = (folder / "store" / "data.mdb").stat().st_size
        report.figure("disk per byte of listpack", file / stat.node_bytes, "", most=1.1)
        report.figure("disk per entry", file / size.large, "bytes")
        steps = min(size.large, 1_000_000)

        def in_steps() -> None:
            last: str | bytes = "-"
            for _ in range(steps // 1000):
                last = b"(" + store.xrange(KEY, last, "+", 1000)[-1].id

        rate = steps / best(in_steps, 2)
        report.figure(f"xrange of {steps:,}, 1,000 at a time", rate, "entries/s", least=700_000)
        ids = [one.id for one in islice(store.scan(KEY), 0, None, max(1, size.large // 20_000))]
        rng = random.Random(1)

        def point() -> None:
            one = rng.choice(ids)
            store.xrange(KEY, one, one)

        title = f"one entry of {size.large:,} by ID"
        report.figure(title, median_us(point, 5000), "us, median", most=25)
        memory.append(process_figure("RssAnon"))
        began = time.perf_counter()
        trimmed = store.xtrim(KEY, maxlen=1000, limit=0)
        rate = trimmed / (time.perf_counter() - began)
        report.figure("trim to 1,000 entries", rate, "entries/s")
        grown = max(*memory, process_figure("RssAnon")) - start
        report.figure("memory grown by append, scan and trim", grown / 1024, "MiB", most=64)


def _cycle(store: Store, group: bytes, count: int) -> None:
    found = store.xreadgroup(group, b"c", {KEY: b">"}, count=count)
    store.xack(KEY, group, *[entry.id for entry in found[0][1]])


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    size = QUICK if quick else FULL
    singles(report, size)
    groups(report, size)
    reads(report, size)
    processes(report, size)
    openings(report, size)
    minutes(report, size)
