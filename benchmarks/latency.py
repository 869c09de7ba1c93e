"""The published latency test of Redis Streams: how old an entry is when a worker has it.

One process appends at a steady rate; ten processes of one group read with a blocking XREADGROUP and
acknowledge. Redis's documentation reports, on older hardware, 74.1 % of entries within 1 ms and
99.9 % within 2 ms.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import streamkeep
from benchmarks.common import Report, scratch

CONSUMERS: Final = 10
RATE: Final = 10_000
_STEPS: Final = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)

_PRODUCER: Final = """
import sys, time, streamkeep
path, sync, count, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = streamkeep.open(path, sync=sync)
print("ready", flush=True)
sys.stdin.readline()
start = time.monotonic_ns()
for number in range(count):
    due = start + number * 1_000_000_000 // rate
    ahead = due - time.monotonic_ns()
    if ahead > 0:
        time.sleep(ahead / 1e9)
    store.xadd("s", {"sent": b"%d" % time.monotonic_ns(), "message": b"x" * 40})
print((time.monotonic_ns() - start) / 1e9, flush=True)
"""
_PRODUCER_TASKS: Final = """
import asyncio, sys, time, streamkeep.aio
path, sync, count, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

async def main():
    store = await streamkeep.aio.open(path, sync=sync)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic_ns()
    numbers = iter(range(count))

    async def append():
        for number in numbers:
            due = start + number * 1_000_000_000 // rate
            ahead = due - time.monotonic_ns()
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)
            sent = b"%d" % time.monotonic_ns()
            await store.xadd("s", {"sent": sent, "message": b"x" * 40})

    await asyncio.gather(*(append() for _ in range(16)))
    print((time.monotonic_ns() - start) / 1e9, flush=True)
    await store.close()

asyncio.run(main())
"""
_CONSUMER: Final = """
import json, sys, time, streamkeep
path, sync, name = sys.argv[1], sys.argv[2], sys.argv[3]
store = streamkeep.open(path, sync=sync)
ages = []
print("ready", flush=True)
while True:
    found = store.xreadgroup("g", name, {"s": ">"}, count=1, block=2000)
    if not found:
        break
    for entry in found[0][1]:
        ages.append(time.monotonic_ns() - int(entry.fields[b"sent"]))
        store.xack("s", "g", entry.id)
print(json.dumps(ages), flush=True)
"""


def run(report: Report, *, quick: bool) -> None:
    """Measure with "interval", and with "commit" and up to 16 appends under way."""
    count = RATE * (1 if quick else 10)
    ages = measure("interval", _PRODUCER, count)
    _print(report, "interval, one append at a time", ages)
    share = _share(ages, 1000)
    report.figure("  within 1 ms", share, "%", least=99.8)
    report.figure("  median", _at(ages, 0.5), "us", most=100)
    ages = measure("commit", _PRODUCER_TASKS, count)
    _print(report, "commit, 16 appends under way", ages)
    report.figure("  within 5 ms", _share(ages, 5000), "%", least=99.9)


def measure(sync: str, producer: str, count: int) -> list[float]:
    """Return the age in microseconds at which each entry was processed, ascending."""
    with scratch() as folder:
        path = folder / "store"
        with streamkeep.open(path, sync="none") as store:
            store.xgroup_create("s", "g", mkstream=True)
            consumers = [_start(_CONSUMER, path, sync, f"c{number}") for number in range(CONSUMERS)]
            writer = _start(producer, path, sync, str(count), str(RATE))
            for process in (*consumers, writer):
                assert _line(process) == "ready"
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            found = [json.loads(_line(process)) for process in consumers]
            for process in (*consumers, writer):
                process.wait()
        ages = sorted(age / 1000 for one in found for age in one)
        assert len(ages) == count, f"{len(ages)} of {count} entries were processed"
        return ages


def _start(code: str, path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _share(ages: list[float], most: float) -> float:
    return 100 * sum(age <= most for age in ages) / len(ages)


def _at(ages: list[float], part: float) -> float:
    return ages[min(len(ages) - 1, int(len(ages) * part))]


def _print(report: Report, title: str, ages: list[float]) -> None:
    """Print the distribution."""
    report.figure(f"{title}: median", _at(ages, 0.5), "us")
    for part in (0.99, 0.999):
        report.figure(f"  {100 * part:g} %", _at(ages, part), "us")
    for step in _STEPS:
        report.figure(f"  within {step:,} us", _share(ages, step), "%")
