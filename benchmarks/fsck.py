"""How fast stores are checked and salvaged, and how little memory that takes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import streamkeep
from benchmarks.common import Report, entries, process_figure, scratch
from streamkeep import recovery
from streamkeep.recovery.fsck.source import open_source
from streamkeep.recovery.pages.raw_pages import scan_pages
from streamkeep.recovery.salvage import repair as repairs

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
        _read(path)  # into the system's cache, so that all runs are alike
        disk = _read(path)
        full, quick = (_run(what, path) for what in ("full", "quick"))
        _break(path)
        device = _read_device(path)
        scan, repair = (_run(what, path) for what in ("scan", "repair"))
        large = count >= 1_000_000
        report.figure("entries", count, "")
        rate = size / full["seconds"] / 1e6
        report.figure("full fsck", rate, "MB/s of nodes", least=200 if large else 0)
        report.figure("  anonymous memory", full["anon_mb"], "MB", most=100)
        most = 2.0 * max(1.0, count / 10e6) if large else 0.0
        report.figure("quick fsck", quick["seconds"], "s", most=most)
        whole = (path / "data.mdb").stat().st_size / 1e6
        report.figure("reading the file from the disk", whole / device, "MB/s")
        report.figure("  from the system's cache", whole / disk, "MB/s")
        report.figure("salvage scan without any meta page", whole / scan["seconds"], "MB/s")
        times = scan["seconds"] / device
        most = 3.0 if large else 0.0
        report.figure("  against reading from the disk", times, "times as long", most=most)
        report.figure("whole repair of that", whole / repair["seconds"], "MB/s")
        report.figure("  anonymous memory", repair["anon_mb"], "MB", most=100)


def _read(path: Path) -> float:
    """Read the data file; return how long it took."""
    start = time.perf_counter()
    with (path / "data.mdb").open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    return time.perf_counter() - start


def _read_device(path: Path) -> float:
    """Read the data file past the system's cache, where that can be; return how long it took."""
    file = os.open(path / "data.mdb", os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError):  # not every file system can
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
    place = mmap.mmap(-1, 1 << 20)  # aligned, as it has to be
    at = 0
    start = time.perf_counter()
    while size := os.preadv(file, [place], at):
        at += size
    seconds = time.perf_counter() - start
    os.close(file)
    return seconds


def _break(path: Path) -> None:
    """Remove all meta pages and checkpoints."""
    with (path / "data.mdb").open("r+b") as file:
        file.write(bytes(2 * 4096))
    (path / "steady").write_bytes(bytes(8192))


def _run(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.fsck", what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _one(what: str, path: Path) -> None:
    start = time.perf_counter()
    if what == "scan":
        with open_source(path) as source:
            assert source.tables is None
            pages = source.raw_pages()
            assert pages is not None
            for _ in scan_pages(pages, lambda page: page > 1, lambda pages: None):
                pass
    elif what == "repair":
        assert repairs.repair(path, path.with_name("repaired")).findings == []
    else:
        assert list(recovery.check(path, quick=what == "quick")) == []
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "anon_mb": process_figure("RssAnon") / 1024}))


if __name__ == "__main__":
    _one(sys.argv[1], Path(sys.argv[2]))
