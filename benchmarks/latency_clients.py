"""The processes of the latency test: one that appends, those that read, and what they report.

`python -m benchmarks.latency_clients ROLE SPEC` with SPEC as JSON; see `Spec`. A client says
"ready", begins when it reads a line, and prints what it saw as one line of JSON. Clients of a store
and of a Redis server run the same code: both have redis-py's methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import resource
import sys
import time
from typing import Any, Final

KEY: Final = "s"
GROUP: Final = "g"
SENT: Final = b"sent"
MESSAGE: Final = b"x" * 40
WARM: Final = 2_000  # entries that are not counted: every process makes its first commit
END_MS: Final = 2_000  # without an entry, after which a consumer ends
_PR_SET_TIMERSLACK: Final = 29


@dataclasses.dataclass(frozen=True)
class Spec:
    """One run: which system, and how.

    Args:
        engine: "streamkeep", "redis", or "pipe": no database at all, what the machine allows.
        address: the store, or the socket of the server.
        sync: mode of the store.
        tasks: how many appends may be under way; more than one takes asyncio.
        count: COUNT of XREADGROUP.
        entries: how many are counted.
        rate: entries per second.
        name: of the consumer.
        pipes: descriptors to write to, for the producer of "pipe".
    """

    engine: str
    address: str
    sync: Any
    tasks: int
    count: int
    entries: int
    rate: int
    name: str = ""
    pipes: tuple[int, ...] = ()


class Usage:
    """What a process has taken since the object was made."""

    def __init__(self) -> None:
        self._begin = resource.getrusage(resource.RUSAGE_SELF)

    def report(self) -> dict[str, float]:
        """Return processor time in seconds, and how often the process went to sleep."""
        begin, end = self._begin, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "user": end.ru_utime - begin.ru_utime,
            "system": end.ru_stime - begin.ru_stime,
            "sleeps": end.ru_nvcsw - begin.ru_nvcsw,
        }


class Pacer:
    """When each entry is due, and how late the producer was with it."""

    def __init__(self, spec: Spec) -> None:
        self._step_ns = 1_000_000_000 // spec.rate
        self._start = time.monotonic_ns()
        self.late: list[int] = []

    def ahead(self, number: int) -> float:
        """Return how many seconds there are until an entry is due; 0 when it is late."""
        return max(0, self._due(number) - time.monotonic_ns()) / 1e9

    def stamp(self, number: int) -> bytes:
        """Return what an entry carries: when it was sent; 0 when it does not count."""
        now = time.monotonic_ns()
        if number < WARM:
            return b"0"
        self.late.append(now - self._due(number))
        return b"%d" % now

    def _due(self, number: int) -> int:
        return self._start + number * self._step_ns


def produce(spec: Spec) -> None:
    """Append, one entry after the other."""
    pipes = spec.pipes
    client = None if pipes else _connect(spec)
    usage, pacer = _begin(spec)
    for number in range(WARM + spec.entries):
        ahead = pacer.ahead(number)
        if ahead > 0:
            time.sleep(ahead)
        sent = pacer.stamp(number)
        if client is None:
            os.write(pipes[number % len(pipes)], sent.rjust(20))
        else:
            client.xadd(KEY, {SENT: sent, "message": MESSAGE})
    _tell(late=pacer.late, **usage.report())


async def produce_together(spec: Spec) -> None:
    """Append with many tasks, each waiting for its entry to be on disk."""
    client = await _connect_async(spec)
    await client.xlen(KEY)
    usage, pacer = _begin(spec)
    numbers = iter(range(WARM + spec.entries))

    async def append() -> None:
        for number in numbers:
            ahead = pacer.ahead(number)
            if ahead > 0:
                await asyncio.sleep(ahead)
            await client.xadd(KEY, {SENT: pacer.stamp(number), "message": MESSAGE})

    await asyncio.gather(*(append() for _ in range(spec.tasks)))
    _tell(late=pacer.late, **usage.report())
    await (client.aclose() if spec.engine == "redis" else client.close())


def consume(spec: Spec) -> None:
    """Read entries, note their ages and acknowledge, until no more come."""
    client = _connect(spec)
    ages: list[int] = []
    calls = 0
    usage, _ = _begin(spec)
    while found := client.xreadgroup(GROUP, spec.name, {KEY: ">"}, count=spec.count, block=END_MS):
        calls += 1
        entries = found[0][1]
        for _, fields in entries:
            sent = int(fields[SENT])
            if sent:
                ages.append(time.monotonic_ns() - sent)
        client.xack(KEY, GROUP, *(entry_id for entry_id, _ in entries))
    _tell(ages=ages, calls=calls, **usage.report())


def consume_pipe(spec: Spec) -> None:
    """As `consume`, from a pipe."""
    handle = int(spec.address)
    ages: list[int] = []
    calls = 0
    usage, _ = _begin(spec)
    while data := os.read(handle, 20):
        calls += 1
        sent = int(data)
        if sent:
            ages.append(time.monotonic_ns() - sent)
    _tell(ages=ages, calls=calls, **usage.report())


def _connect(spec: Spec) -> Any:
    if spec.engine == "redis":
        import redis

        client = redis.Redis(unix_socket_path=spec.address, protocol=2)
        client.ping()
        return client
    import streamkeep

    return streamkeep.open(spec.address, sync=spec.sync)


async def _connect_async(spec: Spec) -> Any:
    if spec.engine == "redis":
        import redis.asyncio

        return redis.asyncio.Redis(unix_socket_path=spec.address, protocol=2)
    import streamkeep.aio

    return await streamkeep.aio.open(spec.address, sync=spec.sync)


def _begin(spec: Spec) -> tuple[Usage, Pacer]:
    """Wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()
    return Usage(), Pacer(spec)


def _tell(**seen: Any) -> None:
    print(json.dumps(seen), flush=True)


def _sleep_exactly() -> None:
    """Make sleeps of this process end on time; otherwise Linux lets them last 50 us longer."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def main() -> None:
    """Be one of the processes."""
    role, text = sys.argv[1:]
    spec = Spec(**json.loads(text))
    if role == "consume":
        (consume_pipe if spec.engine == "pipe" else consume)(spec)
        return
    _sleep_exactly()
    if spec.tasks > 1:
        asyncio.run(produce_together(spec))
    else:
        produce(spec)


if __name__ == "__main__":
    main()
