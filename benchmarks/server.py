"""`streamkeep serve` beside redis-server: redis-benchmark drives both over Unix sockets.

Both run at the same time, and take turns, so that the noise of the machine is the same for both.
Figures are requests per second, and the ratio is ours to theirs.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import redis

from benchmarks.common import Report, scratch

_TURNS: Final = 3
_ENTRY: Final = ("sensor-id", "1234", "temperature", "25.5", "message", "m" * 40)
_ADD: Final = ("XADD", "s", "*", *_ENTRY)

# Title, options of redis-benchmark, requests, words, and the least ratio; without and with a sync.
RELAXED: Final = (
    ("XADD, pipelined by 100", ("-c", "1", "-P", "100"), 200_000, _ADD, 0.4),
    ("XADD, 50 clients", ("-c", "50"), 50_000, _ADD, 0),
    ("XADD, one by one", ("-c", "1"), 10_000, _ADD, 1 / 1.5),
    ("PING, one by one", ("-c", "1"), 20_000, ("PING",), 0),
    ("XRANGE COUNT 100", ("-c", "1"), 10_000, ("XRANGE", "s", "-", "+", "COUNT", "100"), 1),
    (
        "XREADGROUP COUNT 100",
        ("-c", "1"),
        500,
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "100", "STREAMS", "s", ">"),
        1,
    ),
)
DURABLE: Final = (
    ("XADD, 50 clients", ("-c", "50"), 30_000, _ADD, 1),
    ("XADD, pipelined by 100", ("-c", "1", "-P", "100"), 50_000, _ADD, 0),
    ("XADD, one by one", ("-c", "1"), 3_000, _ADD, 1 / 1.5),
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
            ours = stack.enter_context(_streamkeep(folder, sync))
            for path in (theirs, ours):
                with redis.Redis(unix_socket_path=str(path)) as client:
                    client.xgroup_create("s", "g", 0, mkstream=True)
            for name, options, requests, words, least in rows:
                count = max(100, requests // 20) if quick else requests
                best = [0.0, 0.0]
                for _ in range(1 if quick else _TURNS):
                    for place, path in enumerate((theirs, ours)):
                        best[place] = max(best[place], _rate(path, options, count, words))
                report.figure(f"  {name}: Redis", best[0], "requests/s")
                report.figure(f"  {name}: streamkeep serve", best[1], "requests/s")
                report.figure("    ratio", best[1] / best[0], "times", least=least)


def _rate(path: Path, options: tuple[str, ...], count: int, words: tuple[str, ...]) -> float:
    """Return how many requests per second a server has answered."""
    done = subprocess.run(
        ["redis-benchmark", "-s", str(path), *options, "-n", str(count), "--csv", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    *_, row = csv.reader(io.StringIO(done.stdout))
    return float(row[1])


@contextmanager
def _redis(folder: Path, always: bool) -> Iterator[Path]:
    """Run a redis-server; yield its socket."""
    path = folder / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    if always:
        arguments += ["--appendonly", "yes", "--appendfsync", "always"]
    with _running(["redis-server", *arguments], path):
        yield path


@contextmanager
def _streamkeep(folder: Path, sync: str) -> Iterator[Path]:
    """Run `streamkeep serve`; yield its socket."""
    path = folder / "streamkeep.sock"
    words = ["serve", str(folder / "store"), "--socket", str(path), "--sync", sync]
    with _running([sys.executable, "-m", "streamkeep", *words], path):
        yield path


@contextmanager
def _running(words: list[str], path: Path) -> Iterator[None]:
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                with redis.Redis(unix_socket_path=str(path)) as client:
                    client.ping()
                break
            except redis.ConnectionError:
                if server.poll() is not None:
                    raise
        yield
    finally:
        server.terminate()
        server.wait()
