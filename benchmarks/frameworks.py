"""taskiq, Celery and dramatiq on a store, each beside its usual backend, with a real worker.

Of each system, two rates: how many tasks one process sends in a second, and how many a worker that
finds them waiting runs in a second, with their results stored: the tasks return the time at which
they ran. Redis has an append-only file that is synced before each reply (`appendfsync always`), so
that it is as durable as the store: what was sent, acknowledged or returned survives a power loss.
Celery's filesystem transport and backend sync nothing, and lose what a killed worker had.

And the time after which a task that was running in a killed worker begins in another one.

taskiq: 100 sends at a time, one worker process with 100 tasks at a time. Celery: one send after the
other, a prefork worker of two processes. dramatiq: one send after the other, one process with 8
threads.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.common import Report, scratch

_SOCKET: Final = "redis.sock"
_PATIENCE_S: Final = 300.0
_START_S: Final = 6.0

_TASKIQ: Final = """
import asyncio, time
{setup}

@broker.task
async def work(number: int) -> float:
    return time.time()

@broker.task
async def hold() -> None:
    note()
    await asyncio.sleep(3600)

async def hold_one():
    await broker.startup()
    await hold.kiq()
    await broker.shutdown()

def send_hold():
    asyncio.run(hold_one())

async def main(count):
    await broker.startup()
    room, sent = asyncio.Semaphore(100), []
    async def send(number):
        async with room:
            return await work.kiq(number)
    began = time.perf_counter()
    sent = await asyncio.gather(*[send(number) for number in range(count)])
    rate = count / (time.perf_counter() - began)
    print(rate, flush=True)
    times = [(await one.wait_result(timeout=300, check_interval=0.05)).return_value for one in sent]
    print(count / (max(times) - min(times)), flush=True)
    await broker.shutdown()

def measure(count):
    asyncio.run(main(count))
"""

_CELERY: Final = """
import time
from celery import Celery
{setup}

@app.task
def work(number):
    return time.time()

@app.task(acks_late=True)
def hold():
    note()
    time.sleep(3600)

def send_hold():
    hold.delay()

def measure(count):
    began = time.perf_counter()
    sent = [work.delay(number) for number in range(count)]
    print(count / (time.perf_counter() - began), flush=True)
    times = [one.get(timeout=300) for one in sent]
    print(count / (max(times) - min(times)), flush=True)
"""

_DRAMATIQ: Final = """
import time
import dramatiq
from dramatiq.results import Results
{setup}
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)

@dramatiq.actor(store_results=True)
def work(number):
    return time.time()

@dramatiq.actor
def hold():
    note()
    time.sleep(3600)

def send_hold():
    hold.send()

def measure(count):
    began = time.perf_counter()
    sent = [work.send(number) for number in range(count)]
    print(count / (time.perf_counter() - began), flush=True)
    times = [one.get_result(block=True, timeout=300_000) for one in sent]
    print(count / (max(times) - min(times)), flush=True)
"""

_NOTE: Final = """
import os, time

def note():
    with open("began", "a") as file:
        file.write(f"{os.getpgid(0)} {time.time()}\\n")
"""
_PROGRAMS: Final = {"taskiq": _TASKIQ, "celery": _CELERY, "dramatiq": _DRAMATIQ}
_WORKERS: Final = {
    "taskiq": ("taskiq", "worker", "app:broker", "--workers", "1", "--log-level", "ERROR"),
    "celery": ("celery", "-A", "app", "worker", "-c", "2", "-l", "ERROR", "--without-gossip"),
    "dramatiq": ("dramatiq", "app", "-p", "1", "-t", "8"),
}
_SETUPS: Final = {
    ("taskiq", "streamkeep"): """
from streamkeep.integrations.taskiq import StreamkeepBroker, StreamkeepResultBackend
broker = StreamkeepBroker("s", max_deaths=100).with_result_backend(StreamkeepResultBackend("s"))
""",
    ("taskiq", "redis"): """
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker
URL = "unix://{folder}/redis.sock"
broker = RedisStreamBroker(URL, consumer_id="0").with_result_backend(RedisAsyncResultBackend(URL))
""",
    ("celery", "streamkeep"): """
import streamkeep.integrations.celery
app = Celery("app", broker="streamkeep:///{folder}/s", backend="streamkeep:///{folder}/s")
app.conf.broker_transport_options = {{"max_deaths": 100}}
""",
    ("celery", "redis"): """
app = Celery("app", broker="redis+socket://{folder}/redis.sock",
             backend="redis+socket://{folder}/redis.sock")
""",
    ("celery", "files"): """
import os
app = Celery("app", broker="filesystem://", backend="file://{folder}/results")
app.conf.broker_transport_options = {{
    "data_folder_in": "{folder}/in", "data_folder_out": "{folder}/in",
    "control_folder": "{folder}/control"}}
for name in ("in", "control", "results"):
    os.makedirs("{folder}/" + name, exist_ok=True)
""",
    ("dramatiq", "streamkeep"): """
from streamkeep.integrations.dramatiq import StreamkeepBackend, StreamkeepBroker
broker, backend = StreamkeepBroker("s", max_deaths=100), StreamkeepBackend("s")
""",
    ("dramatiq", "redis"): """
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results.backends import RedisBackend
URL = "unix://{folder}/redis.sock"
broker, backend = RedisBroker(url=URL), RedisBackend(url=URL)
""",
}
_KILLS: Final = 10
_NEEDS: Final = {"taskiq": "taskiq_redis", "celery": "celery", "dramatiq": "dramatiq"}


def run(report: Report, *, quick: bool) -> None:
    """Measure all frameworks that are installed."""
    count, turns = (300, 1) if quick else (1500, 3)
    for framework, needed in _NEEDS.items():
        if find_spec(needed) is None:
            report.note(f"{framework}: not installed")
            continue
        best: dict[str, list[float]] = {}
        for _ in range(turns):  # in turns, so that a busy moment meets each of them
            for (one, backend), setup in _SETUPS.items():
                if one != framework or (backend == "redis" and not shutil.which("redis-server")):
                    continue
                rates = _turn(framework, backend, setup, count)
                former = best.get(backend, rates)
                best[backend] = [max(pair) for pair in zip(former, rates, strict=True)]
        for index, what in enumerate(("sent by one process", "run by a worker, with results")):
            report.section(f"{framework}: tasks {what}")
            for backend, found in best.items():
                report.figure(backend, found[index], "tasks/s")
            if "redis" in best:
                rate = best["streamkeep"][index] / best["redis"][index]
                report.figure("  against Redis", rate, "times", least=1)
        report.section(f"{framework}: a killed worker's task begins in another one")
        times = sorted(_times_of_moves(framework, 3 if quick else _KILLS))
        report.figure("median", times[len(times) // 2], "ms", most=100)
        report.figure("longest", times[-1], "ms")


def _times_of_moves(framework: str, kills: int) -> list[float]:
    """Return after how many milliseconds a task began again whose worker was killed, each time."""
    with scratch() as folder:
        setup = _SETUPS[framework, "streamkeep"].format(folder=folder)
        (folder / "app.py").write_text(_NOTE + _PROGRAMS[framework].replace("{setup}", setup))
        began = folder / "began"
        workers: dict[int, subprocess.Popen[bytes]] = {}

        def start() -> None:
            command = [*_WORKERS[framework]]
            if framework == "celery":
                command += ["-n", f"w{time.time_ns()}@here"]
            log = (folder / "log").open("ab")
            one = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            workers[one.pid] = one
            log.close()

        def last(count: int) -> tuple[int, float]:
            deadline = time.monotonic() + _PATIENCE_S
            while not began.exists() or len(began.read_text().splitlines()) < count:
                assert time.monotonic() < deadline, "the task has not begun"
                time.sleep(0.001)
            group, moment = began.read_text().splitlines()[-1].split()
            return int(group), float(moment)

        try:
            start()
            subprocess.run(
                [sys.executable, "-c", "import app; app.send_hold()"], cwd=folder, check=True
            )
            found = []
            for number in range(1, kills + 1):
                group, _ = last(number)
                start()
                time.sleep(_START_S)  # nothing says when all of them are ready
                killed = time.time()
                os.killpg(group, signal.SIGKILL)
                workers.pop(group).wait()
                found.append((last(number + 1)[1] - killed) * 1000)
            return found
        finally:
            for group, one in workers.items():
                os.killpg(group, signal.SIGKILL)
                one.wait()


def _turn(framework: str, backend: str, setup: str, count: int) -> list[float]:
    """Return both rates of one turn, in a folder and with a Redis of its own."""
    with scratch() as folder:
        text = _PROGRAMS[framework].replace("{setup}", setup.format(folder=folder))
        (folder / "app.py").write_text(text)
        with _redis(folder, backend == "redis"):
            sender = subprocess.Popen(
                [sys.executable, "-c", f"import app; app.measure({count})"],
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert sender.stdout is not None
            sent = float(sender.stdout.readline())
            log = (folder / "worker.log").open("wb")
            worker = subprocess.Popen(
                [sys.executable, "-m", *_WORKERS[framework]],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                ran = float(sender.stdout.readline())
                sender.wait()
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
                log.close()
        return [sent, ran]


@contextmanager
def _redis(folder: Path, wanted: bool) -> Iterator[None]:
    """Run a Redis in a folder that syncs each write before it replies."""
    if not wanted:
        yield
        return
    server = subprocess.Popen(
        [
            *("redis-server", "--port", "0", "--unixsocket", str(folder / _SOCKET)),
            *("--dir", str(folder), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / _SOCKET).exists():
            assert time.monotonic() < deadline, "redis-server has not started"
            time.sleep(0.01)
        yield
    finally:
        server.terminate()
        server.wait()
