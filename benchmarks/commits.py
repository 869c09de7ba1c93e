"""What a commit costs without a sync: single commands, several processes, minutes of singles.

SQLite (WAL, synchronous=OFF) takes turns with the appends in the same run. Opening a clean store
and recovering one of a killed process are measured as well, because both read the journal.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import streamkeep
from benchmarks.common import Child, Report, entries, process_figure, scratch, sqlite_insert

KEY: Final = b"s"
GROUP: Final = b"workers"
_MIB: Final = 1 << 20
_LIMIT: Final = 100_000  # entries that stay in the stream of the long run

Store = streamkeep.Store[bytes]


class Size(NamedTuple):
    """How much work."""

    turn: int  # calls per turn
    turns: int
    cycles: int  # of each process
    seconds: float  # of single appends
    recovered: int  # appends of the process that is killed


FULL: Final = Size(3000, 20, 20_000, 300.0, 1_100_000)
QUICK: Final = Size(500, 4, 500, 3.0, 20_000)

# argv: path, cycles; each entry is appended by the process itself.
_CYCLES: Final = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
group = sys.argv[3]
store.xgroup_create("s", group, id="$", mkstream=True)
count = int(sys.argv[2])
taken = []
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
for _ in range(count):
    start = time.perf_counter()
    store.xadd("s", {"f": "v"})
    middle = time.perf_counter()
    found = store.xreadgroup(group, "c", {"s": ">"}, count=1)
    store.xack("s", group, *[entry.id for entry in found[0][1]])
    end = time.perf_counter()
    taken += [middle - start, (end - middle) / 2]
total = time.perf_counter() - begin
taken.sort()
print(count / total, taken[len(taken) * 99 // 100], flush=True)
"""
_WORKER: Final = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
count = left = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
while left:
    found = store.xreadgroup("workers", "c", {"s": ">"}, count=1, block=60_000)
    left -= store.xack("s", "workers", *[entry.id for entry in found[0][1]])
print(count / (time.perf_counter() - begin), flush=True)
"""
_PRODUCER: Final = """
import sys, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    store.xadd("s", {"f": "v"})
sys.stdin.readline()
"""
_READER: Final = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
print("ready", flush=True)
while True:
    store.xrevrange("s", count=1)
    time.sleep(1)
"""
# argv: path, the call that this process makes in its turn.
_TURNS: Final = """
import sys, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
writes = sys.argv[2] == "xadd"
print("ready", flush=True)
while sys.stdin.readline():
    if writes:
        store.xadd("s", {"f": "v"})
    else:
        store.xrevrange("s", count=1)
    print("done", flush=True)
"""
_SINGLES: Final = """
import sys, streamkeep
from benchmarks.common import entries
store = streamkeep.open(sys.argv[1], sync="none")
batch = entries(1000)
print("ready", flush=True)
for _ in range(int(sys.argv[2]) // 1000):
    for fields in batch:
        store.xadd("s", fields)
print("done", flush=True)
sys.stdin.readline()
"""


def singles(report: Report, size: Size) -> None:
    """Measure single commands in turns with SQLite's insert."""
    batch = entries(size.turn)
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        insert = sqlite_insert(folder, "off")
        store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
        calls: dict[str, Callable[[int], object]] = {
            "sqlite": lambda one: insert(batch[one]),
            "xadd": lambda one: store.xadd(KEY, batch[one]),
            "read": lambda one: (store.xadd(KEY, batch[one]), store.xrevrange(KEY, count=1)),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(size.turns):
            for name, call in calls.items():
                start = time.perf_counter()
                for one in range(size.turn):
                    call(one)
                times[name].append((time.perf_counter() - start) / size.turn * 1e6)
        each = {name: statistics.median(found) for name, found in times.items()}
        report.figure("SQLite, WAL, synchronous=OFF, an insert", each["sqlite"], "us, median")
        report.figure("xadd", each["xadd"], "us, median")
        report.figure("  against SQLite", each["sqlite"] / each["xadd"], "times", least=2)
        report.figure("xadd, then xrevrange(count=1)", each["read"], "us, median")
        alone, beside = [], []
        for _ in range(5):  # in turns
            alone.append(_rate(store, size))
            with Child("-c", _READER, folder / "store"):
                beside.append(_rate(store, size))
        rate = statistics.median(beside)
        report.figure("xadd beside a process that reads once a second", rate, "entries/s")
        report.figure("  against xadd alone", rate / statistics.median(alone), "times", least=0.8)


def processes(report: Report, size: Size) -> None:
    """Measure cycles of XADD, XREADGROUP and XACK of several processes, each with its own group."""
    rates: dict[int, float] = {}
    for count in (1, 2, 4):
        with scratch() as folder:
            rates[count], slowest = _cycles(folder / "store", count, size.cycles)
        report.figure(f"cycles of {count} processes, COUNT 1", rates[count], "/s together")
        if count > 1:
            report.figure("  against one", rates[count] / rates[1], "times")
        report.figure("  slowest hundredth of the calls", slowest * 1000, "ms", most=5)
    with scratch() as folder:
        path, cycles = folder / "store", str(size.cycles)
        with streamkeep.open(path, sync="none") as store:
            store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
        with (
            Child("-c", _WORKER, path, cycles) as worker,
            Child("-c", _PRODUCER, path, cycles) as producer,
        ):
            worker.go()
            producer.go()
            rate = float(worker.line())
        report.figure("one producer and one worker that blocks, COUNT 1", rate, "entries/s")
    for command in ("xadd", "xrevrange"):
        with scratch() as folder:
            each = _turns(folder / "store", command, size.turn)
        report.figure(f"xadd, then {command} of another process, in turns", each, "us, median")


def shared_commits(report: Report, size: Size) -> None:
    """Measure how many transactions XADD and XACK of 16 threads take."""
    with scratch() as folder, streamkeep.open(folder / "store") as store:
        share = max(20, size.turn // 16)
        store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
        ids: list[list[bytes]] = [[] for _ in range(16)]

        def add(number: int) -> None:
            ids[number] += [store.xadd(KEY, {"f": "v"}) for _ in range(share)]

        def acknowledge(number: int) -> None:
            for one in ids[number]:
                store.xack(KEY, GROUP, one)

        added = _commits(store, add) / (16 * share)
        store.xreadgroup(GROUP, b"c", {KEY: b">"}, count=16 * share)
        acked = _commits(store, acknowledge) / (16 * share)
        report.figure("transactions per xadd, 16 threads", added, "")
        report.figure("transactions per xack, 16 threads", acked, "")
        report.figure("  against xadd", acked / added, "times", most=1.15)


def minutes(report: Report, size: Size) -> None:
    """Append one by one for minutes, in a stream that is trimmed: the data file must stay flat."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        batch = entries(1000)
        sizes: list[float] = []
        device, own, done = _device_bytes(folder), process_figure("write_bytes", "io"), 0
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
        report.figure(
            "  at the block device, all processes", (_device_bytes(folder) - device) / done, "bytes"
        )


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
        with Child("-c", _SINGLES, killed, size.recovered) as worker:  # killed at the end
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


def _cycles(path: Path, count: int, cycles: int) -> tuple[float, float]:
    """Return the cycles per second of some processes together, and the slowest hundredth, in s."""
    with ExitStack() as stack:
        children = [Child("-c", _CYCLES, path, cycles, f"group-{one}") for one in range(count)]
        workers = [stack.enter_context(one) for one in children]
        for worker in workers:
            worker.go()
        found = [tuple(map(float, worker.line().split())) for worker in workers]
        return sum(rate for rate, _ in found), max(slow for _, slow in found)


def _turns(path: Path, command: str, count: int) -> float:
    """Return how long an `xadd` and then a command of another process take, in us."""
    times = []
    with streamkeep.open(path, sync="none") as store, Child("-c", _TURNS, path, command) as other:
        for _ in range(count):
            start = time.perf_counter()
            store.xadd(KEY, {"f": "v"})
            other.go()
            assert other.line() == "done"
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _commits(store: Store, work: Callable[[int], None]) -> int:
    """Return how many commits 16 threads make."""
    before = store.durability().last_commit
    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return store.durability().last_commit - before


def _device_bytes(folder: Path) -> int:
    """Return how many bytes were written to the block device of a folder; 0 if that is unknown."""
    device = folder.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(stat.read_text().split()[6]) * 512 if stat.exists() else 0


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    size = QUICK if quick else FULL
    singles(report, size)
    processes(report, size)
    shared_commits(report, size)
    openings(report, size)
    minutes(report, size)
