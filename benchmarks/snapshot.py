"""A snapshot that is held open for half an hour while messages come and go: rate, p99, sizes.

Every database that keeps old versions for a reader has this test. Four producers and four
consumers, each a process, append and acknowledge entries of 1 KiB, each call durable, at 500 and at
2,000 a second; the stream keeps the newest 10,000. Once without a snapshot, once with one that is
opened first and read again at the end.

MINUTES is how long each of the four runs takes: 30 by default.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import streamkeep
from benchmarks.common import Report, scratch
from benchmarks.load import Load, Result, client_of, run_load, running

_MIB: Final = 1 << 20
_SAMPLES: Final = 30
_RATES: Final = (500, 2_000)
_KEEP: Final = 10_000
_MOST: Final = 3  # bytes that data.mdb grows by with a snapshot, for each byte that is appended


def _size(path: Path) -> float:
    blocks = 0
    for file in [path] if path.is_file() else path.iterdir():
        with suppress(FileNotFoundError):  # it was removed in between
            blocks += file.stat().st_blocks
    return blocks * 512 / _MIB


class Sizes(NamedTuple):
    """What a store takes on disk at one moment, in MiB."""

    at_s: float
    data_mdb: float
    journal: float


def measure(rate: int, seconds: float, *, held: bool) -> tuple[Result, list[Sizes]]:
    """Run the load once; return what became of it, and the sizes over time."""
    sizes: list[Sizes] = []
    ended = threading.Event()
    load = Load(rate, seconds, producers=4, consumers=4, keep=_KEEP)
    with scratch() as folder, running("store", "commit", folder) as where, ExitStack() as stack:
        store: streamkeep.Store[bytes] = stack.enter_context(client_of(where))
        store.xadd_many("0", [{"sent": 0, "payload": "x" * load.size}] * _KEEP)
        store.xgroup_create("0", "g")
        snapshot = stack.enter_context(store.snapshot()) if held else None
        path, began = folder / "store", time.monotonic()

        def sample() -> None:
            while not ended.wait(seconds / _SAMPLES):
                both = _size(path / "data.mdb"), _size(path / "journal")
                sizes.append(Sizes(time.monotonic() - began, *both))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            result = run_load(where, load)
        finally:
            ended.set()
            sampler.join()
        if snapshot is not None:
            assert snapshot.xlen("0") == _KEEP
    return result, sizes


def run(report: Report, *, quick: bool) -> None:
    """Measure both rates, without and with a snapshot."""
    seconds = 4.0 if quick else 60 * float(os.environ.get("MINUTES", 30))
    for rate in _RATES:
        for held in (False, True):
            result, sizes = measure(rate, seconds, held=held)
            some = [sizes[place] for place in (len(sizes) // 10, len(sizes) // 2, -1)]
            title = f"{rate:,} messages/s, {'a snapshot open' if held else 'no snapshot'}"
            report.figure(f"{title}: sent", result.rate / rate, "of it", least=0.99)
            for name, share in (("median", 0.5), ("99 %", 0.99), ("longest", 1)):
                report.figure(f"  {name}", result.age_ms(share), "ms")
            if result.trimmed:
                report.note(f"  {result.trimmed:,} were trimmed before a consumer had them")
            for when, size in zip(("early", "in the middle", "at the end"), some, strict=True):
                report.figure(f"  data.mdb {when}", size.data_mdb, "MiB")
            grown = (some[-1].data_mdb - some[0].data_mdb) * _MIB / (some[-1].at_s - some[0].at_s)
            report.figure("  its growth", grown / 1e6, "MB/s")
            appended = rate * Load(rate, seconds).size
            report.figure("  against what is appended", grown / appended, "times", most=_MOST)
            report.figure("  journal/", some[-1].journal, "MiB")
