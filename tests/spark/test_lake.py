"""The lake: names of files, commits, what happens to two jobs at once; and the jobs on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from streamkeep.engine.api.store import Store  # noqa: E402
from streamkeep.engine.archive import restore as restore_engine  # noqa: E402
from streamkeep.format.core.entry import MAX_ID, StreamId  # noqa: E402
from streamkeep.format.core.errors import IdTooSmallError  # noqa: E402
from streamkeep.pipeline.jobs import audit as audit_job  # noqa: E402
from streamkeep.pipeline.jobs import compact as compact_job  # noqa: E402
from streamkeep.pipeline.jobs import restore as restore_job  # noqa: E402
from streamkeep.pipeline.jobs.executor import audit as audit_worker  # noqa: E402
from streamkeep.pipeline.jobs.executor import compact as compact_worker  # noqa: E402
from streamkeep.pipeline.jobs.to_lake import to_lake  # noqa: E402
from streamkeep.pipeline.lake.executor.parquet import FileWriter, read_file  # noqa: E402
from streamkeep.pipeline.lake.files import (  # noqa: E402
    LakeConflictError,
    LakeError,
    LakeFile,
    checksum_of_path,
    day_of,
    folder_of,
    ids_of_path,
    new_path,
)
from streamkeep.pipeline.lake.read import read_lake  # noqa: E402
from streamkeep.pipeline.lake.table import Lake  # noqa: E402
from streamkeep.pipeline.storage.places import file_system  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
KEY = b"orders"


def rows(schema: Any, ids: list[tuple[int, int]]) -> Any:
    """Return entries with these IDs."""
    return pa.RecordBatch.from_pylist(
        [
            {"ms": ms, "seq": seq, "fields": [{"field": b"n", "value": b"%d" % ms}]}
            for ms, seq in ids
        ],
        schema=schema,
    )


def write(lake: Lake, ids: list[tuple[int, int]], key: bytes = KEY) -> list[LakeFile]:
    """Write entries into files of a lake, without committing them."""
    system, root = file_system(lake.uri)
    writer = FileWriter(system, root, key, lake.file_schema)
    writer.add(rows(lake.file_schema, ids))
    return writer.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["orders", "a/b=c %é 1", "..", "x" * 100, "{[*?]}", "a\nb"])
def test_any_text_names_a_partition(lake: Lake, key: str) -> None:
    files = write(lake, [(5, 0), (6, 1)], key.encode())
    assert "/" not in files[0].path.split("/date=")[0].removeprefix("stream=")
    committed = lake.commit("test", files)
    assert committed.files() == files
    assert (Path(lake.uri) / files[0].path).is_file()


@pytest.mark.parametrize("key", [b"", b"\xff"])
def test_keys_that_cannot_name_a_partition_are_refused(lake: Lake, key: bytes) -> None:
    with pytest.raises(LakeError, match="cannot name a partition"):
        write(lake, [(5, 0)], key)


def test_names_carry_ids_and_checksum() -> None:
    path = new_path(KEY, "2024-06-10", StreamId(5, 1), MAX_ID, "0123456789abcdef")
    assert path.startswith("stream=orders/date=2024-06-10/")
    assert ids_of_path(path) == (StreamId(5, 1), MAX_ID)
    assert checksum_of_path(path) == "0123456789abcdef"
    assert ids_of_path("stream=orders/date=2024-06-10/part-0001.parquet") is None


def test_days_end_with_the_calendar() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(253_402_300_799_999) == "9999-12-31"
    assert day_of(253_402_300_800_000) is None
    assert folder_of(KEY, None) == "stream=orders/date=__HIVE_DEFAULT_PARTITION__"


# --- files ----------------------------------------------------------------------------------------


def test_a_file_ends_with_its_day(lake: Lake) -> None:
    ids = [(DAY_MS - 1, 0), (DAY_MS, 0), (DAY_MS, 1), (3 * DAY_MS, 0)]
    files = write(lake, ids)
    assert [file.date for file in files] == ["1970-01-01", "1970-01-02", "1970-01-04"]
    assert [file.entries for file in files] == [1, 2, 1]
    assert (files[1].first, files[1].last) == (StreamId(DAY_MS, 0), StreamId(DAY_MS, 1))
    system, root = file_system(lake.uri)
    read = [
        (row["ms"], row["seq"])
        for file in files
        for batch in read_file(system, root, file, ("ms", "seq"))
        for row in batch.to_pylist()
    ]
    assert read == ids


def test_an_abandoned_writer_leaves_no_file(lake: Lake) -> None:
    system, root = file_system(lake.uri)
    writer = FileWriter(system, root, KEY, lake.file_schema)
    writer.add(rows(lake.file_schema, [(5, 0), (DAY_MS, 0)]))
    writer.abandon()
    assert list(Path(lake.uri).rglob("*.parquet")) == []
    assert list(Path(lake.uri).rglob("*.draft")) == []


# --- commits --------------------------------------------------------------------------------------


def test_checkpoints_hold_any_id(lake: Lake) -> None:
    assert lake.checkpoint("job") is None
    for last in (StreamId(0, 0), StreamId(1 << 63, 7), MAX_ID):
        lake = lake.commit("test", [], checkpoints={"job": last})
        assert lake.checkpoint("job") == last


def test_of_two_jobs_at_once_one_wins(lake: Lake) -> None:
    ours, theirs = Lake.open(lake.uri), Lake.open(lake.uri)
    done = StreamId(9, 0)
    ours.commit("ours", write(ours, [(5, 0)]), checkpoints={"job": done})
    files = write(theirs, [(5, 0)])
    with pytest.raises(LakeConflictError, match="another job committed first"):
        theirs.commit("theirs", files, checkpoints={"job": done})
    theirs.discard(files)
    assert sum(file.entries for file in Lake.open(lake.uri).files()) == 1
    assert len(list(Path(lake.uri).rglob("*.parquet"))) == 1


def test_an_erasure_conflicts_with_a_job_that_brings_entries(lake: Lake) -> None:
    before = Lake.open(lake.uri)
    lake.commit("erase", [], keys=[KEY])
    with pytest.raises(LakeConflictError):
        before.commit("to-lake", write(before, [(5, 0)]), keys=[KEY])
    before.commit("to-lake", write(before, [(5, 0)], b"mail"), keys=[b"mail"])


def test_other_tables_are_not_lakes(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    with pytest.raises(LakeError, match="no such lake"):
        Lake.open(str(tmp_path / "none"))
    DeltaTable.create(str(tmp_path / "other"), pa.schema([("a", pa.int32())]))
    with pytest.raises(LakeError, match="not a lake of streams: it lacks stream, date, ms"):
        Lake.open(str(tmp_path / "other"))


def test_promoted_columns_stay(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    columns = pa.schema([("sku", pa.int32())])
    assert Lake.create(uri, columns).promoted == columns
    assert Lake.create(uri).promoted == columns
    with pytest.raises(LakeError, match="this one has: sku int32"):
        Lake.create(uri, pa.schema([("sku", pa.string())]))
    with pytest.raises(LakeError, match="every lake has a column 'ms'"):
        Lake.create(str(tmp_path / "bad"), pa.schema([("ms", pa.int32())]))


# --- compaction and audit, without Spark ----------------------------------------------------------


def test_groups_are_neighbours_of_one_partition() -> None:
    def file(key: bytes, day: str, first: int, last: int, size: int) -> LakeFile:
        return LakeFile(f"{first}", key, day, 1, size, StreamId(first, 0), StreamId(last, 0))

    a = [file(b"a", "d1", n, n, 40) for n in range(1, 6)]
    overlapping = file(b"a", "d1", 5, 7, 10)
    other = file(b"a", "d2", 8, 8, 40)
    groups = compact_job.groups([*a, overlapping, other], 100)
    assert groups == [(a[0], a[1]), (a[2], a[3])]


def test_merging_keeps_entries_and_order(lake: Lake) -> None:
    files = [*write(lake, [(5, 0), (5, 1)]), *write(lake, [(6, 0)]), *write(lake, [(7, 0)])]
    task = compact_worker.Task(lake.uri, lake.file_schema.serialize().to_pybytes(), tuple(files))
    merged = [LakeFile.from_json(line) for line in compact_worker.merge_files(task)]
    assert [(one.entries, one.first, one.last) for one in merged] == [
        (4, StreamId(5, 0), StreamId(7, 0))
    ]
    system, root = file_system(lake.uri)
    ids = [
        (row["ms"], row["seq"], row["fields"])
        for batch in read_file(system, root, merged[0], ("ms", "seq", "fields"))
        for row in batch.to_pylist()
    ]
    assert [one[:2] for one in ids] == [(5, 0), (5, 1), (6, 0), (7, 0)]
    assert ids[3][2] == [{"field": b"n", "value": b"7"}]


def problems_of(lake: Lake, *files: LakeFile) -> list[str]:
    """Return what an audit says of files."""
    task = audit_worker.Task("", (), lake.uri, files)
    return [text for line in audit_worker.look_at(task) for text in json.loads(line)["problems"]]


def test_an_audit_finds_every_kind_of_damage(lake: Lake) -> None:
    (good,) = write(lake, [(n, 0) for n in range(5, 2000)])
    assert problems_of(lake, good) == []
    path = Path(lake.uri) / good.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "which differs from its name" in problems_of(lake, good)[0]
    path.unlink()
    assert "the file is missing" in problems_of(lake, good)[0]
    (fallen,) = write(lake, [(9, 0), (8, 0)])
    assert "IDs do not rise (rows 0 to 2)" in problems_of(lake, fallen)[0]
    (twice,) = write(lake, [(9, 0), (9, 0)])
    assert "IDs do not rise" in problems_of(lake, twice)[0]
    (short,) = write(lake, [(9, 0)])
    wrong = LakeFile(
        short.path, b"mail", short.date, 7, short.size_bytes, StreamId(8, 0), short.last
    )
    told = problems_of(lake, wrong)
    assert "wrong partition" in told[0]
    assert "1 rows, 7 in the log" in told[1]
    assert "holds 9-0 to 9-0, which differs from its name" in told[2]


# --- with Spark -----------------------------------------------------------------------------------


def fill(store: Store[bytes], start: int, count: int, key: str = "orders") -> None:
    store.xadd_many(
        key,
        [{"sku": str(n % 7), "note": f"n{n}"} for n in range(start, start + count)],
        ids=[f"{n * 60_000}-0" for n in range(start, start + count)],
    )


@pytest.mark.spark
def test_a_lake_grows_with_its_store_and_each_entry_comes_once(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake")
    fill(store, 1, 2000)
    fill(store, 1, 10, "mail")
    columns = pa.schema([("sku", pa.int32())])
    first = to_lake(spark, path, lake, columns=columns)
    assert (first.entries, first.details["streams"]) == (2010, 2)
    assert to_lake(spark, path, lake).entries == 0
    fill(store, 2001, 1000)
    assert to_lake(spark, path, lake, streams=["mail"]).entries == 0
    assert to_lake(spark, path, lake, pattern="ord.*").entries == 1000
    frame = read_lake(spark, lake)
    assert frame.count() == 3010
    assert frame.where("stream = 'orders'").select("id").distinct().count() == 3000
    row = frame.where("stream = 'orders' and ms = 120000").collect()[0]
    assert (row.id, row.sku, str(row.date)) == ("120000-0", 2, "1970-01-01")
    assert [(bytes(f), bytes(v)) for f, v in row.fields] == [(b"sku", b"2"), (b"note", b"n2")]
    assert read_lake(spark, lake, version=1).count() == 2010

    before = len(Lake.open(lake).files())
    done = compact_job.compact(spark, lake)
    assert done.files
    assert len(Lake.open(lake).files()) < before
    assert read_lake(spark, lake).count() == 3010
    assert compact_job.compact(spark, lake).files == 0
    checked = audit_job.audit(spark, path, lake=lake)
    assert (checked.entries, checked.problems) == (3010, [])


@pytest.mark.spark
def test_a_job_that_lost_begins_again(
    spark: SparkSession,
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake")
    fill(store, 1, 100)
    plain = Lake.commit
    calls = []

    def commit(self: Lake, *args: Any, **options: Any) -> Lake:
        calls.append(self.version)
        if len(calls) == 1:  # another job is faster
            monkeypatch.setattr(Lake, "commit", plain)
            assert to_lake(spark, path, lake).entries == 100
            monkeypatch.setattr(Lake, "commit", commit)
        return plain(self, *args, **options)

    monkeypatch.setattr(Lake, "commit", commit)
    assert to_lake(spark, path, lake).entries == 0
    assert read_lake(spark, lake).count() == 100
    assert len(list(Path(lake).rglob("*.parquet"))) == len(Lake.open(lake).files())


@pytest.mark.spark
def test_what_a_lake_has_comes_back_once(
    spark: SparkSession,
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, target = open_store("orders.store"), open_store("restored.store")
    lake = str(tmp_path / "lake")
    fill(store, 1, 6000)
    to_lake(spark, str(store.path), lake)
    arguments = (spark, lake, str(target.path), "orders")
    part = restore_job.restore(*arguments, into="part", start="60000", end="180000-0")
    assert (part.entries, part.details["first_id"], part.details["last_id"]) == (
        3,
        "60000-0",
        "180000-0",
    )
    assert target.xrange("part") == store.xrange("orders", count=3)

    plain, steps = restore_engine._write_step, []

    def write_step(*args: Any) -> int:
        steps.append(1)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(restore_engine, "_write_step", write_step)
    monkeypatch.setattr(restore_engine, "_STEP_NODES", 10)
    with pytest.raises(KeyboardInterrupt):
        restore_job.restore(*arguments)
    before = target.xlen("orders")
    assert 0 < before < 6000
    done = restore_job.restore(*arguments)
    assert (done.entries, done.details["resumed"]) == (6000 - before, True)
    assert target.xrange("orders") == store.xrange("orders")
    assert not list((Path(target.path) / "staging").glob("*"))
    again = restore_job.restore(*arguments)
    assert (again.entries, again.details["already"]) == (0, 6000)
    target.xdel("orders", "120000-0")
    with pytest.raises(IdTooSmallError, match="entry 120000-0 is missing there; next: delete"):
        restore_job.restore(*arguments)
    assert target.xlen("orders") == 5999
    assert not list((Path(target.path) / "staging").glob("*"))
    with pytest.raises(LakeError, match="no entries of 'mail'"):
        restore_job.restore(spark, lake, str(target.path), "mail")
