"""Blocked readers: how fast a commit wakes them in another process, and what waiting costs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import streamkeep
from benchmarks.common import Report, median_us, scratch
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints

WAKES = 5_000
WAITERS = 100
IDLE_S = 5.0
LATER_MS = 60_000


def wakes(report: Report) -> None:
    """From the commit until a reader in another process has the entry.

    A bare pipe shows what the machine, with its other load, allows in the same minute.
    """
    took = sorted(_wake_by_pipe())
    report.figure("a bare pipe: wake-up, median", took[len(took) // 2], "us")
    report.figure("  99.9 %", took[int(len(took) * 0.999)], "us")
    for command in ("xread", "xreadgroup"):
        with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
            store.xgroup_create("s", "group", mkstream=True)
            commits, calls = _wake(store, folder / "store", command)
        took = sorted(commits)
        report.figure(f"{command}: wake-up, median", took[len(took) // 2], "us", most=150)
        report.figure("  99 %", took[int(len(took) * 0.99)], "us")
        report.figure("  99.9 %", took[int(len(took) * 0.999)], "us", most=2000)
        report.figure("  with the append itself, median", sorted(calls)[len(calls) // 2], "us")


def _wake_by_pipe() -> list[float]:
    """Send times through a pipe at random moments; return how old they arrived."""
    reader = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wake", "pipe", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdin is not None
    handle = reader.stdin.fileno()
    rng = random.Random(1)
    time.sleep(1)
    for _ in range(WAKES):
        time.sleep(rng.uniform(0.0003, 0.0015))
        os.write(handle, b"%019d" % time.monotonic_ns())
    output, _ = reader.communicate(timeout=60)
    return [float(line) for line in output.split()]


def read_pipe() -> None:
    """Be the reader of the bare pipe."""
    took: list[float] = []
    while len(took) < WAKES:
        data = os.read(0, 19)
        took.append((time.monotonic_ns() - int(data)) / 1000)
    print("\n".join(map(str, took)))


def _wake(store: Store, path: Path, command: str) -> tuple[list[float], list[float]]:
    """Append at random moments; return how long the reader's entries took, in microseconds, from
    the commits and from the calls.
    """
    reader = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wake", command, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    rng = random.Random(1)
    while not store._environment.context.wait_table.tickets():
        time.sleep(0.01)
    called: list[int] = []
    committed: list[int] = []
    for _ in range(WAKES):
        time.sleep(rng.uniform(0.0003, 0.0015))
        called.append(time.monotonic_ns())
        failpoints.arm("notify:before", lambda: committed.append(time.monotonic_ns()))
        store.xadd("s", {"f": "v"})
        if len(committed) < len(called):  # the reader was awake: no wake-up
            called[-1] = 0
            committed.append(0)
    failpoints.disarm()
    output, _ = reader.communicate(timeout=60)
    arrived = [int(line) for line in output.split()]
    return (
        [(there - sent) / 1000 for there, sent in zip(arrived, committed, strict=True) if sent],
        [(there - sent) / 1000 for there, sent in zip(arrived, called, strict=True) if sent],
    )


def read(command: str, path: str) -> None:
    """Be the reader: print when each entry arrived."""
    arrived: list[int] = []
    with streamkeep.open(path, sync="none") as store:
        last: str | bytes = "0"
        while len(arrived) < WAKES:
            if command == "xread":
                ((_, entries),) = store.xread({"s": last}, block=LATER_MS)
                last = entries[-1].id
            else:
                ((_, entries),) = store.xreadgroup(
                    "group", "consumer", {"s": ">"}, block=LATER_MS, noack=True
                )
            arrived += [time.monotonic_ns()] * len(entries)
    print("\n".join(map(str, arrived)))


def idle(report: Report) -> None:
    """What readers cost that wait in vain, and what an append costs while they wait."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        stop = threading.Event()
        threads = [
            threading.Thread(target=lambda: list(store.follow("quiet", stop=stop.is_set)))
            for _ in range(WAITERS)
        ]
        for thread in threads:
            thread.start()
        while store._environment.context.wait_table.tickets() < WAITERS:
            time.sleep(0.01)
        before = time.process_time()
        time.sleep(IDLE_S)
        share = (time.process_time() - before) / IDLE_S
        report.figure(f"{WAITERS} blocked threads", 100 * share, "% of a core", most=1)
        others = median_us(lambda: store.xadd("busy", {"f": "v"}), 20_000)
        stop.set()
        store._environment.waiters.alarm()
        for thread in threads:
            thread.join()
        alone = median_us(lambda: store.xadd("busy", {"f": "v"}), 20_000)
        report.figure("xadd, no reader waits", alone, "us, median")
        report.figure(f"xadd, {WAITERS} wait for other keys", others, "us, median")
        report.figure("  more", others - alone, "us", most=2)


if __name__ == "__main__":
    if sys.argv[1] == "pipe":
        read_pipe()
    else:
        read(*sys.argv[1:])
