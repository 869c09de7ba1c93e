"""The data source for Spark beside Spark's own Parquet reader, and the latency of a tail."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import streamkeep
from benchmarks.common import Report, best, entries, scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FULL: Final = 2_000_000
QUICK: Final = 50_000
_BATCH: Final = 10_000
_WARM: Final = 4  # turns in which the JVM mostly compiles
_TURNS: Final = 12
_FLAT: Final = "ms bigint, seq bigint, `sensor-id` int, temperature double, message binary"
_FEW_FLAT: Final = (
    "ms bigint, seq bigint, sensor string, reading int, temperature double, site string"
)

# Appends one entry after the other, and prints when each was there.
_FEEDER: Final = """
import sys, time, json, streamkeep
with streamkeep.open(sys.argv[1]) as store:
    for n in range(int(sys.argv[2])):
        store.xadd("s", {"n": str(n)})
        print(json.dumps([n, time.time()]), flush=True)
        time.sleep(0.37)
"""


def fill(path: Path, count: int, make: Callable[[range], Sequence[Mapping[Any, Any]]]) -> None:
    """Write entries that `make` gives for their numbers."""
    with streamkeep.open(path, sync="none") as store:
        for first in range(0, count, _BATCH):
            numbers = range(first, min(count, first + _BATCH))
            ids = [f"{1_700_000_000_000 + n // 5}-{n % 5}" for n in numbers]
            store.xadd_many("s", make(numbers), ids=ids)


def usual(numbers: range) -> list[dict[bytes, bytes]]:
    """Return entries as in all other benchmarks; no two are the same."""
    return entries(len(numbers), seed=numbers.start)


def few_values(numbers: range) -> list[dict[str, str]]:
    """Return entries of fields with few different values, which Parquet keeps in dictionaries."""
    return [
        {
            "sensor": f"sensor-{n * 7919 % 1000}",
            "reading": str(n % 100_000),
            "temperature": f"{n % 700 / 10:.1f}",
            "site": f"site-{n % 13}",
        }
        for n in numbers
    ]


def reads(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Read all entries through the source, and the same rows from Parquet, in turns."""
    store = folder / "store"
    fill(store, count, usual)
    _compare(report, spark, store, "flat schema", _FLAT, count, least=0.5)
    _compare(report, spark, store, "array schema", "", count, least=0.5)
    narrow = _source(spark, store, "ms bigint")
    report.figure(
        "count() of one column", count / best(lambda: narrow.count(), 3) / 1e6, "M entries/s"
    )
    few = folder / "few"
    fill(few, count, few_values)
    _compare(report, spark, few, "flat schema, few values", _FEW_FLAT, count)
    _compare(report, spark, few, "array schema, few values", "", count)


def _source(spark: SparkSession, store: Path, schema: str) -> DataFrame:
    reader = spark.read.format("streamkeep").option("subscribe", "s")
    return (reader.schema(schema) if schema else reader).load(str(store))


def _compare(
    report: Report,
    spark: SparkSession,
    store: Path,
    name: str,
    schema: str,
    count: int,
    least: float = 0.0,
) -> None:
    """Read with one schema."""
    parquet = store.with_suffix(".parquet")
    frame = _source(spark, store, schema)
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(parquet))
    table = spark.read.parquet(str(parquet))
    assert table.count() == frame.count() == count
    # The median, not the best: the shorter of the two has more luck with a busy machine.
    times = in_turns([consume(frame), consume(table)], _WARM + _TURNS)
    ours, theirs = (statistics.median(one[_WARM:]) for one in times)
    report.figure(f"source, {name}", count / ours / 1e6, "M entries/s")
    report.figure("  Parquet, zstd, by Spark", count / theirs / 1e6, "M entries/s")
    report.figure("  source against Parquet", theirs / ours, "times", least=least)
    planned = best(lambda: _source(spark, store, schema).schema, 3)
    report.figure("  load()", planned * 1000, "ms")


def consume(frame: DataFrame) -> Callable[[], object]:
    """Return a call that makes Spark read every row and ignore it."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def in_turns(calls: list[Callable[[], object]], repeat: int) -> list[list[float]]:
    """Return the times of each call; they take turns, so that noise affects all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, its in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            its.append(time.perf_counter() - start)
    return times


def writes(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Write a DataFrame into new stores."""
    frame = spark.range(count).selectExpr("id as n", "concat('sensor-', id % 1000) as sensor")

    def write(number: int) -> Callable[[], object]:
        writer = frame.write.format("streamkeep").option("stream", "s").mode("append")
        return lambda: writer.save(str(folder / f"written-{number}"))

    first, *others = in_turns([write(number) for number in range(4)], 1)
    report.figure("write", count / min(others)[0] / 1e6, "M entries/s")
    report.figure("  the first of the session", first[0], "s")


def tail(report: Report, spark: SparkSession, folder: Path, samples: int) -> None:
    """From an append in one process to the commit of the copy in another store, through Spark."""
    source, sink = folder / "tail-source", folder / "tail-sink"
    for path in (source, sink):
        with streamkeep.open(path) as store:
            store.xadd("s", {"n": "-1"})
    query = (
        spark.readStream.format("streamkeep")
        .option("subscribe", "s")
        .load(str(source))
        .drop("id", "ms", "seq")
        .writeStream.format("streamkeep")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start(str(sink))
    )
    time.sleep(5)
    feeder = subprocess.Popen(
        [sys.executable, "-c", _FEEDER, str(source), str(samples + 5)],
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: dict[int, float] = {}
    with streamkeep.open(sink, readonly=True) as store:
        last = "$"
        deadline = time.monotonic() + samples * 2 + 30
        while len(seen) < samples + 5 and time.monotonic() < deadline:
            for _, found in store.xread({"s": last}, block=200) or []:
                for entry in found:
                    seen[int(entry.fields[b"n"])] = time.time()
                    last = entry.id.decode()
    query.stop()
    assert feeder.stdout is not None
    made = dict(json.loads(line) for line in feeder.stdout)
    feeder.wait()
    delays = sorted(seen[n] - at for n, at in made.items() if n >= 5)  # the first warm it up
    report.figure("tail, store to sink, median", statistics.median(delays), "s", most=0.6)
    report.figure("  longest", delays[-1], "s")


def run(report: Report, *, quick: bool) -> None:
    """Measure in a session on two cores."""
    from streamkeep import pipeline

    settings: dict[str, Any] = {"spark.log.level": "ERROR"}
    spark = pipeline.session("local[2]", **settings)
    count = QUICK if quick else FULL
    with scratch() as folder:
        try:
            reads(report, spark, folder, count)
            writes(report, spark, folder, count // 2)
            tail(report, spark, folder, 5 if quick else 30)
        finally:
            spark.stop()
