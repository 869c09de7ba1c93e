"""The jobs of the pipeline: to-lake beside a write by Spark; audit, small segments, restore.

On a shared machine the clock says little. So each figure comes with the processor time of all
processes that worked for it, and with the load.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.common import Report, scratch
from benchmarks.spark import FULL, fill, in_turns, usual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK: Final = 100_000


def take_over(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Copy all entries of a store into a lake, and write the same columns with Spark, in turns."""
    from streamkeep.pipeline.jobs.to_lake import to_lake

    store = folder / "store"
    fill(store, count, usual)
    lake, table = folder / "lake", folder / "table"

    def job() -> None:
        shutil.rmtree(lake, ignore_errors=True)
        assert to_lake(spark, str(store), str(lake)).entries == count

    def by_spark() -> None:
        shutil.rmtree(table, ignore_errors=True)
        frame = spark.read.format("streamkeep").option("subscribe", "s").load(str(store))
        columns = frame.select("ms", "seq", "ts", "fields")
        columns.write.option("compression", "zstd").parquet(str(table))

    ours, theirs = (min(times) for times in in_turns([job, by_spark], 4))
    report.figure("to-lake", count / ours / 1e6, "M entries/s")
    report.figure("  df.write.parquet", count / theirs / 1e6, "M entries/s")
    report.figure("  to-lake against it", theirs / ours, "times", least=2)
    for name, path in (("lake", lake), ("df.write.parquet", table)):
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        report.figure(f"  size, {name}", size / count, "bytes per entry")


def audits(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Audit the same bytes in 30 segments and in about 3,000, and a lake."""
    import streamkeep
    from streamkeep.engine.archive.archiver import ArchiveOptions
    from streamkeep.pipeline.jobs.audit import audit

    few, many = folder / "few", folder / "many"
    fill(few, count, usual)
    shutil.copytree(few, many)
    for path, segments in ((few, 30), (many, 3000)):
        with streamkeep.open(path, sync="none") as store:
            with store.snapshot() as snapshot:
                raw = snapshot.stat("s").node_bytes
            store.set_retention("s", archive=True)
            store.xtrim("s", maxlen=0, approximate=False)
            store.archive(options=ArchiveOptions(target_bytes=raw // segments))

    def check(path: Path) -> Callable[[], None]:
        def call() -> None:
            done = audit(spark, str(path))
            assert (done.entries, done.problems) == (count, [])

        return call

    (fast, cpu), (slow, slow_cpu) = timed([check(few), check(many)], 7)
    report.figure("audit", count / fast / 1e6, "M entries/s", least=6)
    report.figure("  per second of processor time", count / cpu / 1e6, "M entries/s")
    report.figure("  3,000 small segments against 30", slow / fast, "times", most=3)
    report.figure("  in processor time", slow_cpu / cpu, "times")
    lake = str(folder / "lake")

    def check_lake() -> None:
        assert audit(spark, lake=lake).entries == count

    ((took, cpu),) = timed([check_lake], 3)
    report.figure("audit of a lake", count / took / 1e6, "M entries/s")


def restores(report: Report, spark: SparkSession, folder: Path, count: int) -> None:
    """Restore all entries of a lake into an empty store."""
    from streamkeep.pipeline.jobs.restore import restore

    target = folder / "restored"

    def back() -> None:
        shutil.rmtree(target, ignore_errors=True)
        assert restore(spark, str(folder / "lake"), str(target), "s").entries == count

    ((took, cpu),) = timed([back], 5)
    report.figure("restore", count / took / 1e6, "M entries/s", least=1)
    report.figure("  per second of processor time", count / cpu / 1e6, "M entries/s")


def timed(calls: list[Callable[[], None]], repeat: int) -> list[tuple[float, float]]:
    """Return the shortest time of each call, and the least processor time; they take turns."""
    best = [(float("inf"), float("inf"))] * len(calls)
    for _ in range(repeat):
        for at, call in enumerate(calls):
            began, used = time.perf_counter(), processor_time()
            call()
            took, spent = time.perf_counter() - began, processor_time() - used
            best[at] = min(best[at][0], took), min(best[at][1], spent)
    return best


def processor_time() -> float:
    """Return what this process and all below it have used, in seconds."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid] = int(words[1])
        used[pid] = sum(map(int, words[11:15]))  # its own, and that of children that have ended
    mine = {os.getpid()}
    for pid in sorted(parents):  # children have higher numbers, except after an overflow
        if parents[pid] in mine:
            mine.add(pid)
    return sum(used.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def run(report: Report, *, quick: bool) -> None:
    """Measure in a session on two cores."""
    from streamkeep import pipeline

    settings: dict[str, Any] = {"spark.log.level": "ERROR"}
    spark = pipeline.session("local[2]", **settings)
    with scratch() as folder:
        try:
            count = QUICK if quick else FULL
            take_over(report, spark, folder, count)
            audits(report, spark, folder, count)
            restores(report, spark, folder, count)
            report.figure("load of the machine, one minute", os.getloadavg()[0], "processes")
        finally:
            spark.stop()
