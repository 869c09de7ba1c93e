"""Entries over time: counted in buckets, drawn in the terminal or as a picture."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.humanize import calendar
from streamkeep.format.time_buckets import Plan
from streamkeep.supported import install_hint
from streamkeep.tools.base import output
from streamkeep.tools.base.statuses import Failure

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Snapshot

_BATCH: Final = 4096

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


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
    numbers = [output.number(count) for count in counts]
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
            "--plot needs matplotlib, which is not installed", hint=install_hint("plot")
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
        for label in axes.get_xticklabels():
            label.set(rotation=30, horizontalalignment="right")
        kind = path.suffix.lower()[1:]
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(path, format=kind, dpi=150, metadata=metadata)
