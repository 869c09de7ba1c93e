"""Producers and consumers of streams at a given rate, for a store, `streamkeep serve` and Redis.

Each is a process of its own, with one client and no threads. Clients of a store and of a server run
the same code: both have redis-py's methods. An entry carries the time from which its age is
counted, by the consumer that gets it. That time is the *scheduled* one: if a producer falls behind,
because the machine or the store is busy, the entries that wait in it get older (no coordinated
omission). With `scheduled=False` an age begins right before the call instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import redis

import streamkeep
from benchmarks.common import Child, cpu_s, redis_words, server, streamkeep_words

GROUP: Final = "g"
_END: Final = "ended"  # a stream that exists when all producers have ended
_CAUGHT_UP_NS: Final = 100_000_000
Sync = Literal["commit", "interval", "none"]
_FSYNC: Final[dict[Sync, str | None]] = {"commit": "always", "interval": "everysec", "none": None}


class Load(NamedTuple):
    """What is sent and how it is read."""

    rate: float  # entries per second of all producers
    seconds: float
    producers: int = 1
    consumers: int = 1
    streams: int = 1
    size: int = 1024  # bytes of the payload
    at_once: int = 100  # COUNT of a read
    batch: int = 100  # entries of a pipeline, of those that are due; 1: no pipeline
    keep: int = 0  # MAXLEN ~ of a stream; 0 for no limit
    warm: float = 1.0  # seconds at the start whose entries are not counted
    late: float = 0.0  # seconds after which the consumers begin
    scheduled: bool = True

    @property
    def total(self) -> int:
        """Entries that each producer sends."""
        return math.ceil(self.rate * (self.warm + self.seconds) / self.producers)


class Result(NamedTuple):
    """What became of it."""

    rate: float  # entries per second that the producers sent
    drained_s: float  # how long after the start of the consumers all of them had caught up
    ages: list[tuple[int, int]]  # in ns, rounded to 1 %, and how many of each; the youngest first
    trimmed: int = 0  # entries that went by MAXLEN before a consumer had them
    cpu_us: float = 0.0  # processor time for each entry, of clients and server together

    def age_ms(self, share: float) -> float:
        """Return the age that this share of the entries did not exceed."""
        left = share * self.counted
        for age, count in self.ages:
            left -= count
            if left <= 0:
                return age / 1e6
        return self.ages[-1][0] / 1e6

    def within(self, most: int) -> float:
        """Return the share of the entries that were at most so old, in ns."""
        return sum(count for age, count in self.ages if age <= most) / self.counted

    @property
    def counted(self) -> int:
        """How many entries were counted."""
        return sum(count for _, count in self.ages)


@contextmanager
def running(system: str, sync: Sync, folder: Path) -> Iterator[str]:
    """Have a "store", a "serve" or a "redis" in a folder; yield where clients find it."""
    path = folder / "socket"
    if system == "store":
        yield f"store:{sync}:{folder / 'store'}"
        return
    if system == "redis":
        words = redis_words(path, _FSYNC[sync], "--auto-aof-rewrite-percentage", 0)
    else:
        words = streamkeep_words(path, sync)
    with server(words, path):
        yield f"redis::{path}"


def client_of(where: str) -> Any:
    """Return a client, which must be closed."""
    kind, sync, path = where.split(":", 2)
    if kind == "store":
        return streamkeep.open(path, sync=cast(Sync, sync))
    return redis.Redis(unix_socket_path=path, protocol=2)


def run_load(where: str, load: Load) -> Result:
    """Create the streams and their groups, where they do not exist, and run the processes."""
    with ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(client_of(where)))
        for stream in map(str, range(load.streams)):
            if not client.exists(stream):
                client.xgroup_create(stream, GROUP, mkstream=True)
        words = ("-m", "benchmarks.load", where, json.dumps(load))
        roles = [("consume", one) for one in range(load.consumers)]
        roles += [("produce", one) for one in range(load.producers)]
        begun = [Child(*words, *role) for role in roles]  # all at once, since each takes a while
        children = [stack.enter_context(child) for child in begun]
        consumers, producers = children[: load.consumers], children[load.consumers :]
        if not load.late:
            _go(consumers)
            time.sleep(0.2)  # all of them wait
        _go(producers)
        if load.late:
            time.sleep(load.warm + load.late)
            _go(consumers)
        began, used = time.monotonic_ns(), -_server_s(client)
        rate = 0.0
        for child in producers:
            sent, seconds = map(float, child.line().split())
            rate += sent
            used += seconds
        client.xadd(_END, {"all": "sent"})
        ages: Counter[int] = Counter()
        received, drained = 0, began
        for child in consumers:
            found = json.loads(child.line())
            ages.update({int(age): count for age, count in found["ages"].items()})
            received += found["received"]
            used += found["cpu_s"]
            drained = max(drained, found["caught_up"])
        client.delete(_END)
        used += _server_s(client)
    lost = load.total * load.producers - received
    if lost and not load.keep:
        raise RuntimeError(f"{lost} entries were sent and not received")
    return Result(rate, (drained - began) / 1e9, sorted(ages.items()), lost, 1e6 * used / received)


def _server_s(client: Any) -> float:
    """Return the processor time of the server, in seconds; 0 without one."""
    if not isinstance(client, redis.Redis):
        return 0.0
    return cpu_s(client.info("server")["process_id"])


def _go(children: list[Child]) -> None:
    for child in children:
        child.go()


def _produce(client: Any, load: Load, number: int) -> None:
    """Send what is due, and print the rate."""
    with contextlib.suppress(OSError, AttributeError):  # otherwise a sleep lasts 50 us longer
        ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK
    each_ns, used = 1e9 * load.producers / load.rate, time.process_time()
    start = time.monotonic_ns() + int(each_ns * number / load.producers)
    warm = start + int(load.warm * 1e9)
    payload = "x" * load.size
    limit = {"maxlen": load.keep, "approximate": True} if load.keep else {}

    def send(to: Any, one: int) -> None:
        due = start + int(one * each_ns)
        sent = 0 if due < warm else due if load.scheduled else time.monotonic_ns()
        stream = (one * load.producers + number) % load.streams
        to.xadd(str(stream), {"sent": sent, "payload": payload}, **limit)

    done = 0
    while done < load.total:
        now = time.monotonic_ns()
        if (ahead := start + int(done * each_ns) - now) > 0:
            time.sleep(ahead / 1e9)
            now = time.monotonic_ns()
        due = min(int((now - start) / each_ns) + 1, load.total, done + load.batch)
        if due <= done + 1:
            send(client, done)
            done += 1
            continue
        with client.pipeline() as pipe:
            for one in range(done, due):
                send(pipe, one)
            pipe.execute()
        done = due
    rate = load.total / ((time.monotonic_ns() - start) / 1e9)
    print(rate, time.process_time() - used, flush=True)


def _consume(client: Any, load: Load, number: int) -> None:
    """Count ages until all is sent and read, and print them."""
    ages: Counter[int] = Counter()
    received, caught_up, used = 0, None, time.process_time()
    # As many consumers of a stream as there are, or as many streams of a consumer.
    first, step = (number, load.consumers) if load.streams >= load.consumers else (0, 1)
    streams = dict.fromkeys(map(str, range(first, load.streams, step)), ">")
    while True:
        ended = client.exists(_END)
        found = client.xreadgroup(GROUP, f"c{number}", streams, count=load.at_once, block=200)
        now = time.monotonic_ns()
        if not found and ended:
            break
        for stream, entries in found:
            received += len(entries)
            for _, fields in entries:
                if sent := int(fields[b"sent"]):
                    age = now - sent
                    shift = max(0, age.bit_length() - 7)
                    ages[age >> shift << shift] += 1
                    if caught_up is None and age < _CAUGHT_UP_NS:
                        caught_up = now
            client.xack(stream, GROUP, *(entry_id for entry_id, _ in entries))
    caught_up = caught_up or time.monotonic_ns()
    found = {"ages": ages, "received": received, "caught_up": caught_up}
    print(json.dumps({**found, "cpu_s": time.process_time() - used}), flush=True)


def _be_client(where: str, load: str, role: str, number: str) -> None:
    client = client_of(where)
    client.exists(_END)
    print("ready", flush=True)
    sys.stdin.readline()
    call: Callable[[Any, Load, int], None] = _produce if role == "produce" else _consume
    call(client, Load(*json.loads(load)), int(number))
    client.close()


if __name__ == "__main__":
    _be_client(*sys.argv[1:])
