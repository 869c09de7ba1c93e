"""Following streams into other places."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamkeep.engine.api.store import Store

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamkeep.pipeline.jobs.tail import TailError, _DeltaSink, tail
from streamkeep.pipeline.lake.files import LakeConflictError
from streamkeep.pipeline.storage.places import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def fill(store: Store[bytes], start: int, stop: int) -> None:
    numbers = range(start, stop)
    store.xadd_many("orders", [{"n": str(n)} for n in numbers], ids=[f"{n}-0" for n in numbers])


def follow(spark: SparkSession, store: Store[bytes], target: str, path: Path) -> int:
    """Take over what is there; return how many entries that was."""
    done = tail(
        spark,
        str(store.path),
        target,
        str(path),
        from_start=True,
        available_now=True,
        max_entries=400,
    )
    return done.entries


@pytest.mark.slow
def test_a_tail_goes_on_where_it_was(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    other = open_store("other.store")
    targets = {"delta": tmp_path / "delta", "parquet": tmp_path / "parquet", "store": other.path}
    for start, stop in ((1, 1001), (1001, 1501)):
        fill(store, start, stop)
        for target, path in targets.items():
            assert follow(spark, store, target, Path(path)) == stop - start
    for target in ("delta", "store"):
        assert follow(spark, store, target, Path(targets[target])) == 0
    table = DeltaTable(targets["delta"])
    assert table.to_pyarrow_table().num_rows == 1500
    assert table.version() == 5  # made; three batches of at most 400, then two
    assert spark.read.parquet(str(targets["parquet"])).select("id").distinct().count() == 1500
    assert other.xrange("orders") == store.xrange("orders")


def test_a_batch_that_comes_again_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = _DeltaSink(str(tmp_path / "delta"), "query")
    frame = spark.createDataFrame([(1,), (2,)], "n int")
    for number in (0, 0, 1, 1):
        sink(frame, number)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 4
    assert len(list((tmp_path / "delta").glob("*.parquet"))) == len(
        DeltaTable(tmp_path / "delta").file_uris()
    )
    with pytest.raises(TailError, match="up to batch 1: it was set back"):
        sink(frame, 0)
    files = set((tmp_path / "delta").glob("*.parquet"))
    with pytest.MonkeyPatch.context() as patch:  # a storage that confirms what it loses
        patch.setattr(DeltaTable, "create_write_transaction", lambda *args, **options: None)
        with pytest.raises(StorageError, match="has confirmed a commit, and does not have it"):
            sink(frame, 2)
    assert set((tmp_path / "delta").glob("*.parquet")) > files  # the commit may be shown later
    sink(frame, 2)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("error", [DeltaError("timed out"), OSError("timed out")])
def test_a_commit_that_a_storage_shows_later_has_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sink = _DeltaSink(str(tmp_path / "delta"), "query")
    frame = spark.createDataFrame([(1,), (2,)], "n int")
    sink(frame, 0)
    late: list[Callable[[], None]] = []
    plain = DeltaTable.create_write_transaction

    def unanswered(*args: Any, **options: Any) -> None:
        late.append(lambda: plain(*args, **options))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", unanswered)
        with pytest.raises(
            StorageError, match=r"batch 1 was committed \(timed out\); its files stay"
        ):
            sink(frame, 1)
    late[0]()
    sink(frame, 1)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 4


def test_a_disk_that_takes_no_commit_has_not_refused_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta Lake raises another error than for a refused commit, so the files stay."""
    sink = _DeltaSink(str(tmp_path / "delta"), "query")
    frame = spark.createDataFrame([(1,), (2,)], "n int")
    sink(frame, 0)
    files = set((tmp_path / "delta").glob("*.parquet"))
    plain = DeltaTable.create_write_transaction

    def on_a_full_disk(*args: Any, **options: Any) -> None:
        most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            plain(*args, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", on_a_full_disk)
        with pytest.raises(StorageError, match=r"1 was committed \(.*: File too large .*\); its"):
            sink(frame, 1)
    assert set((tmp_path / "delta").glob("*.parquet")) > files
    sink(frame, 1)
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 4


def test_a_commit_that_is_refused_leaves_no_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = _DeltaSink(str(tmp_path / "delta"), "query")
    frame = spark.createDataFrame([(1,), (2,)], "n int")
    sink(frame, 0)
    files = set((tmp_path / "delta").glob("*.parquet"))
    plain = DeltaTable.create_write_transaction

    def other_first(*args: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", plain)
            _DeltaSink(str(tmp_path / "delta"), "query")(frame, 1)
        files.update((tmp_path / "delta" / one.rpartition("/")[2]) for one in _named(tmp_path))
        plain(*args, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", other_first)
    with pytest.raises(LakeConflictError):
        sink(frame, 1)
    assert set((tmp_path / "delta").glob("*.parquet")) == files
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == 4


def _named(tmp_path: Path) -> list[str]:
    return DeltaTable(tmp_path / "delta").file_uris()


def test_targets_are_checked(spark: SparkSession, open_store: Callable[..., Store[bytes]]) -> None:
    store = open_store("orders.store")
    with pytest.raises(TailError, match="no target 'kafka', expected one of console"):
        tail(spark, str(store.path), "kafka")
    with pytest.raises(TailError, match="the target delta needs a path"):
        tail(spark, str(store.path), "delta")
