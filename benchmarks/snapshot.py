"""A snapshot that is held open for half an hour while messages come and go: rate, p99, sizes.

Every database that keeps old versions for a reader has this test. Four producers and four
consumers, each a process, append and acknowledge entries of 1 KiB, each call durable, at 500 and at
2,000 a second; the stream keeps the newest 10,000. Once without a snapshot, once with one that is
opened first and read again at the end.

MINUTES is how long each of the four runs takes: 30 by default. All sizes go to build/snapshot.json,
a table to build/snapshot.md.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import streamkeep
from benchmarks.common import Report, keep, scratch
from benchmarks.load import Load, client_of, run_load, running

OUTPUT: Final = Path("build", "snapshot.json")
_MIB: Final = 1 << 20
_SAMPLES: Final = 30
_RATES: Final = (500, 2_000)
_KEEP: Final = 10_000
_MOST: Final = 3  # bytes that data.mdb grows by with a snapshot, for each byte that is appended
_HEAD: Final = """\
| messages/s | snapshot | sent/s | p50, ms | p99 | max | data.mdb, MiB, over time | journal/ |
|---|---|---|---|---|---|---|---|"""


def _size(path: Path) -> float:
    blocks = 0
    for file in [path] if path.is_file() else path.iterdir():
        with suppress(FileNotFoundError):  # it was removed in between
            blocks += file.stat().st_blocks
    return blocks * 512 / _MIB


def measure(rate: int, seconds: float, *, held: bool) -> dict[str, Any]:
    """Run the load once; return its figures and the sizes over time."""
    sizes: list[dict[str, float]] = []
    ended = threading.Event()
    load = Load(rate, seconds, producers=4, consumers=4, keep=_KEEP)
    with scratch() as folder, running("store", "commit", folder) as where, ExitStack() as stack:
        store: streamkeep.Store[bytes] = stack.enter_context(client_of(where))
        store.xadd_many("0", [{"sent": 0, "payload": "x" * load.size}] * _KEEP)
        store.xgroup_create("0", "g")
        snapshot = stack.enter_context(store.snapshot()) if held else None
        path, began = folder / "store", time.monotonic()

        def sample() -> None:
            while not ended.wait(seconds / _SAMPLES):
                one = {"data_mdb": _size(path / "data.mdb"), "journal": _size(path / "journal")}
                sizes.append({"at_s": round(time.monotonic() - began, 1), **one})

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            result = run_load(where, load)
        finally:
            ended.set()
            sampler.join()
        if snapshot is not None:
            assert snapshot.xlen("0") == _KEEP
    ages = {"p50": result.age_ms(0.5), "p99": result.age_ms(0.99), "max": result.age_ms(1)}
    return {
        "rate": rate,
        "held": held,
        "sent": result.rate,
        **ages,
        "trimmed": result.trimmed,
        "sizes": sizes,
    }


def run(report: Report, *, quick: bool) -> None:
    """Measure both rates, without and with a snapshot."""
    seconds = 4.0 if quick else 60 * float(os.environ.get("MINUTES", 30))
    found: list[dict[str, Any]] = []
    rows = [_HEAD]
    for rate in _RATES:
        for held in (False, True):
            one = measure(rate, seconds, held=held)
            found.append(one)
            sizes = one["sizes"]
            some = [sizes[place] for place in (len(sizes) // 10, len(sizes) // 2, -1)]
            title = f"{rate:,} messages/s, {'a snapshot open' if held else 'no snapshot'}"
            report.figure(f"{title}: sent", one["sent"] / rate, "of it", least=0.99)
            report.figure("  99 %", one["p99"], "ms")
            if one["trimmed"]:
                report.note(f"  {one['trimmed']:,} were trimmed before a consumer had them")
            seconds_between = some[-1]["at_s"] - some[0]["at_s"]
            grown = (some[-1]["data_mdb"] - some[0]["data_mdb"]) * _MIB / seconds_between
            report.figure("  data.mdb", some[-1]["data_mdb"], "MiB")
            report.figure("  its growth", grown / 1e6, "MB/s")
            appended = rate * Load(rate, seconds).size
            report.figure("  against what is appended", grown / appended, "times", most=_MOST)
            report.figure("  journal/", some[-1]["journal"], "MiB")
            files = ", ".join(f"{size['data_mdb']:,.0f}" for size in some)
            ages = f"{one['p50']:.2f} | {one['p99']:.1f} | {one['max']:.0f}"
            what = f"| {rate:,} | {'open' if held else 'none'} | {one['sent']:,.0f} | {ages}"
            rows.append(f"{what} | {files} | {some[-1]['journal']:,.0f} |")
            keep(OUTPUT, rows, found)
