"""Two builds of Streamkeep in turns: `python -m benchmarks.compare OLD_PYTHON [NEW_PYTHON]`.

Each argument is the Python of an environment in which a build is installed, or a script that ends
with `exec python "$@"`. Both builds run the same row with stores of their own on the same disk, and
take turns, so that the noise of the machine is the same for both. A ratio above 1 means that the
new build makes more calls per second; it is the median of the turns. With one build there are no
ratios. The builds need not contain this: their Pythons run member.py as a script.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import member
from benchmarks.common import Child, scratch
from benchmarks.member import SELDOM


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
        ("seldom", *["xadd"] * 3), "none", SELDOM * 200
    )
    return rows


ROWS: Final = _rows()


class Turn(NamedTuple):
    """What all processes of a build did in a turn."""

    rate: float  # calls per second together; of a producer and workers, entries that are done
    p99_us: float  # of the slowest process
    worst_us: float  # the longest call of all: waiting for other processes, above all
    cpu_us: float  # processor time of all of them for a call


def _member(python: str, row: Row, path: Path, number: int) -> Child:
    # Whose modules it imports is the environment's business, not that of this process.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = ("-P", member.__file__, path, row.sync, number, row.roles[number], row.calls)
    return Child(*words, python=python, environment=environment)


def _turn(row: Row, members: list[Child]) -> Turn:
    """Let the processes of a build make their calls."""
    for one in members:
        one.go()
    found = [json.loads(one.line()) for one in members]
    used = sum(one["cpu_ns"] for one in found)
    if "work" in row.roles:
        begin = found[0]["begin"]
        found = found[1:]
    else:
        begin = min(one["begin"] for one in found)
    seconds = (max(one["end"] for one in found) - begin) / 1e9
    slowest, worst = (max(one[name] for one in found) / 1000 for name in ("p99_ns", "worst_ns"))
    calls = sum(one["calls"] for one in found)
    return Turn(calls / seconds, slowest, worst, used / 1000 / calls)


def compare(pythons: list[str], row: Row, turns: int) -> list[list[Turn]]:
    """Return the turns of each build, after one that is not counted."""
    with scratch() as folder, ExitStack() as stack:
        builds = [
            # One after the other, so that the first one creates the store and the group.
            [
                stack.enter_context(_member(python, row, folder / str(build), number))
                for number in range(len(row.roles))
            ]
            for build, python in enumerate(pythons)
        ]
        found: list[list[Turn]] = [[] for _ in builds]
        for turn in range(turns + 1):
            for place in range(len(builds)) if turn % 2 else reversed(range(len(builds))):
                found[place].append(_turn(row, builds[place]))
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
