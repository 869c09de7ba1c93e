"""How soon a handler starts: after a put, and at a job's time; beside a blocked XREADGROUP.

A process waits, another one puts a job and then leaves it time to sleep again. All figures are of
one run, without syncs, so that the disk is not measured.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles

import streamkeep
from benchmarks.common import Child, Report, scratch
from streamkeep.jobs import Queue, Worker

_PAUSE_S = 0.005  # in which the waiting process falls asleep again
_LATER_S = 0.05


def run(report: Report, *, quick: bool) -> None:
    """Measure the wake-ups."""
    count = 100 if quick else 1000
    read = _median(report, "a blocked XREADGROUP has its entry", _measure("read", count))
    put = _median(report, "a worker starts the handler of a job", _measure("put", count))
    report.figure("  against XREADGROUP", put / read, "times", most=2)
    report.section("a job with a time of its own starts so long after it")
    late = quantiles(_measure("at", count // 5), n=100)
    report.figure("median", late[49], "ms")
    report.figure("99 %", late[98], "ms", most=20)


def _median(report: Report, title: str, found: list[float]) -> float:
    report.section(title)
    ranked = quantiles(found, n=100)
    report.figure("median", ranked[49] * 1000, "us")
    report.figure("99 %", ranked[98] * 1000, "us")
    return ranked[49]


def _measure(what: str, count: int) -> list[float]:
    """Return the delays in milliseconds."""
    with scratch() as folder:
        path = str(folder / "store")
        with streamkeep.open(path, sync="none") as store:
            store.xgroup_create("s", "g", mkstream=True)
            queue = Queue(store)
            queue.core.set_up()
            task = queue.task(name="note")(_never)
            with Child("-m", "benchmarks.queue_wakes", what, path, count) as child:
                time.sleep(0.5)
                for _ in range(count):
                    now = time.time()
                    if what == "read":
                        store.xadd("s", {"at": repr(now)})
                    elif what == "put":
                        task.delay(now)
                    else:
                        at = datetime.now(UTC) + timedelta(seconds=_LATER_S)
                        task.options(at=at).delay(round(at.timestamp() * 1000) / 1000)
                    time.sleep(_PAUSE_S)
                return [float(one) for one in json.loads(child.line())]


def _never(at: float) -> None:
    """Be the task of the other process."""


def _wait(what: str, path: Path, count: int) -> None:
    """Be the process that waits; print the delays."""
    delays: list[float] = []
    store = streamkeep.open(path, sync="none")
    print("ready", flush=True)
    if what == "read":
        while len(delays) < count:
            for _, entries in store.xreadgroup("g", "c", {"s": ">"}, block=10_000):
                now = time.time()
                delays += [now - float(one.fields[b"at"]) for one in entries]
                store.xack("s", "g", *[one.id for one in entries])
    else:
        queue = Queue(store)
        worker = Worker(queue)

        @queue.task
        def note(at: float) -> None:
            delays.append(time.time() - at)
            if len(delays) == count:
                worker.stop()

        worker.run()
    print(json.dumps([1000 * one for one in delays]))


if __name__ == "__main__":
    _wait(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
