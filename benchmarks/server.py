"""`streamkeep serve` beside redis-server, and Redis's latency test for stores, serve and Redis.

redis-benchmark drives both servers, over a Unix socket and TCP. Both run at the same time, and take
turns, so that the noise of the machine is the same for both. Figures are requests per second, and
the ratio is ours to theirs; for one client without a pipeline, the median of its round trips, which
other processes disturb less. The best of several turns counts.

The latency test is that of Redis's page on streams: how old an entry is when a worker has it. One
process appends at a steady rate, ten of one group read with a blocking XREADGROUP and acknowledge.
An age begins right before the call of the append, so a producer that a busy machine delays makes no
entries older. Clients of a store and of a server run the same code: both have redis-py's methods.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

import streamkeep
from benchmarks.common import Child, Report, redis_words, scratch, server

_TURNS: Final = 3
_ENTRY: Final = ("sensor-id", "1234", "temperature", "25.5", "message", "m" * 40)
_ADD: Final = ("XADD", "s", "*", *_ENTRY)

Row = tuple[str, tuple[str, ...], int, tuple[str, ...], float]

# Title, options of redis-benchmark, requests, words, and the least ratio of rates, or the highest
# of round trips; without and with a sync.
RELAXED: Final[tuple[Row, ...]] = (
    ("XADD, pipelined by 100", ("-c", "1", "-P", "100"), 200_000, _ADD, 0.4),
    ("XADD, 50 clients", ("-c", "50"), 50_000, _ADD, 0),
    ("XADD, round trip", ("-c", "1"), 10_000, _ADD, 1.5),
    ("PING, round trip", ("-c", "1"), 20_000, ("PING",), 0),
    ("XRANGE COUNT 100", ("-c", "1"), 10_000, ("XRANGE", "s", "-", "+", "COUNT", "100"), 1),
    (
        "XREADGROUP COUNT 100",
        ("-c", "1"),
        500,
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "100", "STREAMS", "s", ">"),
        1,
    ),
)
DURABLE: Final[tuple[Row, ...]] = (
    ("XADD, 50 clients", ("-c", "50"), 30_000, _ADD, 1),
    ("XADD, pipelined by 100", ("-c", "1", "-P", "100"), 50_000, _ADD, 0),
    ("XADD, round trip", ("-c", "1"), 3_000, _ADD, 1.5),
)


def measure(report: Report, *, quick: bool) -> None:
    """Compare both servers, without and with a sync per reply."""
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            report.note(f"{program} is not installed")
            return
    for title, sync, always, rows in (
        ("no AOF, --sync none", "none", False, RELAXED),
        ("appendfsync always, --sync commit", "commit", True, DURABLE),
    ):
        report.note(title)
        with scratch() as folder, ExitStack() as stack:
            theirs = stack.enter_context(_redis(folder, always))
            ours = stack.enter_context(streamkeep_server(folder, sync))
            both = (theirs, ours)
            for one in both:
                with redis.Redis(unix_socket_path=str(one.path)) as client:
                    client.xgroup_create("s", "g", 0, mkstream=True)
            for row in rows:
                _compare(report, both, row, quick)


def _compare(report: Report, servers: tuple[Address, Address], row: Row, quick: bool) -> None:
    """Measure one command on Redis, on ours, and perhaps on a bare event loop."""
    name, options, requests, words, target = row
    count = max(100, requests // 20) if quick else requests
    trips = options == ("-c", "1")
    for way in ("Unix socket", "loopback"):
        found = [
            [_measured(one.options(way), options, count, words) for one in servers]
            for _ in range(1 if quick else _TURNS)
        ]
        best = [
            min(turn[place].median_us for turn in found)
            if trips
            else max(turn[place].rate for turn in found)
            for place in range(2)
        ]
        for value, whose in zip(best, ("Redis", "streamkeep serve"), strict=True):
            report.figure(f"  {name}, {way}: {whose}", value, "us" if trips else "requests/s")
        bound: dict[str, float] = {"most" if trips else "least": target}
        report.figure("    ours to Redis", best[1] / best[0], "times", **bound)


class Address(NamedTuple):
    """Where a server listens."""

    path: Path
    port: int

    def options(self, way: str) -> tuple[str, ...]:
        """Return the options by which redis-benchmark finds it."""
        return ("-s", str(self.path)) if way == "Unix socket" else ("-p", str(self.port))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class _Measured(NamedTuple):
    """What redis-benchmark has measured."""

    rate: float  # requests per second
    median_us: float


def _measured(
    address: tuple[str, ...], options: tuple[str, ...], count: int, words: tuple[str, ...]
) -> _Measured:
    """Send requests; return how many per second a server has answered, and how soon."""
    done = subprocess.run(
        ["redis-benchmark", *address, *options, "-n", str(count), "--csv", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    *_, row = csv.reader(io.StringIO(done.stdout))
    return _Measured(float(row[1]), 1000 * float(row[4]))


@contextmanager
def _redis(folder: Path, always: bool) -> Iterator[Address]:
    """Run a redis-server; yield where it listens."""
    path, port = folder / "redis.sock", _free_port()
    with server(redis_words(path, "always" if always else None, "--port", port), path):
        yield Address(path, port)


@contextmanager
def streamkeep_server(folder: Path, sync: str) -> Iterator[Address]:
    """Run `streamkeep serve`; yield where it listens."""
    path, port = folder / "streamkeep.sock", _free_port()
    words = [sys.executable, "-m", "streamkeep", "serve", folder / "store", "--socket", path]
    with server([*words, "--sync", sync, "--bind", f"127.0.0.1:{port}"], path):
        yield Address(path, port)


# --- the latency test -----------------------------------------------------------------------

_CONSUMERS: Final = 10
_WARM: Final = 2_000  # entries that are not counted: every process makes its first commit
_OLD_BATCH: Final = 1_000
# Title, COUNT, millions of entries that are pending, and entries per second.
_LATENCIES: Final = (
    ("COUNT 1", 1, 0, 10_000),
    ("COUNT 10,000", 10_000, 0, 10_000),
    ("COUNT 1, 3 million pending", 1, 3, 10_000),
    ("COUNT 1, 2,000 entries/s", 1, 0, 2_000),
)


def latency(report: Report, *, quick: bool) -> None:
    """Measure a store with sync="interval", Redis with everysec, and `serve`."""
    systems = ["store", "serve"] + ["redis"] * bool(shutil.which("redis-server"))
    for title, count, millions, rate in _LATENCIES:
        pending = 10_000 * millions if quick else 1_000_000 * millions
        for system in systems:
            ages = sorted(_ages(system, count, pending, rate, 1 if quick else 5))
            name = f"{system}, {title}"
            report.figure(f"{name}: median", ages[len(ages) // 2] / 1000, "us")
            within = sum(age <= 1_000_000 for age in ages) / len(ages)
            report.figure("  within 1 ms", 100 * within, "%")
            report.figure("  99.9 %", ages[len(ages) * 999 // 1000] / 1000, "us")


def _ages(system: str, count: int, pending: int, rate: int, seconds: int) -> list[int]:
    """Return the ages of all entries that count, in ns."""
    with scratch() as folder, ExitStack() as stack:
        if system == "store":
            where = f"store:{folder / 'store'}"
        else:
            path = folder / "redis.sock"
            if system == "redis":
                words = redis_words(path, "everysec", "--auto-aof-rewrite-percentage", 0)
                stack.enter_context(server(words, path))
            else:
                path = stack.enter_context(streamkeep_server(folder, "interval")).path
            where = f"redis:{path}"
        client = _client(where)
        client.xgroup_create("s", "g", mkstream=True)
        for _ in range(pending // _OLD_BATCH):
            with client.pipeline() as pipe:
                for _ in range(_OLD_BATCH):
                    pipe.xadd("s", {"sent": 0, "message": "x" * 40})
                pipe.xreadgroup("g", "gone", {"s": ">"}, count=_OLD_BATCH)
                pipe.execute()
        client.close()
        module = ("-m", "benchmarks.server")
        consumers = [
            stack.enter_context(Child(*module, "consume", where, count, f"c{one}"))
            for one in range(_CONSUMERS)
        ]
        total = _WARM + rate * seconds
        producer = stack.enter_context(Child(*module, "produce", where, total, rate))
        for child in consumers:
            child.go()
        time.sleep(0.2)  # all of them wait
        producer.go()
        producer.line()
        return [age for child in consumers for age in json.loads(child.line())]


def _client(where: str) -> Any:
    kind, _, path = where.partition(":")
    if kind == "store":
        return streamkeep.open(path, sync="interval")
    return redis.Redis(unix_socket_path=path, protocol=2)


def _produce(client: Any, total: int, rate: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # otherwise a sleep lasts 50 us longer
        ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK
    start = time.monotonic_ns()
    for number in range(total):
        due = start + number * 1_000_000_000 // rate
        if (ahead := due - time.monotonic_ns()) > 0:
            time.sleep(ahead / 1e9)
        sent = time.monotonic_ns() if number >= _WARM else 0
        client.xadd("s", {"sent": sent, "message": "x" * 40})
    print("done", flush=True)


def _consume(client: Any, count: int, name: str) -> None:
    ages: list[int] = []
    while found := client.xreadgroup("g", name, {"s": ">"}, count=count, block=2_000):
        entries = found[0][1]
        now = time.monotonic_ns()
        ages += [now - sent for _, fields in entries if (sent := int(fields[b"sent"]))]
        client.xack("s", "g", *(entry_id for entry_id, _ in entries))
    print(json.dumps(ages), flush=True)


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    measure(report, quick=quick)
    report.section("Redis's latency test: ten consumers of a group")
    latency(report, quick=quick)


def _be_client(role: str, where: str, number: str, more: str) -> None:
    client = _client(where)
    client.xlen("s")
    print("ready", flush=True)
    sys.stdin.readline()
    if role == "produce":
        _produce(client, int(number), int(more))
    else:
        _consume(client, int(number), more)


if __name__ == "__main__":
    _be_client(*sys.argv[1:])
