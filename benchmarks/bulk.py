"""Whole stores: the codec, the archive, dump and load, fsck and repair, and Spark beside Parquet.

What other Pythons run is started as `python -m benchmarks.bulk WHAT PATH`: the interpreted codec,
and each check of a store, whose memory is measured.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import streamkeep
from benchmarks.common import (
    Report,
    batches,
    best,
    entries,
    in_turns,
    interpreted,
    process_figure,
    scratch,
)
from streamkeep import recovery
from streamkeep.arrow.columns import ColumnWriter
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.format.node import node, ranges
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import PAGE_LISTPACK
from streamkeep.recovery.fsck.source import PAGE_SIZES, open_source
from streamkeep.recovery.pages.raw_pages import scan_pages
from streamkeep.recovery.pages.tree import PageFile
from streamkeep.recovery.salvage import repair as repairs
from streamkeep.tools.cli import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Store = streamkeep.Store[bytes]

_TOP: Final = (1 << 64) - 1
_KEPT: Final = 2_000
_FORMATS: Final = ("jsonl", "resp", "csv", "parquet", "dump", "rdb")
_WARM: Final = 4  # turns of Spark in which the JVM mostly compiles
_FLAT: Final = "ms bigint, seq bigint, `sensor-id` int, temperature double, message binary"


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it."""
    codec(report)
    trimming(report, 20_000 if quick else 200_000)
    segments(report, 100_000 if quick else 1_000_000)
    dumps(report, 20_000 if quick else 1_000_000)
    checks(report, 100_000 if quick else 10_000_000)
    by_spark(report, 50_000 if quick else 2_000_000)


def _fill(path: Path, count: int) -> None:
    with streamkeep.open(path, sync="none") as store:
        for batch in batches(count):
            store.xadd_many("s", batch)


# --- the codec ------------------------------------------------------------------------------


def codec(report: Report) -> None:
    """Entries to listpacks and back, compiled against interpreted."""
    plain = json.loads(interpreted("benchmarks.bulk", "codec", "-"))
    least = {"encode": 5e6, "decode to columns": 4e6, "decode to entries": 2.5e6}
    for name, rate in _codec(5).items():
        report.figure(name, rate, "entries/s", least=least.get(name, 0))
        wanted = 20 if name == "encode" else 0
        report.figure("  against interpreted", rate / plain[name], "times", least=wanted)


def _codec(repeat: int) -> dict[str, float]:
    count = 20_000
    flats = [[part for pair in fields.items() for part in pair] for fields in entries(count)]
    numbered = [(1_700_000_000_000 + n // 3, n % 3, flat) for n, flat in enumerate(flats)]
    nodes = encode_nodes(numbered, PAGE_LISTPACK)

    def decode() -> None:
        for ms, seq, data in nodes:
            wanted = ranges.Range(0, 0, _TOP, _TOP, count, False, int(node.PAIRS))
            ranges.read_range(data, ms, seq, wanted, [])

    def to_columns() -> None:
        writer = ColumnWriter()
        for ms, seq, data in nodes:
            writer.add(data, ms, seq, 0, 0, _TOP, _TOP)
        writer.finish()

    gc.disable()
    try:
        return {
            "encode": count / best(lambda: encode_nodes(numbered, PAGE_LISTPACK), repeat),
            "decode to entries": count / best(decode, repeat),
            "decode to columns": count / best(to_columns, repeat),
        }
    finally:
        gc.enable()


# --- the archive ----------------------------------------------------------------------------


def trimming(report: Report, count: int) -> None:
    """Appends to a stream that is kept short, one by one: trimmed away, or archived."""
    batch = entries(count)
    rates = {}
    for approximate in (True, False):
        for archiving in (False, True):
            took = best(partial(_append, batch, approximate, archiving), repeat=3)
            rates[approximate, archiving] = count / took
        how = "whole nodes" if approximate else "to the entry"
        for archiving in (False, True):
            then = "archived" if archiving else "gone"
            report.figure(
                f"xadd, trimmed {how}, {then}", rates[approximate, archiving], "entries/s"
            )
        ratio = rates[approximate, False] / rates[approximate, True]
        report.figure("  archiving costs writers", ratio, "times", most=1.5)


def _append(batch: list[dict[bytes, bytes]], approximate: bool, archiving: bool) -> None:
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        store.set_retention("s", maxlen=_KEPT, approximate=approximate, archive=archiving)
        for fields in batch:
            store.xadd(b"s", fields)


def segments(report: Report, count: int) -> None:
    """Archive a stream and read it back, against gzip JSON Lines and the live stream."""
    with scratch() as folder:
        _fill(folder / "store", count)
        shutil.copytree(folder / "store", folder / "live")
        with (
            streamkeep.open(folder / "store", sync="none") as store,
            streamkeep.open(folder / "live", sync="none") as other,
        ):
            _segments(report, store, other, count, folder / "s.jsonl.gz")


def _segments(report: Report, store: Store, other: Store, count: int, gzipped_to: Path) -> None:
    store.set_retention("s", archive=True)
    live = count / best(lambda: _read(other, False), repeat=3)
    store.xtrim("s", maxlen=0, approximate=False)
    began = time.perf_counter()
    done = store.archive()
    ours = time.perf_counter() - began
    began = time.perf_counter()
    size = _write_gzip(other, gzipped_to)
    gzipped = time.perf_counter() - began
    report.figure("archived", count / ours, "entries/s")
    report.figure("gzip -6 JSON Lines", count / gzipped, "entries/s")
    report.figure("  faster than that", gzipped / ours, "times", least=3)
    report.figure("  smaller than that", done.size_bytes / size, "of its size")
    report.figure("bytes per entry", done.size_bytes / count, "bytes")
    archived = count / best(lambda: _read(store, True), repeat=3)
    report.figure("range of live nodes", live, "entries/s")
    report.figure("range of segments", archived, "entries/s")
    report.figure("  segments against live nodes", archived / live, "times", least=0.5)


def _read(store: Store, history: bool) -> None:
    after = "-"
    while found := store.xrange("s", after, count=20_000, history=history):
        after = f"({found[-1].id.decode()}"


def _write_gzip(store: Store, path: Path) -> int:
    with gzip.open(path, "wt", compresslevel=6) as file:
        for entry in store.scan("s"):
            fields = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in entry.pairs
            }
            file.write(json.dumps({"id": entry.id.decode(), "fields": fields}) + "\n")
    return path.stat().st_size


# --- dump and load -----------------------------------------------------------------------------


def dumps(report: Report, count: int) -> None:
    """Each format out and in, with a group that has a tenth of the entries pending."""
    with scratch() as folder:
        path = folder / "store"
        _fill(path, count)
        with streamkeep.open(path, sync="none") as store:
            # The tombstone is not written to jsonl: all later nodes are cut again.
            store.xdel("s", store.xrange("s", count=2)[1].id)
            store.xgroup_create("s", "g", 0)
            for _ in range(count // 10_000):
                store.xreadgroup("g", "c", {"s": ">"}, count=1000)
        for kind in _FORMATS:
            file, copy = folder / f"out.{kind}", folder / kind
            seconds = _command("dump", path, "--output", file, "--redis", "8.10")
            report.figure(f"dump {kind}", count / seconds, "entries/s")
            report.figure("  size", os.path.getsize(file) / count, "bytes per entry")
            seconds = _command("load", copy, file, "--sync", "none")
            report.figure(f"load {kind}", count / seconds, "entries/s")
        for kind, how in (("rdb", "the same nodes"), ("jsonl", "other nodes")):
            seconds = _command("diff", path, folder / kind)
            report.figure(f"diff, {how}", count / seconds, "entries/s")


def _command(*args: object) -> float:
    """Run a command of the command line; return how long it took, in seconds."""
    told = io.StringIO()
    status: object = 0
    began = time.perf_counter()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
        try:
            main([str(arg) for arg in args])
        except SystemExit as ended:
            status = ended.code
    if status:
        raise RuntimeError(told.getvalue())
    return time.perf_counter() - began


# --- fsck and repair ---------------------------------------------------------------------------


def checks(report: Report, count: int) -> None:
    """Check a store of `count` entries, each time in a process of its own."""
    with scratch() as folder:
        path = folder / "store"
        _fill(path, count)
        with streamkeep.open(path, sync="none") as store:
            size = sum(one.node_bytes for one in store.snapshot().stats())
        (path / "data.mdb").read_bytes()  # into the system's cache, so that all runs are alike
        full, quick = (_run(what, path) for what in ("full", "quick"))
        with (path / "data.mdb").open("r+b") as file:
            file.write(bytes(2 * 4096))  # no meta page
        (path / "steady").write_bytes(bytes(8192))  # no checkpoint
        scan, repair = (_run(what, path) for what in ("scan", "repair"))
        large = count >= 1_000_000
        report.figure("entries", count, "")
        rate = size / full["seconds"] / 1e6
        report.figure("full fsck", rate, "MB/s of nodes", least=200 if large else 0)
        report.figure("  anonymous memory", full["anon_mb"], "MB", most=100)
        most = 2.0 * max(1.0, count / 10e6) if large else 0.0
        report.figure("quick fsck", quick["seconds"], "s", most=most)
        whole = (path / "data.mdb").stat().st_size / 1e6
        report.figure("salvage scan without any meta page", whole / scan["seconds"], "MB/s")
        report.figure("whole repair of that", whole / repair["seconds"], "MB/s")
        report.figure("  anonymous memory", repair["anon_mb"], "MB", most=100)


def _run(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bulk", what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _check(what: str, path: Path) -> None:
    start = time.perf_counter()
    if what == "scan":
        with open_source(path) as source:
            assert source.tables is None
            pages = PageFile(source.folder, PAGE_SIZES[-1])
            for _ in scan_pages(pages, lambda page: page > 1, lambda pages: None):
                pass
    elif what == "repair":
        assert repairs.repair(path, path.with_name("repaired")).findings == []
    else:
        assert list(recovery.check(path, quick=what == "quick")) == []
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "anon_mb": process_figure("RssAnon") / 1024}))


# --- Spark, on two cores --------------------------------------------------------------------


def by_spark(report: Report, count: int) -> None:
    """The source beside Spark reading Parquet, and the jobs."""
    from streamkeep import pipeline
    from streamkeep.pipeline.jobs.audit import audit
    from streamkeep.pipeline.jobs.to_lake import to_lake

    settings: dict[str, Any] = {"spark.log.level": "ERROR"}
    spark = pipeline.session("local[2]", **settings)
    with scratch() as folder:
        try:
            store, lake, table = folder / "store", folder / "lake", folder / "table"
            _fill(store, count)
            _source_beside_parquet(report, spark, store, "flat schema", _FLAT, count)
            _source_beside_parquet(report, spark, store, "default schema", "", count)

            def job() -> None:
                shutil.rmtree(lake, ignore_errors=True)
                assert to_lake(spark, str(store), str(lake)).entries == count

            def plain() -> None:
                columns = _source(spark, store, "").select("ms", "seq", "ts", "fields")
                columns.write.mode("overwrite").option("compression", "zstd").parquet(str(table))

            ours, theirs = (min(times) for times in in_turns([job, plain], 4))
            report.figure("to-lake", count / ours / 1e6, "M entries/s")
            report.figure("  against df.write.parquet", theirs / ours, "times", least=2)
            _audits(report, spark, store, count, audit)
            ((took,),) = in_turns([lambda: audit(spark, lake=str(lake))], 1)
            report.figure("audit of a lake", count / took / 1e6, "M entries/s")
            _tail(report, spark, folder, 5 if count < 100_000 else 30)
        finally:
            spark.stop()


def _source(spark: SparkSession, store: Path, schema: str) -> DataFrame:
    reader = spark.read.format("streamkeep").option("subscribe", "s")
    return (reader.schema(schema) if schema else reader).load(str(store))


def _source_beside_parquet(
    report: Report, spark: SparkSession, store: Path, name: str, schema: str, count: int
) -> None:
    parquet = store.with_suffix(".parquet")
    frame = _source(spark, store, schema)
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(parquet))
    table = spark.read.parquet(str(parquet))
    assert table.count() == frame.count() == count

    def consume(one: DataFrame) -> Callable[[], object]:
        return lambda: one.write.format("noop").mode("overwrite").save()

    # The median, not the best: the shorter of the two has more luck with a busy machine.
    times = in_turns([consume(frame), consume(table)], _WARM + 12)
    ours, theirs = (statistics.median(one[_WARM:]) for one in times)
    report.figure(f"source, {name}", count / ours / 1e6, "M entries/s")
    report.figure("  against Parquet, zstd", theirs / ours, "times", least=0.5)


def _audits(
    report: Report, spark: SparkSession, store: Path, count: int, audit: Callable[..., Any]
) -> None:
    """Audit the same bytes in 30 segments and in about 3,000."""
    many = store.with_name("many")
    shutil.copytree(store, many)
    for path, number in ((store, 30), (many, 3000)):
        with streamkeep.open(path, sync="none") as opened:
            with opened.snapshot() as snapshot:
                raw = snapshot.stat("s").node_bytes
            opened.set_retention("s", archive=True)
            opened.xtrim("s", maxlen=0, approximate=False)
            opened.archive(options=ArchiveOptions(target_bytes=raw // number))

    def checked(path: Path) -> Callable[[], None]:
        def call() -> None:
            done = audit(spark, str(path))
            assert (done.entries, done.problems) == (count, [])

        return call

    fast, slow = (min(times) for times in in_turns([checked(store), checked(many)], 7))
    report.figure("audit of an archive", count / fast / 1e6, "M entries/s", least=6)
    report.figure("  3,000 small segments against 30", slow / fast, "times", most=3)


def _tail(report: Report, spark: SparkSession, folder: Path, samples: int) -> None:
    """From an append to the commit of the copy in another store, through Spark."""
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
    delays = []
    with streamkeep.open(source) as store, streamkeep.open(sink, readonly=True) as copy:
        for number in range(samples + 5):
            time.sleep(0.37)
            last = copy.xrevrange("s", count=1)[0].id
            began = time.perf_counter()
            store.xadd("s", {"n": number})
            assert copy.xread({"s": last}, block=30_000)
            delays.append(time.perf_counter() - began)
    query.stop()
    delays = sorted(delays[5:])  # the first warm it up
    report.figure("tail, store to sink, median", statistics.median(delays), "s", most=0.6)
    report.figure("  longest", delays[-1], "s")


if __name__ == "__main__":
    if sys.argv[1] == "codec":
        print(json.dumps(_codec(2)))
    else:
        _check(sys.argv[1], Path(sys.argv[2]))
