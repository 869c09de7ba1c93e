"""The job `report`: plots and tables about the streams of a store.

Workers read the IDs of all entries, archived and live, and return only counts: entries per time
bucket, and a histogram of the gaps between neighbours. Gaps of a second and more are rounded to
three digits, so that a worker returns at most some thousand numbers, and percentiles are wrong by
at most half a percent. Groups and their pending entries are read on the driver. `report_page`
writes plots, tables, CSV files and one HTML page.

A *measure* is a numeric field of the entries of one stream, such as a delay. Spark SQL computes its
mean and percentiles over time, and by the values of other fields, from promoted columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.archive.segments import ArchivedStream, list_streams
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import MAX_CALENDAR_MS
from streamkeep.format.time_buckets import plan_buckets
from streamkeep.pipeline.distribution.units import Progress, Report, Stopwatch, cores_of, run_units
from streamkeep.pipeline.jobs.executor.report import Task, count_slice, rounded
from streamkeep.pipeline.jobs.report_facts import (
    LAGS,
    Facts,
    GroupFacts,
    LagPoint,
    MeasureFacts,
    StreamFacts,
)
from streamkeep.pipeline.jobs.subscription import read_options
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.plan import plan_pins
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
    from pyspark.sql import SparkSession

    from streamkeep.engine.api.views import Snapshot
    from streamkeep.pipeline.source.slices import Pin


NAME: Final = "report"
_BUCKETS: Final = 96
_TOP_GROUPS: Final = 20  # values of a field in one plot
_PENDING_BATCH: Final = 5_000


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
    progress: Progress | None = None,
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
    from streamkeep.pipeline.jobs import report_page

    report_page.check_plots()
    with Stopwatch(Report(NAME)) as done:
        options = read_options(store, streams, pattern, tail_export=tail_export)
        folder = None if options.tail_export is None else new_folder(options.tail_export)
        try:
            facts = gather(spark, store, options, measures, by, folder, progress)
        finally:
            if folder is not None:
                remove_folder(folder)
        with _local(output) as local:
            facts.lags = [*report_page.former_lags(_former(output)), *_lags(facts)]
            files = report_page.write(facts, local)
            done.size_bytes = sum(path.stat().st_size for path in files)
        done.entries = sum(one.entries for one in facts.streams)
        done.files = len(files)
        done.details = {"streams": len(facts.streams), "page": f"{output.rstrip('/')}/index.html"}
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
    with reaching(output):
        try:
            with system.open_input_stream(f"{path}/{LAGS}.csv") as file:
                text: str = file.read().decode()
        except FileNotFoundError:
            return ""
    return text


def _lags(facts: Facts) -> Iterator[LagPoint]:
    for one in facts.groups:
        yield LagPoint(facts.now_ms, one.key, one.name, one.lag, one.delay_ms, one.pending)


def gather(
    spark: SparkSession,
    store: str,
    options: ReadOptions,
    measures: Sequence[str],
    by: Sequence[str],
    folder: str | None,
    progress: Progress | None,
) -> Facts:
    """Return the contents of the report.

    Args:
        folder: for nodes that executors cannot reach; None if they reach the store.
    """
    with reading(store) as source, source.snapshot() as snapshot:
        pins = pin_streams(snapshot.txn, options)
        archive = {one.stream_number: one for one in list_streams(snapshot.txn)}
        found = {pin.key: _stream_facts(snapshot, pin, archive.get(pin.number)) for pin in pins}
        groups = [one for pin in pins for one in _group_facts(snapshot, pin)]
        now_ms = snapshot.txn.now_ms()
    times = [ms for one in found.values() for ms in (one.first_ms, one.last_ms) if ms is not None]
    plan = plan_buckets(min(times), max(times), _BUCKETS) if times else None
    edges = plan.edges if plan is not None else ()
    for one in found.values():
        one.counts = [0] * max(0, len(edges) - 1)
    tasks = [
        Task(options, part, edges) for part in plan_pins(options, pins, folder, cores_of(spark))
    ]
    spans: dict[bytes, list[tuple[int, int]]] = {}
    for line in run_units(spark, tasks, count_slice, progress):
        part = json.loads(line)
        key = bytes.fromhex(part["key"])
        into = found[key]
        into.entries += part["entries"]
        into.counts = [a + b for a, b in zip(into.counts, part["counts"], strict=True)]
        into.gaps.update({int(gap): count for gap, count in part["gaps"].items()})
        spans.setdefault(key, []).append((part["first"], part["last"]))
    for key, ends in spans.items():  # the gaps between the ranges of two tasks
        ends.sort()
        for before, after in pairwise(ends):
            found[key].gaps[rounded(after[0] - before[1])] += 1
    shown = [
        _measure(spark, options.path, key, name, by, folder) for key in found for name in measures
    ]
    kept = [one for one in shown if one is not None]
    missing = set(measures) - {one.name for one in kept}
    if missing:
        raise MeasureError(
            f"no entry has a number in the field {', '.join(sorted(missing))}; next: "
            "`streamkeep range --count 1` shows the fields of an entry"
        )
    return Facts(store, now_ms, plan, list(found.values()), groups, kept)


def shown_key(key: bytes) -> str:
    """Return a key as text for the report."""
    return key.decode(errors="backslashreplace")


def _stream_facts(
    snapshot: Snapshot[bytes], pin: Pin, archive: ArchivedStream | None
) -> StreamFacts:
    facts = StreamFacts(shown_key(pin.key))
    if archive is not None:
        facts.archived = archive.entries + archive.retired_entries
        facts.archived_bytes = archive.size_bytes + archive.retired_bytes
    stream = snapshot.txn.find_stream(pin.key)
    if stream is not None:
        facts.live = stream.record.length
        facts.live_bytes = stream.node_bytes()
    if pin.start <= pin.end:
        for oldest in snapshot.xrange(pin.key, count=1, history=True):
            facts.first_ms, facts.last_ms = StreamId.parse(oldest.id.decode()).ms, pin.end.ms
    return facts


def _group_facts(snapshot: Snapshot[bytes], pin: Pin) -> Iterable[GroupFacts]:
    now_ms = snapshot.txn.now_ms()
    for group in snapshot.xinfo_groups(pin.key):
        last = StreamId.parse(group["last-delivered-id"].decode())
        delay = max(0, pin.end.ms - last.ms) if last.ms and pin.end.ms <= MAX_CALENDAR_MS else None
        facts = GroupFacts(
            shown_key(pin.key),
            shown_key(group["name"]),
            group["consumers"],
            group["pending"],
            group["lag"],
            delay,
        )
        start = "-"
        while page := snapshot.xpending_range(pin.key, group["name"], start, "+", _PENDING_BATCH):
            for one in page:
                delivered = now_ms - one["time_since_delivered"]
                entry = StreamId.parse(one["message_id"].decode())
                facts.ages[rounded(max(0, one["time_since_delivered"]))] += 1
                if one["times_delivered"] == 1 and entry.ms <= delivered:
                    facts.latencies[rounded(delivered - entry.ms)] += 1
            start = "(" + page[-1]["message_id"].decode()
        yield facts


def _measure(
    spark: SparkSession,
    store: str,
    key: bytes,
    name: str,
    by: Sequence[str],
    folder: str | None,
) -> MeasureFacts | None:
    """Return a measure of one stream; None if its entries do not have it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import (
        DoubleType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    schema = StructType(
        [
            StructField("ts", TimestampType()),
            StructField(name, DoubleType()),
            *(StructField(one, StringType()) for one in by),
        ]
    )
    reader = spark.read.format("streamkeep").schema(schema)
    reader = reader.options(path=store, subscribe=json.dumps([key_text(key)]))
    if folder is not None:
        reader = reader.option("tailExport", folder)
    rows = reader.load().where(f.col(_quoted(name)).isNotNull())
    numbers = [
        f.count("*"),
        f.avg(_quoted(name)),
        f.percentile_approx(_quoted(name), 0.5),
        f.percentile_approx(_quoted(name), 0.9),
    ]
    rows = rows.cache() if by else rows
    try:
        facts = MeasureFacts(shown_key(key), name)
        hours = rows.groupBy(f.hour("ts").alias("hour")).agg(*numbers).orderBy("hour")
        facts.over_time = [tuple(row) for row in hours.collect()]
        if not facts.over_time:
            return None
        for one in by:
            groups = rows.groupBy(f.col(_quoted(one))).agg(*numbers)
            chosen = groups.orderBy(groups[1].desc(), groups[0]).limit(_TOP_GROUPS)
            facts.by_field[one] = sorted(
                (tuple(row) for row in chosen.collect()), key=lambda row: -row[2]
            )
    finally:
        if by:
            rows.unpersist()
    return facts


def _quoted(name: str) -> str:
    """Return the name of a column, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"
