"""Lakes, exports, archives and reports in a bucket of a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

if find_spec("moto") is None:  # all of it would take a second to import, and runs elsewhere
    pytest.skip("moto is not installed: pip install '.[dev]'", allow_module_level=True)

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from cli_runner import run
from patience import PATIENCE_S
from spark.drivers import run_driver
from spark.in_process import LOCAL, no_store, read_all, reader_of
from spark.s3_server import CARELESS, GOOD, LOCKED, STALE, UNHEARD, S3Server
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.format.core.errors import NotAStoreError
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.compact import compact
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.tail import append_batch
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake import delta as newest
from streamkeep.pipeline.lake.files import LakeConflictError, day_of
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.sink.identity import Batch
from streamkeep.pipeline.source import stores
from streamkeep.pipeline.storage.places import StorageError, file_system, log_settings

pytestmark = pytest.mark.usefixtures("s3")

LAKE = "s3://bucket/lakes/orders"
_DAY_MS = 86_400_000


@pytest.fixture
def orders(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """A stream of three days, archived for a part."""
    store = open_store("orders.store")
    store.set_retention("orders", archive=True)
    fill(store, 0, 3000)
    store.xtrim("orders", maxlen=2000, approximate=False)
    store.archive(options=ArchiveOptions(target_bytes=8000))
    return store


def fill(store: Store[bytes], start: int, stop: int) -> None:
    numbers = range(start, stop)
    ids = [f"{1_718_004_800_000 + n * _DAY_MS // 1000}-0" for n in numbers]
    store.xadd_many("orders", [{"n": str(n), "sku": str(n % 7)} for n in numbers], ids=ids)


def objects(place: str) -> list[str]:
    system, path = file_system(place)
    found = system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    return [info.path for info in found if info.is_file]


@pytest.mark.slow
def test_every_job_on_a_lake_in_a_bucket(
    orders: Store[bytes], open_store: Callable[..., Store[bytes]]
) -> None:
    path = str(orders.path)
    done = to_lake(LOCAL, path, LAKE)
    assert done.entries == 3000
    assert to_lake(LOCAL, path, LAKE).entries == 0
    fill(orders, 3000, 3500)
    assert to_lake(LOCAL, path, LAKE).entries == 500
    assert audit(LOCAL, path, lake=LAKE).problems == []

    files = len(Lake.open(LAKE).files())
    compacted = compact(LOCAL, LAKE, retention_hours=0)
    assert 0 < len(Lake.open(LAKE).files()) < files
    assert compacted.details["files_swept"] == compacted.details["files_replaced"]

    gone = orders.xrange("orders", count=1)[0].id.decode()
    erased = erase(LOCAL, "orders", [gone], store=path, lake=LAKE)
    assert (erased.details["erased_in_store"], erased.details["erased_in_lake"]) == (1, 1)
    assert erased.details["found_in_lake_again"] == 0
    assert erased.problems == []

    target = open_store("restored.store")
    came = restore(LOCAL, LAKE, str(target.path), "orders", staging="s3://bucket/staging")
    assert came.entries == 3499
    assert target.xrange("orders") == orders.xrange("orders", history=True)
    assert objects("s3://bucket/staging") == []
    same = LAKE.replace("s3:", "s3a:")  # what Hadoop calls it
    assert audit(LOCAL, path, lake=same).problems == []
    assert to_lake(LOCAL, path, same).entries == 0
    named = {f"bucket/lakes/orders/{file.path}" for file in Lake.open(LAKE).files()}
    assert {one for one in objects(LAKE) if one.endswith(".parquet")} == named


@pytest.mark.slow
def test_of_two_commits_at_once_one_wins(orders: Store[bytes]) -> None:
    """Two jobs that both read the lake as it was, and then both commit the same entries."""
    path = str(orders.path)
    to_lake(LOCAL, path, LAKE)
    for trial in range(2):
        fill(orders, 3000 + trial * 10, 3010 + trial * 10)
        commit, together = Lake.commit, Barrier(2)
        lost: list[LakeConflictError] = []

        def at_once(self: Lake, *args: Any, _commit: Any = commit, **options: Any) -> Lake:
            if len(lost) == 0:  # noqa: B023
                together.wait(PATIENCE_S)  # noqa: B023
            try:
                return _commit(self, *args, **options)  # type: ignore[no-any-return]
            except LakeConflictError as error:
                lost.append(error)  # noqa: B023
                raise

        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
            patch.setattr(Lake, "commit", at_once)
            jobs = [threads.submit(to_lake, LOCAL, path, LAKE) for _ in range(2)]
            assert sorted(job.result().entries for job in jobs) == [0, 10]
        assert len(lost) == 1
    assert sum(file.entries for file in Lake.open(LAKE).files()) == 3020
    assert audit(LOCAL, path, lake=LAKE).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("job", ["to-lake", "compact", "erase"])
@pytest.mark.parametrize("mode", [STALE, UNHEARD])
def test_a_commit_that_is_not_listed_or_not_answered_loses_nothing(
    orders: Store[bytes], s3: S3Server, monkeypatch: pytest.MonkeyPatch, mode: str, job: str
) -> None:
    """A job that took the log for older than it is would remove files that it names."""
    path = str(orders.path)
    to_lake(LOCAL, path, LAKE)
    gone = orders.xrange("orders", count=1)[0].id.decode()
    jobs: dict[str, Callable[[], Any]] = {
        "to-lake": lambda: to_lake(LOCAL, path, LAKE),
        "compact": lambda: compact(LOCAL, LAKE, retention_hours=0),
        "erase": lambda: erase(LOCAL, "orders", [gone], store=path, lake=LAKE),
    }
    fill(orders, 3000, 3500)
    to_lake(LOCAL, path, LAKE)
    fill(orders, 3500, 3600)
    monkeypatch.setattr(newest, "_LISTINGS", 3)
    s3.behave(mode)
    if mode == UNHEARD:
        assert jobs[job]().problems == []
    else:
        with pytest.raises(StorageError, match=r"run .* again"):
            jobs[job]()  # it has committed, which it cannot see
        for other in jobs.values():  # as long as the listing is old, no other job does anything
            with pytest.raises(StorageError, match=r"version \d+ of the log, and does not list it"):
                other()
    s3.behave(GOOD)
    for other in jobs.values():
        assert other().problems == []
    assert audit(LOCAL, path, lake=LAKE).problems == []
    assert sum(file.entries for file in Lake.open(LAKE).files()) == 3599


@pytest.mark.slow
@pytest.mark.parametrize("mode", [STALE, UNHEARD])
def test_a_batch_of_a_tail_that_is_not_listed_or_not_answered_is_there_once(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    frame = LOCAL.createDataFrame(pa.table({"n": [1, 2]}))
    where, batch = "s3://bucket/delta", Batch("query", 1, 0)
    append_batch(where, frame, Batch("query", 0, 0))
    monkeypatch.setattr(newest, "_LISTINGS", 3)
    s3.behave(mode)
    with suppress(StorageError):  # it has committed
        append_batch(where, frame, batch)
    s3.behave(GOOD)
    append_batch(where, frame, batch)
    table = DeltaTable("s3://bucket/delta", storage_options=log_settings(LAKE))
    assert table.to_pyarrow_table().num_rows == 4


@pytest.mark.slow
def test_an_erasure_removes_files_that_are_not_listed(orders: Store[bytes], s3: S3Server) -> None:
    path = str(orders.path)
    to_lake(LOCAL, path, LAKE)
    _, root = file_system(LAKE)
    gone = orders.xrange("orders", count=1)[0].id.decode()
    (file,) = [one for one in Lake.open(LAKE).files() if str(one.first) <= gone <= str(one.last)]
    s3.hide(f"{root.partition('/')[2]}/{file.path}")
    assert erase(LOCAL, "orders", [gone], store=path, lake=LAKE).problems == []
    s3.behave(GOOD)
    assert f"{root}/{file.path}" not in objects(LAKE)


@pytest.mark.slow
def test_two_jobs_may_make_the_lake(orders: Store[bytes]) -> None:
    path = str(orders.path)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(to_lake, LOCAL, path, LAKE) for _ in range(2)]
        assert sorted(job.result().entries for job in jobs) == [0, 3000]


@pytest.mark.slow
def test_a_server_that_lets_two_jobs_win_is_refused(s3: S3Server, orders: Store[bytes]) -> None:
    s3.behave(CARELESS)
    with pytest.raises(
        StorageError, match=r"ignores `If-None-Match`.*use a server that honours it"
    ):
        to_lake(LOCAL, str(orders.path), LAKE)
    assert objects(LAKE) == []


@pytest.mark.slow
def test_a_live_tail_is_exported_to_a_bucket(
    orders: Store[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_all(reader_of(orders))
    exported = reader_of(orders, tailExport="s3://bucket/export")
    parts = exported.partitions()
    assert len(objects("s3://bucket/export")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(stores, "reading", no_store)
        assert read_all(exported, parts) == expected
    done = to_lake(LOCAL, str(orders.path), LAKE, tail_export="s3://bucket/of-job")
    assert done.entries == 3000
    assert objects("s3://bucket/of-job") == []


@pytest.mark.slow
def test_an_archive_in_a_bucket_is_read(orders: Store[bytes]) -> None:
    expected = read_all(reader_of(orders, source="archive"))
    system, _ = file_system("s3://bucket")
    pafs.copy_files(str(orders.path / "archive"), "bucket/copy", destination_filesystem=system)
    assert read_all(reader_of(orders, path="s3://bucket/copy")) == expected
    with pytest.raises(NotAStoreError, match="neither a store nor a folder with segments"):
        reader_of(orders, path="s3://bucket/elsewhere")


@pytest.mark.slow
def test_what_is_missing_is_told_in_one_line(
    s3: S3Server, orders: Store[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(orders.path)
    orders.close()
    for place, message in (
        ("s3://bucket/none", "s3://bucket/none: no such lake; next: `streamkeep spark to-lake`"),
        ("s3://nowhere/lake", "s3://nowhere/lake: there is no bucket 'nowhere'; next: make it"),
        ("s3://bucket/l?region=eu", "s3://bucket/l: the URI contains settings or secrets"),
        ("s3://me:secret@bucket/l", "s3://bucket/l: the URI contains settings or secrets"),
        ("ftp://host/l", "ftp://host/l: unknown scheme ftp://, expected one of file, s3, s3a, gs"),
    ):
        status = 6 if "no such lake" in message else 1
        done = run("spark", "audit", path, "--lake", place, status=status)
        assert message in done.stderr
        assert "secret@" not in done.stderr
        assert len(done.stderr.splitlines()) == 1
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        reader_of(orders, tailExport="s3://nowhere/export").partitions()
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        to_lake(LOCAL, path, LAKE, tail_export="s3://nowhere/export")
    s3.behave(LOCKED)
    with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"):
        Lake.open("s3://bucket/locked")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        expected = r"no answer from http://127\.0\.0\.1:9; .*AWS_ENDPOINT_URL"
        with pytest.raises(StorageError, match=expected):
            Lake.open("s3://bucket/unreachable")


_SESSION = """
import sys
from streamkeep import pipeline
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.report import report
from streamkeep.pipeline.jobs.tail import tail
from streamkeep.pipeline.jobs.to_lake import promoted_columns, to_lake

store, lake, folder = sys.argv[1:]
spark = pipeline.session("local[2]", fast_start=True)
columns = promoted_columns(spark, "n int")
print("lake", to_lake(spark, store, lake, columns=columns, tail_export="s3://bucket/tail").entries)
rows = pipeline.read_lake(spark, lake)
print("count", rows.count(), rows.where("date = '2024-06-11'").agg({"n": "sum"}).first()[0])
print("names", *rows.columns)
part = pipeline.read_lake(
    spark, lake, columns=["id", "n"], streams=["orders"], start="1718091200000", end="1718091400000"
)
print("part", *[(row.id, row.n) for row in part.collect()])
print("none", pipeline.read_lake(spark, lake, streams=["mail"]).count())
print("erased", erase(spark, "orders", lake=lake, where="n = 1001").details["erased_in_lake"])
print("left", pipeline.read_lake(spark, lake, columns=["ms"]).count())
done = report(
    spark, store, "s3://bucket/report", measures=["n"], by=["sku"], tail_export="s3://bucket/tail"
)
print("report", done.entries, done.details["page"])
for _ in range(2):
    done = tail(
        spark, store, "delta", "s3://bucket/delta", from_start=True, available_now=True,
        checkpoint=folder + "/offsets", tail_export="s3://bucket/tail",
    )
    print("tail", done.entries)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_a_bucket_without_jars(orders: Store[bytes], tmp_path: Path) -> None:
    """In a process of its own: workers have the environment in which Spark was started."""
    orders.close()
    lines = run_driver(
        _SESSION, orders.path, LAKE, tmp_path, environment=os.environ, folder=tmp_path
    )
    told = dict(line.split(" ", 1) for line in lines)
    assert told["lake"] == "3000"
    count, total = told["count"].split()
    days = [day_of(1_718_004_800_000 + n * _DAY_MS // 1000) for n in range(3000)]
    assert int(count) == 3000
    assert int(total) == sum(n for n in range(3000) if days[n] == "2024-06-11")
    assert told["names"] == "store stream incarnation date id ms seq ts fields n"
    assert (
        told["part"]
        == "('1718091200000-0', 1000) ('1718091286400-0', 1001) ('1718091372800-0', 1002)"
    )
    assert (told["none"], told["erased"], told["left"]) == ("0", "1", "2999")
    assert told["report"] == "3000 s3://bucket/report/index.html"
    assert {"bucket/report/index.html", "bucket/report/orders-n-by-sku.csv"} <= set(
        objects("s3://bucket/report")
    )
    assert lines[-2:] == ["tail 3000", "tail 0"]
    assert DeltaTable("s3://bucket/delta", storage_options=log_settings(LAKE)).version() == 1
    assert objects("s3://bucket/tail") == []
