"""The lake: names of files, commits, and what happens to two jobs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from spark.in_process import LOCAL
from spark.lakes import DAY_MS, fill, origin, problems_of, rows, rows_in, write
from streamkeep.arrow.keys import key_of_text
from streamkeep.engine.api.store import Store
from streamkeep.format.core.entry import MAX_ID, StreamId
from streamkeep.pipeline.jobs import audit as audit_job
from streamkeep.pipeline.jobs import compact as compact_job
from streamkeep.pipeline.jobs import erase as erase_job
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake import lake as lakes
from streamkeep.pipeline.lake.executor import FileWriter
from streamkeep.pipeline.lake.files import (
    LakeConflictError,
    LakeError,
    checksum_of_path,
    day_of,
    folder_of,
    ids_of_path,
    new_path,
)
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import StorageError, file_system


@pytest.fixture
def lake(uri: str) -> Lake:
    return Lake.create(uri)


@pytest.mark.parametrize(
    "key",
    [
        b"orders",
        b"a/b=c %\xc3\xa9 1\n",
        b"",
        b"..",
        b"x" * 300 + b"\xff" * 300,
        b"\\xff",
        b"__HIVE_DEFAULT_PARTITION__",
    ],
)
def test_any_key_and_any_id_can_be_in_a_lake(lake: Lake, key: bytes) -> None:
    files = write(lake, [(5, 0), ((1 << 63) - 1, 0), (1 << 63, 3), MAX_ID], key)
    assert [file.date for file in files] == ["1970-01-01", None]
    assert (files[1].first, files[1].last) == (StreamId((1 << 63) - 1, 0), MAX_ID)
    committed = lake.commit("test", files)
    assert committed.files() == sorted(files, key=lambda file: file.first)
    assert problems_of(lake, *files) == []
    assert all((Path(lake.uri) / file.path).is_file() for file in files)
    texts = {row["stream"] for _, row in rows_in(committed, ("stream",))}
    assert {key_of_text(text) for text in texts} == {key}


def test_streams_and_stores_with_the_same_key_and_ids_are_apart(lake: Lake) -> None:
    other = "7d0b9f4e-0c1c-4b58-9d5a-1a0f6f3f8d11"
    files = [
        *write(lake, [(5, 0)]),
        *write(lake, [(5, 0)], number=2),
        *write(lake, [(5, 0)], store=other),
    ]
    assert len({file.origin.bucket for file in files}) == 3
    committed = lake.commit("test", files).files()
    assert committed == sorted(files, key=lambda file: file.origin)
    assert audit_job._twice(committed) == []


def test_names_carry_ids_and_checksum() -> None:
    path = new_path(origin(), "2024-06-10", StreamId(5, 1), MAX_ID, "0123456789abcdef")
    assert path.startswith(f"bucket={origin().bucket}/date=2024-06-10/")
    assert ids_of_path(path) == (StreamId(5, 1), MAX_ID)
    assert checksum_of_path(path) == "0123456789abcdef"
    assert ids_of_path("bucket=ff/date=2024-06-10/part-0001.parquet") is None


def test_days_end_with_the_calendar() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(253_402_300_799_999) == "9999-12-31"
    assert day_of(253_402_300_800_000) is None
    assert folder_of(origin(), None).endswith("/date=__HIVE_DEFAULT_PARTITION__")


def test_a_file_ends_with_its_day(lake: Lake) -> None:
    ids = [(DAY_MS - 1, 0), (DAY_MS, 0), (DAY_MS, 1), (3 * DAY_MS, 0)]
    files = write(lake, ids)
    assert [file.date for file in files] == ["1970-01-01", "1970-01-02", "1970-01-04"]
    assert [file.entries for file in files] == [1, 2, 1]
    assert (files[1].first, files[1].last) == (StreamId(DAY_MS, 0), StreamId(DAY_MS, 1))
    read = rows_in(lake.commit("test", files), ("ms", "seq"))
    assert [(row["ms"], row["seq"]) for _, row in read] == ids


def test_an_abandoned_writer_leaves_no_file(lake: Lake) -> None:
    system, root = file_system(lake.uri)
    with (
        pytest.raises(KeyboardInterrupt),
        FileWriter(system, root, origin(), lake.entry_schema) as writer,
    ):
        writer.add(rows(lake.entry_schema, [(5, 0), (DAY_MS, 0)]))
        raise KeyboardInterrupt
    assert list(Path(lake.uri).rglob("*.parquet")) == []
    assert list(Path(lake.uri).rglob("*.draft")) == []


def test_of_two_jobs_at_once_one_wins(lake: Lake) -> None:
    ours, theirs = Lake.open(lake.uri), Lake.open(lake.uri)
    ours.commit("ours", write(ours, [(5, 0)]), versions={"job": 9})
    files = write(theirs, [(5, 0)])
    with pytest.raises(LakeConflictError, match="another job committed first"):
        theirs.commit("theirs", files, versions={"job": 9})
    theirs.discard(files)
    assert sum(file.entries for file in Lake.open(lake.uri).files()) == 1
    assert len(list(Path(lake.uri).rglob("*.parquet"))) == 1


def test_an_erasure_conflicts_with_a_job_that_brings_entries(lake: Lake) -> None:
    before = Lake.open(lake.uri)
    lake.commit("erase", [], origins=[origin()])
    with pytest.raises(LakeConflictError):
        before.commit("to-lake", write(before, [(5, 0)]), origins=[origin()])
    mail = write(before, [(5, 0)], b"mail")
    before.commit("to-lake", mail, origins=[origin(b"mail")])


def test_a_storage_that_loses_a_confirmed_commit_is_noticed_each_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(lake, [(5, 0)])
    new = write(lake, [(5, 0)])
    lake = lake.commit("to-lake", old, origins=[origin()]).commit("compact", new, removed=old)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *_, **options: None)
    changes: list[dict[str, Any]] = [{"origins": [origin()]}, {"removed": new}]
    for change in changes:
        with pytest.raises(StorageError, match="has confirmed a commit, and does not have it"):
            lake.commit("test", [], **change)


def test_other_tables_are_not_lakes(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    with pytest.raises(LakeError, match="no such lake"):
        Lake.open(str(tmp_path / "none"))
    DeltaTable.create(str(tmp_path / "other"), pa.schema([("a", pa.int32())]))
    with pytest.raises(LakeError, match="not a lake of streams: it lacks bucket, date, store"):
        Lake.open(str(tmp_path / "other"))


def test_a_restore_of_what_a_lake_lacks_makes_no_store(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="the lake has no entries of 'none'"):
        restore(LOCAL, lake.uri, str(tmp_path / "restored"), "none")
    assert not (tmp_path / "restored").exists()


def test_promoted_columns_can_be_added_but_not_changed(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    columns = pa.schema([("sku", pa.int32())])
    assert Lake.create(uri, columns).promoted == columns
    assert Lake.create(uri).promoted == columns
    more = pa.schema([("note", pa.string())])
    assert Lake.create(uri, more).promoted.names == ["sku", "note"]
    assert Lake.create(uri, more).version == 1
    with pytest.raises(LakeError, match="'sku' is int32, not string"):
        Lake.create(uri, pa.schema([("sku", pa.string())]))
    for name in ("ms", "Bucket"):
        with pytest.raises(LakeError, match=f"every lake has a column '{name.lower()}'"):
            Lake.create(uri, pa.schema([(name, pa.int64())]))
    for path, names in ((uri, ["SKU"]), (f"{uri}2", ["sku", "SKU"])):
        with pytest.raises(LakeError, match="'sku' and 'SKU' are one to Delta"):
            Lake.create(path, pa.schema([(name, pa.int32()) for name in names]))


def test_compact_removes_nothing_of_somebody_else(orders: Store[bytes], uri: str) -> None:
    """Delta's own vacuum would, also a store whose folder has the lake."""
    others = [Path(uri, name) for name in ("data.mdb", "archive/1.seg", "rows.parquet")]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for n in (1, 2):
        fill(orders, n, 1)
        to_lake(LOCAL, str(orders.path), uri)
    assert compact_job.compact(LOCAL, uri, retention_hours=0).details["files_swept"] == 2
    assert all(path.exists() for path in others)


def test_delta_rs_finds_rows_by_any_column(orders: Store[bytes], uri: str) -> None:
    """It skips a file by the bounds of a column that the log does not have, if it has others."""
    fill(orders, 1, 50)
    to_lake(LOCAL, str(orders.path), uri, columns=pa.schema([("sku", pa.int32())]))
    for column, value, count in (("sku", 1, 8), ("seq", 0, 50), ("ms", 60_000, 1)):
        table = DeltaTable(uri).to_pyarrow_table(filters=[(column, "=", value)])
        assert len(table) == count


@pytest.mark.parametrize("files", [2, 1])
def test_columns_that_are_added_later_are_filled_in(
    orders: Store[bytes], uri: str, files: int
) -> None:
    fill(orders, 1, 50)
    orders.xadd("orders", {b"sku": "7", b"\xff": "x", b"note": "old"}, id="3000100-0")
    orders.xadd("orders", {"sku": "1", b"sku": "not a number"}, id="3000101-0")
    orders.xadd("orders", {"sku": "1", b"sku": "2"}, id="3000102-0")
    to_lake(LOCAL, str(orders.path), uri)
    fill(orders, 51, 50)
    columns = pa.schema([("sku", pa.int32()), ("note", pa.string())])
    assert to_lake(LOCAL, str(orders.path), uri, columns=columns).entries == 50
    if files == 1:  # another program joins them, with null where one lacks a column
        Lake.open(uri).table.optimize.compact()
    with pytest.raises(LakeError, match=r"may miss entries; next: run .*compact .* --fill` first"):
        erase_job.erase(LOCAL, "orders", lake=uri, where="note = 'n1'")
    assert erase_job.erase(LOCAL, "orders", ["60000-0"], lake=uri).problems == []
    report = compact_job.compact(LOCAL, uri, fill=True, target_bytes=1)
    assert report.files == 0  # the old file was written by the erasure
    Lake.create(uri, pa.schema([("n", pa.int64())]))
    report = compact_job.compact(LOCAL, uri, fill=True, target_bytes=1)
    assert (report.files, report.entries) == (files, 102)
    assert compact_job.compact(LOCAL, uri, fill=True, target_bytes=1).files == 0
    names = ["ms", "sku", "note", "n"]
    found = [tuple(row.values()) for _, row in rows_in(Lake.open(uri), names)]
    expected = [(n * 60_000, n % 7, f"n{n}", None) for n in range(2, 101)]
    special = [(3000100, 7, "old", None), (3000101, None, None, None), (3000102, 2, None, None)]
    assert found == sorted([*expected, *special])
    assert audit_job.audit(LOCAL, str(orders.path), lake=uri).problems == []


def test_two_jobs_make_a_lake_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = DeltaTable.create

    def beaten(*arguments: Any, **options: Any) -> None:
        make(*arguments, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", beaten)
    assert Lake.create(str(tmp_path / "lake")).version == 0


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (2, r"lake format 2, but this version of Streamkeep reads format 1; next: upgrade"),
        (0, r"lake format 0, but this version of Streamkeep reads format 1$"),
    ],
)
def test_a_lake_of_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lakes, "LAKE_FORMAT", number)
        Lake.create(str(tmp_path / "lake"))
    with pytest.raises(LakeError, match=told):
        Lake.open(str(tmp_path / "lake"))
