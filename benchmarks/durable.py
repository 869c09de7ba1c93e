"""Stores that wait for the disk: a sync per commit, alone and shared; and readers that are woken.

Compared with the disk itself, LMDB, SQLite, and RocksDB if `rocksdict` is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import lmdb

import streamkeep
import streamkeep.aio
from benchmarks.common import Child, Report, entries, median_us, scratch, sqlite_insert

KEY: Final = b"s"
PAGE: Final = 4096
_ROUNDS: Final = 20
_WAITERS: Final = 100
_WRITER: Final = """
import sys, time, streamkeep
from benchmarks.common import entries
store = streamkeep.open(sys.argv[1])
batch = entries(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
for fields in batch:
    store.xadd("s", fields)
print(len(batch) / (time.perf_counter() - start), flush=True)
"""


# argv: path, command, how many entries; prints how long each was under way, in ns.
_READER: Final = """
import json, sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
delays, last = [], "0"
print("ready", flush=True)
while len(delays) < int(sys.argv[3]):
    if sys.argv[2] == "xread":
        found = store.xread({"s": last}, block=60_000)
    else:
        found = store.xreadgroup("g", "c", {"s": ">"}, block=60_000, noack=True)
    now = time.monotonic_ns()
    delays += [now - int(one.fields[b"at"]) for one in found[0][1]]
    last = found[0][1][-1].id
print(json.dumps(delays), flush=True)
"""


def commits(report: Report, *, quick: bool) -> None:
    """Measure appends with sync="commit"."""
    count = 300 if quick else 3000
    batch = entries(count)
    with scratch() as folder:
        with streamkeep.open(folder / "store") as store:
            store.xadd(KEY, batch[0])
            probe_file = _probe_file(folder)
            insert = sqlite_insert(folder, "full")
            calls: dict[str, Callable[[int], object]] = {
                "probe": lambda one: os.pwrite(probe_file, bytes(PAGE), one * PAGE),
                "lmdb": _lmdb_put(folder),
                "sqlite": lambda one: insert(batch[one]),
                "xadd": lambda one: store.xadd(KEY, batch[one]),
            }
            rocks = _rocks_put(folder, batch)
            if rocks is not None:
                calls["rocksdb"] = rocks
            rates = _side_by_side(calls, count)
            probe, bare, alone = rates["probe"], rates["lmdb"], rates["xadd"]
            sqlite, rocksdb = rates["sqlite"], rates.get("rocksdb", 0.0)
            report.figure("write of 4 KiB, O_DSYNC (probe)", probe, "/s")
            report.figure("LMDB's own synced commit", bare, "/s")
            report.figure("SQLite, WAL, synchronous=FULL", sqlite, "rows/s")
            if rocksdb:
                report.figure("RocksDB, write-ahead log synced", rocksdb, "entries/s")
            else:
                report.note("RocksDB: skipped, rocksdict is not installed")
            report.figure("xadd, one thread", alone, "entries/s")
            report.figure("  against LMDB's own", alone / bare, "times")
            report.figure("  against SQLite", alone / sqlite, "times", least=1)
            if rocksdb:
                report.figure("  against RocksDB", alone / rocksdb, "times", least=1)
            report.figure("  time against the probe's", probe / alone, "times", most=1.25)
            for threads, least in ((16, 6.0), (64, 10.0)):
                rate = _threads(store, threads, batch * 8)
                report.figure(f"xadd, {threads} threads", rate, "entries/s")
                report.figure("  against LMDB's own", rate / bare, "times", least=least)
            thousand = entries(1000)
            rounds = 5 if quick else 100
            seconds = _seconds_each(lambda _: store.xadd_many(KEY, thousand), rounds)
            report.figure("xadd_many of 1,000", 1000 / seconds, "entries/s", least=700_000)
        rate = asyncio.run(_tasks(folder / "tasks", 64, batch * 8))
        report.figure("xadd, 64 tasks of asyncio", rate, "entries/s")
        report.figure("  against LMDB's own", rate / bare, "times", least=12)
        one = _processes(folder / "one", 1, count)
        four = _processes(folder / "four", 4, count)
        report.figure("xadd, one other process", one, "entries/s")
        report.figure("xadd, four processes together", four, "entries/s")
        report.figure("  against one", four / one, "times", least=1.8)


def wakes(report: Report, *, quick: bool) -> None:
    """Append at random moments until a reader of another process has each entry."""
    count = 200 if quick else 5_000
    rng = random.Random(1)
    for command in ("xread", "xreadgroup"):
        with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
            store.xgroup_create(KEY, "g", mkstream=True)
            with Child("-c", _READER, folder / "store", command, count) as reader:
                time.sleep(0.5)
                for _ in range(count):
                    time.sleep(rng.uniform(0.0003, 0.0015))  # in which it falls asleep again
                    store.xadd(KEY, {"at": time.monotonic_ns()})
                delays = sorted(json.loads(reader.line()))
        title = f"append until a blocked {command} of another process has it"
        report.figure(title, delays[count // 2] / 1000, "us, median", most=200)
        report.figure("  99.9 %", delays[int(count * 0.999)] / 1000, "us", most=4000)


def waiting(report: Report) -> None:
    """Measure what threads cost that wait in vain, and what an append costs beside them."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        alone = median_us(lambda: store.xadd("busy", {"f": "v"}), 20_000)
        threads = [
            threading.Thread(target=lambda: store.xread({"quiet": "$"}, block=60_000))
            for _ in range(_WAITERS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(2)
        before = time.process_time()
        time.sleep(5)
        share = (time.process_time() - before) / 5
        report.figure(f"{_WAITERS} blocked threads", 100 * share, "% of a core", most=1)
        beside = median_us(lambda: store.xadd("busy", {"f": "v"}), 20_000)
        store.xadd("quiet", {"f": "v"})
        for thread in threads:
            thread.join()
        report.figure(f"xadd, {_WAITERS} wait for other keys", beside, "us, median")
        report.figure("  more than with none", beside - alone, "us")


def _seconds_each(call: Callable[[int], object], count: int) -> float:
    start = time.perf_counter()
    for one in range(count):
        call(one)
    return (time.perf_counter() - start) / count


def _side_by_side(calls: dict[str, Callable[[int], object]], count: int) -> dict[str, float]:
    """Return the calls per second of each, made in turns, because the speed of the disk changes."""
    seconds = dict.fromkeys(calls, 0.0)
    turn = max(1, count // _ROUNDS)
    for first in range(0, count, turn):
        for name, call in calls.items():
            start = time.perf_counter()
            for one in range(first, min(first + turn, count)):
                call(one)
            seconds[name] += time.perf_counter() - start
    return {name: count / taken for name, taken in seconds.items()}


def _probe_file(folder: Path) -> int:
    """Return a descriptor for synced writes to a file whose blocks were written before."""
    path = folder / "probe"
    with path.open("wb", buffering=0) as file:
        for _ in range(4096):  # a large write may stay one unit, which is synced whole
            file.write(bytes(PAGE))
        os.fsync(file.fileno())
    return os.open(path, os.O_RDWR | os.O_DSYNC)


def _lmdb_put(folder: Path) -> Callable[[int], None]:
    (folder / "lmdb").mkdir()
    raw = lmdb.open(str(folder / "lmdb"), map_size=1 << 30)
    value = bytes(PAGE - 16)

    def put(one: int) -> None:
        with raw.begin(write=True) as txn:
            txn.put(b"%d" % (one // 66), value)

    return put


def _rocks_put(folder: Path, batch: list[dict[bytes, bytes]]) -> Callable[[int], None] | None:
    """Return what writes an entry to RocksDB; None where its package is not installed."""
    try:
        import rocksdict
    except ImportError:
        return None
    database = rocksdict.Rdict(str(folder / "rocksdb"), rocksdict.Options(raw_mode=True))
    options = rocksdict.WriteOptions()
    options.sync = True
    database.set_write_options(options)
    values = [b"".join(fields.values()) for fields in batch]

    def put(one: int) -> None:
        database[b"%016d" % one] = values[one]

    return put


def _threads(
    store: streamkeep.Store[bytes], threads: int, batch: list[dict[bytes, bytes]]
) -> float:
    """Return the entries per second that many threads append together."""
    share = len(batch) // threads

    def work(number: int) -> None:
        for fields in batch[number * share : (number + 1) * share]:
            store.xadd(KEY, fields)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return share * threads / (time.perf_counter() - start)


async def _tasks(path: Path, tasks: int, batch: list[dict[bytes, bytes]]) -> float:
    """Return the entries per second that many tasks append together."""
    share = len(batch) // tasks
    store: Any = await streamkeep.aio.open(path)

    async def work(number: int) -> None:
        for fields in batch[number * share : (number + 1) * share]:
            await store.xadd(KEY, fields)

    async with store:
        start = time.perf_counter()
        await asyncio.gather(*(work(number) for number in range(tasks)))
        return share * tasks / (time.perf_counter() - start)


def _processes(path: Path, count: int, each: int) -> float:
    """Return the entries per second that several processes append together."""
    with ExitStack() as stack:
        children = [Child("-c", _WRITER, path, each) for _ in range(count)]
        workers = [stack.enter_context(one) for one in children]
        for worker in workers:
            worker.go()
        return sum(float(worker.line()) for worker in workers)


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    commits(report, quick=quick)
    wakes(report, quick=quick)
    waiting(report)
