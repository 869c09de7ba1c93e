"""The queue beside huey, persist-queue, litequeue and taskiq, all durable on return of a call.

Each system runs in a process of its own, in turns, and the best turn counts. Syncs are counted with
strace in a short run, where it is installed; of taskiq they are those of its Redis. What `get and
done` means:

- streamkeep: two transactions; the second is synced. After a power loss in between, the job waits
  again. A worker killed in between loses nothing;
- litequeue: `pop` and `done`, which a worker killed in between leaves locked;
- persist-queue (SQLiteAckQueue): `get` and `ack`, for one process;
- huey (SqliteHuey): `dequeue`, which removes the task: a worker that is killed then has lost it;
- taskiq (RedisStreamBroker): an entry that XREADGROUP gave (a hundred in one call), and XACK. Its
  Redis has an append-only file, synced before each reply (`appendfsync always`). A worker killed in
  between leaves it pending until another one claims it by idle time.

Of these, only streamkeep puts and ends several jobs in one call. Its worker ends a job and takes
the next one in one transaction (`next`), as huey's worker needs one for each task. That end is on
disk within 10 ms, without a wait. So a power loss makes jobs run again, where huey's loses the one
that was running; a kill makes ours run again, where huey's loses it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.common import Child, Report, redis_words, scratch, server
from streamkeep.jobs import Job
from streamkeep.jobs.job import NOTHING

_NEEDS: Final = {
    "streamkeep": "streamkeep",
    "huey": "huey",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
    "taskiq": "taskiq_redis",
}
_BATCH: Final = 100
_PAYLOAD: Final = {"to": "ann@example.org", "template": "hello", "number": 7}
_TEXT: Final = json.dumps(_PAYLOAD)
_TITLES: Final = {
    "get": "get and done",
    "next": "end a job and take the next, as a worker does",
    "get 100": "get and done 100",
}
_WORKERS: Final = 4
_SOCKET: Final = "redis.sock"
_SYNCS: Final = ("strace", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync,msync", "-o")

Calls = dict[str, Callable[[], object]]


def _streamkeep(folder: Path) -> Calls:
    from streamkeep.jobs import Queue
    from streamkeep.jobs.take_call import Take

    queue = Queue(folder / "store")
    held: list[Job] = []

    def end_and_take() -> None:
        if held:
            held[:] = Take([queue], queue.consumer, 1, None).after(held[0], NOTHING)
        else:
            held[:] = queue.get_many(1)

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
        "next": end_and_take,
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


def _taskiq(folder: Path) -> Calls:
    from taskiq import BrokerMessage
    from taskiq_redis import RedisStreamBroker

    loop = asyncio.new_event_loop()
    broker = RedisStreamBroker(f"unix://{folder / _SOCKET}", consumer_id="0")
    loop.run_until_complete(broker.startup())
    message = BrokerMessage(task_id="1", task_name="send", message=_TEXT.encode(), labels={})
    taken = broker.listen()

    async def get() -> None:
        entry = await anext(taken)
        acknowledged: Any = entry.ack()
        await acknowledged

    return {
        "put": lambda: loop.run_until_complete(broker.kick(message)),
        "get": lambda: loop.run_until_complete(get()),
    }


_SYSTEMS: Final = {
    "streamkeep": _streamkeep,
    "huey": _huey,
    "persist-queue": _persist_queue,
    "litequeue": _litequeue,
    "taskiq": _taskiq,
}


def run(report: Report, *, quick: bool) -> None:
    """Measure all systems that are installed."""
    count = 200 if quick else 2000
    found = {name: _rates(name, count, 1 if quick else 3) for name in _installed(report)}
    for call in ("put", "get", "next", "put 100", "get 100"):
        report.section(f"{_TITLES.get(call, call)}, one process, durable")
        for name, rates in found.items():
            rate = rates.get(call)
            if rate is None:
                report.note(f"{name}: has no such call")
            else:
                report.figure(name, rate, "jobs/s")
        theirs = "put" if call.startswith("put") else "get"
        best = max((one.get(theirs, 0) for name, one in found.items() if name != "streamkeep"))
        if best:
            rate = found["streamkeep"][call] / best
            report.figure("  against the best, one by one", rate, "times", least=1)
    together: dict[str, dict[str, float]] = {"put": {}, "get": {}, "next": {}}
    for call, rates in together.items():
        report.section(f"{_TITLES.get(call, call)}, {_WORKERS} processes, durable")
        if call == "next":
            rates |= together["get"]  # the others have no such call
        for name in found if call != "next" else ["streamkeep"]:
            if name == "persist-queue":
                report.note("persist-queue: one process only")
                continue
            turns = 1 if quick else 3
            rates[name] = max(_together(call, name, count) for _ in range(turns))
            report.figure(name, rates[name], "jobs/s")
        others = [rate for name, rate in rates.items() if name != "streamkeep"]
        if others:
            rate = rates["streamkeep"] / max(others)
            report.figure("  against the best", rate, "times", least=1)
    report.section("syncs for a put, for get and done, and for the next; one process, and four")
    if shutil.which(_SYNCS[0]) is None:
        report.note("strace is not installed")
        return
    for name in found:
        calls = ["put", "get", "next"] if name == "streamkeep" else ["put", "get"]
        text = _joined(_syncs(name, call) for call in calls)
        if name != "persist-queue":
            text += f"; {_joined(_syncs_together(name, call) for call in calls)}"
        report.note(f"{name}: {text}")


def _joined(figures: Iterable[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in figures)


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
        with _served(name) as (folder, _):
            for call, rate in json.loads(_child("measure", name, folder, count)).items():
                best[call] = max(rate, best.get(call, 0))
    return best


@contextmanager
def _served(name: str, *, counted: bool = False) -> Iterator[tuple[Path, Path]]:
    """A folder for a system with its server, and the file that lists the syncs of the server."""
    with scratch() as folder:
        syncs = folder / "server-syncs"
        if name != "taskiq":
            yield folder, syncs
            return
        path = folder / _SOCKET
        command = redis_words(path, "always")
        with server([*_SYNCS, syncs, *command] if counted else command, path):
            yield folder, syncs


def _together(call: str, name: str, count: int) -> float:
    """Return how many jobs several processes put, or end, in a second."""
    with _served(name) as (folder, _):
        if call != "put":  # taskiq fetches a hundred at a time, which others then do not get
            _child("alone put", name, folder, count + _WORKERS * _BATCH)
        return count // _WORKERS * _WORKERS / _run_together(call, name, folder, count)


def _run_together(call: str, name: str, folder: Path, count: int, *traced: str) -> float:
    """Run processes that begin at the same time; return for how many seconds they ran."""
    words = ("-m", "benchmarks.queues", f"together {call}", name, folder, count // _WORKERS)
    with ExitStack() as stack:
        children = [Child(*words, under=traced) for _ in range(_WORKERS)]
        workers = [stack.enter_context(one) for one in children]
        start = time.perf_counter()
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.process.wait()
        return time.perf_counter() - start


def _syncs(name: str, call: str, count: int = 50) -> float:
    """Return the syncs of each put, or of each get and done, of one process."""
    with _served(name, counted=True) as (folder, of_server):
        _child("alone put", name, folder, 2 * count + _BATCH)
        found = []
        for times in (0, count):  # what it takes to begin and end does not count
            begun = _count(of_server)
            counted = folder / f"syncs-{times}"
            traced = [*_SYNCS, str(counted), *_command(f"alone {call}", name, folder, times)]
            subprocess.run(traced, check=True)
            found.append(_count(counted) + _count(of_server) - begun)
        return (found[1] - found[0]) / count


def _syncs_together(name: str, call: str, count: int = 400) -> float:
    """Return the syncs of each put, or of each get and done, of several processes at a time."""
    with _served(name, counted=True) as (folder, of_server):
        _child("alone put", name, folder, count + _WORKERS * _BATCH)
        found = []
        for times in (0, count):
            begun = _count(of_server)
            counted = folder / f"syncs-{times}"
            with counted.open("a"):
                _run_together(call, name, folder, times, *_SYNCS, f"|cat >>{counted}")
            time.sleep(0.1)
            found.append(_count(counted) + _count(of_server) - begun)
        return (found[1] - found[0]) / count


def _count(syncs: Path) -> int:
    return syncs.read_text().count("sync(") if syncs.exists() else 0


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
    how, _, chosen = what.partition(" ")
    if chosen:
        if how == "together":
            print("ready", flush=True)
            sys.stdin.readline()
        _seconds(calls[chosen], count)
    else:
        rates: dict[str, Any] = {}
        calls["put"]()
        calls["get"]()
        for call in ("put", "get"):
            rates[call] = count / _seconds(calls[call], count)
        if "next" in calls:
            _seconds(calls["put"], count + 1)
            calls["next"]()
            rates["next"] = count / _seconds(calls["next"], count)
        for call in ("put 100", "get 100"):
            if call in calls:
                rates[call] = count // 2 * _BATCH / _seconds(calls[call], count // 2)
        print(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
