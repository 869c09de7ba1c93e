"""Strict serializability: all that processes saw, while some were killed, fits to one order.

Each process notes its transactions with the time of their calls and returns. An entry's value is
unique, so the streams themselves say in which order they were written, and a read of the newest
entries says after which one it was. That gives a graph of what must come before what. A cycle in it
is an anomaly (as in Elle, Kingsbury and Alvaro 2020).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import streamkeep
from inside import checkpoint_now, context_of
from patience import PATIENCE_S
from stopped import child_of, die_at
from streamkeep import recovery
from tiers import slow_but

STREAMS: Final = tuple("abcde")
NEWEST: Final = 5  # entries that a read asks for
PLACES: Final = ("commit:journaled", "commit:published", "flush:ending", "flush:ended")
PROCESSES: Final = 4

Op = tuple[str, str, Any]  # "append", stream, value; or "read", stream, newest values
Orders = dict[str, list[str]]  # all values of each stream
Places = dict[str, tuple[str, int]]  # where each value is: its stream, and its number there


class Txn(NamedTuple):
    """A transaction as its process has noted it.

    Args:
        ended: when the call returned; None if the process was killed before.
        ops: only what is to be appended, in that case.
    """

    name: str
    began: int
    ended: int | None
    failed: bool
    ops: list[Op]


class Anomaly(Exception):
    """What no order of the transactions explains."""


def check(txns: list[Txn], orders: Orders) -> int:
    """Raise Anomaly if there is no order; return how many transactions took effect."""
    places = {value: (key, at) for key, order in orders.items() for at, value in enumerate(order)}
    if len(places) != sum(map(len, orders.values())):
        raise Anomaly("a value is there twice")
    made = [txn for txn in txns if _is_made(txn, places)]
    writers = {
        op[2]: number for number, txn in enumerate(made) for op in txn.ops if op[0] == "append"
    }
    unknown = places.keys() - writers.keys()
    if unknown:
        raise Anomaly(f"nobody has written {min(unknown)}")
    graph = Graph(made)
    for order in orders.values():
        for one, following in pairwise(order):
            graph.add(writers[one], writers[following], "was written before the value of")
    for number, txn in enumerate(made):
        own: dict[str, str] = {}
        for kind, key, what in txn.ops:
            if kind == "append":
                own[key] = what
                continue
            end = _end_of_read(txn, orders.get(key, []), what, key, places)
            if key in own and (not what or what[-1] != own[key]):
                raise Anomaly(f"{txn.name} does not read its own value {own[key]}")
            if end:
                graph.add(writers[orders[key][end - 1]], number, "was read by")
            if end < len(orders.get(key, [])):
                graph.add(number, writers[orders[key][end]], "did not read the value of")
    graph.add_times()
    graph.check()
    return len(made)


def _is_made(txn: Txn, places: Places) -> bool:
    """Return whether a transaction took effect, which it does wholly or not at all."""
    values = [(key, value) for kind, key, value in txn.ops if kind == "append"]
    there = [value for key, value in values if places.get(value, ("", 0))[0] == key]
    if txn.failed and there:
        raise Anomaly(f"{txn.name} failed, and {there[0]} is there")
    if txn.failed:
        return False
    if there and len(there) != len(values):
        raise Anomaly(f"{txn.name} is torn: of {values}, only {there} is there")
    if values and not there and txn.ended is not None:
        raise Anomaly(f"{txn.name} is lost: {values} was acknowledged")
    return txn.ended is not None or bool(there)


def _end_of_read(txn: Txn, order: list[str], values: list[str], key: str, places: Places) -> int:
    """Return how many values the stream had when it was read."""
    end = places.get(values[-1], ("", 0))[1] + 1 if values else 0
    if values != order[max(0, end - NEWEST) : end]:
        raise Anomaly(f"{txn.name} reads {values} in {key}, which never were its newest entries")
    return end


class Graph:
    """Which transaction comes before which, and why.

    Time has nodes of its own, one for each return, in a chain: each return leads to its node, and
    the last node before a call leads to that call. So there are few edges.
    """

    def __init__(self, txns: list[Txn]) -> None:
        self.txns = txns
        self.after: list[dict[int, str]] = [{} for _ in txns]

    def add(self, one: int, other: int, why: str) -> None:
        if one != other:
            self.after[one].setdefault(other, why)

    def add_times(self) -> None:
        count = len(self.txns)
        returns = sorted((txn.ended, n) for n, txn in enumerate(self.txns) if txn.ended is not None)
        self.after += [{} for _ in returns]
        for place, (_, number) in enumerate(returns):
            self.add(number, count + place, "returned")
            if place:
                self.add(count + place - 1, count + place, "")
        times = [ended for ended, _ in returns]
        for number, txn in enumerate(self.txns):
            place = bisect_left(times, txn.began)
            if place:
                self.add(count + place - 1, number, "before the call of")

    def check(self) -> None:
        """Raise Anomaly with a shortest cycle through one transaction."""
        missing = [0] * len(self.after)
        for following in self.after:
            for other in following:
                missing[other] += 1
        ready = [number for number, count in enumerate(missing) if not count]
        while ready:
            for other in self.after[ready.pop()]:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        for number in range(len(self.txns)):
            if missing[number] and (cycle := self._cycle(number)):
                raise Anomaly(self._shown(cycle))

    def _cycle(self, start: int) -> list[int]:
        """Return a shortest way from a node back to it; [] if there is none."""
        came: dict[int, int] = {}
        queue = deque([start])
        while queue:
            one = queue.popleft()
            for other in self.after[one]:
                if other not in came:
                    came[other] = one
                    queue.append(other)
            if start in came:
                way = [start]
                while way[-1] != start or len(way) == 1:
                    way.append(came[way[-1]])
                return way[::-1]
        return []

    def _shown(self, cycle: list[int]) -> str:
        words = ["a cycle:"]
        for one, other in pairwise(cycle):
            words += [self.txns[one].name] if one < len(self.txns) else []
            words += [why] if (why := self.after[one][other]) else []
        return " ".join([*words, self.txns[cycle[0]].name])


def txn(name: str, began: int, ended: int | None, *ops: Op, failed: bool = False) -> Txn:
    return Txn(name, began, ended, failed, list(ops))


def append(key: str, value: str) -> Op:
    return "append", key, value


def read(key: str, *values: str) -> Op:
    return "read", key, list(values)


A1, B1, A2 = append("a", "1"), append("b", "2"), append("a", "3")
BEFORE = [txn("T", 0, 9, A1, read("a", "1"), B1)]


def test_a_history_with_an_order_is_accepted() -> None:
    killed = [txn("K", 10, None, append("b", "lost")), txn("L", 10, None, A2)]
    late = txn("U", 11, 20, read("a", "1"), read("b", "2"))  # at the same time as L
    failed = txn("F", 10, 12, append("a", "x"), failed=True)
    assert check([*BEFORE, *killed, late, failed], {"a": ["1", "3"], "b": ["2"]}) == 3


@pytest.mark.parametrize(
    ("txns", "orders", "message"),
    [
        (BEFORE, {"a": ["1"]}, "T is torn"),
        ([txn("K", 0, None, A1, B1)], {"b": ["2"]}, "K is torn"),
        (BEFORE, {}, "T is lost"),
        ([txn("F", 0, 1, A1, failed=True)], {"a": ["1"]}, "F failed, and 1 is there"),
        (BEFORE, {"a": ["1", "9"], "b": ["2"]}, "nobody has written 9"),
        (BEFORE, {"a": ["1", "1"], "b": ["2"]}, "twice"),
        ([txn("T", 0, 9, A1, read("a"))], {"a": ["1"]}, "T does not read its own value 1"),
        (
            [*BEFORE, txn("U", 0, 9, A2), txn("R", 0, 9, read("a", "3"))],
            {"a": ["1", "3"], "b": ["2"]},
            "never were its newest",
        ),
        (  # a stale read
            [*BEFORE, txn("R", 10, 11, read("a"))],
            {"a": ["1"], "b": ["2"]},
            "a cycle: T returned before the call of R did not read the value of T",
        ),
        (  # the order of writes is not that of time
            [txn("T", 0, 1, A1), txn("U", 2, 3, A2)],
            {"a": ["3", "1"]},
            "a cycle: T returned before the call of U was written before the value of T",
        ),
        (  # a snapshot that shows a part of a transaction
            [txn("T", 0, 9, A1, B1), txn("R", 0, 9, read("a", "1"), read("b"))],
            {"a": ["1"], "b": ["2"]},
            "a cycle: T was read by R did not read the value of T",
        ),
        (  # write skew: each reads what the other one changes
            [txn("T", 0, 9, read("b"), A1), txn("U", 0, 9, read("a"), B1)],
            {"a": ["1"], "b": ["2"]},
            "a cycle: T did not read the value of U did not read the value of T",
        ),
        (  # two readers see two writes in different orders
            [
                txn("T", 0, 9, A1),
                txn("U", 0, 9, B1),
                txn("R", 0, 9, read("a", "1"), read("b")),
                txn("S", 0, 9, read("a"), read("b", "2")),
            ],
            {"a": ["1"], "b": ["2"]},
            "a cycle: T was read by R did not read the value of U was read by S did not",
        ),
        (  # one process sees a commit, then another one does not, some time later
            [
                txn("K", 0, None, A1),
                txn("R", 1, 2, read("a", "1")),
                *[txn(f"N{n}", n, n + 1) for n in range(3, 90, 2)],
                txn("S", 99, 100, read("a")),
            ],
            {"a": ["1"]},
            "a cycle: K was read by R returned before the call of S did not read the value of K",
        ),
    ],
)
def test_an_anomaly_is_reported(txns: list[Txn], orders: Orders, message: str) -> None:
    with pytest.raises(Anomaly) as caught:
        check(txns, orders)
    assert message in str(caught.value)


class Fails(Exception):
    """What makes a transaction fail."""


class Worker:
    """A process that runs transactions, and notes them."""

    def __init__(self, path: Path, notes: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.name = notes.name
        self.store = streamkeep.open(path, sync="none", decode_responses=True)
        context_of(self.store).memtable.most_commits = self.draw.choice((1, 5, 50, 1000))
        if self.draw.random() < 0.5:
            die_at(self.draw.choice(PLACES), self.draw.randrange(1, 200))

    def note(self, *what: object) -> None:
        os.write(self.notes, json.dumps(what).encode() + b"\n")

    def run(self) -> None:
        number = 0
        while self.draw.random() < 0.9995:
            self.one(f"{self.name}.{number}")
            number += 1
            if self.draw.random() < 0.003:
                checkpoint_now(self.store)
        self.store.close()

    def one(self, name: str) -> None:
        draw = self.draw
        kind = draw.choices(("transaction", "fails", "xadd", "read", "snapshot"), (9, 1, 3, 2, 4))[
            0
        ]
        writes = reads = 0
        if kind in ("transaction", "fails"):
            writes, reads = draw.randrange(1, 4), draw.randrange(4)
        elif kind == "snapshot":
            reads = draw.randrange(1, 6)
        else:
            writes, reads = int(kind == "xadd"), int(kind == "read")
        wanted: list[Op] = [
            *[append(key, f"{name}.{n}") for n, key in enumerate(draw.choices(STREAMS, k=writes))],
            *[read(key) for key in draw.sample(STREAMS, reads)],
        ]
        draw.shuffle(wanted)
        self.note("call", name, time.monotonic_ns(), [op for op in wanted if op[0] == "append"])
        ops = self.do(kind, wanted)
        self.note("return", name, time.monotonic_ns(), kind == "fails", ops)

    def do(self, kind: str, wanted: list[Op]) -> list[Op]:
        store = self.store
        if kind == "snapshot":
            with store.snapshot() as snapshot:
                return [run_op(snapshot, op) for op in wanted]
        if kind in ("xadd", "read"):
            return [run_op(store, op) for op in wanted]
        ops: list[Op] = []
        try:
            with store.transaction(sync="commit" if self.draw.random() < 0.02 else None) as txn:
                ops = [run_op(txn, op) for op in wanted]
                if kind == "fails":
                    raise Fails
        except Fails:
            pass
        return ops


def run_op(target: Any, op: Op) -> Op:
    kind, key, what = op
    if kind == "append":
        target.xadd(key, {"v": what})
        return op
    return read(key, *[entry.fields["v"] for entry in target.xrevrange(key, count=NEWEST)[::-1]])


def work(path: Path, notes: Path, seed: int) -> Callable[[], None]:
    """Return what a process does until it is killed, or ends."""

    def run() -> None:
        try:
            Worker(path, notes, seed).run()
        except BaseException:
            notes.with_suffix(".error").write_text(traceback.format_exc())

    return run


def noted(notes: Path) -> list[Txn]:
    found: dict[str, Txn] = {}
    lines = notes.read_text().split("\n") if notes.exists() else [""]
    for line in lines[:-1]:  # the process may have been killed in the middle of the last one
        kind, name, at, *rest = json.loads(line)
        if kind == "call":
            found[name] = Txn(name, at, None, False, [tuple(op) for op in rest[0]])
        else:
            ops = [tuple(op) for op in rest[1]]
            found[name] = found[name]._replace(ended=at, failed=rest[0], ops=ops)
    error = notes.with_suffix(".error")
    assert not error.exists(), error.read_text()
    return list(found.values())


@pytest.mark.crash
@pytest.mark.parametrize(
    ("seed", "count", "pause_s"), slow_but([(1, 3_000, 0.2), (2, 100_000, 1.0)], (1, 3_000, 0.2))
)
def test_all_that_processes_saw_fits_to_one_order(
    tmp_path: Path, seed: int, count: int, pause_s: float, tell_figures: Callable[[str], None]
) -> None:
    draw = random.Random(seed)
    path = tmp_path / "store"
    streamkeep.open(path).close()
    running: dict[int, Path] = {}
    txns: list[Txn] = []
    started = kills = 0
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(txns) < count:
            while len(running) < PROCESSES:
                notes = tmp_path / f"p{started}"
                running[child_of(work(path, notes, 1000 * seed + started))] = notes
                started += 1
            time.sleep(draw.random() * pause_s)
            if draw.random() < 0.5:
                os.kill(draw.choice(list(running)), signal.SIGKILL)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    kills += os.WIFSIGNALED(status)
                    txns += noted(running.pop(pid))
            assert time.monotonic() < deadline
    finally:
        for pid, notes in running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            txns += noted(notes)
    with streamkeep.open(path, decode_responses=True) as store:
        orders = {key: [entry.fields["v"] for entry in store.xrange(key)] for key in STREAMS}
    assert list(recovery.check(path)) == []
    made = check(txns, orders)
    tell_figures(f"histories: {len(txns)} transactions, {made} made, {kills} kills")
