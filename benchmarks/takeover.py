"""From SIGKILL of a worker to the first line of its job's handler in another one, beside others.

A job that is run for the first time writes a line and waits; its worker is killed, with all its
processes; the job's second line ends the time. Then a new worker takes the place of the dead one,
and nothing happens until it waits for jobs too. Each system with its defaults, and, where a shorter
time is documented, with the shortest that is (`best`). That one has a price in all systems that
watch a clock: a job that takes longer than the time runs twice at once.

- streamkeep: the kernel says that a worker is dead, whatever its job does;
- Celery with Redis, `acks_late`: `visibility_timeout`, an hour by default;
- dramatiq with Redis: `heartbeat_timeout`, a minute by default, looked at in one of a thousand
  commands (`maintenance_chance`);
- RQ, with `Retry`: a lease of `job_monitoring_interval` and 60 s, looked at by each worker every
  `maintenance_interval`, ten minutes by default;
- DBOS with SQLite: goes on when the process starts again, which is included: the time contains the
  start of Python and of the library;
- huey: has removed the task, and never runs it.

Not measured: taskiq's RedisStreamBroker looks for what is older than `idle_timeout` (ten minutes by
default) only after it has received another message, so alone a killed worker's job never runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from benchmarks.common import Report, installed, redis_words, scratch, server

_NEEDS: Final = {
    "celery": "celery",
    "dramatiq": "dramatiq",
    "rq": "rq",
    "dbos": "dbos",
    "huey": "huey",
}
_LINES: Final = "lines"
_SOCKET: Final = "redis.sock"
_SETTLE_S: Final = 0.3  # after its line, until a worker waits for jobs
_SETTLE_OTHERS_S: Final = 5.0
_KILLS: Final = 1000
_KILLS_OTHERS: Final = 10  # each of which takes seconds
_PATIENCE_S: Final = 180  # then a job counts as not taken over
# With their defaults these need longer than that: what their documentation says, in seconds.
_DOCUMENTED: Final = {"celery": 3600, "rq": 600}
_BEST: Final = ("celery", "dramatiq", "rq")  # have a setting for it


def handle(folder: str, job: str) -> None:
    """Be the handler: write a line; the first time, wait for the end."""
    now = time.monotonic_ns()
    path = Path(folder, _LINES)
    first = f" {job}\n" not in path.read_text()
    with path.open("a") as file:
        file.write(f"{now} {os.getsid(0)} {job}\n")
    if first:
        time.sleep(3600)


# --- the systems: each makes what puts a job, and what runs jobs until the process is killed ------

System = tuple[Callable[[str], object], Callable[[], object]]


def _streamkeep(folder: Path, _: str, jobs: int) -> System:
    from streamkeep.jobs import Queue, Worker

    def task(queue: Queue) -> Any:
        return queue.task(name="handle", retries=5, backoff="1ms")(handle)

    def put(job: str) -> None:
        with Queue(folder / "store") as queue:
            task(queue).delay(str(folder), job)

    def work() -> None:
        queue = Queue(folder / "store")
        task(queue)
        Worker(queue, concurrency=jobs).run()

    return put, work


def _celery(folder: Path, setting: str, jobs: int) -> System:
    from celery import Celery

    socket = f"redis+socket://{folder / _SOCKET}"
    app = Celery("takeover", broker=socket)
    app.conf.update(
        task_acks_late=True, worker_prefetch_multiplier=1, worker_hijack_root_logger=False
    )
    if setting == "best":
        app.conf.broker_transport_options = {"visibility_timeout": 1}
    task = app.task(name="handle")(handle)
    words = ["worker", "--loglevel=CRITICAL", "--without-gossip", "--without-mingle", f"-c{jobs}"]
    return (
        lambda job: task.delay(str(folder), job),
        lambda: app.worker_main([*words, "-n", f"{os.getpid()}@here"]),
    )


def _dramatiq(folder: Path, setting: str, jobs: int) -> System:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from redis import Redis

    shorter = {"heartbeat_timeout": 1000, "maintenance_chance": 1_000_000}
    broker = RedisBroker(
        client=Redis(unix_socket_path=str(folder / _SOCKET)),
        **(shorter if setting == "best" else {}),
    )
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(actor_name="handle", max_retries=5)(handle)

    def work() -> None:
        dramatiq.Worker(broker, worker_threads=jobs).start()
        time.sleep(3600)

    return lambda job: actor.send(str(folder), job), work


def _rq(folder: Path, setting: str, _: int) -> System:
    from redis import Redis
    from rq import Queue, Retry, Worker

    connection = Redis(unix_socket_path=str(folder / _SOCKET))
    queue = Queue("takeover", connection=connection)
    shorter = {"job_monitoring_interval": 1, "maintenance_interval": 1, "worker_ttl": 5}
    more: dict[str, Any] = shorter if setting == "best" else {}
    return (
        lambda job: queue.enqueue(handle, str(folder), job, retry=Retry(max=5), job_timeout=7200),
        lambda: Worker([queue], connection=connection, **more).work(logging_level="CRITICAL"),
    )


def _dbos(folder: Path, _: str, jobs: int) -> System:
    from dbos import DBOS, DBOSClient, DBOSConfig

    url = f"sqlite:///{folder / 'dbos.sqlite'}"

    def put(job: str) -> None:
        client = DBOSClient(system_database_url=url)
        client.enqueue({"workflow_name": "handle", "queue_name": "q"}, str(folder), job)
        client.destroy()

    def work() -> None:
        config: DBOSConfig = {"name": "takeover", "system_database_url": url}
        config |= {"executor_id": "one", "application_version": "1", "log_level": "CRITICAL"}
        DBOS(config=config)
        DBOS.workflow(name="handle")(handle)
        DBOS.launch()
        DBOS.register_queue("q", worker_concurrency=jobs, polling_interval_sec=0.1)
        time.sleep(3600)

    return put, work


def _huey(folder: Path, _: str, jobs: int) -> System:
    from huey import SqliteHuey

    huey = SqliteHuey("takeover", filename=str(folder / "huey.db"), fsync=True)
    task = huey.task(retries=5, name="handle")(handle)
    return lambda job: task(str(folder), job), lambda: huey.create_consumer(workers=jobs).run()


_SYSTEMS: Final[dict[str, Callable[[Path, str, int], System]]] = {
    "streamkeep": _streamkeep,
    "celery": _celery,
    "dramatiq": _dramatiq,
    "rq": _rq,
    "dbos": _dbos,
    "huey": _huey,
}


# --- the measurement ------------------------------------------------------------------------------


class Workers:
    """Worker processes of one system, and the lines that their handlers wrote."""

    def __init__(self, system: str, setting: str, folder: Path, jobs: int) -> None:
        self._words = ["-m", "benchmarks.takeover", system, setting, str(folder), str(jobs)]
        self._path = folder / _LINES
        self._path.touch()
        self._settle_s = _SETTLE_S if system == "streamkeep" else _SETTLE_OTHERS_S
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._seen = 0  # bytes of the lines of earlier turns

    def forget(self) -> None:
        """Begin a turn: forget the lines until now, so that looking at them stays cheap."""
        self._seen = self._path.stat().st_size

    def start(self, count: int) -> None:
        """Start workers, and return when they wait for jobs."""
        nothing = subprocess.DEVNULL
        begun = []
        for _ in range(count):
            worker = subprocess.Popen(
                [sys.executable, *self._words],
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
            self._running[worker.pid] = worker
            begun.append(worker.pid)
        while not all(self.times("ready", session) for session in begun):
            time.sleep(0.01)
        time.sleep(self._settle_s)

    def times(self, job: str, session: int = 0, *, others: bool = False) -> list[tuple[int, int]]:
        """Return when and in which sessions a job has begun; those of one, or of the others."""
        found = []
        with self._path.open() as file:
            file.seek(self._seen)
            text = file.read()
        whole, _, _ = text.rpartition("\n")  # a handler may be writing the last line
        for line in whole.splitlines():
            at, by, name = line.split(" ", 2)
            if name == job and (not session or (int(by) == session) is not others):
                found.append((int(at), int(by)))
        return found

    def kill(self, session: int) -> int:
        """Kill a worker with all processes that it started; return when, as `times` does."""
        processes = [session]
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # one that has ended
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and int(path.parent.name) != session:
                    processes.append(int(path.parent.name))
        now = time.monotonic_ns()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._running.pop(session).wait()
        return now

    def kill_all(self) -> None:
        """Kill those that still run."""
        for session in list(self._running):
            self.kill(session)


def takeovers(system: str, setting: str, workers: int, jobs: int, kills: int) -> Iterator[float]:
    """Yield how many seconds each job waited; infinite for one that no worker took in time.

    With more than one job, all run in the one worker that is killed.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        path = folder / _SOCKET
        if system in ("celery", "dramatiq", "rq"):
            stack.enter_context(server(redis_words(path, None), path))
        put, _ = _SYSTEMS[system](folder, setting, jobs)
        pool = Workers(system, setting, folder, jobs)
        stack.callback(pool.kill_all)
        restarts = system == "dbos"  # has no other worker
        for turn in range(kills):
            pool.forget()
            if jobs > 1 or restarts:
                pool.kill_all()
            names = [f"{turn}.{one}" for one in range(jobs)]
            if jobs > 1 or restarts or not turn:
                pool.start(1)
            if jobs == 1 and not restarts:
                pool.start(1 if turn else workers)  # in place of the dead one
            for name in names:
                put(name)
            while not all(pool.times(name) for name in names):
                time.sleep(0.01)
            if jobs > 1:
                pool.start(workers)
            victim = pool.times(names[0])[0][1]
            killed = pool.kill(victim)
            if restarts:
                pool.start(1)
            until = time.monotonic() + _PATIENCE_S
            left = set(names)
            while left and time.monotonic() < until:
                for name in sorted(left):
                    for at, _ in pool.times(name, victim, others=True)[:1]:
                        yield (at - killed) / 1e9
                        left.discard(name)
                time.sleep(0.01)
            yield from [float("inf")] * len(left)


def run(report: Report, *, quick: bool) -> None:
    """Measure all systems that are installed."""
    kills = 5 if quick else _KILLS
    for workers in (1, 2, 8):
        _figures(report, f"{workers} other workers", "streamkeep", "default", workers, 1, kills)
    for jobs in (10, 100):
        title = f"{jobs} jobs in flight, 2 other workers"
        _figures(report, title, "streamkeep", "default", 2, jobs, max(1, kills // jobs))
    for system in installed(report, _NEEDS):
        few = 1 if quick else _KILLS_OTHERS
        if (documented := _DOCUMENTED.get(system)) is not None:
            report.note(f"{system}, defaults: {documented} s by its documentation")
        else:
            _figures(report, f"{system}, defaults", system, "default", 2, 1, few)
        if system in _BEST:
            _figures(report, f"{system}, best", system, "best", 2, 1, few)


def _figures(
    report: Report, title: str, system: str, setting: str, workers: int, jobs: int, kills: int
) -> None:
    found = [1000 * one for one in takeovers(system, setting, workers, jobs, kills)]
    if lost := found.count(float("inf")):
        report.note(f"{title}: {lost} of {len(found)} not taken over in {_PATIENCE_S} s")
        return
    least = 20 if system == "streamkeep" and jobs == 1 else 0
    ranked = quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
    report.figure(f"{title}: median of {len(found)}", ranked[49], "ms")
    report.figure("  99 %", ranked[98], "ms", most=least)
    report.figure("  worst", max(found), "ms")


def main(system: str, setting: str, folder: str, jobs: str) -> None:
    """Be one worker of one system."""
    _, work = _SYSTEMS[system](Path(folder), setting, int(jobs))
    with Path(folder, _LINES).open("a") as file:
        file.write(f"{time.monotonic_ns()} {os.getsid(0)} ready\n")
    work()


if __name__ == "__main__":
    from benchmarks import takeover  # under this name others import the handler

    takeover.main(*sys.argv[1:])
