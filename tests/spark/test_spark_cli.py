"""The jobs on the command line: what they print, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import streamkeep
from cli_runner import run
from patience import wait_until
from spark.in_process import LOCAL
from streamkeep.tools.commands import spark_cmd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands run their tasks in this process."""
    monkeypatch.setattr(spark_cmd, "running", lambda _: nullcontext(LOCAL))


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with streamkeep.open("orders.store") as store:
        for number in range(20):
            entry = {"sku": str(number % 3), "price": str(number / 4)}
            store.xadd("orders", entry, id=f"{1718004800000 + number}-0")


@pytest.mark.usefixtures("running", "filled")
def test_jobs_say_what_they_did() -> None:
    done = run("spark", "to-lake", "orders.store", "orders.lake")
    assert re.fullmatch(
        r"orders\.lake: 20 entries more, in 1 file of [\d.]+ KiB, in [\dhms. ]+\n", done.stderr
    )
    done = run("spark", "audit", "orders.store", "--lake", "orders.lake", "--json")
    summary = json.loads(done.stdout)
    assert summary["type"] == "summary"
    assert summary["command"] == "spark audit"
    assert (summary["entries"], summary["lake_files"], summary["problems"]) == (20, 1, [])
    (path,) = Path("orders.lake").rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    done = run("spark", "audit", "--lake", "orders.lake", status=4)
    assert done.stdout.startswith("lake file bucket=")
    assert "damaged" in done.stderr
    done = run("spark", "audit", "--lake", "orders.lake", "--json", status=4)
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == [
        "problem",
        "problem",
        "summary",
    ]


@pytest.mark.usefixtures("running", "filled")
def test_a_restore_that_was_complete_says_so() -> None:
    run("spark", "to-lake", "orders.store", "orders.lake")
    command = ("spark", "restore", "orders.lake", "copy.store", "orders", "--staging", "staging")
    assert run(*command).stderr.startswith("20 entries restored, 1718004800000-0 to ")
    assert list(Path("staging").glob("*")) == []
    again = run(*command).stderr
    assert again.startswith("nothing to do: 20 entries already there, 1718004800000-0 to ")
    run("exec", "copy.store", "XDEL", "orders", "1718004800007-0")
    again = run(*command, status=1).stderr
    assert "entry 1718004800007-0 is missing there; next: delete the stream" in again


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(("package", "name"), [("pyspark", "PySpark"), ("deltalake",) * 2])
def test_what_is_not_installed_is_told_in_one_line(
    package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.pipeline.spark_session import start

    if package != "pyspark":
        session = SimpleNamespace(stop=lambda: None)
        monkeypatch.setattr(start, "session", lambda *_, **__: session)
    for module in list(sys.modules):
        if module.startswith(("streamkeep.pipeline.lake", "streamkeep.pipeline.jobs.to_lake")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    if package == "pyspark":
        monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    done = run("spark", "to-lake", "orders.store", "orders.lake", status=1)
    assert done.stderr == (
        f"streamkeep spark to-lake: {name} is not installed; next: "
        "pip install 'streamkeep[spark]'\n"
    )


@pytest.mark.usefixtures("filled")
def test_bad_arguments_are_told_before_spark_starts() -> None:
    for arguments, message in (
        (("audit",), "name what to audit"),
        (("to-lake", "orders.store", "l", "--stream", "a", "--pattern", "b"), "not both"),
        (("tail", "orders.store", "--conf", "nothing"), "'nothing' is not NAME=VALUE"),
    ):
        assert message in run("spark", *arguments, status=2).stderr


@pytest.mark.usefixtures("filled")
def test_what_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.pipeline.spark_session import start

    monkeypatch.setattr(start, "session", lambda *_, **__: pytest.fail("Spark was started"))
    for arguments in (
        ("to-lake", "none", "l"),
        ("audit", "none"),
        ("report", "none", "--output", "r"),
        ("tail", "none"),
        ("erase", "s", "1-0", "--store", "none"),
    ):
        assert "none: no such store" in run("spark", *arguments, status=6).stderr
    for arguments in (
        ("compact", "none"),
        ("audit", "orders.store", "--lake", "none"),
        ("restore", "none", "r.store", "s"),
        ("erase", "s", "1-0", "--lake", "none"),
    ):
        done = run("spark", *arguments, status=6)
        assert "none: no such lake; next: `streamkeep spark to-lake` makes one" in done.stderr
    done = run("spark", "to-lake", "s3://bucket/orders.store", "l", status=1)
    assert "a store must be on a disk of the host" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"orders.store"}


def test_settings_reach_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamkeep.pipeline.spark_session import start

    asked: list[tuple[str, dict[str, object]]] = []

    def session(master: str, **settings: object) -> SparkSession:
        asked.append((master, settings))
        raise start.SparkMissingError("not here")

    monkeypatch.setattr(start, "session", session)
    monkeypatch.setattr(spark_cmd, "check_lake", lambda _: None)
    command = ("spark", "compact", "l", "--master", "spark://h:7077", "--conf", "spark.a=b")
    assert "not here" in run(*command, "--ship-code", status=1).stderr
    run(*command, status=1)
    assert [(master, one["spark.a"], one["ship_code"]) for master, one in asked] == [
        ("spark://h:7077", "b", True),
        ("spark://h:7077", "b", False),
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark", "filled")
def test_ctrl_c_ends_a_tail_without_a_traceback() -> None:
    command = [sys.executable, "-m", "streamkeep", "spark", "tail", "orders.store", "--from-start"]
    with subprocess.Popen(
        [*command, "--to", "parquet", "--path", "out", "--master", "local[1]"],
        stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal signals all processes
        text=True,
    ) as running:
        wait_until(Path("out/_spark_metadata/0").exists)
        time.sleep(0.5)  # it waits for entries now
        os.killpg(running.pid, signal.SIGINT)
        assert running.stderr is not None
        told = running.stderr.read()
    assert "Traceback" not in told
    assert (told.splitlines()[-1], running.returncode) == ("Aborted!", 1)
