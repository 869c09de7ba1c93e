"""Data shape, timing and reporting shared by all benchmarks."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import lmdb

import streamkeep
from streamkeep.format.node import listpack

SHAPE = "sensor-id <0..9999>, temperature <-20.0..45.0>, message <20..60 random bytes>"


def entries(count: int, seed: int = 1) -> list[dict[bytes, bytes]]:
    """Return entries of three fields, about 60 bytes of listpack each; the same for each seed."""
    rng = random.Random(seed)
    return [
        {
            b"sensor-id": b"%d" % rng.randrange(10_000),
            b"temperature": b"%.1f" % rng.uniform(-20, 45),
            b"message": rng.randbytes(rng.randrange(20, 61)),
        }
        for _ in range(count)
    ]


def batches(count: int) -> Iterator[list[dict[bytes, bytes]]]:
    """Yield so many entries, 10,000 at a time."""
    for first in range(0, count, 10_000):
        yield entries(min(10_000, count - first), seed=first)


def timed(
    call: Callable[[], object], count: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return how long so many calls take, in seconds."""
    start = clock()
    for _ in range(count):
        call()
    return clock() - start


def in_turns(
    calls: Iterable[Callable[[], object]],
    turns: int,
    count: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Return how long one call of each took in each turn, so that noise is the same for all."""
    some = list(calls)
    rounds = [[timed(call, count, clock) / count for call in some] for _ in range(turns)]
    return [list(times) for times in zip(*rounds, strict=True)]


def best(call: Callable[[], object], repeat: int = 5) -> float:
    """Return the shortest of several runs, in seconds, because noise only adds."""
    return min(timed(call) for _ in range(repeat))


def median_us(call: Callable[[], object], count: int) -> float:
    """Return the median duration of one call in microseconds."""
    return median(timed(call) for _ in range(count)) * 1e6


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk of the temporary directory, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="streamkeep-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Child:
    """A process of a Python that says "ready", begins when told, and is killed at the end."""

    def __init__(
        self,
        *arguments: object,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [python, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Child:
        assert self.line() == "ready"
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.communicate()

    def go(self) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """Wait for a line."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line.rstrip("\n")
        raise RuntimeError(f"{self.process.args!r} has ended early")


def installed(report: Report, modules: Mapping[str, str]) -> list[str]:
    """Return the systems whose module is installed."""
    for name, module in modules.items():
        if find_spec(module) is None:
            report.note(f"{name}: skipped, it is not installed")
    return [name for name, module in modules.items() if find_spec(module)]


@contextmanager
def server(words: Sequence[object], path: Path) -> Iterator[int]:
    """Run a server that listens on a Unix socket; yield the number of its process."""
    nothing = subprocess.DEVNULL
    running = subprocess.Popen([*map(str, words)], stdout=nothing, stderr=nothing)
    try:
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as one:
                    one.connect(str(path))
                break
            except OSError:
                if running.poll() is not None:
                    raise
                time.sleep(0.05)
        yield running.pid
    finally:
        running.terminate()
        running.wait()


def redis_words(path: Path, fsync: str | None, *more: object) -> list[object]:
    """Return the command of a redis-server; `fsync` None for one without an append-only file."""
    words = ["redis-server", "--port", 0, "--unixsocket", path, "--dir", path.parent, "--save", ""]
    if fsync is not None:
        words += ["--appendonly", "yes", "--appendfsync", fsync]
    return [*words, *more]


def streamkeep_words(path: Path, sync: str) -> list[object]:
    """Return the command of a `streamkeep serve`, with a store beside its socket."""
    words = [sys.executable, "-m", "streamkeep", "serve", path.parent / "store"]
    return [*words, "--socket", path, "--sync", sync]


def cpu_s(process: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def process_figure(name: str, file: str = "status") -> int:
    """Return one number of /proc/self: kB of memory, or bytes written."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


class Report:
    """Prints figures next to their targets, and remembers whether all were reached."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        self._section = ""
        self._kept = Path("build", "figures.jsonl")
        self._run = time.strftime("%Y-%m-%dT%H:%M:%S")

    def header(self) -> None:
        """Print machine and versions, which the figures depend on."""
        compiled = not str(listpack.__file__).endswith(".py")
        print(f"machine    {platform.platform()}, {os.cpu_count()} cores, {_cpu()}")
        print(
            f"versions   Python {platform.python_version()}, py-lmdb {lmdb.__version__}, LMDB "
            f"{'.'.join(map(str, lmdb.version(lib_version=0)))}, SQLite {sqlite3.sqlite_version}"
        )
        print(f"modules    {'compiled' if compiled else 'interpreted'}")
        print(f"entries    {SHAPE}")

    def section(self, title: str) -> None:
        """Begin a group of figures."""
        self._section = title.partition(":")[0]
        print(f"\n{title}")

    def note(self, text: str) -> None:
        """Print a remark among the figures."""
        print(f"  {text}")

    def figure(
        self, name: str, value: float, unit: str, *, least: float = 0, most: float = 0
    ) -> None:
        """Print a figure, and keep it beside earlier ones; `least` or `most` is the target."""
        row = {"run": self._run, "of": self._section, "name": name, "value": value}
        self._kept.parent.mkdir(exist_ok=True)
        with self._kept.open("a") as file:
            print(json.dumps(row | {"unit": unit}), file=file)
        text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
        target = ""
        if least or most:
            reached = value >= least if least else value <= most
            bound = f"at least {least:,g}" if least else f"at most {most:,g}"
            target = f"  {bound}: {'reached' if reached else 'MISSED'}"
            if not reached:
                self.missed.append(name)
        print(f"  {name:<52} {text:>12} {unit:<12}{target}")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def interpreted(*module: str) -> str:
    """Return what `python -m MODULE ...` prints with a copy of the package that is not compiled."""
    with scratch() as folder:
        shutil.copytree(
            Path(streamkeep.__file__).parent,
            folder / "streamkeep",
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
        done = subprocess.run(
            [sys.executable, "-m", *module],
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.getcwd()}"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout
