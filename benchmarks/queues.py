"""The queue beside huey, persist-queue and litequeue, all durable: what a call did is on disk.

Each system runs in a process of its own, in turns, and the best turn counts. Syncs are counted with
strace in a short run, where it is installed. What `get and done` means:

- streamkeep: two transactions; the second is synced. After a power loss in between, the job waits
  again. A worker killed in between loses nothing;
- litequeue: `pop` and `done`, which a worker killed in between leaves locked;
- persist-queue (SQLiteAckQueue): `get` and `ack`, for one process;
- huey (SqliteHuey): `dequeue`, which removes the task: a worker that is killed then has lost it.

Of these, only streamkeep takes and ends several jobs in one call.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.common import Report, scratch

_NEEDS: Final = {
    "streamkeep": "streamkeep",
    "huey": "huey",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
}
_BATCH: Final = 100
_PAYLOAD: Final = {"to": "ann@example.org", "template": "hello", "number": 7}
_TEXT: Final = json.dumps(_PAYLOAD)
_WORKERS: Final = 4

Calls = dict[str, Callable[[], object]]


def _streamkeep(folder: Path) -> Calls:
    from streamkeep.jobs import Queue

    queue = Queue(folder / "store")
    batch = [_PAYLOAD] * _BATCH

    def get_many() -> None:
        left = _BATCH
        while left:
            jobs = queue.get_many(left)
            queue.done_many(jobs)
            left -= len(jobs)

    return {
        "put": lambda: queue.put(_PAYLOAD),
        "get": lambda: queue.get_many(1)[0].done(),
        "put 100": lambda: queue.put_many(batch),
        "get 100": get_many,
    }


def _huey(folder: Path) -> Calls:
    from huey.storage import SqliteStorage

    storage = SqliteStorage("huey", str(folder / "huey.db"), fsync=True)
    return {
        "put": lambda: storage.enqueue(_TEXT.encode()),
        "get": storage.dequeue,
    }


def _persist_queue(folder: Path) -> Calls:
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(str(folder / "persist"), auto_commit=True)
    return {
        "put": lambda: queue.put(_PAYLOAD),
        "get": lambda: queue.ack(queue.get(block=False)),
    }


def _litequeue(folder: Path) -> Calls:
    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "lite.db"))
    queue.conn.execute("PRAGMA synchronous=FULL")  # its default survives no power loss

    def get() -> None:
        queue.done(queue.pop().message_id)

    return {"put": lambda: queue.put(_TEXT), "get": get}


_SYSTEMS: Final = {
    "streamkeep": _streamkeep,
    "huey": _huey,
    "persist-queue": _persist_queue,
    "litequeue": _litequeue,
}


def run(report: Report, *, quick: bool) -> None:
    """Measure all systems that are installed."""
    count = 200 if quick else 2000
    found = {name: _rates(name, count, 1 if quick else 3) for name in _installed(report)}
    for call in ("put", "get", "put 100", "get 100"):
        report.section(f"{call.replace('get', 'get and done')}, one process, durable")
        for name, rates in found.items():
            rate = rates.get(call)
            if rate is None:
                report.note(f"{name}: has no such call")
            else:
                report.figure(name, rate, "jobs/s")
        best = max((one.get(call[:3], 0) for name, one in found.items() if name != "streamkeep"))
        if best:
            rate = found["streamkeep"][call] / best
            report.figure("  against the best, one by one", rate, "times", least=1)
    report.section(f"get and done, {_WORKERS} processes, durable")
    for name in found:
        if name == "persist-queue":
            report.note("persist-queue: one process only")
        else:
            report.figure(name, _together(name, count), "jobs/s")
    report.section("syncs for a put, and for get and done")
    for name in found:
        syncs = _syncs(name)
        if syncs is None:
            report.note("strace is not installed")
            break
        report.note(f"{name}: {syncs[0]:.2f} and {syncs[1]:.2f}")


def _installed(report: Report) -> list[str]:
    found = []
    for name, module in _NEEDS.items():
        if find_spec(module) is None:
            report.note(f"{name}: skipped, it is not installed")
        else:
            found.append(name)
    return found


def _rates(name: str, count: int, turns: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(turns):
        with scratch() as folder:
            for call, rate in json.loads(_child("measure", name, folder, count)).items():
                best[call] = max(rate, best.get(call, 0))
    return best


def _together(name: str, count: int) -> float:
    """Return how many jobs several processes end in a second."""
    with scratch() as folder:
        _child("fill", name, folder, count)
        workers = [
            subprocess.Popen(
                _command("work", name, folder, count // _WORKERS),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(_WORKERS)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        start = time.perf_counter()
        for worker in workers:
            worker.communicate("go\n")
        return count // _WORKERS * _WORKERS / (time.perf_counter() - start)


def _syncs(name: str, count: int = 50) -> tuple[float, float] | None:
    """Return the syncs of each put, and of each get and done."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    found = []
    with scratch() as folder:
        for what in ("fill", "drain"):
            counted = folder / "counted"
            traced = [strace, "-f", "-o", str(counted), "-e", "trace=fsync,fdatasync,msync"]
            subprocess.run([*traced, *_command(what, name, folder, 0)], check=True)
            without = counted.read_text().count("sync(")
            subprocess.run([*traced, *_command(what, name, folder, count)], check=True)
            found.append((counted.read_text().count("sync(") - without) / count)
    return found[0], found[1]


def _command(what: str, name: str, folder: Path, count: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.queues", what, name, str(folder), str(count)]


def _child(what: str, name: str, folder: Path, count: int) -> str:
    command = _command(what, name, folder, count)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _seconds(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def main(what: str, name: str, folder: str, count: int) -> None:
    """Be one process of one system."""
    calls = _SYSTEMS[name](Path(folder))
    if what == "fill":
        _seconds(calls["put"], count)
    elif what == "drain":
        _seconds(calls["get"], count)
    elif what == "work":
        print("ready", flush=True)
        sys.stdin.readline()
        _seconds(calls["get"], count)
    else:
        rates: dict[str, Any] = {}
        calls["put"]()
        calls["get"]()
        for call in ("put", "get"):
            rates[call] = count / _seconds(calls[call], count)
        for call in ("put 100", "get 100"):
            if call in calls:
                rates[call] = count // 2 * _BATCH / _seconds(calls[call], count // 2)
        print(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
