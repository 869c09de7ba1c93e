"""The job `report`: plots and tables about the streams of a store, on one page.

Spark counts entries by bucket of time and the gaps between neighbours. Groups and what they have
pending are read on the driver. A *measure* is a numeric field, such as a delay: its mean and
percentiles by hour of the day, and by the values of other fields. Each section has its numbers as
CSV and its plot as PNG; `groups.csv` grows with each report into the same folder.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.api.frame_commands import needed_package
from streamkeep.engine.archive.segments import list_streams
from streamkeep.engine.commands.dump import pending_of
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.group import groups_of
from streamkeep.engine.tables.lag import lag
from streamkeep.format.humanize import MAX_CALENDAR_MS, calendar, size_text, time_text
from streamkeep.format.time_buckets import plan_buckets
from streamkeep.pipeline.distribution.units import Report, timed
from streamkeep.pipeline.options import OptionError, read_options
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.storage import places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrameReader, SparkSession

    from streamkeep.engine.txn.read_txn import Txn
    from streamkeep.pipeline.source.slices import Pin

_BUCKETS: Final = 96
_TOP: Final = 24  # bars in one plot
_HOUR: Final = "hour of the day, UTC"  # beside fields, one of which may be `hour`
_LINES: Final = 8  # lines in one plot
_SHARES: Final = (50, 90, 99, 99.9)  # percentiles in tables
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")  # in names of files
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # how one begins in a spreadsheet
_SIZES: Final = ("entries", "live", "archived", "size live", "size archived", "first", "last")
_GROUPS: Final = (
    "at", "stream", "group", "lag", "time lag ms", "pending", "consumers", "latency p50 ms",
    "latency p99 ms", "oldest pending ms",
)  # fmt: skip
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
        output: folder for the files, path or URI; `index.html` is the page. `groups.csv` keeps
            what groups had in earlier reports, such as their lag.
        streams, pattern: which streams; without either, all.
        measures: numeric fields.
        by: fields by whose values the measures are grouped.
        tail_export: a folder that all hosts reach, path or URI. Entries outside of segments are
            written there for workers on other hosts, and removed at the end. These must also reach
            the archive: where it is published, otherwise `STORE/archive`.

    Raises:
        OptionError: no entry has the measure, or it is not a number, or it is in `by`, too.
        MissingPackageError: matplotlib is not installed; nothing was read.
    """
    needed_package("matplotlib", "a report", "plot")
    places.check(places.plain(output))
    if both := set(measures) & set(by):
        raise OptionError(
            f"both a measure and a field to group by: {', '.join(sorted(both))}; "
            "next: leave it out of one of them"
        )
    options = read_options(store, streams, pattern, tail_export=tail_export)
    with timed("report") as done:
        with reading(store) as source, source.snapshot() as snapshot:
            page = Page(f"Streams of {store}", f"as of {time_text(snapshot.txn.now_ms())}")
            sizes, groups = _stored(snapshot.txn, pin_streams(snapshot.txn, options))
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
            if groups:
                former = _table([_GROUPS])
                with suppress(FileNotFoundError):
                    former = places.read_bytes(output, "groups.csv").decode()
                top = sorted(groups, key=lambda row: (row[3] or 0) + row[5])[-_TOP:]
                axes = bars(top, {"pending": 5, "not delivered": 3}, "entries", name=slice(1, 3))
                title = "Groups: entries pending and not delivered"
                page.add("groups", title, former + _table(groups), axes)
            for key in sizes:
                one = reader.option("subscribe", json.dumps([key]))
                missing -= {name for name in measures if _measure(page, one, key, name, by)}
        if missing:
            raise OptionError(
                f"no entry has a number in the field {', '.join(sorted(missing))}; next: "
                "`streamkeep range --count 1` shows the fields of an entry"
            )
        page.files["index.html"] = page.text().encode()
        for name, data in page.files.items():
            places.write_bytes(output, name, data)
        done.size_bytes, done.files = sum(map(len, page.files.values())), len(page.files)
        done.details = {"streams": len(sizes), "page": f"{output.rstrip('/')}/index.html"}
    return done


def _stored(txn: Txn, pins: Sequence[Pin]) -> tuple[dict[str, tuple[int, ...]], Rows]:
    """Return for each stream its entries, live and archived, and their bytes; a row per group."""
    now_ms, archived = txn.now_ms(), {one.stream_number: one for one in list_streams(txn)}
    sizes: dict[str, tuple[int, ...]] = {}
    rows: Rows = []
    for pin in pins:
        key, stream = key_text(pin.key), existing_stream(txn, pin.key)
        old = archived.get(pin.number)
        past = old.entries + old.retired_entries if old else 0
        past_size = old.size_bytes + old.retired_bytes if old else 0
        sizes[key] = stream.record.length, past, stream.node_bytes(), past_size
        for group in groups_of(txn, stream):
            record, end_ms = group.record, pin.end.ms
            dated = record.last_ms and end_ms <= MAX_CALENDAR_MS
            delay = max(0, end_ms - record.last_ms) if dated else None
            idle = (one.idle_ms(now_ms) for one in pending_of(group) if one.consumer)
            once = (one for one in pending_of(group) if one.consumer and one.delivery_count == 1)
            times = (one.delivery_time - one.ms for one in once)  # from ID to delivery
            waits = sorted(time for time in times if time >= 0)
            ranks = [waits[len(waits) * part // 100] if waits else None for part in (50, 99)]
            names = time_text(now_ms), key, record.name.decode(errors="backslashreplace")
            counts = lag(stream.record, record), delay, record.pending, record.consumers
            rows.append((*names, *counts, *ranks, max(idle, default=None)))
    return sizes, rows


def _streams(page: Page, reader: DataFrameReader, sizes: Mapping[str, tuple[int, ...]]) -> int:
    """Show sizes, entries over time and the gaps between them; return how many entries."""
    from pyspark.sql import functions as f

    frame = reader.schema("stream string, ms bigint").load().cache()
    ends = frame.groupBy("stream").agg(f.count("*"), f.min("ms"), f.max("ms")).collect()
    entries = {key: (count, first, last) for key, count, first, last in ends}
    rows: Rows = []
    for key in sorted(sizes, key=lambda key: -sizes[key][2] - sizes[key][3]):
        count, *span = entries.get(key, (0, None, None))
        rows.append((key, count, *sizes[key], *(one and time_text(one) for one in span)))
    axes = bars(rows[:_TOP][::-1], {"live": 4, "archived": 5}, "bytes")
    page.add("streams", "Streams", _table([("stream", *_SIZES), *rows]), axes)
    if not entries:
        return 0
    begin, end = min(one[1] for one in entries.values()), max(one[2] for one in entries.values())
    plan = plan_buckets(begin, end, _BUCKETS)
    counts = {key: [0] * (len(plan.edges) - 1) for key in entries}
    step = gcd(*plan.edges)  # a bucket is some of these
    for key, place, count in frame.groupBy("stream", f.expr(f"ms div {step}")).count().collect():
        counts[key][bisect(plan.edges, place * step) - 1] += count
    axes = empty_plot()
    begins: list[Any] = [calendar(ms) if plan.style else ms for ms in plan.edges]
    for key in sorted(entries, key=lambda key: -entries[key][0])[:_LINES]:
        axes.step(begins, [*counts[key], counts[key][-1]], where="post", label=label(key))
    axes.set_xlabel("UTC" if plan.style else "milliseconds of the ID")
    title = f"Throughput: entries per {plan.unit}"
    rows = [(plan.label(at), *each) for at, each in enumerate(zip(*counts.values(), strict=True))]
    page.add("throughput", title, _table([("begin", *entries), *rows]), axes)
    steps = frame.selectExpr("stream", "ms - lag(ms) over (partition by stream order by ms) as gap")
    shares = [f.percentile_approx("gap", share / 100) for share in _SHARES]
    gaps = steps.where("gap is not null").groupBy("stream").agg(*shares, f.max("gap")).collect()
    frame.unpersist()
    rows = sorted(map(tuple, gaps), key=lambda row: row[1])
    if rows:
        columns = ("stream", *(f"p{share:g} ms" for share in _SHARES), "longest ms")
        axes = bars(rows[-_TOP:], {"median": 1}, "ms")
        page.add("gaps", "Time between entries: medians", _table([columns, *rows[::-1]]), axes)
    return sum(count for count, _, _ in entries.values())


def _measure(page: Page, reader: DataFrameReader, key: str, name: str, by: Sequence[str]) -> bool:
    """Show a measure of one stream; return False if its entries do not have it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType().add("ms", "long").add(f"field.{name}", "double")
    for field in by:
        schema.add(f"field.{field}", "string")
    # Names of fields may hold any characters, so the columns get others.
    frame = reader.schema(schema).load().toDF("ms", "measure", *map(str, range(len(by))))
    rows = frame.where("measure is not null").cache()
    parts = [f.percentile_approx("measure", part) for part in (0.5, 0.9)]
    numbers = [f.count("*"), f.avg("measure"), *parts]
    groupings = {_HOUR: f.expr("ms div 3600000 % 24")}
    groupings |= {field: f.col(str(at)) for at, field in enumerate(by)}
    for field, value in groupings.items():
        groups = rows.groupBy(value.alias("by")).agg(*numbers)
        chosen = groups.orderBy(groups[1].desc(), groups[0]).limit(_TOP).collect()
        found = sorted(map(tuple, chosen), key=lambda row: -row[0] if field == _HOUR else row[2])
        if found:
            title = f"{name} in {key}, by {field}: means"
            file = _UNSAFE.sub("_", f"{key}-{name}-by-{field}")
            table = _table([(field, "entries", "mean", "median", "p90"), *found[::-1]])
            page.add(file, title, table, bars(found, {"mean": 2}, name))
    rows.unpersist()
    return bool(found)


class Page:
    """Collects sections, and their files."""

    def __init__(self, title: str, note: str) -> None:
        self._title = html.escape(title)
        self._parts = [f"<p>{html.escape(note)}</p>"]
        self.files: dict[str, bytes] = {}

    def add(self, name: str, title: str, table: str, axes: Axes) -> None:
        """Add a section: numbers as `name.csv`, and their plot as `name.png`, also in the page."""
        base, number = name, 1
        while f"{name}.csv" in self.files:  # as of `a:b` and `a/b`, which make one name of a file
            number += 1
            name = f"{base}-{number}"
        figure: Any = axes.figure
        if len(axes.get_legend_handles_labels()[1]) > 1:
            figure.legend(loc="outside upper left", ncols=4, frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        self.files |= {f"{name}.csv": table.encode(), f"{name}.png": picture.getvalue()}
        data = base64.b64encode(picture.getvalue()).decode()
        self._parts += [
            f"<h2>{html.escape(title)}</h2>",
            f'<img alt="{name}" src="data:image/png;base64,{data}">',
            f'<p><a href="{name}.csv">{name}.csv</a></p>',
        ]

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


def bars(rows: Rows, parts: Mapping[str, int], unit: str, name: slice = slice(1)) -> Axes:
    """Draw a bar for each row, of parts one behind the other; `name` says where its name is."""
    axes, begins = empty_plot(len(rows)), [0.0] * len(rows)
    for part, column in parts.items():
        values = [row[column] or 0 for row in rows]
        axes.barh(range(len(rows)), values, left=begins, label=part)
        begins = [a + b for a, b in zip(begins, values, strict=True)]
    axes.set_yticks(range(len(rows)), [label(" / ".join(map(str, row[name]))) for row in rows])
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
