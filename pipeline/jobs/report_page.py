"""The files of a report: plots as PNG, their numbers as CSV, and one HTML page.

The page contains its pictures, so it can be sent as a single file. Every number in it is also in
one of the CSV files.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamkeep.format.core.durations import duration_text
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import calendar, size_text, time_text
from streamkeep.pipeline.jobs.report_facts import LAGS, PERCENTILES, LagPoint, percentile
from streamkeep.pipeline.jobs.report_plots import dates, label, legend, new_figure
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from streamkeep.pipeline.jobs.report_facts import Facts, GroupFacts, MeasureFacts, StreamFacts

_TOP: Final = 20  # streams in the plot of sizes
_MOST_LAGS: Final = 100_000  # of former reports
_GAP_STEPS: Final = 3  # times the usual distance of reports: more is a gap
_MOST_LINES: Final = 8  # streams in one plot; the others are added up
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LEAST_GAP: Final = 0.5  # the place of a gap of 0 on a logarithmic axis
_SPANS: Final = (  # milliseconds, and the labels of an axis
    (0.5, "0"),
    (1, "1 ms"),
    (10, "10 ms"),
    (30, "30 ms"),
    (100, "0.1 s"),
    (300, "0.3 s"),
    (1_000, "1 s"),
    (3_000, "3 s"),
    (10_000, "10 s"),
    (60_000, "1 min"),
    (300_000, "5 min"),
    (900_000, "15 min"),
    (3_600_000, "1 h"),
    (21_600_000, "6 h"),
    (86_400_000, "1 day"),
    (604_800_000, "1 week"),
    (2_592_000_000, "30 days"),
    (31_536_000_000, "1 year"),
    (315_360_000_000, "10 years"),
)
_STYLE: Final = """
:root { color-scheme: light dark; --line: #d8dde3; --soft: #66707c; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem;
       margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.4rem }
p.note { color: var(--soft); margin-top: 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .8rem 0;
        display: block; overflow-x: auto }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right }
th { font-weight: 600 } th:first-child, td:first-child { text-align: left }
img { width: 100%; max-width: 58rem; background: white; border-radius: 6px }
"""


class PlotMissingError(StreamkeepError):
    """matplotlib is not installed."""


def check_plots() -> None:
    """Raise PlotMissingError if plots cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotMissingError(
            f"a report needs matplotlib, which is not installed; next: {install_hint('plot')}"
        ) from None


def write(facts: Facts, folder: Path) -> list[Path]:
    """Write all files of a report into a folder, which is made if missing; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page = _Page(folder)
    page.heading(f"Streams of {facts.store}", f"as of {time_text(facts.now_ms)}")
    _streams(page, facts)
    if facts.plan is not None:
        _throughput(page, facts)
        _gaps(page, facts)
    if facts.groups:
        _groups(page, facts.groups)
    if facts.lags:
        _lags(page, facts.lags)
    for measure in facts.measures:
        _measure(page, measure)
    return page.close()


class _Page:
    """Collects the parts of the page, and writes the files next to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[str] = []
        self._files: list[Path] = []

    def heading(self, title: str, note: str) -> None:
        self._title = title
        self._parts.append(f"<h1>{html.escape(title)}</h1>\n<p class=note>{html.escape(note)}</p>")

    def section(self, title: str, note: str = "") -> None:
        text = f"\n<p class=note>{html.escape(note)}</p>" if note else ""
        self._parts.append(f"<h2>{html.escape(title)}</h2>{text}")

    def table(self, name: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table and a CSV file with the same numbers, unrounded."""
        path = self._folder / f"{name}.csv"
        kept = [list(row) for row in rows]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(headings)
            writer.writerows([[_plain(cell) for cell in row] for row in kept])
        self._files.append(path)
        head = "".join(f"<th>{html.escape(text)}" for text in headings)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(cell))}" for cell in row) for row in kept
        )
        self._parts.append(f"<table>\n<tr>{head}\n{body}\n</table>")
        self._link(path)

    def numbers(self, name: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add only a CSV file, with the numbers of a plot."""
        path = self._folder / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(headings)
            writer.writerows([[_plain(cell) for cell in row] for row in rows])
        self._files.append(path)
        self._link(path)

    def _link(self, path: Path) -> None:
        """Add a link to a CSV file, which lies beside the page."""
        name = html.escape(path.name)
        self._parts.append(f'<p class=note><a href="{name}">{name}</a></p>')

    def picture(self, name: str, figure: Figure, alt: str) -> None:
        """Add a plot and its PNG file."""
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=150)
        path = self._folder / f"{name}.png"
        path.write_bytes(data.getvalue())
        self._files.append(path)
        text = base64.b64encode(data.getvalue()).decode()
        self._parts.append(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{text}">')

    def close(self) -> list[Path]:
        """Write the page; return all files."""
        path = self._folder / "index.html"
        body = "\n".join(self._parts)
        path.write_text(
            f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
            "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
            f"<title>{html.escape(self._title)}</title>\n<style>{_STYLE}</style>\n{body}\n</html>\n",
            encoding="utf-8",
        )
        return [path, *self._files]


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class _Ms(int):
    """Milliseconds: a number in CSV, `3.4 s` on the page."""


class _Size(int):
    """Bytes: a number in CSV, `1.2 GiB` on the page."""


def _plain(cell: Any) -> Any:
    """Return a cell for CSV, quoted if a spreadsheet would take it for a formula."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return f"'{cell}"
    return int(cell) if isinstance(cell, (_Ms, _Size)) else cell


def _unquoted(cell: str) -> str:
    """Return a text from the cell of a CSV file that `_plain` made."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _shown(cell: Any) -> str:
    match cell:
        case None:
            return "-"
        case _Ms():
            return duration_text(cell)
        case _Size():
            return size_text(cell)
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.1f}"
    return str(cell)


def _ms(value: int | None) -> _Ms | None:
    return None if value is None else _Ms(value)


# --- the parts ------------------------------------------------------------------------------------


def _streams(page: _Page, facts: Facts) -> None:
    page.section("Streams")
    page.table(
        "streams",
        ("stream", "entries", "live", "archived", "size live", "size archived", "first", "last"),
        [
            (
                one.key,
                one.entries,
                one.live,
                one.archived,
                _Size(one.live_bytes),
                _Size(one.archived_bytes),
                None if one.first_ms is None else time_text(one.first_ms),
                None if one.last_ms is None else time_text(one.last_ms),
            )
            for one in sorted(facts.streams, key=_bytes_of, reverse=True)
        ],
    )
    top = sorted(facts.streams, key=_bytes_of)[-_TOP:]
    if len(top) < 2 or not _bytes_of(top[-1]):
        return
    figure, axes = new_figure(height=1.2 + 0.3 * len(top))
    places = range(len(top))
    live = [one.live_bytes for one in top]
    axes.barh(places, live, label="live")
    axes.barh(places, [one.archived_bytes for one in top], left=live, label="archived")
    axes.set_yticks(list(places), [label(one.key) for one in top])
    axes.xaxis.set_major_formatter(lambda value, _: size_text(int(value)))
    axes.set_xlabel(
        "bytes" if len(top) == len(facts.streams) else f"bytes of the {len(top)} largest streams"
    )
    legend(figure)
    page.picture("streams", figure, "bytes of the largest streams, live and archived")


def _bytes_of(one: StreamFacts) -> int:
    return one.live_bytes + one.archived_bytes


def _throughput(page: _Page, facts: Facts) -> None:
    plan = facts.plan
    assert plan is not None
    page.section("Throughput", f"entries per {plan.unit}, archived and live")
    labels = [plan.label(index) for index in range(len(plan.edges) - 1)]
    page.numbers(
        "throughput",
        ("begin", *(one.key for one in facts.streams)),
        zip(labels, *(one.counts for one in facts.streams), strict=True),
    )
    figure, axes = new_figure()
    busiest = sorted(facts.streams, key=lambda one: -one.entries)
    edges: list[Any] = list(plan.edges)
    if plan.style:
        edges = [calendar(ms) for ms in plan.edges]
    widths: list[Any] = [after - before for before, after in pairwise(edges)]
    bottom = [0] * len(labels)
    shown = busiest[:_MOST_LINES]
    rest = [sum(one.counts[i] for one in busiest[_MOST_LINES:]) for i in range(len(labels))]
    series = [(one.key, one.counts) for one in shown]
    if busiest[_MOST_LINES:]:
        series.append((f"{len(busiest) - _MOST_LINES} others", rest))
    for name, counts in series:
        axes.bar(edges[:-1], counts, widths, bottom, align="edge", label=label(name))
        bottom = [a + b for a, b in zip(bottom, counts, strict=True)]
    axes.set_ylabel(f"entries per {plan.unit}")
    first, last = (time_text(ms)[:10] for ms in (plan.edges[0], plan.edges[-1]))
    axes.set_xlabel(f"{first} to {last}, UTC" if plan.style else "milliseconds of the ID")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(series) > 1:
        legend(figure)
    axes.margins(x=0.01)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if plan.style and isinstance(widths[0], timedelta):
        dates(axes)
    page.picture("throughput", figure, "entries over time")


def _gaps(page: _Page, facts: Facts) -> None:
    shown = [one for one in facts.streams if one.gaps]
    if not shown:
        return
    page.section("Time between entries", "from one ID to the next")
    page.table(
        "gaps",
        ("stream", *(f"p{percent:g}" for percent in PERCENTILES), "longest"),
        [
            (
                one.key,
                *(_ms(percentile(one.gaps, percent)) for percent in PERCENTILES),
                _ms(max(one.gaps)),
            )
            for one in shown
        ],
    )
    figure, axes = new_figure()
    lines = sorted(shown, key=lambda one: -one.entries)[:_MOST_LINES]
    lowest = min(max(gap, _LEAST_GAP) for one in lines for gap in one.gaps)
    highest = max(max(gap, _LEAST_GAP) for one in lines for gap in one.gaps)
    ends = lowest / 3, highest * 3  # so that a line is visible even if all gaps are equal
    for one in lines:
        total = sum(one.gaps.values())
        seen, xs, ys = 0, [ends[0]], [0.0]
        for gap in sorted(one.gaps):
            seen += one.gaps[gap]
            xs.append(max(gap, _LEAST_GAP))
            ys.append(100 * seen / total)
        axes.step([*xs, ends[1]], [*ys, 100.0], where="post", label=label(one.key))
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    marks = [mark for mark in _SPANS if ends[0] <= mark[0] <= ends[1]]
    marks = marks[:: 1 + len(marks) // 14]  # as many labels as fit
    axes.set_xticks([ms for ms, _ in marks], [text for _, text in marks])
    axes.minorticks_off()
    axes.set_ylim(0, 102)
    axes.set_xlabel("from one entry to the next, at most")
    axes.set_ylabel("% of entries")
    axes.grid(alpha=0.3)
    legend(figure)
    page.picture("gaps", figure, "distribution of the time between entries")


def former_lags(text: str) -> list[LagPoint]:
    """Return the lags in the CSV file of a former report, without lines that cannot be read."""
    found = []
    for row in csv.reader(io.StringIO(text)):
        try:
            at, key, group, lag, delay, pending = row
            at_ms = round(datetime.fromisoformat(at).timestamp() * 1000)
            names = (_unquoted(key), _unquoted(group))
            numbers = (int(lag) if lag else None, int(delay) if delay else None)
            found.append(LagPoint(at_ms, *names, *numbers, int(pending)))
        except ValueError:
            continue  # the heading
    return found[-_MOST_LAGS:]


def _lags(page: _Page, lags: Sequence[LagPoint]) -> None:
    """Show the lag of groups over time. Where no report was made for long, the lines have a gap."""
    page.section(
        "Lag over time",
        "of each group, whenever a report was made into this folder; a gap is a "
        "time without reports",
    )
    page.numbers(
        LAGS,
        ("at", "stream", "group", "lag", "time lag", "pending"),
        [(time_text(one.at_ms), *one[1:]) for one in lags],
    )
    times = sorted({one.at_ms for one in lags})
    if len(times) < 2:
        return
    steps = sorted(after - before for before, after in pairwise(times))
    longest = _GAP_STEPS * steps[len(steps) // 2]
    lines: dict[str, list[LagPoint]] = {}
    for one in sorted(lags):
        lines.setdefault(f"{one.key} / {one.group}", []).append(one)
    busiest = sorted(lines, key=lambda name: -max(one.lag or 0 for one in lines[name]))
    figure, axes = new_figure()
    for name in busiest[:_MOST_LINES]:
        xs: list[Any] = []
        ys: list[float] = []
        for before, point in pairwise([None, *lines[name]]):
            assert point is not None
            if before is not None and point.at_ms - before.at_ms > longest:
                xs.append(calendar(before.at_ms))
                ys.append(float("nan"))
            xs.append(calendar(point.at_ms))
            ys.append(float("nan") if point.lag is None else point.lag)
        axes.plot(xs, ys, marker="o", ms=3, label=label(name))
    axes.set_ylabel("entries not delivered yet")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    dates(axes)
    legend(figure)
    page.picture(LAGS, figure, "entries not delivered yet, over time")


def _groups(page: _Page, groups: Sequence[GroupFacts]) -> None:
    page.section(
        "Groups",
        "lag: entries not delivered yet; time lag: from the last delivered entry to the newest "
        "one; latency: time from ID to delivery, of pending entries that were delivered once",
    )
    page.table(
        "groups",
        (
            "group",
            "stream",
            "consumers",
            "pending",
            "lag",
            "time lag",
            "latency p50",
            "latency p99",
            "oldest pending",
        ),
        [
            (
                one.name,
                one.key,
                one.consumers,
                one.pending,
                one.lag,
                _ms(one.delay_ms),
                _ms(percentile(one.latencies, 50)),
                _ms(percentile(one.latencies, 99)),
                _ms(max(one.ages, default=None)),
            )
            for one in groups
        ],
    )
    lagging = [one for one in groups if one.lag or one.pending]
    if not lagging:
        return
    figure, axes = new_figure(height=1.2 + 0.45 * min(len(lagging), 20))
    shown = sorted(lagging, key=lambda one: (one.lag or 0) + one.pending)[-20:]
    names = [label(f"{one.key} / {one.name}") for one in shown]
    places = range(len(shown))
    pending = [one.pending for one in shown]
    axes.barh(places, pending, label="pending")
    axes.barh(places, [one.lag or 0 for one in shown], left=pending, label="not delivered yet")
    axes.set_yticks(list(places), names)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("entries")
    legend(figure)
    page.picture("groups", figure, "pending and undelivered entries of groups")


def _measure(page: _Page, facts: MeasureFacts) -> None:
    page.section(f"{facts.name} in {facts.key}")
    stem = _UNSAFE.sub("_", f"{facts.key}-{facts.name}")
    page.numbers(f"{stem}-by-hour", ("hour", *facts.columns), facts.over_time)
    figure, axes = new_figure()
    by_hour = {row[0]: row for row in facts.over_time}
    hours = range(24)
    for place, name in ((2, "mean"), (3, "median"), (4, "90th percentile")):
        # An hour without entries is a gap, not a line to the next one.
        values = [by_hour[hour][place] if hour in by_hour else float("nan") for hour in hours]
        axes.plot(hours, values, marker="o", ms=4, label=name)
    axes.set_xticks(range(0, 24, 2))
    axes.set_xlim(-0.5, 23.5)
    axes.set_xlabel("hour of the day (UTC)")
    axes.set_ylabel(label(facts.name))
    axes.grid(axis="y", alpha=0.3)
    legend(figure)
    page.picture(f"{stem}-by-hour", figure, f"{facts.name} by hour of the day")
    for field, rows in facts.by_field.items():
        name = f"{stem}-by-{_UNSAFE.sub('_', field)}"
        page.table(name, (field, *facts.columns), rows)
        figure, axes = new_figure(height=1.2 + 0.3 * len(rows))
        labels = [label(str(row[0])) for row in rows][::-1]
        places = range(len(rows))
        axes.barh(places, [row[2] for row in rows][::-1], color="C0", label="mean")
        for place, color, shown in ((3, "black", "median"), (4, "C1", "90th percentile")):
            values = [row[place] for row in rows][::-1]
            axes.plot(values, places, "|", ms=13, mew=2.5, color=color, label=shown)
        axes.set_yticks(list(places), labels)
        axes.set_xlabel(label(facts.name))
        axes.set_ylabel(label(field))
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.axvline(0, color="black", lw=0.8)
        legend(figure)
        page.picture(name, figure, f"{facts.name} by {field}")
