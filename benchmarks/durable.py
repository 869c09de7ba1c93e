"""Stores that wait for the disk: a sync per commit, alone and shared; and readers that are woken.

Compared with the disk itself, LMDB, SQLite, and RocksDB if `rocksdict` is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count as numbers
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import lmdb

import streamkeep
import streamkeep.aio
from benchmarks.common import Child, Report, entries, in_turns, median_us, scratch, timed
from benchmarks.compare import ROWS, compare
from benchmarks.embedded import RocksDB, new_sqlite

KEY: Final = b"s"
PAGE: Final = 4096
_PROBED: Final = 4096  # pages
_ROUNDS: Final = 20
_WAITERS: Final = 100
_PROCESSES: Final = ("1 process", "4 processes")
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
            given = cycle(batch)
            table = new_sqlite(folder, "full")
            calls: dict[str, Callable[[], object]] = {
                "probe": _probe(folder),
                "lmdb": _lmdb_put(folder),
                "sqlite": lambda: table.append(next(given)),
                "xadd": lambda: store.xadd(KEY, next(given)),
            }
            if find_spec("rocksdict"):
                rocks = RocksDB(folder, synced=True)
                calls["rocksdb"] = lambda: rocks.append(next(given))
            times = in_turns(calls.values(), _ROUNDS, max(1, count // _ROUNDS))
            rates = {name: 1 / fmean(found) for name, found in zip(calls, times, strict=True)}
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
            seconds = timed(lambda: store.xadd_many(KEY, thousand), rounds)
            report.figure("xadd_many of 1,000", 1000 * rounds / seconds, "entries/s", least=700_000)
        rate = asyncio.run(_tasks(folder / "tasks", 64, batch * 8))
        report.figure("xadd, 64 tasks of asyncio", rate, "entries/s")
        report.figure("  against LMDB's own", rate / bare, "times", least=12)
    rows = (ROWS[f"xadd, {how}, durable"]._replace(calls=count) for how in _PROCESSES)
    one, four = (compare([sys.executable], row, 1)[0][0].rate for row in rows)
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


def _probe(folder: Path) -> Callable[[], object]:
    """Return what writes a page, synced, to a file whose blocks were written before."""
    path = folder / "probe"
    with path.open("wb", buffering=0) as file:
        for _ in range(_PROBED):  # a large write may stay one unit, which is synced whole
            file.write(bytes(PAGE))
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDWR | os.O_DSYNC)
    page = cycle(range(_PROBED))
    return lambda: os.pwrite(descriptor, bytes(PAGE), next(page) * PAGE)


def _lmdb_put(folder: Path) -> Callable[[], None]:
    (folder / "lmdb").mkdir()
    raw = lmdb.open(str(folder / "lmdb"), map_size=1 << 30)
    value = bytes(PAGE - 16)
    number = numbers()

    def put() -> None:
        with raw.begin(write=True) as txn:
            txn.put(b"%d" % (next(number) // 66), value)

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


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    commits(report, quick=quick)
    wakes(report, quick=quick)
    waiting(report)
