"""A fleet, on a disk and in an S3 server, whose processes are killed at every commit point."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import failpoint_names

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

import streamkeep
from conftest import assert_sound
from fork_server import Server, forking
from spark.fleets import LAST, copy, expected, problems, published, rows_of
from spark.killed_jobs import Plan
from spark.s3_server import BUCKET, FAILING, GOOD, STALE, S3Server, serving
from streamkeep.pipeline.lake.table import Lake
from tiers import slow_but

pytestmark = pytest.mark.crash

FILES: Final = ("lake:file-written", "lake:file-named")
COPYING: Final = (*FILES, "fleet:positions", "lake:commit", "lake:committed", "fleet:committed")
DISK, S3 = "disk", "s3"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What forks the drivers."""
    with forking("spark.killed_jobs") as one:
        yield one


@pytest.fixture(scope="module")
def storage() -> Iterator[S3Server]:
    with serving() as one:
        yield one


class Fleet:
    """Two archived stores with equal keys and IDs; the lake has the first half of one."""

    def __init__(self, server: Server, folder: Path, place: str, storage: S3Server | None) -> None:
        self.server, self.folder = server, folder
        self.uri, self.lake = f"{place}/fleet", f"{place}/lake"
        self.environment = {} if storage is None else storage.environment
        self.a = published(folder / "a.store", "a", self.uri)
        copy(self.uri, self.lake)
        self.b = published(folder / "b.store", "b", self.uri)
        self.add(LAST)
        self.rows = sorted([*expected((self.a, "a"), (self.b, "b")), (self.a, "a", LAST)])

    def add(self, *ids: str) -> None:
        """Add entries to the first store, and publish them."""
        with streamkeep.open(self.folder / "a.store") as store:
            for one in ids:
                store.xadd("orders", {"of": "a", "n": "last"}, id=one)
            store.archive(seal=True)

    def plan(self, job: str, **options: Any) -> Plan:
        store = str(self.folder / "a.store") if job == "archive" else self.uri
        said = str(self.folder / "said")
        return Plan(job, store, self.lake, said, options=options, environment=self.environment)

    def run(self, wanted: Plan) -> dict[str, Any]:
        """Run a job to its end; return what it says."""
        assert self.server.wait(self.server.fork(wanted)) == 0, self.errors()
        said: dict[str, Any] = json.loads(Path(wanted.result).read_text())
        assert "error" not in said, said
        return said

    def killed(self, wanted: Plan, step: str, passages: int = 1) -> None:
        """Run a job in a process that is killed at a step."""
        wanted = replace(wanted, failpoint=step, passages=passages)
        assert self.server.wait(self.server.fork(wanted)) == -signal.SIGKILL, self.errors()

    def killed_after(self, wanted: Plan, seconds: float) -> bool:
        """Run a job, and kill it after a while; say whether that was in time."""
        pid = self.server.fork(wanted)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        return self.server.wait(pid) == -signal.SIGKILL

    def errors(self) -> str:
        path = Path(f"{self.folder / 'said'}.err")
        return path.read_text()[-3000:] if path.exists() else "it printed nothing"

    def check(self) -> None:
        """Compare the lake with what it should have, and run the job once more: nothing is new."""
        assert rows_of(self.lake) == self.rows
        assert problems(self.uri, self.lake) == []
        version = Lake.open(self.lake).version
        assert self.run(self.plan("fleet"))["entries"] == 0
        assert Lake.open(self.lake).version == version


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    """The fleet in a place, which is the parameter."""
    if request.param == DISK:
        return Fleet(server, tmp_path, str(tmp_path), None)
    storage: S3Server = request.getfixturevalue("storage")
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)
    return Fleet(server, tmp_path, f"s3://{BUCKET}/{tmp_path.name}", storage)


@pytest.mark.parametrize(
    ("fleet", "step"),
    slow_but([(place, step) for place in (DISK, S3) for step in COPYING], (DISK, "lake:committed")),
    indirect=["fleet"],
)
def test_a_run_that_is_killed_copies_each_entry_once(fleet: Fleet, step: str) -> None:
    wanted = fleet.plan("fleet")
    if step in FILES and not fleet.environment:  # in the process of a task, which comes again
        fleet.run(replace(wanted, failpoint=step, in_worker=True))
    else:
        fleet.killed(wanted, step)
        fleet.run(wanted)
    fleet.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [name for name in failpoint_names.NAMES if name.startswith("publish:")]
)
@pytest.mark.parametrize("mode", [GOOD, FAILING, STALE])
@pytest.mark.parametrize("fleet", [S3], indirect=True)
def test_a_publication_that_is_killed_and_a_run_after_it(
    fleet: Fleet, storage: S3Server, step: str, mode: str
) -> None:
    with streamkeep.open(fleet.folder / "a.store") as store:
        store.xadd("orders", {"of": "a", "n": "more"}, id="1817200000001-0")
        live = 10 if step == "publish:sealed" else 0  # only these have to be sealed
        store.xtrim("orders", maxlen=live, approximate=False)
    storage.behave(mode)
    try:
        fleet.killed(fleet.plan("archive"), step)
    finally:
        storage.behave(GOOD)
    fleet.run(fleet.plan("fleet"))
    fleet.run(fleet.plan("archive"))
    fleet.run(fleet.plan("fleet"))
    fleet.rows = sorted([*fleet.rows, (fleet.a, "a", "1817200000001-0")])
    fleet.check()
    assert_sound(fleet.folder / "a.store")


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [DISK, S3], indirect=True)
def test_publications_and_runs_are_killed_at_any_moment(fleet: Fleet) -> None:
    chance = random.Random(7)
    kills = 0
    for turn in range(20):
        new = f"{1_817_300_000_000 + turn}-0"
        with streamkeep.open(fleet.folder / "a.store") as store:
            store.xadd("orders", {"of": "a", "n": "more"}, id=new)
            if turn % 5 == 4:
                store.xtrim("orders", maxlen=50, approximate=False)
        fleet.rows.append((fleet.a, "a", new))
        for job in ("archive", "fleet"):
            kills += fleet.killed_after(fleet.plan(job), chance.uniform(0, 0.6))
    assert kills
    fleet.run(fleet.plan("archive"))
    fleet.run(fleet.plan("fleet"))
    fleet.rows.sort()
    fleet.check()
    assert_sound(fleet.folder / "a.store")
