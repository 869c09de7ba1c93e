"""The engine beside embedded databases and queues: append, batch, range, point, reopen, bytes.

Each system takes its turn in each round, so that the disk and the processor are the same for all;
the median of the rounds counts. "synced": each call is on disk when it returns. "not synced": it
survives the death of the process. Files have their size before anything is measured: a write-ahead
log that still grows makes half of the rate that it makes later.

- SQLite: a table of three columns, WAL, synchronous=FULL or OFF, one transaction per call;
- LMDB: a number of eight bytes and the three values joined; not synced: MDB_NOSYNC, which survives
  the death of the process, and not that of the system;
- RocksDB: the same rows, with or without `sync` of its log;
- diskcache: a list of joined values (`push`), in a table of SQLite; synchronous=FULL or OFF;
- queues: `queue` measures them.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import lmdb

import streamkeep
from benchmarks.common import Report, entries, process_figure, scratch

Fields = dict[bytes, bytes]

_BATCH: Final = 1000
_RANGE: Final = 100
_FIRST_KEY: Final = 500_000_000_000_000  # of a list of diskcache


class System(Protocol):
    """One system, opened; entries are numbered from 0."""

    def append(self, fields: Fields) -> object:
        """Add an entry."""

    def batch(self, many: list[Fields]) -> object:
        """Add several in one transaction."""

    def range(self, first: int, count: int) -> Iterable[object]:
        """Return entries from one on, each with its number and its values."""

    def close(self) -> None:
        """Close it."""


class Streamkeep:
    """A stream; the IDs of its entries are its numbers."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        self._store = streamkeep.open(folder / "store", sync="commit" if synced else "none")
        last = self._store.xrevrange("s", count=1)
        self._next = int(last[0].id.partition(b"-")[0]) + 1 if last else 1

    def append(self, fields: Fields) -> object:
        self._next += 1
        return self._store.xadd("s", fields, id=f"{self._next - 1}-0")

    def batch(self, many: list[Fields]) -> object:
        ids = range(self._next, self._next + len(many))
        self._next += len(many)
        return self._store.xadd_many("s", many, ids=[f"{one}-0" for one in ids])

    def range(self, first: int, count: int) -> Iterable[object]:
        return self._store.xrange("s", f"{first + 1}-0", count=count)

    def close(self) -> None:
        self._store.close()


class SQLite:
    """A table."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        self._raw = sqlite3.connect(folder / "sqlite.db", isolation_level=None)
        self._raw.execute("pragma journal_mode=wal")
        self.set("full" if synced else "off")
        self._raw.execute(
            "create table if not exists s (id integer primary key, a blob, b blob, c blob)"
        )

    def set(self, synchronous: str) -> None:
        """Choose which calls wait for the disk."""
        self._raw.execute(f"pragma synchronous={synchronous}")

    def append(self, fields: Fields) -> object:
        return self._raw.execute("insert into s (a, b, c) values (?, ?, ?)", (*fields.values(),))

    def batch(self, many: list[Fields]) -> object:
        self._raw.execute("begin immediate")
        rows = [(*one.values(),) for one in many]
        self._raw.executemany("insert into s (a, b, c) values (?, ?, ?)", rows)
        return self._raw.execute("commit")

    def range(self, first: int, count: int) -> Iterable[object]:
        query = "select * from s where id > ? order by id limit ?"
        return self._raw.execute(query, (first, count)).fetchall()

    def close(self) -> None:
        self._raw.close()


def new_sqlite(folder: Path, synchronous: str) -> SQLite:
    """Return a new table whose WAL has its size: it is slower while that grows."""
    table = SQLite(folder)
    for fields in entries(5_000):
        table.append(fields)
    table.set(synchronous)
    return table


class LMDB:
    """Rows under numbers."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        self._raw = lmdb.open(str(folder / "lmdb"), map_size=1 << 32, sync=synced)
        self._next = int(self._raw.stat()["entries"])

    def append(self, fields: Fields) -> object:
        return self.batch([fields])

    def batch(self, many: list[Fields]) -> object:
        with self._raw.begin(write=True) as txn:
            for one in many:
                txn.put(self._next.to_bytes(8, "big"), b"\0".join(one.values()), append=True)
                self._next += 1
        return self._next

    def range(self, first: int, count: int) -> Iterable[object]:
        found: list[object] = []
        with self._raw.begin() as txn, txn.cursor() as cursor:
            if cursor.set_range(first.to_bytes(8, "big")):
                for key, value in cursor:
                    found.append((int.from_bytes(key, "big"), value.split(b"\0", 2)))
                    if len(found) == count:
                        break
        return found

    def close(self) -> None:
        self._raw.close()


class RocksDB:
    """Rows under numbers."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        import rocksdict

        self._batch = rocksdict.WriteBatch
        self._raw = rocksdict.Rdict(str(folder / "rocksdb"), rocksdict.Options(raw_mode=True))
        self._options = rocksdict.WriteOptions()
        self._options.sync = synced
        self._raw.set_write_options(self._options)
        self._next = int.from_bytes(next(self._raw.keys(backwards=True), bytes(8)), "big")

    def append(self, fields: Fields) -> object:
        self._next += 1
        self._raw[self._next.to_bytes(8, "big")] = b"\0".join(fields.values())
        return self._next

    def batch(self, many: list[Fields]) -> object:
        rows = self._batch(raw_mode=True)
        for one in many:
            self._next += 1
            rows.put(self._next.to_bytes(8, "big"), b"\0".join(one.values()))
        return self._raw.write(rows, self._options)

    def range(self, first: int, count: int) -> Iterable[object]:
        found: list[object] = []
        for key, value in self._raw.items(from_key=(first + 1).to_bytes(8, "big")):
            found.append((int.from_bytes(key, "big"), value.split(b"\0", 2)))
            if len(found) == count:
                break
        return found

    def close(self) -> None:
        self._raw.close()


class DiskCache:
    """A list; its first key is 500,000,000,000,000."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        import diskcache

        self._raw = diskcache.Cache(
            str(folder / "diskcache"),
            sqlite_synchronous=2 if synced else 0,
            eviction_policy="none",
            size_limit=1 << 40,
        )

    def append(self, fields: Fields) -> object:
        return self._raw.push(b"\0".join(fields.values()))

    def batch(self, many: list[Fields]) -> object:
        with self._raw.transact():
            return [self.append(one) for one in many]

    def range(self, first: int, count: int) -> Iterable[object]:
        keys = range(_FIRST_KEY + first, _FIRST_KEY + first + count)
        return [(key, self._raw[key].split(b"\0", 2)) for key in keys]

    def close(self) -> None:
        self._raw.close()


_SYSTEMS: Final[dict[str, Callable[..., System]]] = {
    "streamkeep": Streamkeep,
    "SQLite": SQLite,
    "LMDB": LMDB,
    "RocksDB": RocksDB,
    "diskcache": DiskCache,
}
_WRITTEN: Final = "written by an append"
_STORED: Final = "on disk, closed, for each entry"


def run(report: Report, *, quick: bool) -> None:
    """Measure each, with a sync in each call and without."""
    for synced in (True, False):
        with scratch() as folder:
            found = _measure(report, folder, synced=synced, quick=quick)
        for what, values in found.items():
            report.section(f"{what}, {'synced' if synced else 'not synced'}")
            ours = statistics.median(values["streamkeep"])
            for name, rounds in values.items():
                median = statistics.median(rounds)
                report.figure(
                    name, median, "bytes" if what in (_WRITTEN, _STORED) else "us, median"
                )
                if name != "streamkeep":
                    report.figure("  by ours", median / ours, "times")


def _measure(
    report: Report, folder: Path, *, synced: bool, quick: bool
) -> dict[str, dict[str, list[float]]]:
    """Return us or bytes of each round, by what is measured and by system."""
    rounds, preload = (2, 5) if quick else (15, 100)
    many = entries(_BATCH)
    rng = random.Random(1)
    makers: dict[str, Callable[[], System]] = {}
    for name, maker in _SYSTEMS.items():
        (folder / name).mkdir()
        makers[name] = partial(maker, folder / name, synced=synced)
    opened: dict[str, System] = {}
    for name, make in makers.items():
        try:
            system = opened[name] = make()
        except ImportError as error:
            report.note(f"{name}: skipped, {error.name} is not installed")
            continue
        for _ in range(preload):
            system.batch(many)
        for one in many:
            system.append(one)
    singles = 100 if synced else _BATCH
    total = preload * _BATCH
    found: dict[str, dict[str, list[float]]] = {}
    written: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds):
        places = [rng.randrange(total - _RANGE) for _ in range(50)]
        for name, system in opened.items():
            before = process_figure("write_bytes", "io")
            _time(found, "append", name, [partial(system.append, one) for one in many[:singles]])
            written[name].append((process_figure("write_bytes", "io") - before) / singles)
            _time(found, "batch of 1,000", name, [partial(system.batch, many)])
            calls = [partial(system.range, one, _RANGE) for one in places]
            _time(found, f"range of {_RANGE}", name, calls)
            _time(found, "one entry", name, [partial(system.range, one, 1) for one in places])
            system.close()
            opened[name] = _time(found, "open", name, [makers[name]])
    found |= {_WRITTEN: written, _STORED: {}}
    for name, system in opened.items():
        system.close()
        count = total + _BATCH + rounds * (singles + _BATCH)
        found[_STORED][name] = [_size(folder / name) / count]
    return found


def _time(
    times: dict[str, dict[str, list[float]]],
    what: str,
    name: str,
    calls: Sequence[Callable[[], Any]],
) -> Any:
    """Note the mean time of some calls, in us; return what the last one did."""
    start = time.perf_counter()
    for call in calls:
        result = call()
    taken = 1e6 * (time.perf_counter() - start) / len(calls)
    times.setdefault(what, {}).setdefault(name, []).append(taken)
    return result


def _size(folder: Path) -> int:
    """Return the bytes that the files of a folder have on disk."""
    return sum(
        512 * os.stat(os.path.join(path, name)).st_blocks
        for path, _, names in os.walk(folder)
        for name in names
    )
