"""The store end to end: appends, reads, disk and memory, beside SQLite in the same run."""

from __future__ import annotations

import random
import time
from itertools import islice

import streamkeep
from benchmarks.common import (
    Report,
    best,
    entries,
    median_us,
    process_figure,
    scratch,
    sqlite_insert,
    unpinned,
)

BATCH = 20_000


def appends(report: Report) -> None:
    """Single appends and batches without sync, beside SQLite without sync."""
    batch = entries(BATCH)
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:

        def one_by_one() -> None:
            for fields in batch:
                store.xadd(b"single", fields)

        def by_thousands() -> None:
            for start in range(0, BATCH, 1000):
                store.xadd_many(b"batches", batch[start : start + 1000])

        def single(label: str, least: float) -> float:
            one_by_one()
            before = process_figure("wchar", "io")
            rate = BATCH / best(one_by_one)
            written = (process_figure("wchar", "io") - before) / (5 * BATCH)
            report.figure(label, rate, "entries/s", least=least)
            report.figure("  written per commit", written / 4096, "pages")
            return rate

        with unpinned(store):
            rate = single("xadd, one per transaction, nothing pinned", 100_000)
        single("xadd, one per transaction, as users run it", 0)
        report.figure(
            "xadd_many of 1,000", BATCH / best(by_thousands), "entries/s", least=1_000_000
        )
        insert = sqlite_insert(folder, "off")
        sqlite = BATCH / best(lambda: [insert(fields) for fields in batch], 3)
        report.figure("SQLite, WAL, synchronous=OFF, one by one", sqlite, "rows/s")
        report.figure("xadd against SQLite", rate / sqlite, "times", least=1)


def reads(report: Report, count: int) -> None:
    """Range reads and point reads in a big stream, and what the stream takes on the disk."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        batch = entries(10_000)
        start = process_figure("RssAnon")
        for _ in range(count // len(batch)):
            store.xadd_many(b"s", batch)
        appended = process_figure("RssAnon")
        with store.snapshot() as snapshot:
            (stat,) = snapshot.stats()
        size = (folder / "store" / "data.mdb").stat().st_size
        report.figure("disk per byte of listpack", size / stat.node_bytes, "", most=1.1)
        report.figure("disk per entry", size / count, "bytes")

        steps = min(count, 1_000_000)

        def in_steps() -> None:
            last: str | bytes = "-"
            left = steps
            while left > 0:
                page = store.xrange(b"s", last, "+", 1000)
                left -= len(page)
                last = b"(" + page[-1].id

        report.figure(
            f"xrange of {steps:,} in steps of 1,000",
            steps / best(in_steps, 2),
            "entries/s",
            least=700_000,
        )
        ids = [one.id for one in islice(store.scan(b"s"), 0, None, max(1, count // 20_000))]
        rng = random.Random(1)

        def point() -> None:
            one = rng.choice(ids)
            store.xrange(b"s", one, one)

        report.figure(
            f"point xrange in {count:,} entries", median_us(point, 5000), "us, median", most=25
        )
        newest = median_us(lambda: store.xrevrange(b"s", count=1), 5000)
        report.figure("newest entry (xrevrange, count 1)", newest, "us, median")
        scanned = process_figure("RssAnon")
        began = time.perf_counter()
        trimmed = store.xtrim(b"s", maxlen=1000, limit=0)
        seconds = time.perf_counter() - began
        report.figure("trim to 1,000 entries", trimmed / seconds, "entries/s")
        grown = max(appended, scanned, process_figure("RssAnon")) - start
        report.figure("memory grown by append, scan and trim", grown / 1024, "MiB", most=64)
