"""`streamkeep serve` beside redis-server: redis-benchmark drives both, over a Unix socket and TCP.

Both run at the same time, and take turns, so that the noise of the machine is the same for both.
Figures are requests per second, and the ratio is ours to theirs; for one client without a pipeline,
the median of its round trips, which other processes disturb less. The best of several turns counts.
"""

from __future__ import annotations

import csv
import io
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import redis

from benchmarks.common import Report, redis_words, scratch, server

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
