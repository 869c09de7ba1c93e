"""The published latency test of Redis Streams: how old an entry is when a worker has it.

One process appends at a steady rate; ten processes of one group read with a blocking XREADGROUP and
acknowledge. Redis's documentation reports, for its own server on older hardware, with COUNT 10,000,
74.1 % of entries within 1 ms and 99.9 % within 2 ms. Here the same processes run

- with bare pipes instead of a database: what Python and the machine allow at that moment;
- with a store, each mode and COUNT, and with millions of entries pending;
- with a Redis server, which the benchmark starts and stops, where there is one;
- with `streamkeep serve`, by the same client.

An age begins right before the call of the append. If a busy machine delays the producer, entries do
not get older, so the delay of the producer is reported separately. Processor time per entry is that
of all processes together, the server included; two cores that serve 10,000 entries/s have 200 us
for each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import streamkeep
from benchmarks.common import Child, Report, redis_words, scratch, server
from benchmarks.latency_clients import GROUP, KEY, MESSAGE, SENT, WARM, Spec
from benchmarks.server import streamkeep_server

CONSUMERS: Final = 10
RATE: Final = 10_000
SECONDS: Final = 10.0
PENDING: Final = 3_000_000
_STEPS_US: Final = (100, 200, 500, 1000, 2000, 5000, 10_000)
_LATE_US: Final = 1000
_BATCH: Final = 1000
_OLD_CONSUMER: Final = "gone"
_FILL: Final = """
for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'sent', '0', 'message', ARGV[2]) end
redis.call('XREADGROUP', 'GROUP', ARGV[3], ARGV[4], 'COUNT', ARGV[1], 'STREAMS', KEYS[1], '>')
return 0
"""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the test; `least` is the target in % within `within_us`."""

    name: str
    title: str
    engine: str = "streamkeep"
    sync: str = "interval"
    tasks: int = 1
    count: int = 1
    pending: bool = False
    within_us: int = 1000
    least: float = 0.0
    median_us: float = 0.0


VARIANTS: Final = (
    Variant("pipes", "bare pipes, no database", engine="pipe"),
    Variant("interval", "interval, COUNT 1", least=99.8, median_us=100),
    Variant("interval-10000", "interval, COUNT 10,000", count=10_000, least=99.8, median_us=100),
    Variant("pending", "interval, millions pending", pending=True, least=99.8, median_us=100),
    Variant(
        "pending-10000",
        "interval, millions pending, COUNT 10,000",
        count=10_000,
        pending=True,
        least=99.8,
        median_us=100,
    ),
    Variant(
        "commit",
        "commit, 16 appends under way",
        sync="commit",
        tasks=16,
        within_us=5000,
        least=99.9,
    ),
    Variant("redis", "Redis, everysec, COUNT 1", engine="redis", sync="everysec"),
    Variant("serve", "serve, interval, COUNT 1", engine="serve"),
    Variant(
        "redis-10000",
        "Redis, everysec, COUNT 10,000",
        engine="redis",
        sync="everysec",
        count=10_000,
    ),
    Variant("serve-10000", "serve, interval, COUNT 10,000", engine="serve", count=10_000),
    Variant(
        "redis-pending",
        "Redis, everysec, millions pending",
        engine="redis",
        sync="everysec",
        pending=True,
    ),
    Variant("serve-pending", "serve, interval, millions pending", engine="serve", pending=True),
    Variant(
        "redis-always",
        "Redis, always, 16 appends under way",
        engine="redis",
        sync="always",
        tasks=16,
        within_us=5000,
    ),
    Variant(
        "serve-always",
        "serve, commit, 16 appends under way",
        engine="serve",
        sync="commit",
        tasks=16,
        within_us=5000,
    ),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Duration, rate, amount, and which variants."""

    seconds: float = SECONDS
    rate: int = RATE
    consumers: int = CONSUMERS
    pending: int = PENDING
    variants: tuple[str, ...] = ()


class Run:
    """The result of one run; ages and lateness in microseconds, ascending."""

    def __init__(
        self, variant: Variant, consumers: list[Any], producer: Any, server_s: float
    ) -> None:
        everybody = [*consumers, producer]
        self.variant = variant
        self.ages = sorted(age / 1000 for one in consumers for age in one["ages"])
        self.late = sorted(late / 1000 for late in producer["late"])
        count = len(self.late) + WARM
        self.user_us = sum(one["user"] for one in everybody) / count * 1e6
        self.system_us = sum(one["system"] for one in everybody) / count * 1e6
        self.server_us = server_s / count * 1e6
        self.sleeps = sum(one["sleeps"] for one in everybody) / count
        self.batch = count / max(1, sum(one["calls"] for one in consumers))
        self.load = os.getloadavg()[0]

    def share(self, most_us: float) -> float:
        """Return how many % of the entries were at most that old."""
        return _share(self.ages, most_us)


def run(report: Report, options: Options) -> None:
    """Measure all variants, or those that are named."""
    for variant in VARIANTS:
        if options.variants and variant.name not in options.variants:
            continue
        if variant.engine in ("redis", "serve") and (reason := _no_redis(variant.engine)):
            report.note(f"{variant.title}: skipped, {reason}")
            continue
        _print(report, measure(variant, options))


def measure(variant: Variant, options: Options) -> Run:
    """Run the test once."""
    entries = round(options.seconds * options.rate)
    pending = options.pending if variant.pending else 0
    with scratch() as folder:
        spec = Spec(
            variant.engine,
            str(folder / "store"),
            variant.sync,
            variant.tasks,
            variant.count,
            entries,
            options.rate,
        )
        if variant.engine == "pipe":
            found = _run_pipes(spec, options.consumers)
            server_s = 0.0
        elif variant.engine == "redis":
            with _redis(folder, variant.sync) as client:
                _fill_redis(client, pending)
                spec = dataclasses.replace(spec, address=str(folder / "socket"))
                found, server_s = _run_served(client, spec, options.consumers)
        elif variant.engine == "serve":
            import redis

            _fill_store(folder / "store", pending)
            with streamkeep_server(folder, variant.sync) as served:
                spec = dataclasses.replace(spec, engine="redis", address=str(served.path))
                with redis.Redis(unix_socket_path=spec.address, protocol=2) as client:
                    found, server_s = _run_served(client, spec, options.consumers)
        else:
            _fill_store(folder / "store", pending)
            found = _run_clients(spec, options.consumers)
            server_s = 0.0
        one = Run(variant, *found, server_s)
        if len(one.ages) != entries:
            raise RuntimeError(f"{len(one.ages)} of {entries} entries were processed")
        return one


# --- processes ------------------------------------------------------------------------------


def _run_clients(spec: Spec, count: int) -> tuple[list[Any], Any]:
    consumers = [
        _start("consume", dataclasses.replace(spec, name=f"c{one}")) for one in range(count)
    ]
    return _collect(consumers, _start("produce", spec))


def _run_served(client: Any, spec: Spec, count: int) -> tuple[tuple[list[Any], Any], float]:
    """Run the clients of a server; also return the processor time that it has taken."""
    before = _server_seconds(client)
    found = _run_clients(spec, count)
    return found, _server_seconds(client) - before


def _run_pipes(spec: Spec, count: int) -> tuple[list[Any], Any]:
    ends = [os.pipe() for _ in range(count)]
    consumers = [
        _start("consume", dataclasses.replace(spec, address=str(read)), (read,)) for read, _ in ends
    ]
    pipes = tuple(write for _, write in ends)
    producer = _start("produce", dataclasses.replace(spec, pipes=pipes), pipes)
    for pair in ends:
        for handle in pair:
            os.close(handle)
    return _collect(consumers, producer)


def _start(role: str, spec: Spec, handles: tuple[int, ...] = ()) -> Child:
    text = json.dumps(dataclasses.asdict(spec))
    return Child("-m", "benchmarks.latency_clients", role, text, handles=handles)


def _collect(consumers: list[Child], producer: Child) -> tuple[list[Any], Any]:
    """Start all at once when all are ready; return what they have seen."""
    with ExitStack() as stack:
        for child in (*consumers, producer):
            stack.enter_context(child)
        for child in consumers:
            child.go()
        time.sleep(0.2)  # all of them wait
        producer.go()
        seen = json.loads(producer.line())
        return [json.loads(child.line()) for child in consumers], seen


# --- what they work on ----------------------------------------------------------------------


def _fill_store(path: Path, pending: int) -> None:
    """Make the store and the group, with `pending` entries that a consumer never acknowledged."""
    with streamkeep.open(path, sync="none") as store:
        store.xgroup_create(KEY, GROUP, mkstream=True)
        batch = [{SENT: b"0", b"message": MESSAGE}] * _BATCH
        for _ in range(pending // _BATCH):
            store.xadd_many(KEY, batch)
            store.xreadgroup(GROUP, _OLD_CONSUMER, {KEY: ">"}, count=_BATCH)


def _fill_redis(client: Any, pending: int) -> None:
    client.xgroup_create(KEY, GROUP, mkstream=True)
    for _ in range(pending // _BATCH):
        client.eval(_FILL, 1, KEY, _BATCH, MESSAGE, GROUP, _OLD_CONSUMER)


def _no_redis(engine: str) -> str:
    """Return why the test cannot be run on a server; empty when it can."""
    if engine == "redis" and shutil.which("redis-server") is None:
        return "redis-server is not installed"
    try:
        import redis  # noqa: F401
    except ImportError:
        return "redis-py is not installed"
    return ""


@contextmanager
def _redis(folder: Path, fsync: str) -> Iterator[Any]:
    """A Redis server with an append-only file, on a socket in the folder; stopped afterwards."""
    import redis

    path = folder / "socket"
    with (
        server(redis_words(path, fsync, "--auto-aof-rewrite-percentage", 0), path),
        redis.Redis(unix_socket_path=str(path), protocol=2) as client,
    ):
        yield client


def _server_seconds(client: Any) -> float:
    """Return the processor time that the server has taken."""
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


# --- figures --------------------------------------------------------------------------------


def _share(values: list[float], most: float) -> float:
    return 100 * sum(value <= most for value in values) / len(values)


def _at(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


def _print(report: Report, one: Run) -> None:
    """Print the distribution, and what it depends on."""
    variant = one.variant
    ages = one.ages
    report.figure(f"{variant.title}: median", _at(ages, 0.5), "us", most=variant.median_us)
    for part in (0.9, 0.99, 0.999):
        report.figure(f"  {100 * part:g} %", _at(ages, part), "us")
    report.figure("  oldest", ages[-1], "us")
    for step in _STEPS_US:
        least = variant.least if step == variant.within_us else 0
        report.figure(f"  within {step / 1000:g} ms", one.share(step), "%", least=least)
    report.figure("  entries per XREADGROUP", one.batch, "")
    report.figure("  producer: median lateness", _at(one.late, 0.5), "us")
    late = 100 - _share(one.late, _LATE_US)
    report.figure(f"  producer: later than {_LATE_US / 1000:g} ms", late, "%")
    total = one.user_us + one.system_us + one.server_us
    report.figure("  processor time per entry", total, "us")
    report.figure("    in system calls, of the clients", one.system_us, "us")
    if one.server_us:
        report.figure("    of the server", one.server_us, "us")
    report.figure("  sleeps per entry", one.sleeps, "")
    report.figure("  load of the machine", one.load, "")
