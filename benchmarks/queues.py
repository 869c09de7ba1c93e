"""The queue beside huey, persist-queue, litequeue and taskiq, all durable on return of a call.

Each system runs in a process of its own, in turns, and the best turn counts. What `get and done`
means:

- streamkeep: two transactions; the second is synced. After a power loss in between, the job waits
  again. A worker killed in between loses nothing;
- litequeue: `pop` and `done`, which a worker killed in between leaves locked;
- persist-queue (SQLiteAckQueue): `get` and `ack`, for one process;
- huey (SqliteHuey): `dequeue`, which removes the task: a worker that is killed then has lost it;
- taskiq (RedisStreamBroker): an entry that XREADGROUP gave (a hundred in one call), and XACK. Its
  Redis has an append-only file, synced before each reply (`appendfsync always`). A worker killed in
  between leaves it pending until another one claims it by idle time.

Of these, only streamkeep puts and ends several jobs in one call, and ends a job and takes the next
one in one transaction: durably for `get(after=)`, and in its worker (`next`), as huey's worker
needs one for each task. There the end is on disk within 10 ms, without a wait. So a power loss
makes jobs run again, where huey's loses the one that was running; a kill makes ours run again,
where huey's loses it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import streamkeep
from benchmarks.common import Child, Report, installed, redis_words, scratch, server, timed
from streamkeep.jobs import Job, Queue, Worker
from streamkeep.jobs.job_calls import NOTHING

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
    "after": "get(after=), which ends a job and takes the next",
    "next": "end a job and take the next, as a worker does",
    "get 100": "get and done 100",
}
_ONLY_OURS: Final = ("after", "next")
_WORKERS: Final = 4
_SOCKET: Final = "redis.sock"

Calls = dict[str, Callable[[], object]]


def _streamkeep(folder: Path) -> Calls:
    from streamkeep.jobs.take_call import Take

    queue = Queue(folder / "store")
    held: list[Job] = []

    def end_and_take() -> None:
        if held:
            held[:] = Take([queue], queue.consumer, 1, None).after(held[0], NOTHING, "interval")
        else:
            held[:] = queue.get_many(1)

    mine: list[Job] = []

    def get_after() -> None:
        mine[:] = [queue.get(0, after=mine[0] if mine else None)]

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
        "after": get_after,
        "next": end_and_take,
        "put 100": lambda: queue.put_many(batch),
        "get 100": get_many,
    }


def _huey(folder: Path) -> Calls:
    from huey.storage import SqliteStorage

    storage = SqliteStorage("huey", str(folder / "huey.db"), fsync=True)
    return {"put": lambda: storage.enqueue(_TEXT.encode()), "get": storage.dequeue}


def _persist_queue(folder: Path) -> Calls:
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(str(folder / "persist"), auto_commit=True)
    return {"put": lambda: queue.put(_PAYLOAD), "get": lambda: queue.ack(queue.get(block=False))}


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
    """Measure all systems that are installed, and then the wake-ups of ours."""
    systems(report, quick=quick)
    report.section("wake-ups of the queue, without syncs")
    wakes(report, quick=quick)


def systems(report: Report, *, quick: bool) -> None:
    """Measure all systems that are installed."""
    count = 200 if quick else 2000
    found = {name: _rates(name, count, 1 if quick else 3) for name in installed(report, _NEEDS)}
    for call in ("put", "get", "after", "next", "put 100", "get 100"):
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
    together: dict[str, dict[str, float]] = {"put": {}, "get": {}, "after": {}, "next": {}}
    for call, rates in together.items():
        report.section(f"{_TITLES.get(call, call)}, {_WORKERS} processes, durable")
        if call in _ONLY_OURS:
            rates |= together["get"]
        for name in ["streamkeep"] if call in _ONLY_OURS else found:
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


def _rates(name: str, count: int, turns: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(turns):
        with _served(name) as folder:
            words = ("-m", "benchmarks.queues", "measure", "all", name, folder, count)
            with Child(*words) as child:
                child.go()
                for call, rate in json.loads(child.line()).items():
                    best[call] = max(rate, best.get(call, 0))
    return best


@contextmanager
def _served(name: str) -> Iterator[Path]:
    """A folder for a system with its server."""
    with scratch() as folder:
        if name != "taskiq":
            yield folder
            return
        path = folder / _SOCKET
        with server(redis_words(path, "always"), path):
            yield folder


def _together(call: str, name: str, count: int) -> float:
    """Return how many jobs several processes put, or end, in a second."""
    with _served(name) as folder:
        if call != "put":  # taskiq fetches a hundred at a time, which others then do not get
            _seconds("put", name, folder, count + _WORKERS * _BATCH)
        share = count // _WORKERS
        return share * _WORKERS / _seconds(call, name, folder, share, _WORKERS)


def _seconds(call: str, name: str, folder: Path, count: int, workers: int = 1) -> float:
    """Run processes that begin at the same time; return for how many seconds they ran."""
    words = ("-m", "benchmarks.queues", "calls", call, name, folder, count)
    with ExitStack() as stack:
        begun = [Child(*words) for _ in range(workers)]
        children = [stack.enter_context(one) for one in begun]

        def all_of_them() -> None:
            for child in children:
                child.go()
            for child in children:
                child.process.wait()

        return timed(all_of_them)


def wakes(report: Report, *, quick: bool) -> None:
    """Measure how soon a handler starts: after a put, beside a blocked XREADGROUP, and when due."""
    count = 100 if quick else 1000
    read = _median(report, "a blocked XREADGROUP has its entry", _delays("read", count))
    put = _median(report, "a worker starts the handler of a job", _delays("put", count))
    report.figure("  against XREADGROUP", put / read, "times", most=2)
    late = quantiles(_delays("at", count // 5), n=100)
    report.figure("a job with a time of its own starts so long after it", late[49], "ms, median")
    report.figure("  99 %", late[98], "ms", most=20)


def _median(report: Report, title: str, found: list[float]) -> float:
    ranked = quantiles(found, n=100)
    report.figure(title, ranked[49] * 1000, "us, median")
    report.figure("  99 %", ranked[98] * 1000, "us")
    return ranked[49]


def _delays(what: str, count: int) -> list[float]:
    """Return how late a process that waits was each time, in milliseconds; nothing syncs."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        store.xgroup_create("s", "g", mkstream=True)
        queue = Queue(store)
        queue.core.set_up()
        task = queue.task(name="note")(_never)
        words = ("-m", "benchmarks.queues", "wait", what, "streamkeep", folder, count)
        with Child(*words) as child:
            time.sleep(0.5)
            for _ in range(count):
                now = time.time()
                if what == "read":
                    store.xadd("s", {"at": repr(now)})
                elif what == "put":
                    task.delay(now)
                else:
                    at = datetime.now(UTC) + timedelta(seconds=0.05)
                    task.options(at=at).delay(round(at.timestamp() * 1000) / 1000)
                time.sleep(0.005)  # in which the other process falls asleep again
            return [float(one) for one in json.loads(child.line())]


def _never(at: float) -> None:
    """Be the task of the other process."""


def _wait(what: str, folder: Path, count: int) -> None:
    """Be the process that waits; print the delays."""
    delays: list[float] = []
    store = streamkeep.open(folder / "store", sync="none")
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


def _measure(calls: Calls, count: int) -> None:
    """Be the only process; print the rate of each call."""
    rates: dict[str, float] = {}
    calls["put"]()
    calls["get"]()
    for call in ("put", "get"):
        rates[call] = count / timed(calls[call], count)
    for call in _ONLY_OURS:
        if call in calls:
            timed(calls["put"], count + 1)
            calls[call]()
            rates[call] = count / timed(calls[call], count)
    for call in ("put 100", "get 100"):
        if call in calls:
            rates[call] = count // 2 * _BATCH / timed(calls[call], count // 2)
    print(json.dumps(rates))


def main(how: str, call: str, name: str, folder: str, count: str) -> None:
    """Be one process of one system."""
    if how == "wait":
        _wait(call, Path(folder), int(count))
        return
    calls = _SYSTEMS[name](Path(folder))
    print("ready", flush=True)
    sys.stdin.readline()
    if how == "calls":
        timed(calls[call], int(count))
    else:
        _measure(calls, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
