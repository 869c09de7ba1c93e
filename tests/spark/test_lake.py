"""The lake: names of files, commits, what happens to two jobs at once; and the jobs on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from deltalake import DeltaTable  # noqa: E402
from deltalake.exceptions import CommitFailedError  # noqa: E402

from spark.in_process import InProcess  # noqa: E402
from streamkeep.arrow.keys import key_of_text  # noqa: E402
from streamkeep.engine.api.store import Store  # noqa: E402
from streamkeep.engine.archive import restore as restore_engine  # noqa: E402
from streamkeep.engine.system import failpoints  # noqa: E402
from streamkeep.format.core.entry import MAX_ID, StreamId  # noqa: E402
from streamkeep.format.core.errors import IdTooSmallError  # noqa: E402
from streamkeep.pipeline.jobs import audit as audit_job  # noqa: E402
from streamkeep.pipeline.jobs import compact as compact_job  # noqa: E402
from streamkeep.pipeline.jobs import erase as erase_job  # noqa: E402
from streamkeep.pipeline.jobs import restore as restore_job  # noqa: E402
from streamkeep.pipeline.jobs.executor import audit as audit_worker  # noqa: E402
from streamkeep.pipeline.jobs.executor import compact as compact_worker  # noqa: E402
from streamkeep.pipeline.jobs.to_lake import to_lake  # noqa: E402
from streamkeep.pipeline.lake.executor.parquet import FileWriter, read_file  # noqa: E402
from streamkeep.pipeline.lake.files import (  # noqa: E402
    LakeConflictError,
    LakeError,
    LakeFile,
    Origin,
    checksum_of_path,
    day_of,
    folder_of,
    ids_of_path,
    new_path,
    signed,
)
from streamkeep.pipeline.lake.table import FLEET, Lake  # noqa: E402
from streamkeep.pipeline.storage.places import StorageError, file_system  # noqa: E402
from streamkeep.pipeline.store_fleet.pieces import Positions  # noqa: E402
from streamkeep.pipeline.store_fleet.progress_files import POSITIONS  # noqa: E402

if TYPE_CHECKING:
    pass

DAY_MS = 86_400_000
KEY = b"orders"
STORE = "0b7cbc3e-58c4-4a0a-8b0e-3d2a7c7f1d5e"


def origin(key: bytes = KEY, number: int = 1, store: str = STORE) -> Origin:
    """Return a stream that entries come from."""
    return Origin(store, number, key)


def rows(schema: Any, ids: list[tuple[int, int]]) -> Any:
    """Return entries with these IDs."""
    return pa.RecordBatch.from_pylist(
        [
            {"ms": signed(ms), "seq": signed(seq), "fields": [{"field": b"n", "value": b"%d" % ms}]}
            for ms, seq in ids
        ],
        schema=schema,
    )


def write(
    lake: Lake, ids: list[tuple[int, int]], key: bytes = KEY, number: int = 1, store: str = STORE
) -> list[LakeFile]:
    """Write entries into files of a lake, without committing them."""
    system, root = file_system(lake.uri)
    writer = FileWriter(system, root, origin(key, number, store), lake.entry_schema)
    writer.add(rows(lake.entry_schema, ids))
    return writer.close()


def committed(lake: Lake, files: list[LakeFile]) -> Lake:
    """Commit files of one store as `to-lake` does."""
    positions = Positions()
    for file in files:
        positions = positions.with_rows(file.origin.number, file.key, file.entries)
    POSITIONS.write(lake.uri, STORE, 1, positions.as_json())
    versions = {FLEET: 1, POSITIONS.application(STORE): 1}
    return lake.commit("to-lake", files, origins={file.origin for file in files}, versions=versions)


def fill(store: Store[bytes], start: int, count: int, key: str = "orders") -> None:
    store.xadd_many(
        key,
        [{"sku": str(n % 7), "note": f"n{n}"} for n in range(start, start + count)],
        ids=[f"{n * 60_000}-0" for n in range(start, start + count)],
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


# --- names ----------------------------------------------------------------------------------------


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
    system, root = file_system(lake.uri)
    texts = {
        row["stream"]
        for file in files
        for batch in read_file(system, root, file, ("stream",))
        for row in batch.to_pylist()
    }
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
    writer = FileWriter(system, root, origin(), lake.entry_schema)
    writer.add(rows(lake.entry_schema, [(5, 0), (DAY_MS, 0)]))
    writer.abandon()
    assert list(Path(lake.uri).rglob("*.parquet")) == []
    assert list(Path(lake.uri).rglob("*.draft")) == []


# --- commits --------------------------------------------------------------------------------------


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
    with pytest.raises(LakeError, match="every lake has a column"):
        Lake.create(uri, pa.schema([("ms", pa.int64())]))


def test_columns_that_are_added_later_are_filled_in(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("s.store"), str(tmp_path / "lake")
    fill(store, 1, 50)
    store.xadd("orders", {b"sku": "7", b"\xff": "x", b"note": "old"}, id="3000100-0")
    store.xadd("orders", {"sku": "1", b"sku": "not a number"}, id="3000101-0")
    store.xadd("orders", {"sku": "1", b"sku": "2"}, id="3000102-0")
    to_lake(spark, str(store.path), lake)
    fill(store, 51, 50)
    columns = pa.schema([("sku", pa.int32()), ("note", pa.string())])
    assert to_lake(spark, str(store.path), lake, columns=columns).entries == 50
    assert erase_job.erase(spark, "orders", ["60000-0"], lake=lake).problems == []
    report = compact_job.compact(spark, lake, fill=True, target_bytes=1)
    assert report.files == 0  # the old file was written by the erasure
    Lake.create(lake, pa.schema([("n", pa.int64())]))
    report = compact_job.compact(spark, lake, fill=True, target_bytes=1)
    assert (report.files, report.entries) == (2, 102)
    assert compact_job.compact(spark, lake, fill=True, target_bytes=1).files == 0
    system, root = file_system(lake)
    names = ["ms", "sku", "note", "n"]
    found = [
        tuple(row.values())
        for file in Lake.open(lake).files()
        for batch in read_file(system, root, file, names)
        for row in batch.to_pylist()
    ]
    expected = [(n * 60_000, n % 7, f"n{n}", None) for n in range(2, 101)]
    special = [(3000100, 7, "old", None), (3000101, None, None, None), (3000102, 2, None, None)]
    assert found == sorted([*expected, *special])
    assert audit_job.audit(spark, str(store.path), lake=lake).problems == []


def test_two_jobs_make_a_lake_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = DeltaTable.create

    def beaten(*arguments: Any, **options: Any) -> None:
        make(*arguments, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", beaten)
    assert Lake.create(str(tmp_path / "lake")).version == 0


# --- compaction and audit, without Spark ----------------------------------------------------------


def test_groups_are_neighbours_of_one_partition() -> None:
    def file(key: bytes, day: str, first: int, last: int, size: int) -> LakeFile:
        path = new_path(origin(key), day, StreamId(first, 0), StreamId(last, 0), "0" * 16)
        return LakeFile(path, origin(key), day, 1, size, StreamId(first, 0), StreamId(last, 0))

    a = [file(b"a", "d1", n, n, 40) for n in range(1, 6)]
    overlapping = file(b"a", "d1", 5, 7, 10)
    other = file(b"a", "d2", 8, 8, 40)
    groups = compact_job.groups([*a, overlapping, other], 100)
    assert groups == [(a[0], a[1]), (a[2], a[3])]


def test_merging_keeps_entries_and_order(lake: Lake) -> None:
    files = [*write(lake, [(5, 0), (5, 1)]), *write(lake, [(6, 0)]), *write(lake, [(7, 0)])]
    task = compact_worker.Task(lake.uri, lake.entry_schema.serialize().to_pybytes(), tuple(files))
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
        short.path, origin(b"mail"), short.date, 7, short.size_bytes, StreamId(8, 0), short.last
    )
    told = problems_of(lake, wrong)
    assert "wrong partition" in told[0]
    assert "1 rows, 7 in the log" in told[1]
    assert "holds 9-0 to 9-0, which differs from its name" in told[2]


def test_a_compaction_tries_until_it_wins(lake: Lake) -> None:
    spark: Any = InProcess()
    files = []
    origins = [origin(KEY), origin(b"other", 2)]
    for one in origins:
        for ms in (5, 7, 9):
            files += write(lake, [(ms, 0), (ms, 1)], one.key, one.number)
    lake = committed(lake, files)
    erasures = [(KEY, "7-1"), (b"other", "5-0")]

    def interfere() -> None:
        key, gone = erasures.pop()
        assert erase_job.erase(spark, key, [gone], lake=lake.uri).details["erased_in_lake"] == 1
        if erasures:
            failpoints.arm("lake:commit", interfere)

    failpoints.arm("lake:commit", interfere)
    report = compact_job.compact(spark, lake.uri)
    assert erasures == []
    left = Lake.open(lake.uri).files()
    assert [(file.key, file.entries) for file in left] == [(KEY, 5), (b"other", 5)]
    assert report.files >= 2
    assert audit_job.audit(spark, lake=lake.uri).problems == []


def test_files_of_other_programs_are_read_erased_and_made_ours(lake: Lake) -> None:
    spark: Any = InProcess()
    parts = [write(lake, ids) for ids in ([(5, 0), (5, 1)], [(9, 0)], [(7, 3), (8, 0)])]
    lake = committed(lake, [file for part in parts for file in part])
    lake.table.optimize.compact()
    (merged,) = Lake.open(lake.uri).files()
    assert merged.foreign
    assert (merged.origin, merged.entries) == (origin(), 5)
    assert (merged.first, merged.last) == (StreamId(5, 0), StreamId(9, 0))
    system, root = file_system(lake.uri)
    (batch,) = read_file(system, root, merged, ("seq", "ms"))
    assert batch.column("ms").to_pylist() == [5, 5, 7, 8, 9]
    done = erase_job.erase(spark, KEY, ["7-3"], lake=lake.uri)
    assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    (ours,) = Lake.open(lake.uri).files()
    assert not ours.foreign
    left = [ids_of_path(path.name) for path in Path(lake.uri).rglob("*.parquet")]
    assert all(ends is not None for ends in left)  # the merged file is gone, and the old one of 7-3
    assert sorted(ends[0].ms for ends in left if ends is not None) == [5, 5, 9]
    assert audit_job.audit(spark, lake=lake.uri).problems == []
    Lake.open(lake.uri).table.optimize.z_order(["seq"])
    assert compact_job.compact(spark, lake.uri).files == 1
    assert [file.foreign for file in Lake.open(lake.uri).files()] == [False]
    assert audit_job.audit(spark, lake=lake.uri).entries == 4


def test_an_entry_of_one_store_is_erased_there_alone(lake: Lake) -> None:
    spark: Any = InProcess()
    other = "7d0b9f4e-0c1c-4b58-9d5a-1a0f6f3f8d11"
    files = [*write(lake, [(5, 0), (6, 0)]), *write(lake, [(5, 0), (6, 0)], store=other)]
    lake.commit("test", files)
    with pytest.raises(LakeError, match=r"2 stores have a stream 'orders': .*--store-id"):
        erase_job.erase(spark, KEY, ["5-0"], lake=lake.uri)
    done = erase_job.erase(spark, KEY, ["5-0"], lake=lake.uri, store_id=other)
    assert done.details["erased_in_lake"] == 1
    entries = {file.origin.store: file.entries for file in Lake.open(lake.uri).files()}
    assert entries == {STORE: 2, other: 1}


def test_a_lake_of_the_former_format_is_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    names = ("stream", "date", "ms", "seq", "ts", "fields")
    schema = pa.schema([(name, pa.string()) for name in names])
    DeltaTable.create(str(tmp_path / "old"), schema, partition_by=["stream", "date"])
    with pytest.raises(LakeError, match=r"a lake of format 1.* make a new lake"):
        Lake.open(str(tmp_path / "old"))


# --- the balance ----------------------------------------------------------------------------------


def test_entries_that_were_trimmed_between_runs_are_named_and_counted(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("orders.store"), str(tmp_path / "lake")
    path = str(store.path)
    fill(store, 1, 100)
    fill(store, 1, 5, "mail")
    assert to_lake(spark, path, lake).problems == []
    fill(store, 101, 1000)
    fill(store, 6, 5, "mail")
    store.xtrim("orders", maxlen=10, approximate=False)
    (problem,) = audit_job.audit(spark, path, lake=lake).problems
    assert "990 entries after 6000000-0 were trimmed" in problem
    done = to_lake(spark, path, lake)
    (problem,) = done.problems
    assert "stream 'orders'" in problem
    assert "990 entries after 6000000-0 were trimmed" in problem
    assert done.entries == 5  # of the other stream
    done = to_lake(spark, path, lake, fail_on_data_loss=False)
    assert (done.problems, done.entries, done.details["absent"]) == ([], 10, 990)
    assert audit_job.audit(spark, path, lake=lake).problems == []


def test_a_file_that_was_taken_out_of_the_log_is_missed(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("orders.store"), str(tmp_path / "lake")
    fill(store, 1, 2000)
    store.xdel("orders", "60000-0")
    assert to_lake(spark, str(store.path), lake).details["absent"] == 1
    assert audit_job.audit(spark, lake=lake).problems == []
    table = Lake.open(lake)
    lost = table.files()[0]
    table.commit("an accident", [], removed=[lost])
    (problem,) = audit_job.audit(spark, lake=lake).problems
    assert f"the lake has {1999 - lost.entries:,} entries, expected 1,999" in problem


def test_one_bad_stream_does_not_stop_the_others(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("orders.store"), str(tmp_path / "lake")
    store.set_retention("bad", archive=True)
    fill(store, 1, 2000, "bad")
    for key in (b"good", b"\xff", b"\\xff", b"x" * 300, b"__HIVE_DEFAULT_PARTITION__"):
        store.xadd(key, {"n": "1"}, id=MAX_ID)
    store.xtrim("bad", maxlen=0, approximate=False)
    store.archive()
    (segment,) = (Path(store.path) / "archive").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF
    segment.write_bytes(data)
    done = to_lake(spark, str(store.path), lake)
    (problem,) = done.problems
    assert problem.startswith("stream 'bad'")
    assert "not copied" in problem
    assert done.entries == 5
    assert {file.key for file in Lake.open(lake).files()} == {
        b"good",
        b"\xff",
        b"\\xff",
        b"x" * 300,
        b"__HIVE_DEFAULT_PARTITION__",
    }
    data[200] ^= 0xFF
    segment.write_bytes(data)
    assert to_lake(spark, str(store.path), lake).entries == 2000
    assert audit_job.audit(spark, str(store.path), lake=lake).problems == []


def test_a_key_that_was_made_again_has_two_incarnations(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    spark: Any = InProcess()
    store, target, lake = open_store("a"), open_store("b"), str(tmp_path / "lake")
    fill(store, 1, 10)
    to_lake(spark, str(store.path), lake)
    store.delete("orders")
    fill(store, 5, 10)
    assert to_lake(spark, str(store.path), lake).entries == 10
    assert [file.entries for file in Lake.open(lake).files()] == [10, 10]
    assert audit_job.audit(spark, str(store.path), lake=lake).problems == []
    where = (spark, lake, str(target.path), "orders")
    with pytest.raises(LakeError, match=r"overlapping IDs: incarnations \d+, \d+"):
        restore_job.restore(*where)
    newest = max(file.origin.number for file in Lake.open(lake).files())
    assert restore_job.restore(*where, incarnation=newest).entries == 10
    assert target.xrange("orders") == store.xrange("orders")


# --- two jobs, and restoring ----------------------------------------------------------------------


def test_a_job_that_lost_begins_again(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = InProcess()
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
    assert sum(file.entries for file in Lake.open(lake).files()) == 100
    assert len(list(Path(lake).rglob("*.parquet"))) == len(Lake.open(lake).files())


@pytest.mark.parametrize("step", ["erase._commit", "to_lake.plan", "to_lake._leave_out"])
def test_a_job_begins_again_when_another_removes_what_it_reads(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("orders.store"), str(tmp_path / "lake")
    path = str(store.path)
    fill(store, 1, 100)
    fill(store, 1, 5, "mail")
    to_lake(spark, path, lake)
    fill(store, 101, 1000)
    fill(store, 6, 5, "mail")
    store.xtrim("orders", maxlen=10, approximate=False)  # it has lost entries: not to be copied
    where = f"streamkeep.pipeline.jobs.{step}"
    plain = pytest.importorskip(where.rpartition(".")[0]).__dict__[where.rpartition(".")[2]]

    def interfere(*args: Any) -> Any:
        monkeypatch.setattr(where, plain)
        assert to_lake(spark, path, lake, streams=["mail"]).entries == 5
        return plain(*args)

    monkeypatch.setattr(where, interfere)
    if step.startswith("erase"):
        done = erase_job.erase(spark, "orders", ["60000-0"], lake=lake)
        assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    else:
        done = to_lake(spark, path, lake)
        (problem,) = done.problems
        assert "990 entries after 6000000-0 were trimmed" in problem
        assert done.entries == 0
    files = Lake.open(lake).files()
    assert sum(file.entries for file in files) == 110 - step.startswith("erase")
    assert len(list(Path(lake).rglob("*.parquet"))) == len(files)


def test_an_audit_bears_that_another_job_commits(
    open_store: Callable[..., Store[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = InProcess()
    store, lake = open_store("orders.store"), str(tmp_path / "lake")
    path = str(store.path)
    fill(store, 1, 100)
    to_lake(spark, path, lake)
    erase_job.erase(spark, "orders", ["60000-0"], lake=lake)
    plain = audit_job.plan

    def interfere(*args: Any) -> Any:
        monkeypatch.setattr(audit_job, "plan", plain)
        fill(store, 101, 5)
        assert to_lake(spark, path, lake).entries == 5
        return plain(*args)

    monkeypatch.setattr(audit_job, "plan", interfere)
    assert audit_job.audit(spark, lake=lake).problems == []


def test_what_a_lake_has_comes_back_once(
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = InProcess()
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
