"""Streaming reads through Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamkeep.engine.api.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def stream(spark: SparkSession, store: Store[bytes], **options: Any) -> DataFrame:
    """Return a streaming DataFrame."""
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

    add(0, 2500)
    query = run(maxEntriesPerTrigger=1000)
    assert [len(one) for one in batches] == [1000, 1000, 500]
    assert [n for one in batches for n in one] == list(range(2500))
    progress = query.recentProgress[0]
    assert '"entriesBehind": 1500' in progress["sources"][0]["latestOffset"]
    batches.clear()
    add(2500, 10)
    run()
    assert batches == [list(range(2500, 2510))]


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
