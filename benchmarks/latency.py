"""Redis's latency test, for a store, `streamkeep serve` and Redis.

It is that of Redis's page on streams: how old an entry is when a worker has it. One
process appends at a steady rate, ten of one group read with a blocking XREADGROUP and acknowledge.
An age begins right before the call of the append, so a producer that a busy machine delays makes no
entries older.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import Final

from benchmarks.common import Report, scratch
from benchmarks.load import GROUP, Load, Result, client_of, run_load, running

_WARM: Final = 2_000  # entries that are not counted: every process makes its first commit
_OLD_BATCH: Final = 1_000
# Title, COUNT, millions of entries that are pending, and entries per second.
_LATENCIES: Final = (
    ("COUNT 1", 1, 0, 10_000),
    ("COUNT 10,000", 10_000, 0, 10_000),
    ("COUNT 1, 3 million pending", 1, 3, 10_000),
    ("COUNT 1, 2,000 entries/s", 1, 0, 2_000),
)


def run(report: Report, *, quick: bool) -> None:
    """Measure a store with sync="interval", Redis with everysec, and `serve`."""
    systems = ["store", "serve"] + ["redis"] * bool(shutil.which("redis-server"))
    for title, count, millions, rate in _LATENCIES:
        # Once the processes have started, a second of a tenth of the load shows that all runs.
        slower = 10 if quick else 1
        load = Load(
            rate / slower,
            1 if quick else 5,
            consumers=2 if quick else 10,
            size=40,
            at_once=count,
            batch=1,
            warm=_WARM / rate,
            scheduled=False,
        )
        for system in systems:
            result = _measure(system, load, 1_000_000 * millions // slower**2)
            name = f"{system}, {title}"
            report.figure(f"{name}: median", 1000 * result.age_ms(0.5), "us")
            report.figure("  within 1 ms", 100 * result.within(1_000_000), "%")
            report.figure("  99.9 %", 1000 * result.age_ms(0.999), "us")
            report.figure("  processor time for each entry", result.cpu_us, "us")


def _measure(system: str, load: Load, pending: int) -> Result:
    with scratch() as folder, running(system, "interval", folder) as where:
        with closing(client_of(where)) as client:
            client.xgroup_create("0", GROUP, mkstream=True)
            for _ in range(pending // _OLD_BATCH):
                with client.pipeline() as pipe:
                    for _ in range(_OLD_BATCH):
                        pipe.xadd("0", {"sent": 0, "payload": "x" * load.size})
                    pipe.xreadgroup(GROUP, "gone", {"0": ">"}, count=_OLD_BATCH)
                    pipe.execute()
        return run_load(where, load)
