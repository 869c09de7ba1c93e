"""What an operation costs as a store grows, in processor time: each curve is flat, or explained.

A store grows step by step: by entries of a stream, streams, groups of a stream, entries that are
pending in a group, or processes. At each size every call runs on what is drawn at random; its cost
is the processor time of the process (of all of them, where these grow), which others on the machine
disturb less than time. Then come opening, recovery after a kill, fsck, backup and archive. A small
store takes turns with the one that grows, because the speed of a shared processor changes: the
growth is the ratio of the two at the largest size.

GROWTH is the largest size: a million by default. 50000000 takes hours, and 20 GB of disk. GROWN
selects what grows by a regex.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import streamkeep
from benchmarks.commits import SINGLES
from benchmarks.common import Child, Report, entries, in_turns, scratch
from benchmarks.compare import Row, compare
from streamkeep.recovery import Severity, backup, check, restore

_CALLS: Final = 1_000  # a flush among them, if they commit
_ROUNDS: Final = 3
_MOST: Final = 2  # times the cost at the smallest size: the tree gets deeper, and nothing else
_KILLED: Final = 10_000  # appends that a recovery finds in the journal
_ARCHIVED: Final = 1_000  # streams, of which each is a file
_BATCH: Final = entries(1000)
_PROCESSES: Final = (1, 2, 4, 8, 16)
_ROLES: Final = {"xadd": "xadd", "xadd, xreadgroup, xack": "cycle"}
# What looks at all, in Redis too. The text of an entry is in the page of figures.
_LINEAR: Final = ("xpending_range of 10, idle, none is",)
_HOUR_MS: Final = 3_600_000

Call = Callable[[], object]
Calls = dict[str, Call]
Costs = dict[str, float]  # in us


class _Grown:
    """A store of which there is more and more; entry number n of a stream has the ID 1-n."""

    sizes: tuple[int, ...]
    small: int  # the size of the store that it is compared with

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.trimmed = path, 0, 0
        self.random = random.Random(1)
        self.open()

    def open(self) -> None:
        """Open the store, again after it was closed."""
        self.store = streamkeep.open(self.path, sync="none")

    def grow(self, size: int) -> None:
        """Make it as large as that."""
        raise NotImplementedError

    def calls(self) -> Calls:
        """Return what is called, by the name of its row."""
        raise NotImplementedError

    def name(self, kind: str) -> str:
        """Return the name of one of those that there are more and more of."""
        return f"{kind}{self.random.randrange(self.size)}"

    def entry(self) -> str:
        """Return the ID of one of the entries."""
        return f"1-{self.trimmed + 1 + self.random.randrange(self.size)}"

    def add(self, key: str, **more: Any) -> object:
        """Append an entry."""
        return self.store.xadd(key, _BATCH[0], id="1-*", **more)

    def add_many(self, key: str, count: int) -> None:
        """Append entries."""
        for first in range(0, count, len(_BATCH)):
            some = _BATCH[: count - first]
            self.store.xadd_many(key, some, ids=["1-*"] * len(some))

    def cycle(self, key: str, group: str, *, old: bool = False) -> None:
        """Append an entry, take and acknowledge it; or take an old one."""
        if not old:
            self.add(key)
        ((_, found),) = self.store.xreadgroup(group, "c", {key: ">"}, count=1)
        self.store.xack(key, group, found[0].id)

    def group(self, key: str, start: str) -> None:
        """Create a group, and destroy it."""
        self.store.xgroup_create(key, "other", start)
        self.store.xgroup_destroy(key, "other")

    def shorten(self) -> None:
        """Append an entry, and trim the oldest one."""
        self.add("s", maxlen=self.store.xlen("s"), approximate=False)
        self.trimmed += 1


class _Entries(_Grown):
    """A stream."""

    sizes = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)
    small = 10_000

    def grow(self, size: int) -> None:
        self.add_many("s", size - self.size)
        if not self.size:
            self.store.xgroup_create("s", "g")
        self.store.xgroup_setid("s", "g", "$")
        self.size = size

    def calls(self) -> Calls:
        store, entry = self.store, self.entry
        return {
            "xadd": lambda: self.add("s"),
            "xlen": lambda: store.xlen("s"),
            "xrange COUNT 1": lambda: store.xrange("s", entry(), count=1),
            "xread COUNT 10": lambda: store.xread({"s": entry()}, count=10),
            "xrevrange COUNT 10": lambda: store.xrevrange("s", entry(), count=10),
            "xinfo stream": lambda: store.xinfo_stream("s"),
            "xadd, xreadgroup, xack": lambda: self.cycle("s", "g"),
            "xgroup create, destroy": lambda: self.group("s", entry()),
            "xdel": lambda: store.xdel("s", entry()),
            "xadd, xtrim by one": self.shorten,
        }


class _Streams(_Grown):
    """Streams of ten entries, each with a group."""

    sizes = (1, 100, 10_000, 100_000)
    small = 1

    def grow(self, size: int) -> None:
        for number in range(self.size, size):
            with self.store.pipeline() as pipe:
                pipe.xgroup_create(f"k{number}", "g", mkstream=True)
                for fields in _BATCH[:10]:
                    pipe.xadd(f"k{number}", fields, id="1-*")
                pipe.execute()
            # The first time that a process takes from a group, it notes its lease there: a row.
            self.cycle(f"k{number}", "g")
        self.size = size

    def calls(self) -> Calls:
        store = self.store
        return {
            "xadd": lambda: self.add(self.name("k")),
            "xadd to one of them": lambda: self.add("k0"),
            "xread COUNT 10": lambda: store.xread({self.name("k"): 0}, count=10),
            "xinfo stream": lambda: store.xinfo_stream(self.name("k")),
            "xreadgroup, xack": lambda: self.cycle(self.name("k"), "g"),
            "xgroup create, destroy": lambda: self.group(self.name("k"), "$"),
            "create, delete": lambda: (self.add("other"), store.delete("other")),
        }


class _Groups(_Grown):
    """Groups of a stream of 20,000 entries, each with ten that are pending."""

    sizes = (1, 10, 100, 1_000, 5_000)
    small = 1

    def grow(self, size: int) -> None:
        if not self.size:
            self.add_many("s", 20_000)
        for number in range(self.size, size):
            self.store.xgroup_create("s", f"g{number}", 0)
            self.store.xreadgroup(f"g{number}", "c", {"s": ">"}, count=10)
        self.size = size

    def calls(self) -> Calls:
        store, number = self.store, self.random.randrange
        return {
            "xadd": lambda: self.add("s"),
            "xinfo stream": lambda: store.xinfo_stream("s"),
            "xreadgroup, xack": lambda: self.cycle("s", self.name("g"), old=True),
            "xreadgroup, xack of one": lambda: self.cycle("s", "g0", old=True),
            "xpending": lambda: store.xpending("s", self.name("g")),
            "xgroup create, destroy": lambda: self.group("s", "$"),
            "xdel": lambda: store.xdel("s", f"1-{10_000 + number(10_000)}"),
            "xadd, xtrim by one": self.shorten,
            "set_retention, xadd": lambda: (
                store.set_retention("s", maxlen=9_000, keep_unacknowledged=True, approximate=True),
                self.add("s"),
                store.set_retention("s", maxlen=-1, keep_unacknowledged=False),
            ),
        }


class _Pending(_Grown):
    """Entries that are pending in a group, for two consumers in turns."""

    sizes = (0, 1_000, 10_000, 100_000, 1_000_000, 2_000_000)
    small = 1_000

    def grow(self, size: int) -> None:
        if not self.store.exists("s"):
            self.store.xgroup_create("s", "g", mkstream=True)
        self.store.xgroup_setid("s", "g", "$")
        for first in range(self.size, size, 100):
            self.add_many("s", 100)
            who = "gone" if first // 100 % 2 else "other"
            self.store.xreadgroup("g", who, {"s": ">"}, count=100)
        self.size = size

    def calls(self) -> Calls:
        store, entry = self.store, self.entry

        def who() -> str:
            return self.random.choice(("gone", "other"))

        def back() -> None:
            store.xack("s", "g", one := entry())
            store.xclaim("s", "g", who(), 0, [one], force=True)

        always: Calls = {
            "xadd": lambda: self.add("s"),
            "xadd, xreadgroup, xack": lambda: self.cycle("s", "g"),
            "xpending": lambda: store.xpending("s", "g"),
            "xinfo groups": lambda: store.xinfo_groups("s"),
            "xinfo consumers": lambda: store.xinfo_consumers("s", "g"),
        }
        some: Calls = {
            "xpending_range of 10": lambda: store.xpending_range("s", "g", entry(), "+", 10),
            _LINEAR[0]: lambda: store.xpending_range("s", "g", "-", "+", 10, idle=_HOUR_MS),
            "xpending_range of 10, a consumer": lambda: store.xpending_range(
                "s", "g", entry(), "+", 10, who()
            ),
            "xreadgroup of old ones COUNT 10": lambda: store.xreadgroup(
                "g", who(), {"s": entry()}, count=10
            ),
            "xclaim": lambda: store.xclaim("s", "g", who(), 0, [entry()]),
            "xautoclaim COUNT 10": lambda: store.xautoclaim("s", "g", who(), 0, entry(), 10),
            "xautoclaim COUNT 10, none is old": lambda: store.xautoclaim(
                "s", "g", who(), _HOUR_MS, entry(), 10
            ),
            "xreadgroup CLAIM, none is old": lambda: store.xreadgroup(
                "g", who(), {"s": ">"}, count=10, claim_min_idle_time=_HOUR_MS
            ),
            "xack, xclaim FORCE": back,
        }
        return always | some if self.size else always


_GROWN: Final = {"entries": _Entries, "streams": _Streams, "groups": _Groups, "pending": _Pending}


def _cost(*calls: Call, count: int = 1, rounds: int = 1) -> list[float]:
    """Return the processor time of calls that take turns: the least of some rounds."""
    return [1e6 * min(times) for times in in_turns(calls, rounds, count, time.process_time)]


def _whole(grown: _Grown, folder: Path) -> Costs:
    """Return what it costs to open and recover a store, and to check, copy and archive each."""
    path, size = grown.path, max(grown.size, 1)
    grown.store.close()

    def fsck(quick: bool) -> None:
        assert all(one.severity is Severity.NOTE for one in check(path, quick=quick))

    def open_and_close() -> None:
        streamkeep.open(path).close()

    costs = {"opening": _cost(open_and_close, rounds=5)[0]}
    with Child("-c", SINGLES, path, _KILLED, "killed") as child:
        assert child.line() == "done"
    costs[f"recovery of {_KILLED:,} appends"] = _cost(open_and_close)[0]
    each = {
        "fsck": lambda: fsck(False),
        "fsck --quick": lambda: fsck(True),
        "backup": lambda: backup(path, folder / "backup", verify=False),
    }
    costs |= {f"{name}, for each": _cost(call)[0] / size for name, call in each.items()}
    restore(folder / "backup", folder / "restored")
    with streamkeep.open(folder / "restored", sync="none") as store:
        keys = store.keys()
        for key in keys[:_ARCHIVED]:
            store.set_retention(key, archive=True)

        def archive() -> None:
            for key in keys[:_ARCHIVED]:
                store.xtrim(key, 0, limit=0)  # which archives what is too much to leave
            store.archive()

        share = min(1, _ARCHIVED / len(keys))
        costs["archive, for each"] = _cost(archive)[0] / (size * share)
    grown.open()
    return costs


def _processes(count: int, calls: int) -> Costs:
    costs = {}
    for name, role in _ROLES.items():
        (turns,) = compare([sys.executable], Row((role,) * count, "none", calls), _ROUNDS)
        costs[name] = min(turn.cpu_us for turn in turns)
    return costs


def measure(kind: str, limit: int, quick: bool) -> Iterator[tuple[int, Costs, Costs]]:
    """Yield what each call costs at each size up to a limit, and what it costs in a small store."""
    calls = 20 if quick else _CALLS
    if kind == "processes":
        for count in _PROCESSES[: 2 if quick else None]:
            yield count, _processes(count, calls), _processes(1, calls)
        return
    with scratch() as folder:
        small, grown = (_GROWN[kind](folder / name) for name in ("small", "store"))
        small.grow(small.small)
        for size in grown.sizes:
            if size > max(limit, grown.sizes[0]):
                break
            grown.grow(size)
            costs, others = {}, {}
            for name, call in grown.calls().items():
                other = small.calls()[name]
                costs[name], others[name] = _cost(call, other, count=calls, rounds=_ROUNDS)
            with scratch() as one, scratch() as two:
                yield size, costs | _whole(grown, one), others | _whole(small, two)
        grown.store.close()
        small.store.close()


def run(report: Report, *, quick: bool) -> None:
    """Measure all curves; a target is missed where the cost grows."""
    limit = int(os.environ.get("GROWTH", 1_000 if quick else 1_000_000))
    wanted = re.compile(os.environ.get("GROWN", ""))
    for kind in filter(wanted.search, (*_GROWN, "processes")):
        growth: Costs = {}
        for size, costs, others in measure(kind, limit, quick):
            for name, cost in costs.items():
                report.figure(f"{name}, {size:,} {kind}", cost, "us")
                growth[name] = cost / others[name]
        for name, ratio in growth.items():
            most = 0 if name in _LINEAR else _MOST
            report.figure(f"{name}, by {kind}", ratio, "of a small one", most=most)
