"""The job `report`: plots and tables about the streams of a store, on one page.

Spark counts entries by bucket of time and the gaps between neighbours. Groups and what they have
pending are read on the driver. A *measure* is a numeric field, such as a delay: its mean and
percentiles by hour of the day, and by the values of other fields. Each section has its numbers as
CSV and its plot as PNG; `lag.csv` grows with each report into the same folder.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import math
import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.archive.segments import list_streams
from streamkeep.format.core.durations import duration_text
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import MAX_CALENDAR_MS, calendar, size_text, time_text
from streamkeep.format.time_buckets import plan_buckets
from streamkeep.pipeline.distribution.units import Report, timed
from streamkeep.pipeline.options import read_options
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage import places
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrameReader, SparkSession

    from streamkeep.engine.api.views import Snapshot
    from streamkeep.pipeline.source.slices import Pin

_BUCKETS: Final = 96
_TOP: Final = 24  # bars in one plot
_HOUR: Final = "hour of the day, UTC"  # beside fields, one of which may be `hour`
_LINES: Final = 8  # lines in one plot
_SHARES: Final = (50, 90, 99, 99.9)  # percentiles in tables
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")  # in names of files
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # how one begins in a spreadsheet
_SIZES: Final = ("entries", "live", "archived", "size live", "size archived", "first", "last")
_LAGS: Final = ("at", "stream", "group", "lag", "time lag ms", "pending")
_DELAYS: Final = ("time lag ms", "latency p50 ms", "latency p99 ms", "oldest pending ms")
_PAGE: Final = """\
<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta name=viewport content='width=device-width, initial-scale=1'>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto }}
img {{ width: 100%; background: white; border-radius: 6px }}
</style>
<title>{0}</title>
<h1>{0}</h1>
{1}
"""
Rows = list[tuple[Any, ...]]


class MeasureError(StreamkeepError):
    """A measure that no entry has, or that is not a number."""


class PlotMissingError(StreamkeepError):
    """matplotlib is not installed."""


def report(
    spark: SparkSession,
    store: str,
    output: str,
    *,
    streams: Sequence[str] | None = None,
    pattern: str | None = None,
    measures: Sequence[str] = (),
    by: Sequence[str] = (),
    tail_export: str | None = None,
) -> Report:
    """Write a report on the streams of a store: HTML, PNG and CSV files.

    Args:
        store: its directory.
        output: folder for the files, path or URI; `index.html` is the page. `lag.csv` keeps the
            lags of groups in earlier reports.
        streams, pattern: which streams; without either, all.
        measures: numeric fields.
        by: fields by whose values the measures are grouped.
        tail_export: a folder that all hosts reach, path or URI. Entries outside of segments are
            written there for workers on other hosts, and removed at the end. These must also reach
            the archive: where it is published, otherwise `STORE/archive`.

    Raises:
        MeasureError: no entry has the measure.
        PlotMissingError: matplotlib is not installed; nothing was read.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        problem = "a report needs matplotlib, which is not installed"
        raise PlotMissingError(f"{problem}; next: {install_hint('plot')}") from None
    places.check(places.plain(output))
    options = read_options(store, streams, pattern, tail_export=tail_export)
    with timed("report") as done:
        with reading(store) as source, source.snapshot() as snapshot:
            now = time_text(snapshot.txn.now_ms())
            page = Page(f"Streams of {store}", f"as of {now}")
            pins = pin_streams(snapshot.txn, options)
            sizes = _sizes(snapshot, pins)
            groups = [row for pin in pins for row in _groups(snapshot, pin)]
        reader = spark.read.format("streamkeep").option("path", options.path)
        missing = set(measures)
        with ExitStack() as stack:
            if options.tail_export is not None:
                folder = places.new_folder(options.tail_export)
                stack.callback(places.remove_folder, folder)
                reader = reader.option("tailExport", folder)
            if sizes:
                chosen = reader.option("subscribe", json.dumps(list(sizes)))
                done.entries = _streams(page, chosen, sizes)
            lags = ""
            with suppress(FileNotFoundError):
                lags = places.read_bytes(output, "lag.csv").decode()
            _group_sections(page, groups, lags, now)
            for key in sizes:
                one = reader.option("subscribe", json.dumps([key]))
                missing -= {name for name in measures if _measure(page, one, key, name, by)}
        if missing:
            raise MeasureError(
                f"no entry has a number in the field {', '.join(sorted(missing))}; next: "
                "`streamkeep range --count 1` shows the fields of an entry"
            )
        page.files["index.html"] = page.text().encode()
        for name, data in page.files.items():
            places.write_bytes(output, name, data)
        done.size_bytes, done.files = sum(map(len, page.files.values())), len(page.files)
        done.details = {"streams": len(sizes), "page": f"{output.rstrip('/')}/index.html"}
    return done


def _sizes(snapshot: Snapshot[bytes], pins: Sequence[Pin]) -> dict[str, tuple[int, ...]]:
    """Return the entries of each stream, live and archived, and the bytes of each."""
    archived = {one.stream_number: one for one in list_streams(snapshot.txn)}
    found: dict[str, tuple[int, ...]] = {}
    for pin in pins:
        stream, old = snapshot.txn.find_stream(pin.key), archived.get(pin.number)
        live, size = (stream.record.length, stream.node_bytes()) if stream else (0, 0)
        history = (
            (old.entries + old.retired_entries, old.size_bytes + old.retired_bytes)
            if old
            else (0, 0)
        )
        found[key_text(pin.key)] = live, history[0], size, history[1]
    return found


def _streams(page: Page, reader: DataFrameReader, sizes: Mapping[str, tuple[int, ...]]) -> int:
    """Show sizes, entries over time and the gaps between them; return how many entries."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    frame = reader.schema("stream string, ms bigint").load().cache()
    ends = frame.groupBy("stream").agg(f.count("*"), f.min("ms"), f.max("ms")).collect()
    entries = {key: (count, first, last) for key, count, first, last in ends}
    keys = sorted(sizes, key=lambda key: -sizes[key][2] - sizes[key][3])
    rows: Rows = []
    for key in keys:
        count, *span = entries.get(key, (0, None, None))
        rows.append((key, count, *sizes[key], *(one and time_text(one) for one in span)))
    top = keys[:_TOP][::-1]
    parts = {name: [sizes[key][at] for key in top] for name, at in (("live", 2), ("archived", 3))}
    page.add("streams", "Streams", ("stream", *_SIZES), rows, bars(top, parts, "bytes"))
    if not entries:
        return 0
    begin, end = min(one[1] for one in entries.values()), max(one[2] for one in entries.values())
    plan = plan_buckets(begin, end, _BUCKETS)
    counts = {key: [0] * (len(plan.edges) - 1) for key in entries}
    step = math.gcd(*plan.edges)  # a bucket is some of these
    for key, place, count in frame.groupBy("stream", f.expr(f"ms div {step}")).count().collect():
        counts[key][bisect(plan.edges, place * step) - 1] += count
    busiest = sorted(entries, key=lambda key: -entries[key][0])[:_LINES]
    axes = empty_plot()
    begins: list[Any] = [calendar(ms) if plan.style else ms for ms in plan.edges]
    for key in busiest:
        axes.step(begins, [*counts[key], counts[key][-1]], where="post", label=label(key))
    axes.set_xlabel("UTC" if plan.style else "milliseconds of the ID")
    title = f"Throughput: entries per {plan.unit}"
    rows = [(plan.label(at), *each) for at, each in enumerate(zip(*counts.values(), strict=True))]
    page.add("throughput", title, ("begin", *entries), rows, axes)
    before = f.lag("ms").over(Window.partitionBy("stream").orderBy("ms"))
    steps = frame.select("stream", (f.col("ms") - before).alias("gap")).where("gap is not null")
    shares = [*range(101), *_SHARES]
    found = steps.groupBy("stream").agg(f.percentile_approx("gap", [one / 100 for one in shares]))
    gaps: dict[str, list[int]] = dict(map(tuple, found.collect()))
    frame.unpersist()
    if gaps:
        axes = empty_plot()
        for key in (one for one in busiest if one in gaps):
            axes.plot([max(gap, 0.5) for gap in gaps[key][:101]], range(101), label=label(key))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda ms, _: duration_text(int(ms)))
        axes.set_ylabel("% of entries")
        columns = ("stream", *(f"p{share:g} ms" for share in _SHARES), "longest ms")
        rows = [(key, *found[101:], found[100]) for key, found in gaps.items()]
        page.add("gaps", "Time between entries", columns, rows, axes)
    return sum(count for count, _, _ in entries.values())


def _groups(snapshot: Snapshot[bytes], pin: Pin) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each group; latency is from ID to delivery, of what was delivered once."""
    now_ms = snapshot.txn.now_ms()
    for group in snapshot.xinfo_groups(pin.key):
        last = StreamId.parse(group["last-delivered-id"].decode())
        delay = max(0, pin.end.ms - last.ms) if last.ms and pin.end.ms <= MAX_CALENDAR_MS else None
        latencies: list[int] = []
        oldest, start = None, "-"
        while page := snapshot.xpending_range(pin.key, group["name"], start, "+", 5_000):
            for one in page:
                idle = max(0, one["time_since_delivered"])
                oldest = max(oldest or 0, idle)
                latency = now_ms - idle - StreamId.parse(one["message_id"].decode()).ms
                if one["times_delivered"] == 1 and latency >= 0:
                    latencies.append(latency)
            start = "(" + page[-1]["message_id"].decode()
        count = len(latencies)
        ranks = [sorted(latencies)[count * part // 100] if count else None for part in (50, 99)]
        names = (group["name"].decode(errors="backslashreplace"), key_text(pin.key))
        yield *names, group["consumers"], group["pending"], group["lag"], delay, *ranks, oldest


def _group_sections(page: Page, groups: Rows, lags: str, now: str) -> None:
    """Show groups, and add their lags to those of former reports."""
    if groups:
        top = sorted(groups, key=lambda row: (row[4] or 0) + row[3])[-_TOP:]
        parts = {"pending": [row[3] for row in top], "not delivered": [row[4] or 0 for row in top]}
        headings = ("group", "stream", "consumers", "pending", "lag", *_DELAYS)
        axes = bars([f"{row[1]} / {row[0]}" for row in top], parts, "entries")
        title = "Groups: entries pending and not delivered"
        page.add("groups", title, headings, groups, axes)
        rows = [(now, row[1], row[0], row[4], row[5], row[3]) for row in groups]
        lags += _table(rows if lags else [_LAGS, *rows])
    if lags:
        page.link("lag.csv", "Lag, whenever a report was made into this folder", lags)


def _measure(page: Page, reader: DataFrameReader, key: str, name: str, by: Sequence[str]) -> bool:
    """Show a measure of one stream; return False if its entries do not have it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, StringType, StructType, TimestampType

    schema = StructType().add("ts", TimestampType()).add(name, DoubleType())
    for field in by:
        schema = schema.add(field, StringType())
    rows = reader.schema(schema).load().where(_column(name) + " is not null").cache()
    parts = [f.percentile_approx(_column(name), part) for part in (0.5, 0.9)]
    numbers = [f.count("*"), f.avg(_column(name)), *parts]
    groupings = {_HOUR: f.hour("ts"), **{field: f.expr(_column(field)) for field in by}}
    for field, value in groupings.items():
        groups = rows.groupBy(value.alias("by")).agg(*numbers)
        chosen = groups.orderBy(groups[1].desc(), groups[0]).limit(_TOP).collect()
        found = sorted(map(tuple, chosen), key=lambda row: -row[0] if field == _HOUR else row[2])
        if found:
            axes = bars([str(row[0]) for row in found], {"mean": [row[2] for row in found]}, name)
            title = f"{name} in {key}, by {field}: means"
            file = _UNSAFE.sub("_", f"{key}-{name}-by-{field}")
            headings = (field, "entries", "mean", "median", "p90")
            page.add(file, title, headings, found[::-1], axes)
    rows.unpersist()
    return bool(found)


def _column(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Page:
    """Collects sections, and their files."""

    def __init__(self, title: str, note: str) -> None:
        self._title = html.escape(title)
        self._parts = [f"<p>{html.escape(note)}</p>"]
        self.files: dict[str, bytes] = {}

    def add(self, name: str, title: str, headings: Sequence[str], rows: Rows, axes: Axes) -> None:
        """Add a section: numbers as `name.csv`, and their plot as `name.png`."""
        figure: Any = axes.figure
        if len(axes.get_legend_handles_labels()[1]) > 1:
            figure.legend(loc="outside upper left", ncols=4, frameon=False)
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=150)
        self.files[f"{name}.png"] = data.getvalue()
        self.link(f"{name}.csv", title, _table([tuple(headings), *rows]), f"{name}.png")

    def link(self, name: str, title: str, text: str, picture: str = "") -> None:
        """Add a CSV file, and perhaps its plot, which the page contains."""
        self.files[name] = text.encode()
        self._parts.append(f"<h2>{html.escape(title)}</h2>")
        if picture:
            data = base64.b64encode(self.files[picture]).decode()
            self._parts.append(f'<img alt="{name}" src="data:image/png;base64,{data}">')
        self._parts.append(f'<p><a href="{name}">{name}</a></p>')

    def text(self) -> str:
        return _PAGE.format(self._title, "\n".join(self._parts))


def _table(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(quoted, row) for row in rows)
    return text.getvalue()


def empty_plot(bars: int = 9) -> Axes:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(9, 1.2 + 0.35 * bars), layout="constrained").add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return axes


def bars(names: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str) -> Axes:
    """Draw a bar for each name, of parts one behind the other."""
    axes, begins = empty_plot(len(names)), [0.0] * len(names)
    for part, values in parts.items():
        axes.barh(range(len(names)), values, left=begins, label=part)
        begins = [a + b for a, b in zip(begins, values, strict=True)]
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_xlabel(unit)
    shown = size_text if unit == "bytes" else "{:,.0f}".format
    axes.xaxis.set_major_formatter(lambda value, _: shown(int(value)))
    return axes


def label(text: str) -> str:
    """Return text for matplotlib with `$` escaped, which would begin mathematics."""
    return (text if len(text) <= 40 else text[:39] + "…").replace("$", r"\$")


def quoted(cell: Any) -> Any:
    """Return a cell for CSV, quoted if a spreadsheet would take it for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
