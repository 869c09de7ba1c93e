"""The page of a report, and the lags that it keeps from one report to the next."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[plot]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from spark.in_process import InProcess
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs import report_page
from streamkeep.pipeline.jobs.report import report
from streamkeep.pipeline.jobs.report_facts import LagPoint

LOCAL: Any = InProcess()


def test_a_report_shows_sizes_groups_and_the_lags_of_former_ones(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
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
        done = report(LOCAL, str(store.path), str(folder))
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
    text = "at,stream,group,lag,time lag,pending\n2024-06-10T07:33:20Z,'=a,g,,5,7\nbroken\n"
    assert report_page.former_lags(text) == [LagPoint(1_718_004_800_000, "=a", "g", None, 5, 7)]


def test_a_time_without_reports_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def picture(page: Any, name: str, figure: Any, alt: str) -> None:
        drawn.extend(figure.axes[0].get_lines())

    monkeypatch.setattr(report_page._Page, "picture", picture)
    hours = [*range(5), *range(20, 24)]
    lags = [LagPoint(hour * 3_600_000, "s", "g", hour, 0, 0) for hour in hours]
    report_page._lags(report_page._Page(tmp_path), lags)
    (line,) = drawn
    values = [float(value) for value in line.get_ydata()]
    assert [value for value in values if value == value] == hours
    assert values[5] != values[5]  # not a number: the line is broken there
