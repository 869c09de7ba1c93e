"""What needs Spark itself: reads, queries, writes, jobs; tasks that fail and workers that die.

`killed_jobs` takes for granted that Spark repeats a task and a batch; here it does.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli_runner import run
from spark.drivers import run_driver
from spark.fleets import IDS, make, published, rows_of
from spark.fleets import expected as expected_rows
from spark.lakes import fill
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs import audit as audit_job
from streamkeep.pipeline.jobs import compact as compact_job
from streamkeep.pipeline.jobs import erase as erase_job
from streamkeep.pipeline.jobs import restore as restore_job
from streamkeep.pipeline.jobs import to_lake as to_lake_job
from streamkeep.pipeline.jobs.tail import TailError, tail
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.lake.read import read_lake
from streamkeep.pipeline.source import executor
from streamkeep.tools.commands import spark_cmd
from test_tools.test_help import examples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, store: Store[bytes], schema: str = "", **options: Any) -> DataFrame:
    """Return a DataFrame over a store; nothing is registered by hand."""
    reader = spark.read.format("streamkeep").options(**options)
    if schema:
        reader = reader.schema(schema)
    return reader.load(str(store.path))


@pytest.fixture
def orders(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """A store with 5,000 orders and a few other streams."""
    store = open_store("orders")
    entries = [{"sku": f"s{n % 7}", "count": str(n), "price": f"{n / 4}"} for n in range(5000)]
    store.xadd_many("orders", entries, ids=[f"{1000 + n // 10}-{n % 10}" for n in range(5000)])
    store.xadd("mail", {"to": b"\xff"}, id="5-1")
    store.xadd("errors", {"text": "no"}, id="6-1")
    return store


def test_rows_are_the_entries_that_were_there_at_load(
    spark: SparkSession, orders: Store[bytes]
) -> None:
    frame = load(spark, orders, subscribe="orders")
    orders.xadd("orders", {"late": "1"})
    assert frame.count() == 5000
    row = frame.where("ms = 1123 and seq = 4").collect()[0]
    assert (row.stream, row.id, row.ts.microsecond) == ("orders", "1123-4", 123000)
    assert [(bytes(f), bytes(v)) for f, v in row.fields] == [
        (b"sku", b"s2"),
        (b"count", b"1234"),
        (b"price", b"308.5"),
    ]
    # With a schema of the user's Spark makes the source at the first query.
    chosen = load(spark, orders, "ms bigint, sku string", subscribe="orders")
    assert chosen.count() == 5001
    orders.xadd("orders", {"later": "1"})
    assert chosen.selectExpr("count(ms)", "count(sku)").collect()[0] == (5001, 5000)


def test_sql_views_and_errors(spark: SparkSession, orders: Store[bytes]) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING streamkeep "
        f"OPTIONS (path '{orders.path}', subscribe 'orders')"
    )
    assert spark.sql("select count(*), max(id) from orders").collect()[0][0] == 5000
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as error:
        load(spark, orders, subscribe="order").count()
    assert "no stream 'order'; did you mean orders?" in str(error.value)


@pytest.mark.slow
def test_a_table_of_the_catalog_takes_its_options_in_the_query(
    spark: SparkSession, orders: Store[bytes]
) -> None:
    options = f"path '{orders.path}', subscribe 'orders', inferSchema 'true'"
    spark.sql(f"CREATE TABLE in_catalog USING streamkeep OPTIONS ({options})")
    try:
        with pytest.raises(Exception, match=r"SELECT \.\.\. FROM table WITH \(path = "):
            spark.sql("SELECT count(*) FROM in_catalog").collect()
        query = f"SELECT count(id) FROM in_catalog WITH (path='{orders.path}', subscribe='orders')"
        assert spark.sql(query).collect()[0][0] == 5000
    finally:
        spark.sql("DROP TABLE in_catalog")


def test_workers_do_not_collect_what_they_imported_and_others_are_left_alone() -> None:
    program = """if True:
        import gc, sys
        from streamkeep.pipeline.source import executor as batches
        assert gc.get_freeze_count() < 1_000  # Python 3.12 itself freezes some
        batches.freeze_imports()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        batches.freeze_imports()
        assert gc.get_freeze_count() == frozen
    """
    subprocess.run([sys.executable, "-c", program], check=True)
    # Nor do the tests, which read without a task of Spark, too.
    assert executor.freeze_imports.cache_info().currsize == 0


def stream(spark: SparkSession, store: Store[bytes], **options: Any) -> DataFrame:
    reader = spark.readStream.format("streamkeep").schema("ms bigint, n int")
    return reader.options(**options).load(str(store.path))


def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store()

    def add(first: int, count: int) -> None:
        numbers = range(first, first + count)
        store.xadd_many("s", [{"n": str(n)} for n in numbers], ids=[f"{n + 1}-0" for n in numbers])

    batches: list[list[int]] = []

    def run(**options: Any) -> Any:
        frame = stream(spark, store, subscribe="s", startingOffsets="earliest", **options)
        query = (
            frame.writeStream.foreachBatch(
                lambda part, _: batches.append(sorted(row.n for row in part.collect()))
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    add(0, 1500)
    query = run(maxEntriesPerTrigger=1000)
    assert [len(one) for one in batches] == [1000, 500]
    assert [n for one in batches for n in one] == list(range(1500))
    progress = query.recentProgress[0]
    assert '"entriesBehind": 500' in progress["sources"][0]["latestOffset"]
    batches.clear()
    add(1500, 10)
    run()
    assert batches == [list(range(1500, 1510))]


@pytest.mark.slow
def test_a_listener_hears_how_far_behind_queries_are(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    from streamkeep.pipeline.spark_session.progress import Lag, ProgressListener

    store = open_store()
    store.xadd_many("s", [{"n": str(n)} for n in range(30)])
    heard: list[Lag] = []
    listener = ProgressListener(heard.append)
    spark.streams.addListener(listener)
    try:
        options = {"subscribe": "s", "startingOffsets": "earliest", "maxEntriesPerTrigger": 20}
        query = (
            stream(spark, store, **options, groupName="spark")
            .writeStream.format("noop")
            .queryName("tail")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert [(lag.query, lag.key, lag.entries) for lag in heard[:2]] == [
        ("tail", "s", 10),
        ("tail", "s", 0),
    ]
    assert listener.lags["tail", "s"].entries == 0
    (group,) = store.xinfo_groups("s")  # as of the last batch but one: Spark says so with the next
    assert group["name"] == b"spark"
    assert group["lag"] == 10


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


def test_rows_are_appended_and_what_cannot_be_written_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(3)

    def save(mode: str, **options: Any) -> None:
        writer = frame.selectExpr("id as n").write.format("streamkeep").mode(mode)
        writer.options(**options).save(str(tmp_path / "store"))

    with pytest.raises(Exception, match="streams can only be appended to"):
        save("overwrite", stream="s")
    assert not (tmp_path / "store").exists()
    save("append", stream="s")
    with Store(tmp_path / "store", readonly=True) as store:
        assert sorted(entry.fields[b"n"] for entry in store.scan("s")) == [b"0", b"1", b"2"]


def test_a_lake_has_each_entry_once(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake[1] {a}")  # Spark's globs have these
    fill(store, 1, 2000)
    fill(store, 1, 10, "mail")
    columns = pa.schema([("sku", pa.int32())])
    first = to_lake(spark, path, lake, columns=columns)
    assert (first.entries, first.details["streams"]) == (2010, 2)
    assert to_lake(spark, path, lake).entries == 0
    frame = read_lake(spark, lake)
    assert frame.select("stream", "id").distinct().count() == 2010
    row = frame.where("stream = 'orders' and ms = 120000").collect()[0]
    assert (row.id, row.sku, str(row.date)) == ("120000-0", 2, "1970-01-01")
    assert [(bytes(f), bytes(v)) for f, v in row.fields] == [(b"sku", b"2"), (b"note", b"n2")]
    checked = audit_job.audit(spark, path, lake=lake)
    assert (checked.entries, checked.problems) == (2010, [])


@pytest.mark.slow
def test_versions_and_ranges_of_a_lake(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake[1] {a}")  # Spark's globs have these
    fill(store, 1, 2000)
    fill(store, 1, 10, "mail")
    to_lake(spark, path, lake)
    fill(store, 2001, 1000)
    to_lake(spark, path, lake)
    assert read_lake(spark, lake, version=1).count() == 2010
    top = str((1 << 63) - 1)
    for start, end, expected in (("60000", top, 3000), ("60000", "+", 3000), (top, "+", 0)):
        assert read_lake(spark, lake, streams=["orders"], start=start, end=end).count() == expected
    before = len(Lake.open(lake).files())
    done = compact_job.compact(spark, lake)
    assert done.files
    assert len(Lake.open(lake).files()) < before
    assert read_lake(spark, lake).count() == 3010
    assert compact_job.compact(spark, lake).files == 0


@pytest.mark.slow
def test_a_fleet_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", fleet)
    with make(tmp_path / "fleet" / "c.store", "c") as store:
        c = store.uuid
    assert to_lake(spark, fleet, lake, fleet=True).entries == 1000
    rows = read_lake(spark, lake, stores=[a])
    assert rows.columns[0] == "store"
    assert {row.store for row in rows.select("store").distinct().collect()} == {a}
    assert rows.count() == 500
    assert rows_of(lake) == expected_rows((a, "a"), (c, "c"))
    assert audit_job.audit(spark, lake=lake, fleet=fleet).problems == []
    frame = spark.read.format("streamkeep").option("fleet", fleet).load()
    assert frame.columns[:3] == ["store", "stream", "incarnation"]
    shown = [(row.store, row.id) for row in frame.select("store", "id").collect()]
    assert sorted(shown) == sorted((uuid, one) for uuid in (a, c) for one in IDS)


@pytest.mark.slow
def test_a_tail_goes_on_where_it_was(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store, other = open_store("orders.store"), open_store("other.store")
    targets = {name: str(tmp_path / name) for name in ("delta", "parquet")}
    targets["store"] = str(other.path)
    options: Any = {"from_start": True, "available_now": True, "max_entries": 400}
    for first, last in ((1, 1000), (1001, 1500)):
        number(store, first, last)
        for target, path in targets.items():
            done = tail(spark, str(store.path), target, path, **options)
            assert done.entries == last - first + 1
        if first == 1:
            copytree(tmp_path / "parquet.checkpoint", tmp_path / "former")
            copytree(tmp_path / "parquet", tmp_path / "older")
    # Spark would skip the batches that the folder has, and not miss those that it has lost.
    for path, checkpoint, newest in (
        ("parquet", "former", 4),
        ("parquet", "new", 4),
        ("older", "parquet.checkpoint", 2),
    ):
        options["checkpoint"] = str(tmp_path / checkpoint)
        with pytest.raises(TailError, match=f"has up to batch {newest}, but the checkpoint has "):
            tail(spark, str(store.path), "parquet", str(tmp_path / path), **options)
    del options["checkpoint"]
    handle = os.open(targets["parquet"], os.O_RDONLY)  # as another tail has it
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(TailError, match="another tail writes there"):
        tail(spark, str(store.path), "parquet", targets["parquet"], **options)
    os.close(handle)
    for target in ("delta", "store"):
        assert tail(spark, str(store.path), target, targets[target], **options).entries == 0
    table = DeltaTable(targets["delta"])
    assert table.to_pyarrow_table().num_rows == 1500
    assert table.version() == 5  # made; three batches of at most 400, then two
    assert spark.read.parquet(targets["parquet"]).select("id").distinct().count() == 1500
    assert other.xrange("orders") == store.xrange("orders")


@pytest.mark.slow
def test_the_examples_of_every_job_work(
    spark: SparkSession,
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_cmd, "running", lambda _: nullcontext(spark))
    monkeypatch.chdir(tmp_path)
    store = open_store("orders.store")
    entries: list[dict[Any, Any]] = [
        {"sku": n % 3, "price": n / 4, b"\xff": b"\xfe"} for n in range(20)
    ]
    store.xadd_many("orders", entries, [f"{1718004800000 + number}-0" for number in range(20)])
    store.archive(to=tmp_path / "fleet", seal=True)
    store.close()
    count = 0
    for command in (spark_cmd.spark, *spark_cmd.spark.commands.values()):
        for example in examples(command):
            if "--follow" in example:  # never ends
                continue
            if "--columns" in example:  # only a lake that is not there yet takes it
                example = example.replace("orders.lake", "typed.lake")
            run(*shlex.split(example.replace("s3://bucket/", ""))[1:])
            count += 1
    assert count >= 8


def number(store: Store[bytes], first: int, last: int) -> None:
    numbers = range(first, last + 1)
    store.xadd_many("orders", [{"n": str(n)} for n in numbers], ids=[f"{n}-0" for n in numbers])


def dying(work: Callable[[Any], list[str]], failpoint: str, mark: str) -> Any:
    """Return a function that does the work, in a process that is killed at the first try.

    Args:
        mark: path of a file that the first try makes.
    """

    def first_dies(task: Any) -> list[str]:
        import os
        import signal
        from pathlib import Path

        from streamkeep.engine.system import failpoints

        if not Path(mark).exists():
            Path(mark).touch()
            failpoints.arm(failpoint, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return work(task)

    return first_dies


@pytest.mark.crash
@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_and_nothing_comes_twice(
    spark: SparkSession,
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, target = open_store("orders.store"), open_store("restored.store")
    lake = str(tmp_path / "lake")
    for module, work, failpoint in (
        (to_lake_job, "write_pieces", "lake:file-named"),
        (compact_job, "rewrite_files", "lake:file-written"),
        (erase_job, "rewrite_files", "lake:file-named"),
        (restore_job, "make_nodes", "stage:written"),
    ):
        mark = tmp_path / f"{module.__name__}.tried"  # two jobs do the same work
        made = dying(getattr(module, work), failpoint, str(mark))
        monkeypatch.setattr(module, work, made)
    number(store, 1, 500)
    assert to_lake_job.to_lake(spark, str(store.path), lake).entries == 500
    number(store, 501, 900)
    assert to_lake_job.to_lake(spark, str(store.path), lake).entries == 400
    assert compact_job.compact(spark, lake).entries == 900
    assert erase_job.erase(spark, "orders", ["7-0"], lake=lake).details["erased_in_lake"] == 1
    assert restore_job.restore(spark, lake, str(target.path), "orders").entries == 899
    assert len(list(tmp_path.glob("*.tried"))) == 4
    assert len(Lake.open(lake).files()) == 1
    ids = [row.ms for row in read_lake(spark, lake).select("ms").orderBy("ms").collect()]
    assert ids == [n for n in range(1, 901) if n != 7]
    assert [entry.stream_id.ms for entry in target.scan("orders")] == ids


@pytest.mark.slow
def test_spark_connect(open_store: Callable[..., Store[bytes]], tmp_path: Path) -> None:
    """The source works where there is no JVM in the program: read, write, stream."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install it")
    pytest.importorskip("zstandard", minversion="0.25", reason="Spark Connect needs zstandard 0.25")
    store = open_store()
    store.xadd_many("s", [{"n": str(n)} for n in range(100)])
    out = run_driver(
        f"""
        from streamkeep import pipeline
        from pyspark.sql import SparkSession

        pipeline.ensure_java()
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        frame = spark.read.format("streamkeep").option("subscribe", "s").load({str(store.path)!r})
        print(type(frame).__module__, frame.count())
        copy = frame.drop("id", "ms", "seq").write.format("streamkeep").mode("append")
        copy.save({str(tmp_path / "copy")!r})
        query = (
            spark.readStream.format("streamkeep")
            .options(subscribe="s", startingOffsets="earliest").load({str(store.path)!r})
            .drop("id", "ms", "seq")
            .writeStream.format("streamkeep")
            .option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
            .trigger(availableNow=True).start({str(tmp_path / "copy")!r})
        )
        query.awaitTermination()
        from streamkeep.pipeline.jobs.audit import audit
        from streamkeep.pipeline.jobs.to_lake import to_lake
        lake = {str(tmp_path / "lake")!r}
        print(to_lake(spark, {str(store.path)!r}, lake).entries)
        print(audit(spark, {str(store.path)!r}, lake=lake).entries)
        print(pipeline.read_lake(spark, lake).count())
        spark.stop()
        """,
        environment={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        folder=tmp_path,
    )
    assert out == ["pyspark.sql.connect.dataframe 100", "100", "100", "100"]
    with Store(tmp_path / "copy", readonly=True) as copy:
        assert copy.xlen("s") == 200
