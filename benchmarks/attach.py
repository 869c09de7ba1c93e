"""A store that follows a Redis: what Redis pays, how far the store falls back, the first copy.

redis-benchmark appends with and without a follower in turns, over a Unix socket; the follower is a
process of its own, with a sync per transaction.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from typing import Final

import redis

from benchmarks.common import Child, Report, redis_words, scratch, server, timed

_TURNS: Final = 3
_FOLLOWER: Final = """
import sys, threading
from streamkeep.replication import Follower
follower = Follower(sys.argv[1], sys.argv[2], told=lambda text: print(text, flush=True))
threading.Thread(target=lambda: (sys.stdin.readline(), follower.stop.set()), daemon=True).start()
print("ready", flush=True)
follower.run()
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], flush=True)
"""


def run(report: Report, *, quick: bool) -> None:
    """Measure all figures."""
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            report.note(f"{program} is not installed")
            return
    _writers(report, quick=quick)
    _first_copy(report, quick=quick)


def _writers(report: Report, *, quick: bool) -> None:
    for title, pipeline, count in (("50 clients", 1, 200_000), ("pipelined by 16", 16, 500_000)):
        count = count // 20 if quick else count
        ratios, rates, behind = [], [], []
        for _ in range(1 if quick else _TURNS):
            alone, _ = _append(count, pipeline, followed=False)
            beside, late = _append(count, pipeline, followed=True)
            ratios.append(beside / alone)
            rates.append(beside)
            behind.append(late)
        report.figure(f"XADD, {title}, followed", statistics.median(rates), "requests/s")
        report.figure(f"XADD, {title}, followed", statistics.median(ratios), "of without")
        report.figure(f"XADD, {title}, behind at the end", statistics.median(behind), "s")


def _append(count: int, pipeline: int, *, followed: bool) -> tuple[float, float]:
    """Return the rate of the clients, and how many seconds later the store has everything."""
    with scratch() as folder, server(redis_words(folder / "redis", None), folder / "redis"):
        client = redis.Redis(unix_socket_path=str(folder / "redis"), protocol=2)
        client.config_set("repl-diskless-sync-delay", 0)
        words: list[object] = ["redis-benchmark", "-s", folder / "redis", "-q", "-c", 50]
        words += ["-n", count, "-P", pipeline]
        words += ["XADD", "s", "MAXLEN", "~", "10000", "*", "field", "v" * 40]

        def benchmark() -> None:
            subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)

        if not followed:
            return count / timed(benchmark), 0.0
        with Child("-c", _FOLLOWER, f"unix://{folder / 'redis'}", folder / "store") as child:
            child.line()
            rate = count / timed(benchmark)
            began = time.perf_counter()
            client.xadd("s", {"the": "last"})
            assert client.wait(1, 600_000) == 1
            late = time.perf_counter() - began
            child.go()  # it ends before its store goes
            child.process.wait()
            return rate, late


def _first_copy(report: Report, *, quick: bool) -> None:
    size = (20 if quick else 2000) << 20
    with scratch() as folder, server(redis_words(folder / "redis", None), folder / "redis"):
        client = redis.Redis(unix_socket_path=str(folder / "redis"), protocol=2)
        client.config_set("repl-diskless-sync-delay", 0)
        script = "for n = 1, 10000 do redis.call('XADD', KEYS[1], '*', 'n', string.rep(n, 200)) end"
        number = 0
        while client.info("memory")["used_memory"] < size:
            client.eval(script, 1, f"stream:{number}")
            number += 1
        used = client.info("memory")["used_memory"]
        began = time.perf_counter()
        with Child("-c", _FOLLOWER, f"unix://{folder / 'redis'}", folder / "store") as child:
            child.line()
            seconds = time.perf_counter() - began
            child.go()
            memory = float(child.line()) / 1024
        report.figure(f"first copy of {used / 1e6:,.0f} MB", used / 1e6 / seconds, "MB/s")
        report.figure("memory of the follower then", memory, "MiB")
