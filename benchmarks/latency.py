"""Redis's latency test, for a store, `streamkeep serve` and Redis.

It is that of Redis's page on streams: how old an entry is when a worker has it. One
process appends at a steady rate, ten of one group read with a blocking XREADGROUP and acknowledge.
An age begins right before the call of the append, so a producer that a busy machine delays makes no
entries older. Clients of a store and of a server run the same code: both have redis-py's methods.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import sys
import time
from contextlib import ExitStack
from typing import Any, Final

import redis

import streamkeep
from benchmarks.common import Child, Report, redis_words, scratch, server, streamkeep_words

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


def run(report: Report, *, quick: bool) -> None:
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
            else:
                words = streamkeep_words(path, "interval")
            stack.enter_context(server(words, path))
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
        module = ("-m", "benchmarks.latency")
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
