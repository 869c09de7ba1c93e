"""The archive: what trimming into it costs writers, and how fast it is written and read."""

from __future__ import annotations

import gzip
import json
import time
from functools import partial
from pathlib import Path

import streamkeep
from benchmarks.common import Report, best, entries, scratch
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions

KEPT = 2_000


def archive(report: Report, *, quick: bool) -> None:
    """Run all."""
    count = 100_000 if quick else 1_000_000
    trimming(report, min(count, 200_000))
    segments(report, count)


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
        store.set_retention("s", maxlen=KEPT, approximate=approximate, archive=archiving)
        for fields in batch:
            store.xadd(b"s", fields)


def segments(report: Report, count: int) -> None:
    """Archive a stream and read it back, against gzip JSON Lines and the live stream."""
    with scratch() as folder, streamkeep.open(folder / "store", sync="none") as store:
        for start in range(0, count, 10_000):
            batch = entries(min(10_000, count - start))
            store.xadd_many("live", batch)
            store.xadd_many("s", batch)
        store.set_retention("s", archive=True)
        live = count / best(lambda: _read(store, "live", False), repeat=3)
        store.xtrim("s", maxlen=0, approximate=False)
        began = time.perf_counter()
        done = store.archive()
        ours = time.perf_counter() - began
        began = time.perf_counter()
        size = _write_gzip(store, folder / "s.jsonl.gz")
        gzipped = time.perf_counter() - began
        report.figure("archived", count / ours, "entries/s")
        report.figure("gzip -6 JSON Lines", count / gzipped, "entries/s")
        report.figure("  faster than that", gzipped / ours, "times", least=3)
        report.figure("  smaller than that", done.size_bytes / size, "of its size")
        report.figure("bytes per entry", done.size_bytes / count, "bytes")
        archived = count / best(lambda: _read(store, "s", True), repeat=3)
        report.figure("range of live nodes", live, "entries/s")
        report.figure("range of segments", archived, "entries/s")
        report.figure("  segments against live nodes", archived / live, "times", least=0.5)
        options = ArchiveOptions(block_bytes=1 << 20, level=9)
        store.set_retention("live", archive=True)
        store.xtrim("live", maxlen=0, approximate=False)
        small = store.archive(options=options)
        report.figure("bytes per entry, 1 MiB blocks, level 9", small.size_bytes / count, "bytes")


def _read(store: Store, key: str, history: bool) -> None:
    after = "-"
    while found := store.xrange(key, after, count=20_000, history=history):
        after = f"({found[-1].id.decode()}"


def _write_gzip(store: Store, path: Path) -> int:
    with gzip.open(path, "wt", compresslevel=6) as file:
        for entry in store.scan("live"):
            fields = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in entry.pairs
            }
            file.write(json.dumps({"id": entry.id.decode(), "fields": fields}) + "\n")
    return path.stat().st_size
