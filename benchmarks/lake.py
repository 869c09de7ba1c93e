"""The jobs of the pipeline: to-lake beside a write by Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.common import Report, scratch
from benchmarks.spark import FULL, fill, in_turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK: Final = 100_000


def take_over(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Bring all entries of a store into a lake, and write the same columns with Spark, in turns."""
    from streamkeep.pipeline.jobs.to_lake import to_lake

    store = folder / "store"
    fill(store, count)
    lake, table = folder / "lake", folder / "table"

    def job() -> None:
        shutil.rmtree(lake, ignore_errors=True)
        assert to_lake(spark, str(store), str(lake)).entries == count

    def by_spark() -> None:
        shutil.rmtree(table, ignore_errors=True)
        frame = spark.read.format("streamkeep").option("subscribe", "s").load(str(store))
        columns = frame.select("ms", "seq", "ts", "fields")
        columns.write.option("compression", "zstd").parquet(str(table))

    ours, theirs = in_turns([job, by_spark], 4)
    report.figure("to-lake", count / ours / 1e6, "M entries/s")
    report.figure("  df.write.parquet", count / theirs / 1e6, "M entries/s")
    report.figure("  to-lake against it", theirs / ours, "times", least=2)
    for name, path in (("lake", lake), ("df.write.parquet", table)):
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        report.figure(f"  size, {name}", size / count, "bytes per entry")


def run(report: Report, *, quick: bool) -> None:
    """Measure in a session on two cores."""
    from streamkeep import pipeline

    settings: dict[str, Any] = {"spark.log.level": "ERROR"}
    spark = pipeline.session("local[2]", **settings)
    with scratch() as folder:
        try:
            take_over(report, spark, folder, QUICK if quick else FULL)
        finally:
            spark.stop()
