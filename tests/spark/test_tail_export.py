"""Reads on hosts that are not the store's: what is in no segment is exported as segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.in_process import LOCAL, no_store, read_all, reader_of
from streamkeep.arrow.batches import DEFAULT_SCHEMA
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.format.core.errors import UnreachableError
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source import stores
from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader
from streamkeep.pipeline.storage.places import NotOnExecutorError

SCHEMA = from_arrow_schema(DEFAULT_SCHEMA)


@pytest.fixture
def orders(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """Two streams; one has segments, retired nodes, a node trimmed in part, and tombstones."""
    store = open_store("orders.store")
    for key, count in (("orders", 4000), ("mail", 300)):
        ids = [f"{number}-0" for number in range(1, count + 1)]
        store.xadd_many(key, [{"n": str(n), "key": key} for n in range(count)], ids=ids)
    store.set_retention("orders", archive=True)
    store.xtrim("orders", maxlen=3000, approximate=False)
    store.archive(options=ArchiveOptions(target_bytes=8000))
    store.xtrim("orders", maxlen=2000, approximate=False)
    store.xdel("orders", "2500-0", "3999-0")
    return store


@pytest.mark.parametrize(("source", "scheme"), [("auto", "file://"), ("live", ""), ("archive", "")])
def test_executors_read_the_same_without_the_store(
    orders: Store[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, scheme: str
) -> None:
    ranges = {"startingOffsets": "700-0", "endingOffsets": "3500-0", "source": source}
    plain = reader_of(orders, **ranges)
    expected = read_all(plain)
    export = f"{scheme}{tmp_path / 'export'}"
    exported = reader_of(orders, **ranges, tailExport=export)
    parts = exported.partitions()
    monkeypatch.setattr(stores, "reading", no_store)
    found = read_all(exported, parts)
    assert expected
    assert sorted(found, key=_place) == sorted(expected, key=_place)
    assert found == sorted(found, key=_place)
    files = [path for path in (tmp_path / "export").rglob("*") if path.is_file()]
    assert len(files) == {"auto": 1, "live": 1, "archive": 0}[source]  # mail ends before


def _place(row: Any) -> Any:
    return row["stream"], row["ms"], row["seq"]


def test_what_is_exported_does_not_change_when_the_archiver_works(
    orders: Store[bytes], tmp_path: Path
) -> None:
    exported = reader_of(orders, tailExport=str(tmp_path / "export"))
    parts = exported.partitions()
    orders.xtrim("orders", maxlen=0, approximate=False)
    orders.archive()
    assert len(read_all(exported, parts)) == 4000 - 2 + 300


def test_a_segment_out_of_reach_is_named(orders: Store[bytes], tmp_path: Path) -> None:
    exported = reader_of(orders, tailExport=str(tmp_path / "export"))
    parts = exported.partitions()
    archive = Path(orders.path) / "archive"
    archive.rename(tmp_path / "elsewhere")
    with pytest.raises(NotOnExecutorError, match=r"does not have the folder .*archive that the"):
        read_all(exported, parts)
    (tmp_path / "elsewhere").rename(archive)


@pytest.mark.parametrize(
    ("key", "source", "scheme"),
    [("orders", "auto", ""), (b"\xff/%41", "auto", "file://"), ("orders", "archive", "file://")],
)
def test_executors_read_a_published_archive_where_it_is(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str | bytes,
    source: str,
    scheme: str,
) -> None:
    store = open_store("orders.store")
    store.set_retention(key, archive=True)
    ids = [f"{number}-0" for number in range(1, 4001)]
    store.xadd_many(key, [{"n": one} for one in ids], ids=ids)
    fleet, archive, some = tmp_path / "fleet", store.path / "archive", ArchiveOptions(8000)
    store.xtrim(key, maxlen=3000, approximate=False)
    store.archive(to=str(fleet), options=some)
    assert list(archive.rglob("*.seg")) == []
    fleet.rename(tmp_path / "away")
    fleet.touch()
    store.xtrim(key, maxlen=2000, approximate=False)
    with pytest.raises(UnreachableError):  # so these wait on the disk
        store.archive(options=some)
    fleet.unlink()
    (tmp_path / "away").rename(fleet)
    assert list(archive.rglob("*.seg"))
    store.xtrim(key, maxlen=1000, approximate=False)
    export = f"{scheme}{tmp_path / 'export'}"
    exported = reader_of(store, source=source, tailExport=export)
    parts = exported.partitions()
    monkeypatch.setattr(stores, "reading", no_store)
    archive.rename(tmp_path / "hidden")  # as on another host
    found = [row["id"] for row in read_all(exported, parts)]
    (tmp_path / "hidden").rename(archive)
    archived = sum(one.entries for one in store.archived_segments(key))
    assert found == ids[: 4000 if source == "auto" else archived]
    monkeypatch.undo()
    lake = str(tmp_path / "lake")
    assert to_lake(LOCAL, str(store.path), lake, tail_export=export).entries == 4000


def test_a_micro_batch_is_exported_until_it_is_done(orders: Store[bytes], tmp_path: Path) -> None:
    export = tmp_path / "export"
    given = {"path": str(orders.path), "subscribe": "orders", "startingOffsets": "earliest"}
    given |= {"tailExport": str(export), "maxEntriesPerTrigger": "1500"}
    stream = StreamkeepStreamReader(parse_read(given), SCHEMA)
    start, seen, folders = stream.initialOffset(), [], []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        parts = stream.partitions(start, end)
        folders.append(len(list(export.glob("*"))))
        seen += [row["ms"] for row in read_all(stream, parts)]
        stream.commit(end)
        start = end
    assert seen == [n for n in range(1, 4001) if n not in (2500, 3999)]
    assert max(folders) == 1
    assert list(export.glob("*")) == []
    orders.xadd("orders", {"n": "last"}, id="9000-0")
    end = stream.latestOffset(start, ReadAllAvailable())
    stream.partitions(start, end)
    assert len(list(export.glob("*"))) == 1
    stream.stop()
    assert list(export.glob("*")) == []


def test_a_job_removes_what_it_exported(orders: Store[bytes], tmp_path: Path) -> None:
    lake, export = str(tmp_path / "lake"), tmp_path / "export"
    done = to_lake(LOCAL, str(orders.path), lake, tail_export=str(export))
    assert done.entries == 4000 - 2 + 300
    assert list(export.glob("*")) == []
    orders.xadd("orders", {"n": "last"}, id="9000-0")
    assert to_lake(LOCAL, str(orders.path), lake, tail_export=str(export)).entries == 1
    assert sum(file.entries for file in Lake.open(lake).files()) == 4000 - 2 + 300 + 1
