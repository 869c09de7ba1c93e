"""The job `report`: plots and tables about the streams of a store, on one page.

Spark counts entries by bucket of time, and the gaps between neighbours. Long gaps lose all but
three digits, so that few come back, and percentiles are wrong by at most half a percent. Groups and
what they have pending are read on the driver. A *measure* is a numeric field, such as a delay: its
mean and percentiles by hour of the day, and by the values of other fields.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.archive.segments import list_streams
from streamkeep.format.core.durations import duration_text
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import MAX_CALENDAR_MS, calendar, time_text
from streamkeep.format.time_buckets import plan_buckets
from streamkeep.pipeline.distribution.units import Report, Stopwatch
from streamkeep.pipeline.jobs import report_page
from streamkeep.pipeline.jobs.report_page import Page, bars, label, unquoted
from streamkeep.pipeline.jobs.subscription import read_options
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage.folders import new_folder, remove_folder
from streamkeep.pipeline.storage.places import (
    check,
    file_system,
    is_uri,
    make_folder,
    plain,
    reaching,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrameReader, SparkSession

    from streamkeep.engine.api.views import Snapshot
    from streamkeep.pipeline.source.slices import Pin

_BUCKETS: Final = 96
_TOP: Final = 20  # bars in one plot
_LINES: Final = 8  # streams in one plot
_PERCENTILES: Final = (50, 90, 99, 99.9)
_GAP_STEPS: Final = 3  # times the usual distance of reports: more is a gap
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")  # in names of files
_UNIT: Final = "bigint(pow(10, greatest(length(string(gap)) - 3, 0)))"  # of a rounded gap
Numbers = list[tuple[Any, ...]]


class MeasureError(StreamkeepError):
    """A measure that no entry has, or that is not a number."""


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
        output: folder for the files, path or URI; `index.html` is the page. If it has an earlier
            report, the page also shows the lag of groups over time.
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
    report_page.check_plots()
    with Stopwatch(Report("report")) as done, _local(output) as local:
        options = read_options(store, streams, pattern, tail_export=tail_export)
        with reading(store) as source, source.snapshot() as snapshot:
            now = time_text(snapshot.txn.now_ms())
            page = Page(local, f"Streams of {store}", f"as of {now}")
            pins = pin_streams(snapshot.txn, options)
            sizes = {key_text(pin.key): _sizes(snapshot, pin) for pin in pins}
            groups = [row for pin in pins for row in _groups(snapshot, pin)]
        reader = spark.read.format("streamkeep").option("path", options.path)
        folder = None if options.tail_export is None else new_folder(options.tail_export)
        if folder is not None:
            reader = reader.option("tailExport", folder)
        try:
            if sizes:
                chosen = reader.option("subscribe", json.dumps(list(sizes)))
                done.entries = _streams(page, chosen, sizes)
            _group_sections(page, groups, former_lags(_former(output)), now)
            missing = set(measures)
            for key in sizes:
                one = reader.option("subscribe", json.dumps([key]))
                missing -= {name for name in measures if _measure(page, one, key, name, by)}
        finally:
            if folder is not None:
                remove_folder(folder)
        if missing:
            raise MeasureError(
                f"no entry has a number in the field {', '.join(sorted(missing))}; next: "
                "`streamkeep range --count 1` shows the fields of an entry"
            )
        page.close()
        done.size_bytes = sum(path.stat().st_size for path in page.files)
        done.files = len(page.files)
        done.details = {"streams": len(sizes), "page": f"{output.rstrip('/')}/index.html"}
    return done


@contextmanager
def _local(output: str) -> Iterator[Path]:
    """Provide a folder for files in a `with` block; at its end they are at `output`."""
    if not is_uri(output):
        yield Path(output)
        return
    check(plain(output))
    with TemporaryDirectory(prefix="streamkeep-report-") as folder:
        yield Path(folder)
        system, path = file_system(output)
        make_folder(system, path)
        for file in Path(folder).iterdir():  # `copy_files` of pyarrow 18 hangs
            with reaching(output), system.open_output_stream(f"{path}/{file.name}") as out:
                out.write(file.read_bytes())


def _former(output: str) -> str:
    """Return the lags of the reports that were made into a folder before; "" if there are none."""
    system, path = file_system(output)
    name = f"{path}/lag.csv"
    with reaching(output), suppress(FileNotFoundError), system.open_input_stream(name) as file:
        return str(file.read().decode())
    return ""


# --- streams ------------------------------------------------------------------------------------


def _sizes(snapshot: Snapshot[bytes], pin: Pin) -> tuple[int, int, int, int]:
    """Return the entries of a stream, live and archived, and the bytes of each."""
    stream = snapshot.txn.find_stream(pin.key)
    live, live_bytes = (stream.record.length, stream.node_bytes()) if stream else (0, 0)
    for one in list_streams(snapshot.txn):
        if one.stream_number == pin.number:
            archived = one.entries + one.retired_entries
            return live, archived, live_bytes, one.size_bytes + one.retired_bytes
    return live, 0, live_bytes, 0


def _streams(page: Page, reader: DataFrameReader, sizes: Mapping[str, tuple[int, ...]]) -> int:
    """Show sizes, entries over time and the gaps between them; return how many entries."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    frame = reader.schema("stream string, ms bigint").load().cache()
    ends = frame.groupBy("stream").agg(f.count("*"), f.min("ms"), f.max("ms")).collect()
    entries = {key: (count, first, last) for key, count, first, last in ends}
    headings = ("entries", "live", "archived", "size live", "size archived", "first", "last")
    rows: list[tuple[Any, ...]] = [(key, *found) for key, found in sizes.items()]
    rows.sort(key=lambda row: -row[3] - row[4])
    top = [row for row in rows if row[3] or row[4]][:_TOP][::-1]
    parts = {"live": [row[3] for row in top], "archived": [row[4] for row in top]}
    page.add(
        "streams",
        "Streams",
        ("stream", *headings),
        [(row[0], *_span(entries.get(row[0]), row[1:])) for row in rows],
        bars([row[0] for row in top], parts, "bytes") if len(top) > 1 else None,
        height=1.2 + 0.3 * len(top),
        table=True,
    )
    if not entries:
        return 0
    plan = plan_buckets(
        min(first for _, first, _ in entries.values()),
        max(last for _, _, last in entries.values()),
        _BUCKETS,
    )
    counts = {key: [0] * (len(plan.edges) - 1) for key in entries}
    step = math.gcd(*plan.edges)  # a bucket is some of these
    for key, place, count in frame.groupBy("stream", f.expr(f"ms div {step}")).count().collect():
        counts[key][bisect(plan.edges, place * step) - 1] += count
    busiest = sorted(entries, key=lambda key: -entries[key][0])
    lines = {label(key): counts[key] for key in busiest[:_LINES]}
    if busiest[_LINES:]:
        others = [
            sum(each) for each in zip(*(counts[key] for key in busiest[_LINES:]), strict=True)
        ]
        lines[f"{len(busiest) - _LINES} others"] = others

    def throughput(axes: Axes) -> None:
        begins: list[Any] = [calendar(ms) if plan.style else ms for ms in plan.edges]
        tops = [[*line, line[-1]] for line in lines.values()]
        axes.stackplot(begins, *tops, labels=list(lines), step="post")
        axes.set_xlabel("UTC" if plan.style else "milliseconds of the ID")

    page.add(
        "throughput",
        f"Throughput: entries per {plan.unit}",
        ("begin", *entries),
        [(plan.label(i), *(counts[key][i] for key in entries)) for i in range(len(plan.edges) - 1)],
        throughput,
    )
    before = f.lag("ms").over(Window.partitionBy("stream").orderBy("ms"))
    steps = frame.select("stream", (f.col("ms") - before).alias("gap")).where("gap is not null")
    gaps: dict[str, Counter[int]] = {}
    for key, gap, count in (
        steps.groupBy("stream", f.expr(f"gap div {_UNIT} * {_UNIT}")).count().collect()
    ):
        gaps.setdefault(key, Counter())[gap] += count
    frame.unpersist()
    shown = [key for key in busiest if key in gaps]

    def between(axes: Axes) -> None:
        ends = [max(gap, 0.5) * by for key in shown for gap in gaps[key] for by in (1 / 3, 3)]
        for key in shown[:_LINES]:
            found = sorted(gaps[key])
            shares = [
                100 * one / gaps[key].total() for one in accumulate(gaps[key][g] for g in found)
            ]
            xs = [min(ends), *(max(gap, 0.5) for gap in found), max(ends)]
            axes.step(xs, [0, *shares, 100], where="post", label=label(key))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda ms, _: duration_text(int(ms)))
        axes.set_ylabel("% of entries")

    if shown:
        page.add(
            "gaps",
            "Time between entries",
            ("stream", *(f"p{percent:g} ms" for percent in _PERCENTILES), "longest ms"),
            [
                (key, *(percentile(gaps[key], one) for one in _PERCENTILES), max(gaps[key]))
                for key in shown
            ],
            between,
            table=True,
        )
    return sum(count for count, _, _ in entries.values())


def _span(found: tuple[int, int, int] | None, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    count, first, last = found or (0, None, None)
    times = [None if ms is None else time_text(ms) for ms in (first, last)]
    return (count, *sizes, *times)


def percentile(histogram: Counter[int], percent: float) -> int | None:
    """Return the value that `percent` of all values do not exceed; None if there are no values."""
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen * 100 >= percent * histogram.total():
            return value
    return None


# --- groups -------------------------------------------------------------------------------------


def _groups(snapshot: Snapshot[bytes], pin: Pin) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each group; latency is from ID to delivery, of what was delivered once."""
    now_ms = snapshot.txn.now_ms()
    for group in snapshot.xinfo_groups(pin.key):
        last = StreamId.parse(group["last-delivered-id"].decode())
        delay = max(0, pin.end.ms - last.ms) if last.ms and pin.end.ms <= MAX_CALENDAR_MS else None
        latencies: Counter[int] = Counter()
        oldest, start = None, "-"
        while page := snapshot.xpending_range(pin.key, group["name"], start, "+", 5_000):
            for one in page:
                idle = max(0, one["time_since_delivered"])
                oldest = max(oldest or 0, idle)
                latency = now_ms - idle - StreamId.parse(one["message_id"].decode()).ms
                if one["times_delivered"] == 1 and latency >= 0:
                    latencies[latency] += 1
            start = "(" + page[-1]["message_id"].decode()
        yield (
            *(group["name"].decode(errors="backslashreplace"), key_text(pin.key)),
            *(group["consumers"], group["pending"], group["lag"], delay),
            *(percentile(latencies, 50), percentile(latencies, 99), oldest),
        )


def _group_sections(page: Page, groups: Numbers, lags: Numbers, now: str) -> None:
    """Show groups, and their lags of this report and of former ones."""
    if groups:
        found = sorted(groups, key=lambda row: (row[4] or 0) + row[3])[-_TOP:]
        parts = {
            "pending": [row[3] for row in found],
            "not delivered": [row[4] or 0 for row in found],
        }
        spans = ("time lag ms", "latency p50 ms", "latency p99 ms", "oldest pending ms")
        page.add(
            "groups",
            "Groups: entries pending and not delivered",
            ("group", "stream", "consumers", "pending", "lag", *spans),
            groups,
            bars([f"{row[1]} / {row[0]}" for row in found], parts, "entries"),
            height=1.2 + 0.45 * len(found),
            table=True,
        )
    lags = [*lags, *((now, row[1], row[0], row[4], row[5], row[3]) for row in groups)]
    if lags:
        page.add(
            "lag",
            "Lag over time: entries not delivered, whenever a report was made into this folder",
            ("at", "stream", "group", "lag", "time lag ms", "pending"),
            lags,
            (lambda axes: draw_lags(axes, lags)) if len({row[0] for row in lags}) > 1 else None,
        )


def former_lags(text: str) -> Numbers:
    """Return the lags in the CSV file of a former report, without lines that cannot be read."""
    found: Numbers = []
    for row in csv.reader(io.StringIO(text)):
        with suppress(ValueError):  # the heading, and a line that is not whole
            at, key, group, lag, delay, pending = row
            datetime.fromisoformat(at)
            numbers = (int(lag) if lag else None, int(delay) if delay else None, int(pending))
            found.append((at, unquoted(key), unquoted(group), *numbers))
    return found


def draw_lags(axes: Axes, lags: Numbers) -> None:
    """Draw the lags of the groups that had most; a time without reports is a gap in the line."""
    times = sorted({datetime.fromisoformat(row[0]) for row in lags})
    steps = sorted(after - before for before, after in pairwise(times))
    lines: dict[str, Numbers] = {}
    for at, key, group, lag, *_ in sorted(lags, key=lambda row: row[0]):
        line = lines.setdefault(f"{key} / {group}", [])
        when = datetime.fromisoformat(at)
        if line and when - line[-1][0] > _GAP_STEPS * steps[len(steps) // 2]:
            line.append((line[-1][0], math.nan))
        line.append((when, math.nan if lag is None else lag))
    most = sorted(lines, key=lambda name: -max((row[1] for row in lines[name]), default=0))
    for name in most[:_LINES]:
        axes.plot(*zip(*lines[name], strict=True), marker="o", ms=3, label=label(name))
    axes.set_ylim(bottom=0)


# --- measures -----------------------------------------------------------------------------------


def _measure(page: Page, reader: DataFrameReader, key: str, name: str, by: Sequence[str]) -> bool:
    """Show a measure of one stream; return False if its entries do not have it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, StringType, StructType, TimestampType

    schema = StructType().add("ts", TimestampType()).add(name, DoubleType())
    for field in by:
        schema = schema.add(field, StringType())
    value = "`" + name.replace("`", "``") + "`"
    rows = reader.schema(schema).load().where(f"{value} is not null").cache()
    numbers = [
        f.count("*"),
        f.avg(value),
        *(f.percentile_approx(value, part) for part in (0.5, 0.9)),
    ]
    columns = ("entries", "mean", "median", "p90")
    hours = [
        tuple(row)
        for row in rows.groupBy(f.hour("ts").alias("h")).agg(*numbers).orderBy("h").collect()
    ]
    stem = _UNSAFE.sub("_", f"{key}-{name}")

    def by_hour(axes: Axes) -> None:
        found = {row[0]: row for row in hours}
        for place, text in enumerate(columns[1:], 2):  # an hour without entries is a gap
            values = [found[hour][place] if hour in found else math.nan for hour in range(24)]
            axes.plot(range(24), values, marker="o", ms=4, label=text)
        axes.set_xlabel("hour of the day (UTC)")

    if hours:
        title = f"{name} in {key}"
        page.add(f"{stem}-by-hour", title, ("hour", *columns), hours, by_hour)
        for field in by:
            groups = rows.groupBy("`" + field.replace("`", "``") + "`").agg(*numbers)
            chosen = groups.orderBy(groups[1].desc(), groups[0]).limit(_TOP).collect()
            found = sorted((tuple(row) for row in chosen), key=lambda row: -row[2])
            page.add(
                f"{stem}-by-{_UNSAFE.sub('_', field)}",
                f"{title}, by {field}: means",
                (field, *columns),
                found,
                bars(
                    [str(row[0]) for row in found][::-1],
                    {"mean": [row[2] for row in found][::-1]},
                    name,
                ),
                height=1.2 + 0.3 * len(found),
                table=True,
            )
    rows.unpersist()
    return bool(hours)
