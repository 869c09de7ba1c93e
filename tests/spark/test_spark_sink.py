"""Writes through Spark, with tasks that fail and drivers that die."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamkeep.engine.api.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def fail_first(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step that fails in the first two attempts of each partition, after some rows."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import uuid
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        tries = Path(folder, str(context.partitionId()))
        tries.mkdir(exist_ok=True)
        (tries / uuid.uuid4().hex).touch()
        if len(list(tries.iterdir())) <= 2:
            raise RuntimeError("injected failure")

    return step


@pytest.mark.slow
def test_tasks_that_fail_leave_no_trace(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store()
    (tmp_path / "tries").mkdir()
    frame = spark.range(0, 3000, 1, 3).selectExpr("concat(id + 1, '-0') as id", "id as n")
    failing = frame.mapInArrow(fail_first(str(tmp_path / "tries")), frame.schema)
    failing.write.format("streamkeep").option("stream", "s").mode("append").save(str(store.path))
    found = [(entry.stream_id.ms, entry.pairs) for entry in store.scan("s")]
    assert found == [(n + 1, [(b"n", b"%d" % n)]) for n in range(3000)]
    assert len(list((tmp_path / "tries").glob("*/*"))) == 9
    assert list((store.path / "staging").glob("*")) == []


@pytest.mark.slow
def test_a_whole_store_is_copied(
    spark: SparkSession, open_store: Callable[..., Store[bytes]]
) -> None:
    store, copy = open_store(), open_store("copy")
    for key in ("a", "b"):
        for n in range(500):
            pairs = [(b"x", b"\xff"), (b"x", b"%d" % n), (b"", key.encode())]
            store.xadd(key, pairs, id=f"{1000 + n}-7")
    frame = spark.read.format("streamkeep").option("subscribePattern", ".*").load(str(store.path))
    frame.write.format("streamkeep").mode("append").save(str(copy.path))
    for key in ("a", "b"):
        entries = [(entry.id, entry.pairs) for entry in store.scan(key)]
        assert [(entry.id, entry.pairs) for entry in copy.scan(key)] == entries


def copy_batches(spark: SparkSession, store: Path, copy: Path, checkpoint: Path) -> None:
    """Copy what is new in a store to another one."""
    source = (
        spark.readStream.format("streamkeep")
        .options(subscribe="s", startingOffsets="earliest", maxEntriesPerTrigger=100)
        .load(str(store))
    )
    query = (
        source.drop("id", "ms", "seq")
        .writeStream.format("streamkeep")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(copy))
    )
    query.awaitTermination()
    assert query.exception() is None


@pytest.mark.slow
def test_a_driver_that_dies_repeats_its_batch_and_nothing_comes_twice(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store, copy = open_store(), open_store("copy")
    checkpoint = tmp_path / "checkpoint"

    store.xadd_many("s", [{"n": str(n)} for n in range(250)])
    copy_batches(spark, store.path, copy.path, checkpoint)
    assert copy.xlen("s") == 250
    # The driver died after the store had the last batch, before Spark noted that.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    store.xadd_many("s", [{"n": str(n)} for n in range(250, 300)])
    copy_batches(spark, store.path, copy.path, checkpoint)
    assert [entry.pairs[0][1] for entry in copy.scan("s")] == [b"%d" % n for n in range(300)]


@pytest.mark.slow
def test_a_checkpoint_that_was_put_back_by_one_batch_is_refused(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store, copy = open_store(), open_store("copy")
    checkpoint, kept = tmp_path / "checkpoint", tmp_path / "kept"
    for first in (0, 50):
        store.xadd_many("s", [{"n": str(n)} for n in range(first, first + 50)])
        copy_batches(spark, store.path, copy.path, checkpoint)
        if first == 0:
            shutil.copytree(checkpoint, kept)
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    store.xadd_many("s", [{"n": str(n)} for n in range(100, 150)])
    with pytest.raises(Exception, match="it was set back"):
        copy_batches(spark, store.path, copy.path, checkpoint)
    assert [entry.pairs[0][1] for entry in copy.scan("s")] == [b"%d" % n for n in range(100)]


def test_rows_are_appended_and_what_cannot_be_written_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(3)

    def save(mode: str, **options: Any) -> None:
        writer = frame.selectExpr("id as n").write.format("streamkeep").mode(mode)
        writer.options(**options).save(str(tmp_path / "store"))

    for mode, options, problem in (
        ("append", {}, "give the option 'stream', or add a column 'stream'"),
        ("overwrite", {"stream": "s"}, "streams can only be appended to"),
    ):
        with pytest.raises(Exception, match=r".") as error:
            save(mode, **options)
        assert problem in str(error.value)
    assert not (tmp_path / "store").exists()
    save("append", stream="s")
    with Store(tmp_path / "store", readonly=True) as store:
        assert sorted(entry.fields[b"n"] for entry in store.scan("s")) == [b"0", b"1", b"2"]
