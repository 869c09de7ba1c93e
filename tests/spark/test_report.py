"""The page of a report, and the groups that it keeps from one report to the next."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[plot]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.report import Page, bars, quoted, report


@pytest.mark.spark
def test_a_report_shows_sizes_groups_and_the_lags_of_former_ones(
    spark: Any, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("s.store")
    for key in ("=orders", "mail"):
        store.xadd_many(key, [{"n": str(n), "hour": str(n % 2)} for n in range(500)])
    store.set_retention("mail", archive=True)
    store.xtrim("mail", maxlen=0, approximate=False)
    store.archive()
    store.xgroup_create("=orders", "+packers", "0")
    store.xreadgroup("+packers", "c", {"=orders": ">"}, count=20)
    folder = tmp_path / "report"
    for read in (480, 430):
        done = report(spark, str(store.path), str(folder), measures=["n"], by=["hour"])
        assert done.entries == 1000
        with (folder / "groups.csv").open() as file:
            rows = list(csv.reader(file))
        assert rows[-1][1:4] == ["'=orders", "'+packers", str(read)]
        store.xreadgroup("+packers", "c", {"=orders": ">"}, count=50)
    assert len(rows) == 3
    with (folder / "streams.csv").open() as file:
        (mail,) = [row for row in csv.DictReader(file) if row["stream"] == "mail"]
    assert (mail["live"], mail["archived"], mail["size live"]) == ("0", "500", "0")
    assert int(mail["size archived"]) > 100
    for name, least in (("mail-n-by-hour", 3), ("mail-n-by-hour_of_the_day_UTC", 2)):
        assert len((folder / f"{name}.csv").read_text().splitlines()) in (least, least + 1)
    page = (folder / "index.html").read_text()
    for name in ("streams.csv", "throughput.csv", "gaps.csv", "groups.csv"):
        assert f'<a href="{name}">' in page
    assert "width=device-width" in page
    assert page.count("<img") == len(list(folder.glob("*.png")))


def test_names_in_a_report_are_no_formulas_and_no_markup() -> None:
    page = Page("<b>", "")
    cells = ["-name", "=1+1", "@x", "a=b", "+1", "\tx", -5]
    assert [*map(quoted, cells)] == ["'-name", "'=1+1", "'@x", "a=b", "'+1", "'\tx", -5]
    page.add("t", "<i>", "", bars(["$x"], {"n": [1]}, "bytes"))
    assert "<i>" not in page.text()
    assert "<h1>&lt;b&gt;</h1>" in page.text()
