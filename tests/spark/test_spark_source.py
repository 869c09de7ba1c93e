"""Batch reads through Spark."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from streamkeep.engine.api.store import Store

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


def test_rows_are_the_entries(spark: SparkSession, orders: Store[bytes]) -> None:
    frame = load(spark, orders, subscribe="orders")
    assert frame.count() == 5000
    row = frame.where("ms = 1123 and seq = 4").collect()[0]
    assert (row.stream, row.id, row.ts.microsecond) == ("orders", "1123-4", 123000)
    assert [(bytes(f), bytes(v)) for f, v in row.fields] == [
        (b"sku", b"s2"),
        (b"count", b"1234"),
        (b"price", b"308.5"),
    ]


@pytest.mark.slow
def test_a_schema_promotes_fields_and_spares_the_rest(
    spark: SparkSession, orders: Store[bytes]
) -> None:
    schema = "`field.count` int, price double, sku string, nothing string"
    frame = load(spark, orders, schema, subscribe="orders", minPartitions=3)
    assert frame.rdd.getNumPartitions() >= 3
    found = frame.selectExpr("sum(`field.count`)", "sum(price)", "count(sku)", "count(nothing)")
    assert tuple(found.collect()[0]) == (12_497_500, 3_124_375.0, 5000, 0)


@pytest.mark.slow
def test_ranges_and_several_streams(spark: SparkSession, orders: Store[bytes]) -> None:
    schema = "stream string, id string"
    some = load(
        spark, orders, schema, subscribe="orders", startingOffsets="1100", endingOffsets="(1102-3"
    )
    assert [row.id for row in some.collect()] == [f"{1100 + n // 10}-{n % 10}" for n in range(23)]
    both = load(spark, orders, schema, subscribe="mail,errors")
    assert sorted(tuple(row) for row in both.collect()) == [("errors", "6-1"), ("mail", "5-1")]
    matched = load(spark, orders, schema, subscribePattern="ma.*|x")
    assert [tuple(row) for row in matched.collect()] == [("mail", "5-1")]
    none = load(spark, orders, schema, subscribe="orders", startingOffsets="9999")
    assert none.count() == 0


def test_what_is_read_is_fixed_at_load(spark: SparkSession, orders: Store[bytes]) -> None:
    frame = load(spark, orders, subscribe="orders")
    orders.xadd("orders", {"late": "1"})
    assert frame.count() == 5000
    # With a schema of the user's Spark makes the source at the first query.
    chosen = load(spark, orders, "ms bigint", subscribe="orders")
    assert chosen.count() == 5001
    orders.xadd("orders", {"later": "1"})
    assert chosen.count() == 5001
    assert load(spark, orders, "ms bigint", subscribe="orders").count() == 5002


def test_sql_views_and_errors(spark: SparkSession, orders: Store[bytes]) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING streamkeep "
        f"OPTIONS (path '{orders.path}', subscribe 'orders')"
    )
    assert spark.sql("select count(*), max(id) from orders").collect()[0][0] == 5000
    for options, problem in (
        ({"subscribe": "order"}, "no stream 'order'; did you mean orders?"),
        ({"subscribe": "orders", "minPartition": 3}, "did you mean minPartitions"),
    ):
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as error:
            load(spark, orders, **options).count()
        assert problem in str(error.value)


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


@pytest.mark.slow
def test_columns_can_be_inferred(spark: SparkSession, open_store: Callable[..., Any]) -> None:
    store = open_store("events.store")
    store.xadd_many("events", [{"n": str(n), "j": f'{{"a": [{n}, 1.5]}}'} for n in range(50)])
    for reader in (spark.read, spark.readStream):
        frame = (
            reader.format("streamkeep")
            .option("subscribe", "events")
            .option("inferSchema", "true")
            .option("startingOffsets", "earliest")
            .load(str(store.path))
        )
        assert frame.schema["n"].dataType.simpleString() == "bigint"
        assert frame.schema["j"].dataType.simpleString() == "struct<a:array<double>>"
        if not frame.isStreaming:
            assert frame.selectExpr("sum(n)", "sum(j.a[0])").collect()[0] == (1225, 1225.0)


@pytest.mark.slow
def test_filters_are_not_pushed_down(spark: SparkSession, orders: Store[bytes]) -> None:
    frame = load(spark, orders, "ms bigint", subscribe="orders")
    assert frame.where("ms >= 1200").count() == 3000
    assert frame.where("ms >= 1400").union(frame).count() == 6000
    assert frame.count() == 5000


def test_workers_do_not_collect_what_they_imported_and_others_are_left_alone() -> None:
    program = """if True:
        import gc, sys
        from streamkeep.pipeline.source import executor as batches
        assert gc.get_freeze_count() == 0
        batches.freeze_imports()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        batches.freeze_imports()
        assert gc.get_freeze_count() == frozen
    """
    subprocess.run([sys.executable, "-c", program], check=True)
    assert gc.get_freeze_count() == 0  # of the tests, which read without a task of Spark, too
