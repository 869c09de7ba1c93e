"""The page of a report, and the groups that it keeps from one report to the next."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[plot]'")

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.report import Page, bars, quoted, report
from streamkeep.pipeline.options import OptionError

FORMER = (
    "at,stream,group,lag,time lag ms,pending,consumers,latency p50 ms,latency p99 ms,"
    "oldest pending ms\nbefore,'=orders,'+packers,480,7,20,1,,,\n"
)


@pytest.fixture
def filled(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """A stream of which a half is archived, and a group that has read 20 of the other half."""
    orders = open_store("orders.store", node_max_entries=50)
    ids = [f"{number * 1000}-0" for number in range(1, 401)]
    orders.xadd_many("=orders", [{"n": n, "hour": n % 2, "ms": n} for n in range(400)], ids=ids)
    orders.set_retention("=orders", archive=True)
    orders.xtrim("=orders", maxlen=200, approximate=False)
    orders.archive()
    orders.xgroup_create("=orders", "+packers", "0")
    orders.xreadgroup("+packers", "c", {"=orders": ">"}, count=20)
    return orders


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as text:
        return list(csv.DictReader(text))


@pytest.mark.spark
def test_a_report_shows_sizes_groups_measures_and_the_lags_of_former_ones(
    spark: Any, filled: Store[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "groups.csv").write_text(FORMER)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")  # hours of a measure are in UTC
    assert report(spark, str(filled.path), str(folder), measures=["n"]).entries == 400
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    groups = [
        (row["stream"], row["group"], row["lag"], row["pending"])
        for row in rows_of(folder / "groups.csv")
    ]
    assert groups == [("'=orders", "'+packers", lag, "20") for lag in ("480", "180")]
    (sizes,) = rows_of(folder / "streams.csv")
    assert (sizes["stream"], sizes["live"], sizes["archived"]) == ("'=orders", "200", "200")
    assert min(int(sizes["size live"]), int(sizes["size archived"])) > 100
    (hour,) = rows_of(folder / "_orders-n-by-hour_of_the_day_UTC.csv")
    assert tuple(hour.values())[:3] == ("0", "400", "199.5")
    assert rows_of(folder / "gaps.csv")[0]["longest ms"] == "1000"
    page = (folder / "index.html").read_text()
    for name in ("streams.csv", "throughput.csv", "gaps.csv", "groups.csv"):
        assert f'<a href="{name}">' in page
    assert "width=device-width" in page
    assert "http" not in page
    assert page.count('src="data:image/png;base64,') == len(list(folder.glob("*.png")))


@pytest.mark.spark
@pytest.mark.slow
def test_measures_by_a_field_and_one_that_no_entry_has(
    spark: Any, filled: Store[bytes], tmp_path: Path
) -> None:
    folder, export = tmp_path / "report", tmp_path / "export"
    options: Any = {"by": ["hour"], "tail_export": str(export)}
    report(spark, str(filled.path), str(folder), measures=["n", "ms"], **options)
    assert rows_of(folder / "_orders-ms-by-hour.csv")[0]["entries"] == "200"
    found = rows_of(folder / "_orders-n-by-hour.csv")
    assert {row["hour"]: (row["entries"], row["mean"]) for row in found} == {
        "0": ("200", "199.0"),
        "1": ("200", "200.0"),
    }
    with pytest.raises(OptionError, match="both a measure and a field to group by: hour;"):
        report(spark, str(filled.path), str(folder), measures=["n", "hour"], **options)
    with pytest.raises(OptionError, match="no entry has a number in the field weight"):
        report(spark, str(filled.path), str(folder), measures=["weight"], **options)
    assert list(export.glob("*")) == []


def test_names_in_a_report_are_no_formulas_and_no_markup() -> None:
    page = Page("<b>", "")
    cells = ["-name", "=1+1", "@x", "a=b", "+1", "\tx", -5]
    assert [*map(quoted, cells)] == ["'-name", "'=1+1", "'@x", "a=b", "'+1", "'\tx", -5]
    for table in ("1", "2"):
        page.add("t", "<i>", table, bars([("$x", 1)], {"n": 1}, "bytes"))
    assert (page.files["t.csv"], page.files["t-2.csv"]) == (b"1", b"2")
    assert '<a href="t-2.csv">' in page.text()
    assert "<i>" not in page.text()
    assert "<h1>&lt;b&gt;</h1>" in page.text()
