"""What we rely on in Spark, and what we avoid: these tests say when that has changed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patience import PATIENCE_S
from streamkeep.engine.api.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_pushed_filters_still_leak_into_other_queries(spark: SparkSession) -> None:
    """The reason why our reader takes no filters. Should this fail, Spark was mended: take them."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        Filter,
        GreaterThanOrEqual,
        InputPartition,
    )

    class Reader(DataSourceReader):
        low = 0

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for one in filters:
                if isinstance(one, GreaterThanOrEqual):
                    self.low = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.low)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((n,) for n in range(10) if n >= self.low)

    class Canary(DataSource):
        @classmethod
        def name(cls) -> str:
            return "canary"

        def schema(self) -> str:
            return "a bigint"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    name = "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(Canary)
    spark.conf.set(name, "true")
    try:
        frame = spark.read.format("canary").load()
        assert frame.where("a >= 8").count() == 2
        assert frame.count() == 2  # ten are there
    finally:
        spark.conf.unset(name)


def run_python(code: str, **environment: str) -> str:
    """Run a program of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_spark_connect(open_store: Callable[..., Store[bytes]], tmp_path: Path) -> None:
    """The source works where there is no JVM in the program: read, write, stream."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install it")
    pytest.importorskip("zstandard", minversion="0.25", reason="Spark Connect needs zstandard 0.25")
    store = open_store()
    store.xadd_many("s", [{"n": str(n)} for n in range(100)])
    out = run_python(
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
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
    )
    assert out.split() == ["pyspark.sql.connect.dataframe", "100", "100", "100", "100"]
    with Store(tmp_path / "copy", readonly=True) as copy:
        assert copy.xlen("s") == 200


@pytest.mark.slow
def test_executors_of_their_own(open_store: Callable[..., Store[bytes]], tmp_path: Path) -> None:
    """Master and workers as processes of their own, as on a cluster."""
    store = open_store()
    store.xadd_many("s", [{"n": str(n)} for n in range(5000)])
    copy = tmp_path / "copy"
    out = run_python(
        f"""
        from streamkeep import pipeline

        spark = pipeline.session("local-cluster[2,1,1024]", **{{"spark.log.level": "ERROR"}})
        frame = (
            spark.read.format("streamkeep").options(subscribe="s", minPartitions=4)
            .schema("n int").load({str(store.path)!r})
        )
        print(frame.rdd.getNumPartitions(), frame.selectExpr("sum(n)").collect()[0][0])
        writer = frame.write.format("streamkeep").option("stream", "s").mode("append")
        writer.option("stagingPath", {str(tmp_path / "staging")!r}).save({str(copy)!r})
        spark.stop()
        """,
    )
    partitions, total = map(int, out.split())
    assert partitions >= 4
    assert total == sum(range(5000))
    with Store(copy, readonly=True) as written:
        assert written.xlen("s") == 5000
    assert list((tmp_path / "staging").glob("*")) == []
