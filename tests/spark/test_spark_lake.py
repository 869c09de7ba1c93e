"""Jobs on a lake, through Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from spark.fleets import IDS, make, published, rows_of  # noqa: E402
from spark.fleets import expected as expected_rows  # noqa: E402
from spark.lakes import fill  # noqa: E402
from streamkeep.engine.api.store import Store  # noqa: E402
from streamkeep.pipeline.jobs import audit as audit_job  # noqa: E402
from streamkeep.pipeline.jobs import compact as compact_job  # noqa: E402
from streamkeep.pipeline.jobs.to_lake import to_lake  # noqa: E402
from streamkeep.pipeline.lake.read import read_lake  # noqa: E402
from streamkeep.pipeline.lake.table import Lake  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


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
    checked = audit_job.audit(spark, path, lake=lake)
    assert (checked.entries, checked.problems) == (3010, [])


@pytest.mark.slow
def test_versions_and_ranges_of_a_lake(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake")
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
    part = (
        spark.read.format("streamkeep")
        .option("fleet", fleet)
        .option("subscribe", "orders")
        .option("startingOffsets", IDS[100])
        .option("endingOffsets", IDS[399])
        .schema("store string, id string, n int")
        .load()
    )
    assert part.count() == 600
    assert part.where("n = 100").count() == 2
