"""Entries over time: counted in buckets, drawn in the terminal or as a picture.

The time of an entry is the millisecond part of its ID. Buckets are of equal length, and begin
where people expect it: on the hour, at midnight UTC, on a Monday. Beyond some weeks they are
calendar months and years, which differ in length. IDs that are no times (1-0, 2-0, ...) work as
well; beyond the year 9999 buckets are plain numbers of milliseconds.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamkeep.format.entry import StreamId
from streamkeep.tools.command import Failure
from streamkeep.tools.output import EPOCH, MAX_CALENDAR_MS, calendar

if TYPE_CHECKING:
    from streamkeep.engine.api import Snapshot

MOST_BUCKETS: Final = 24
_BATCH: Final = 4096

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY
_FIRST_MONDAY: Final = 4 * _DAY  # 1970-01-05

# Length in milliseconds, its name, and how the start of a bucket is written.
_STEPS: Final = (
    (1, "millisecond", "%Y-%m-%d %H:%M:%S.%f"),
    *((n, f"{n} ms", "%Y-%m-%d %H:%M:%S.%f") for n in (2, 5, 10, 20, 50, 100, 200, 500)),
    (_SECOND, "second", "%Y-%m-%d %H:%M:%S"),
    *((n * _SECOND, f"{n} seconds", "%Y-%m-%d %H:%M:%S") for n in (2, 5, 10, 15, 30)),
    (_MINUTE, "minute", "%Y-%m-%d %H:%M"),
    *((n * _MINUTE, f"{n} minutes", "%Y-%m-%d %H:%M") for n in (2, 5, 10, 15, 30)),
    (_HOUR, "hour", "%Y-%m-%d %H:%M"),
    *((n * _HOUR, f"{n} hours", "%Y-%m-%d %H:%M") for n in (2, 3, 6, 12)),
    (_DAY, "day", "%Y-%m-%d"),
    (2 * _DAY, "2 days", "%Y-%m-%d"),
    (_WEEK, "week", "%Y-%m-%d"),
)
_MONTHS: Final = (
    (1, "month"),
    (3, "3 months"),
    (6, "6 months"),
    (12, "year"),
    *((12 * n, f"{n} years") for n in (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


class Plan(NamedTuple):
    """Where buckets begin and end: bucket i is edges[i] <= ms < edges[i + 1]."""

    edges: tuple[int, ...]
    unit: str  # the length of a bucket, in words
    style: str  # how its start is written, for strftime; empty beyond the calendar

    def label(self, index: int) -> str:
        """Return the start of a bucket as text."""
        ms = self.edges[index]
        if not self.style:
            return f"{ms:,} ms"
        text = calendar(ms).strftime(self.style)
        return text[:-3] if self.style.endswith("%f") else text


def plan_buckets(first_ms: int, last_ms: int, most: int = MOST_BUCKETS) -> Plan:
    """Choose buckets, at most `most`, that cover both times."""
    for length, unit, style in _STEPS:
        offset = _FIRST_MONDAY if length == _WEEK and first_ms >= _FIRST_MONDAY else 0
        start = (first_ms - offset) // length * length + offset
        if last_ms - start < most * length and last_ms <= MAX_CALENDAR_MS - length:
            count = (last_ms - start) // length + 1
            return Plan(tuple(start + n * length for n in range(count + 1)), unit, style)
    if last_ms <= MAX_CALENDAR_MS:
        for months, unit in _MONTHS:
            edges = _month_edges(first_ms, last_ms, months, most)
            if edges:
                style = "%Y-%m" if months < 12 else "%Y"
                return Plan(edges, unit, style)
    length = 1
    while last_ms - first_ms // length * length >= most * length:
        length *= 10
    start = first_ms // length * length
    count = (last_ms - start) // length + 1
    return Plan(tuple(start + n * length for n in range(count + 1)), f"{length:,} ms", "")


def _month_edges(first_ms: int, last_ms: int, months: int, most: int) -> tuple[int, ...]:
    """Return the edges of buckets of some months; none when there would be too many."""
    begin = calendar(first_ms)
    number = (begin.year * 12 + begin.month - 1) // months * months
    edges: list[int] = []
    while len(edges) <= most:
        year, month = divmod(number, 12)
        if year > 9999:
            return ()
        edges.append((datetime(max(year, 1), month + 1, 1, tzinfo=UTC) - EPOCH) // _MILLISECOND)
        if edges[-1] > last_ms:
            return tuple(edges)
        number += months
    return ()


_MILLISECOND: Final = timedelta(milliseconds=1)


def count_entries(
    snapshot: Snapshot, keys: Sequence[bytes], plan: Plan, advance: Callable[[int, int], None]
) -> list[int]:
    """Count the entries of streams in each bucket; reads all of them."""
    counts = [0] * (len(plan.edges) - 1)
    done = 0
    for key in keys:
        start = b"-"
        while batch := snapshot.xrange(key, start, count=_BATCH):
            _count_batch(batch, 0, len(batch), plan.edges, counts)
            done += len(batch)
            advance(done, done)
            start = b"(" + batch[-1].id
            if len(batch) < _BATCH or batch[-1].id == bytes(StreamId(_TOP, _TOP)):
                break
    return counts


_TOP: Final = (1 << 64) - 1


def _count_batch(
    batch: Sequence[Any], start: int, end: int, edges: Sequence[int], counts: list[int]
) -> None:
    """Count ascending entries: halve until a part lies in one bucket, so few IDs are parsed."""
    if start == end:
        return
    first = _bucket(batch[start].id, edges)
    last = _bucket(batch[end - 1].id, edges)
    if first == last:
        counts[first] += end - start
        return
    middle = (start + end) // 2
    _count_batch(batch, start, middle, edges, counts)
    _count_batch(batch, middle, end, edges, counts)


def _bucket(entry_id: bytes, edges: Sequence[int]) -> int:
    """Return the bucket of an ID; the nearest one, should the stream's counters be wrong."""
    ms = int(entry_id[: entry_id.index(b"-")])
    return min(max(bisect_right(edges, ms) - 1, 0), len(edges) - 2)


def bars(plan: Plan, counts: Sequence[int], width: int, *, blocks: bool) -> Iterator[str]:
    """Yield a bar chart, one line per bucket, that fits `width` columns.

    Args:
        blocks: draw with block characters, to an eighth of a column; else with `#`.
    """
    labels = [plan.label(index) for index in range(len(counts))]
    numbers = [f"{count:,}" for count in counts]
    label_width = max(map(len, labels))
    number_width = max(map(len, numbers))
    room = max(10, min(60, width - label_width - number_width - 4))
    highest = max(counts) or 1
    for label, number, count in zip(labels, numbers, counts, strict=True):
        eighths = round(8 * room * count / highest)
        if count:
            eighths = max(eighths, 1)
        if blocks:
            bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        else:
            bar = "#" * max(eighths // 8, min(count, 1))
        yield f"{label:<{label_width}}  {number:>{number_width}}  {bar}".rstrip()


def plot(plan: Plan, counts: Sequence[int], title: str, path: Path) -> None:
    """Draw the buckets into a PNG or SVG file, by its suffix."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise Failure(
            "--plot needs matplotlib, which is not installed", hint="pip install 'streamkeep[plot]'"
        ) from None
    with matplotlib.rc_context({"svg.hashsalt": "streamkeep"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters of the key that the font does not have
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.add_subplot()
        # A key may hold what would be mathematics, and what fonts lack.
        axes.set_title(title, parse_math=False)
        axes.set_ylabel(f"entries per {plan.unit}")
        starts: list[Any]
        widths: list[Any]
        if plan.style:
            starts = [calendar(ms) for ms in plan.edges[:-1]]
            widths = [timedelta(milliseconds=end - start) for start, end in pairwise(plan.edges)]
            axes.set_xlabel("time (UTC)")
        else:
            starts = [float(ms) for ms in plan.edges[:-1]]
            widths = [float(end - start) for start, end in pairwise(plan.edges)]
            axes.set_xlabel("milliseconds of the ID")
        axes.bar(starts, list(counts), width=widths, align="edge", edgecolor="white", linewidth=0.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        figure.autofmt_xdate(rotation=30)
        kind = path.suffix.lower()[1:]
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(path, format=kind, dpi=150, metadata=metadata)
