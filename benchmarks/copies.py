"""Copies elsewhere: what shipping costs writers, and how fast restore, proof and standby are.

Writers append with and without a shipper in turns; the shipper is a process of its own.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

import streamkeep
from benchmarks.common import Child, Report, entries, scratch
from streamkeep.engine.api.views import Sync
from streamkeep.recovery import restore_copy, ship, verify_copy
from streamkeep.recovery.copies.restore import plan_restore
from streamkeep.recovery.copies.shipper import Shipper
from streamkeep.recovery.copies.target import Target

_TURNS: Final = 5
_SHIPPER: Final = """
import sys
from streamkeep.recovery.copies.ship import opened_for
from streamkeep.recovery.copies.shipper import Shipper
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


def _writers(report: Report, *, quick: bool) -> None:
    modes: tuple[tuple[Sync, float, int], ...] = (("commit", 0.9, 2000), ("none", 0.8, 60_000))
    for sync, least, count in modes:
        batch = entries(count // 10 if quick else count)
        ratios = []
        for _ in range(1 if quick else _TURNS):
            rates = []
            for shipped in (False, True):
                with scratch() as folder, streamkeep.open(folder / "store", sync=sync) as store:
                    store.xadd("s", batch[0])
                    if shipped:
                        with Child("-c", _SHIPPER, folder / "store", folder / "target", 1):
                            rates.append(_append(store, batch))
                    else:
                        rates.append(_append(store, batch))
            ratios.append(rates[1] / rates[0])
        name = f"writer with a shipper, sync={sync}"
        report.figure(name, statistics.median(ratios), "of without", least=least)


def _append(store: streamkeep.Store[Any], batch: list[dict[bytes, bytes]]) -> float:
    start = time.perf_counter()
    for fields in batch:
        store.xadd("s", fields)
    return len(batch) / (time.perf_counter() - start)


def _restore(report: Report, *, quick: bool) -> None:
    count = 20_000 if quick else 1_000_000
    with scratch() as folder:
        target = str(folder / "target")
        with streamkeep.open(folder / "store", sync="none") as store:
            for start in range(0, count, 10_000):
                store.xadd_many(f"s{start % 7}", entries(10_000, seed=start))
            used = store.used_bytes - store.reusable_bytes
            began = time.perf_counter()
            ship(store, target)
            report.figure("base", used / 1e6 / (time.perf_counter() - began), "MB/s")
            began = time.perf_counter()
            restore_copy(target, folder / "new")
            seconds = time.perf_counter() - began
            report.figure("restore, entries", count / seconds, "entries/s", least=1_500_000)
            report.figure("restore, rows", used / 1e6 / seconds, "MB/s")
            began = time.perf_counter()
            verify_copy(target, everything=True)
            report.figure("verify", used / 1e6 / (time.perf_counter() - began), "MB/s")


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
        plan = plan_restore(target, target.known_head(), None, None)
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
