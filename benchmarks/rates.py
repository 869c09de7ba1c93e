"""OpenMessaging's method: latency at fixed rates, the highest rate that is kept, a backlog drained.

Entries of 1 KiB, sent at 1,000 and 10,000 a second, to 1 to 100 streams, and acknowledged. Latency
is end to end, from the time at which an entry was due until a consumer has it. A rate is kept while
99 % of the entries arrive within 100 ms: beyond it they get older and older. The backlog is what
comes in ten seconds without consumers; it is drained when they get entries that are younger than
100 ms, while more of them come.

A store, `streamkeep serve` and Redis take turns, with a sync per reply ("commit", `appendfsync
always`) and once a second ("interval", `everysec`). RATES selects rows by a regex.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from statistics import median
from typing import Final

from benchmarks.common import Report, scratch
from benchmarks.load import Load, Result, Sync, run_load, running

_TURNS: Final = 3
_KEPT_MS: Final = 100
_LEAST: Final = 100  # entries per second, below which a rate counts as none
_SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1}
_UNITS: Final = {"kept": "entries/s", "sent": "entries/s", "drained": "s"}
_SECONDS: Final = 10.0
_LOADS: Final = {
    "1,000/s, 1 stream": Load(1_000, _SECONDS),
    "1,000/s, 100 streams": Load(1_000, _SECONDS, streams=100),
    "10,000/s, 1 stream": Load(10_000, _SECONDS),
    "10,000/s, 10 streams": Load(10_000, _SECONDS, streams=10),
    "10,000/s, 100 streams": Load(10_000, _SECONDS, streams=100),
    "2,000/s, backlog of ten seconds": Load(2_000, _SECONDS, late=10),
}
_HIGHEST: Final = {
    "highest, 1 stream": Load(4_000, 5),
    "highest, 100 streams": Load(4_000, 5, streams=100),
}
_MODES: Final[dict[Sync, str]] = {"commit": "every reply on disk", "interval": "a sync per second"}
_QUICK: Final = ("1,000/s, 1 stream", "2,000/s, backlog of ten seconds")


def measure(system: str, sync: Sync, load: Load) -> Result:
    """Run a load on a new store or server."""
    with scratch() as folder, running(system, sync, folder) as where:
        return run_load(where, load)


def highest(system: str, sync: Sync, load: Load) -> tuple[float, Result]:
    """Return the highest rate that is kept, to a tenth, and what it gave; 0 if none is."""
    kept, lost = 0.0, math.inf
    rate, best = load.rate, Result(0, 0, [(0, 1)])
    while lost > 1.1 * kept and rate >= _LEAST:
        result = measure(system, sync, load._replace(rate=rate))
        if result.age_ms(0.99) <= _KEPT_MS:
            kept, best = rate, result
        else:
            lost = rate
        rate = 2 * kept if lost == math.inf else (kept + lost) / 2
    return kept, best


def run(report: Report, *, quick: bool) -> None:
    """Measure all rows, in both modes."""
    systems = ["store", "serve"] + ["redis"] * bool(shutil.which("redis-server"))
    wanted = re.compile(os.environ.get("RATES", ""))
    for sync, how in _MODES.items():
        for title, load in (_LOADS | _HIGHEST).items():
            if not wanted.search(title) or (quick and title not in _QUICK):
                continue
            if quick:
                load = load._replace(rate=load.rate / 2, seconds=1, warm=0.2, late=load.late / 20)
            runs: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
            for _ in range(1 if quick else _TURNS):
                for system in systems:
                    if title in _HIGHEST:
                        kept, result = highest(system, sync, load)
                    else:
                        kept, result = load.rate, measure(system, sync, load)
                    one = {name: result.age_ms(share) for name, share in _SHARES.items()}
                    one |= {"kept": kept, "sent": result.rate}
                    if load.late:
                        one["drained"] = result.drained_s
                    runs[system].append(one)
            report.section(f"openmessaging, {title}, {how}")
            for system in systems:
                for name in runs[system][0]:
                    unit = _UNITS.get(name, "ms")
                    report.figure(
                        f"{system}: {name}", median(one[name] for one in runs[system]), unit
                    )
                    if system != "redis" and "redis" in runs and name in ("p50", "p99"):
                        pairs = zip(runs[system], runs["redis"], strict=True)
                        ratio = median(one[name] / other[name] for one, other in pairs)
                        report.figure("  against Redis", ratio, "times")
