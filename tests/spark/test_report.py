"""The page of a report, and the lags that it keeps from one report to the next."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[plot]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.report import draw_lags, former_lags, report
from streamkeep.pipeline.jobs.report_page import Page


@pytest.mark.spark
def test_a_report_shows_sizes_groups_and_the_lags_of_former_ones(
    spark: Any, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("s.store")
    for key in ("=orders", "mail"):
        store.xadd_many(key, [{"n": str(n)} for n in range(500)])
    store.set_retention("mail", archive=True)
    store.xtrim("mail", maxlen=0, approximate=False)
    store.archive()
    store.xgroup_create("=orders", "+packers", "0")
    store.xreadgroup("+packers", "c", {"=orders": ">"}, count=20)
    folder = tmp_path / "report"
    for read in (480, 430):
        done = report(spark, str(store.path), str(folder))
        assert done.entries == 1000
        with (folder / "lag.csv").open() as file:
            rows = list(csv.reader(file))
        assert rows[-1][1:4] == ["'=orders", "'+packers", str(read)]
        store.xreadgroup("+packers", "c", {"=orders": ">"}, count=50)
    assert len(rows) == 3
    with (folder / "streams.csv").open() as file:
        (mail,) = [row for row in csv.DictReader(file) if row["stream"] == "mail"]
    assert (mail["live"], mail["archived"], mail["size live"]) == ("0", "500", "0")
    assert int(mail["size archived"]) > 100
    page = (folder / "index.html").read_text()
    for name in ("streams.csv", "throughput.csv", "lag.csv", "groups.csv"):
        assert f'<a href="{name}">' in page
    assert "width=device-width" in page
    assert page.count("<img") == len(list(folder.glob("*.png")))


def test_lags_of_former_reports_come_back() -> None:
    text = "at,stream,group,lag,time lag ms,pending\n2024-06-10T07:33:20Z,'=a,g,,5,7\nbroken\n"
    assert former_lags(text) == [("2024-06-10T07:33:20Z", "=a", "g", None, 5, 7)]


def test_a_time_without_reports_is_a_gap() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    hours = [*range(5), *range(20, 24)]
    lags = [(f"2024-06-10T{hour:02}:00:00Z", "s", "g", hour, 0, 0) for hour in hours]
    draw_lags(axes, lags)
    line: Any = axes.get_lines()[0]
    values = [float(value) for value in line.get_ydata()]
    assert [value for value in values if value == value] == hours
    assert values[5] != values[5]  # not a number: the line is broken there


def test_names_in_the_tables_of_a_report_are_no_formulas_and_no_markup(tmp_path: Path) -> None:
    page = Page(tmp_path, "<b>", "")
    rows: list[list[Any]] = [
        ["=1+1", -5],
        ["@x", 1],
        ["a=b", 2],
        ["+1", 0],
        ["\tx", 0],
        ["<i>", None],
    ]
    page.add("t", "T", ["-name", "n"], rows, table=True)
    page.close()
    with (tmp_path / "t.csv").open(newline="") as file:
        names = [row[0] for row in csv.reader(file)]
    assert names == ["'-name", "'=1+1", "'@x", "a=b", "'+1", "'\tx", "<i>"]
    text = (tmp_path / "index.html").read_text()
    assert "<i>" not in text
    assert "<h1>&lt;b&gt;</h1>" in text
