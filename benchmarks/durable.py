"""What durability costs: a sync per commit, alone and shared.

Compared with the disk itself, LMDB, SQLite, and RocksDB if `rocksdict` is installed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import lmdb

import streamkeep
import streamkeep.aio
from benchmarks.common import Child, Report, entries, scratch, sqlite_insert

KEY: Final = b"s"
PAGE: Final = 4096
_ROUNDS: Final = 20
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


def relaxed(report: Report, *, quick: bool) -> None:
    """Measure "interval" against "none", with checkpoints, and how the file grows."""
    seconds = 2.0 if quick else 60.0
    rates: dict[str, float] = {}
    modes: tuple[streamkeep.Sync, ...] = ("none", "interval")
    for mode in modes:
        with scratch() as folder, streamkeep.open(folder / "store", sync=mode) as store:
            batch = entries(1000)
            sizes: list[float] = []
            start = now = time.perf_counter()
            done = 0
            while now - start < seconds:
                for fields in batch:
                    store.xadd(KEY, fields)
                done += len(batch)
                store.xtrim(KEY, maxlen=100_000)
                now = time.perf_counter()
                if now - start >= seconds * (len(sizes) + 1) / 4:
                    sizes.append(store.used_bytes / (1 << 20))
            rates[mode] = done / (now - start)
            report.figure(f"xadd, {mode}, for {seconds:.0f} s", rates[mode], "entries/s")
            for quarter, size in enumerate(sizes, start=1):
                report.figure(f"  data file after quarter {quarter}", size, "MiB")
    report.figure('"none" against "interval"', rates["none"] / rates["interval"], "times", most=1.3)


def idle(report: Report, *, quick: bool) -> None:
    """Keep an idle store open while another process writes: its file must not grow for that."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        store.xadd(KEY, {"f": "v"})
        time.sleep(4)  # until the pin has gone
        sizes = []
        for _ in range(2):
            _processes(folder / "store", 1, 300 if quick else 20_000, "none")
            sizes.append(store.used_bytes / (1 << 20))
        report.figure("data file after another process wrote", sizes[0], "MiB")
        report.figure("  and after it wrote as much again", sizes[1], "MiB")


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


def _processes(path: Path, count: int, each: int, sync: str = "commit") -> float:
    """Return the entries per second that several processes append together."""
    code = _WRITER.replace("open(sys.argv[1])", f"open(sys.argv[1], sync={sync!r})")
    with ExitStack() as stack:
        children = [Child("-c", code, path, each) for _ in range(count)]
        workers = [stack.enter_context(one) for one in children]
        for worker in workers:
            worker.go()
        return sum(float(worker.line()) for worker in workers)
