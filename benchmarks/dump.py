"""Dumping, loading and comparing whole stores, format by format."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path

import streamkeep
from benchmarks.common import Report, entries, scratch
from streamkeep.tools.cli import main

FULL = 1_000_000
QUICK = 20_000
FORMATS = ("jsonl", "resp", "csv", "parquet", "dump", "rdb")
PENDING = 0.1  # of the entries


def formats(report: Report, count: int) -> None:
    """Each format out and in, with a group that has a tenth of the entries pending."""
    with scratch() as folder:
        path = folder / "store"
        _fill(path, count)
        for kind in FORMATS:
            file, copy = folder / f"out.{kind}", folder / kind
            seconds = _run("dump", path, "--output", file, "--redis", "8.10")
            report.figure(f"dump {kind}", count / seconds, "entries/s")
            report.figure("  size", os.path.getsize(file) / count, "bytes per entry")
            seconds = _run("load", copy, file, "--sync", "none")
            report.figure(f"load {kind}", count / seconds, "entries/s")
        for kind, how in (("rdb", "the same nodes"), ("jsonl", "other nodes")):
            seconds = _run("diff", path, folder / kind)
            report.figure(f"diff, {how}", count / seconds, "entries/s")


def _fill(path: Path, count: int) -> None:
    batch = entries(1000)
    with streamkeep.open(path, sync="none") as store:
        for start in range(0, count, len(batch)):
            store.xadd_many("k", batch)
            if start == 0:  # its tombstone is not written to jsonl: all later nodes are cut again
                store.xdel("k", store.xrange("k", count=2)[1].id)
        store.xadd("k", {"last": 1})
        store.xgroup_create("k", "g", 0)
        for _ in range(round(count * PENDING) // 1000):
            store.xreadgroup("g", "c", {"k": ">"}, count=1000)


def _run(*args: object) -> float:
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
