"""Two builds of Streamkeep in turns: `python -m benchmarks.compare OLD_PYTHON [NEW_PYTHON]`.

Each argument is the Python of an environment in which a build is installed, or a script that ends
with `exec python "$@"`. Both builds run the same row with stores of their own on the same disk, and
take turns, so that the noise of the machine is the same for both. A ratio above 1 means that the
new build makes more calls per second; it is the median of the turns. With one build there are no
ratios. The builds need not contain this file: their Pythons run it as a script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

_KEY: Final = "s"
_GROUP: Final = "workers"
_LIVE: Final = 10_000  # entries that XRANGE finds
_QUIET_MS: Final = 500  # without an entry, after which a worker ends
_SELDOM: Final = 200  # calls of the others in one of who calls each 10 ms


class Row(NamedTuple):
    """What the processes of a build do: the role of each, and the calls of each in a turn."""

    roles: tuple[str, ...]
    sync: str
    calls: int


def _rows() -> dict[str, Row]:
    rows = {
        "xadd": Row(("xadd",), "none", 10_000),
        "xadd, xlen": Row(("xadd, xlen",), "none", 10_000),
        "xreadgroup, xack": Row(("xreadgroup, xack",), "none", 5_000),
        "xrange COUNT 100": Row(("xrange",), "none", 3_000),
        "pipeline of 100 xadd": Row(("pipeline",), "none", 300),
    }
    for sync, how, calls in (("none", "relaxed", 2_000), ("commit", "durable", 400)):
        for count in (1, 2, 4):
            word = "process" if count == 1 else "processes"
            rows[f"xadd, {count} {word}, {how}"] = Row(("xadd",) * count, sync, 2 * calls)
        for count in (1, 2, 4):
            word = "process" if count == 1 else "processes"
            rows[f"xadd, xreadgroup, xack, {count} {word}, {how}"] = Row(
                ("cycle",) * count, sync, calls
            )
        rows[f"one producer, four workers, {how}"] = Row(
            ("produce", *["work"] * 4), sync, 2 * calls
        )
    # Whose slowest hundredth is that of the first.
    rows["xadd each 10 ms beside three that append"] = Row(
        ("seldom", *["xadd"] * 3), "none", _SELDOM * 200
    )
    return rows


ROWS: Final = _rows()


class Turn(NamedTuple):
    """What all processes of a build did in a turn."""

    rate: float  # calls per second together; of a producer and workers, entries that are done
    p99_us: float  # of the slowest process
    worst_us: float  # the longest call of all: waiting for other processes, above all
    cpu_us: float  # processor time of all of them for a call


# --- a process of a build -------------------------------------------------------------------


def _entry(number: int) -> dict[str, str]:
    return {"sensor-id": str(number % 10_000), "temperature": "25.5", "message": "m" * 40}


class _Roles:
    """What a process calls: each method has the name of a role, and a call's number."""

    def __init__(self, path: str, sync: Any, member: int) -> None:
        import streamkeep

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
        wanted = {"work": sys.maxsize, "seldom": calls // _SELDOM}.get(role, calls)
        print(json.dumps(roles.measure(role, wanted)), flush=True)
    roles.store.close()


# --- the driver -----------------------------------------------------------------------------


class _Build:
    """The processes of one build on one store."""

    def __init__(self, python: str, row: Row, path: Path) -> None:
        self._row = row
        # Whose modules they import is the environment's business, not that of this process.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._members = []
        for member, role in enumerate(row.roles):
            words = [python, "-P", __file__, "--member", path, row.sync, member, role, row.calls]
            one = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            self._members.append(one)
            self._line(one)  # one after the other, so that one creates the store and the group

    def __enter__(self) -> _Build:
        return self

    def __exit__(self, *raised: object) -> None:
        for one in self._members:
            one.communicate()  # its input ends, and so does the process

    def turn(self) -> Turn:
        """Let all of them make their calls."""
        for one in self._members:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        found = [json.loads(self._line(one)) for one in self._members]
        used = sum(one["cpu_ns"] for one in found)
        if "work" in self._row.roles:
            begin = found[0]["begin"]
            found = found[1:]
        else:
            begin = min(one["begin"] for one in found)
        seconds = (max(one["end"] for one in found) - begin) / 1e9
        slowest, worst = (max(one[name] for one in found) / 1000 for name in ("p99_ns", "worst_ns"))
        calls = sum(one["calls"] for one in found)
        return Turn(calls / seconds, slowest, worst, used / 1000 / calls)

    def _line(self, one: subprocess.Popen[str]) -> str:
        assert one.stdout is not None
        if line := one.stdout.readline():
            return line
        raise SystemExit(f"{one.args!r} has ended early")


def compare(pythons: list[str], row: Row, turns: int) -> list[list[Turn]]:
    """Return the turns of each build, after one that is not counted."""
    with tempfile.TemporaryDirectory(prefix="streamkeep-bench-") as folder, ExitStack() as stack:
        builds = [
            stack.enter_context(_Build(python, row, Path(folder, str(number))))
            for number, python in enumerate(pythons)
        ]
        found: list[list[Turn]] = [[] for _ in builds]
        for turn in range(turns + 1):
            for place in range(len(builds)) if turn % 2 else reversed(range(len(builds))):
                found[place].append(builds[place].turn())
        return [one[1:] for one in found]


def _figures(found: list[list[Turn]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, turns in zip(("old", "new"), found, strict=False):
        figures[f"{name}_per_s"] = median(one.rate for one in turns)
        figures[f"{name}_p99_us"] = median(one.p99_us for one in turns)
        figures[f"{name}_worst_us"] = median(one.worst_us for one in turns)
    if len(found) == 2:
        ratios = [new.rate / old.rate for old, new in zip(*found, strict=True)]
        figures |= {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return figures


def _line(row: str, figures: dict[str, Any]) -> str:
    text = f"{row:<50}{figures['old_per_s']:>10,.0f}/s"
    if "ratio" in figures:
        text += f"{figures['new_per_s']:>10,.0f}/s  {figures['ratio']:.2f}"
        text += f" ({figures['lowest']:.2f} to {figures['highest']:.2f})"
    for title, name in (("p99", "p99_us"), ("longest", "worst_us")):
        both = [figures[which] for which in (f"old_{name}", f"new_{name}") if which in figures]
        text += f"  {title} {', '.join(f'{one:,.0f}' for one in both)} us"
    return text


def main() -> None:
    """Compare the rows that are asked for."""
    if sys.argv[1:2] == ["--member"]:
        path, sync, member, role, calls = sys.argv[2:]
        _be_member(path, sync, int(member), role, int(calls))
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="of the old build, of the new")
    parser.add_argument("--row", action="append", metavar="TEXT", help="rows whose name has it")
    parser.add_argument("--turns", type=int, default=7, help="of each build [default: %(default)s]")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls, two turns")
    parser.add_argument("--json", action="store_true", help="print an object per row")
    options = parser.parse_args()
    if len(options.pythons) > 2:
        parser.error("two builds at most")
    rows = {
        name: row
        for name, row in ROWS.items()
        if not options.row or any(text in name for text in options.row)
    }
    if not rows:
        parser.error(f"no such row; there are: {'; '.join(ROWS)}")
    for name, row in rows.items():
        if options.quick:
            row = row._replace(calls=row.calls // 10)
        found = compare(options.pythons, row, 2 if options.quick else options.turns)
        figures = _figures(found)
        print(json.dumps({"row": name, **figures}) if options.json else _line(name, figures))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
