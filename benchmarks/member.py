"""A process of one build that benchmarks.compare measures: it runs as a script, and needs no more.

argv: path, sync, number among its build's processes, role, calls in a turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import streamkeep

_KEY: Final = "s"
_GROUP: Final = "workers"
_LIVE: Final = 10_000  # entries that XRANGE finds
_QUIET_MS: Final = 500  # without an entry, after which a worker ends
SELDOM: Final = 200  # calls of the others in one of who calls each 10 ms


def _entry(number: int) -> dict[str, str]:
    return {"sensor-id": str(number % 10_000), "temperature": "25.5", "message": "m" * 40}


class _Roles:
    """What a process calls: each method has the name of a role, and a call's number."""

    def __init__(self, path: str, sync: Any, member: int) -> None:
        self.store = streamkeep.open(path, sync=sync)
        self._own = f"group-{member}"

    def prepare(self, role: str, member: int) -> None:
        """Make what the role needs; the members of a build do so one after the other."""
        if role == "cycle":  # each has a group of its own, which sees the entries of all
            self.store.xgroup_create(_KEY, self._own, id="$", mkstream=True)
        elif member == 0:
            self.store.xgroup_create(_KEY, _GROUP, id="$", mkstream=True)
        if role == "xrange":
            self.store.xadd_many(_KEY, map(_entry, range(_LIVE)))

    def measure(self, role: str, calls: int) -> dict[str, float]:
        """Make the calls; return when they began and ended, how many, and the 99th percentile."""
        call: Callable[[int], bool] = getattr(self, "_" + role.replace(", ", "_"))
        took: list[int] = []
        used = time.process_time_ns()
        begin = end = start = time.monotonic_ns()
        while len(took) < calls and call(len(took)):
            end = time.monotonic_ns()
            took.append(end - start)
            if role == "seldom":
                time.sleep(0.01)
                end = time.monotonic_ns()
            start = end
        used = time.process_time_ns() - used
        took.sort()
        p99 = took[len(took) * 99 // 100] if took else 0
        figures = {"calls": len(took), "p99_ns": p99, "worst_ns": max(took, default=0)}
        return {"begin": begin, "end": end, "cpu_ns": used, **figures}

    def _xadd(self, number: int) -> bool:
        return bool(self.store.xadd(_KEY, _entry(number)))

    _produce = _seldom = _xadd

    def _xadd_xlen(self, number: int) -> bool:
        self.store.xadd(_KEY, _entry(number))
        return self.store.xlen(_KEY) > 0

    def _xreadgroup_xack(self, _: int) -> bool:
        return self._take(_GROUP, None)

    def _xrange(self, number: int) -> bool:
        return bool(self.store.xrange(_KEY, "-", count=100))

    def _pipeline(self, number: int) -> bool:
        with self.store.pipeline() as pipe:
            for one in range(100):
                pipe.xadd(_KEY, _entry(number + one))
            return bool(pipe.execute())

    def _cycle(self, number: int) -> bool:
        self.store.xadd(_KEY, _entry(number))
        return self._take(self._own, None)

    def _work(self, _: int) -> bool:
        return self._take(_GROUP, _QUIET_MS)

    def _take(self, group: str, block: int | None) -> bool:
        found = self.store.xreadgroup(group, self._own, {_KEY: ">"}, count=1, block=block)
        return bool(found) and self.store.xack(_KEY, group, found[0][1][0].id) == 1


def _be_member(path: str, sync: str, member: int, role: str, calls: int) -> None:
    """Measure a turn for each line that comes."""
    roles = _Roles(path, sync, member)
    roles.prepare(role, member)
    print("ready", flush=True)
    while sys.stdin.readline():
        if role == "xreadgroup, xack":
            roles.store.xadd_many(_KEY, map(_entry, range(calls)))
        # A worker ends when no more come.
        wanted = {"work": sys.maxsize, "seldom": calls // SELDOM}.get(role, calls)
        print(json.dumps(roles.measure(role, wanted)), flush=True)
    roles.store.close()


if __name__ == "__main__":
    _path, _sync, _member, _role, _calls = sys.argv[1:]
    _be_member(_path, _sync, int(_member), _role, int(_calls))
