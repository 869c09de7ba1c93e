"""How fast stores are checked and salvaged, and how little memory that takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import streamkeep
from benchmarks.common import Report, entries, process_figure, scratch
from streamkeep import recovery
from streamkeep.recovery.raw_pages import scan_pages
from streamkeep.recovery.source import open_source

_BATCH = 100_000


def measure(report: Report, count: int) -> None:
    """Check a store of `count` entries, each time in a process of its own."""
    with scratch() as folder:
        path = folder / "store"
        batch = entries(min(_BATCH, count))
        with streamkeep.open(path, sync="none") as store:
            for _ in range(0, count, len(batch)):
                store.xadd_many("s", batch)
            size = sum(one.node_bytes for one in store.snapshot().stats())
        _read(path)  # into the system's cache, for all alike
        disk = _read(path)
        full, quick, scan = (_run(what, path) for what in ("full", "quick", "scan"))
        large = count >= 1_000_000
        report.figure("entries", count, "")
        rate = size / full["seconds"] / 1e6
        report.figure("full fsck", rate, "MB/s of nodes", least=200 if large else 0)
        report.figure("  anonymous memory", full["anon_mb"], "MB", most=100)
        most = 2.0 * max(1.0, count / 10e6) if large else 0.0
        report.figure("quick fsck", quick["seconds"], "s", most=most)
        report.figure("reading the file", size / disk / 1e6, "MB/s")
        report.figure("salvage scan", size / scan["seconds"] / 1e6, "MB/s of nodes")
        times = scan["seconds"] / disk
        report.figure("  against reading the file", times, "times as long")


def _read(path: Path) -> float:
    """Read the data file; return how long it took."""
    start = time.perf_counter()
    with (path / "data.mdb").open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    return time.perf_counter() - start


def _run(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.fsck", what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _one(what: str, path: Path) -> None:
    start = time.perf_counter()
    if what == "scan":
        with open_source(path) as source:
            assert source.tables is not None
            for _ in scan_pages(source.tables.pages, lambda page: page > 1, lambda pages: None):
                pass
    else:
        assert list(recovery.check(path, quick=what == "quick")) == []
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "anon_mb": process_figure("RssAnon") / 1024}))


if __name__ == "__main__":
    _one(sys.argv[1], Path(sys.argv[2]))
