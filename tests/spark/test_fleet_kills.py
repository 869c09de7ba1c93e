"""A fleet, on a disk and in an S3 server, whose processes are killed at any moment.

`test_random_jobs` kills runs at each commit point, and the tests of archives publications.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from fork_server import forking
from spark.fleets import LAST, copy, expected, problems, published, rows_of
from spark.killed_jobs import Plan
from spark.s3_server import BUCKET, serving
from streamkeep.pipeline.lake.lake import Lake

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.mark.parametrize("place", ["disk", "s3"])
def test_publications_and_runs_are_killed_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Two archived stores with equal keys and IDs; the lake has the first half of one."""
    said, path = tmp_path / "said", tmp_path / "a.store"
    with forking("spark.killed_jobs") as server, serving() as storage:
        environment = storage.environment if place == "s3" else {}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        root = f"s3://{BUCKET}/kills" if environment else str(tmp_path)
        fleet, lake = f"{root}/fleet", f"{root}/lake"
        jobs = {"archive": str(path), "fleet": fleet}

        def fork(job: str) -> int:
            return server.fork(Plan(job, jobs[job], lake, str(said), environment=environment))

        def run(job: str) -> dict[str, Any]:
            assert server.wait(fork(job)) == 0, Path(f"{said}.err").read_text()[-3000:]
            found: dict[str, Any] = json.loads(said.read_text())
            assert "error" not in found, found
            return found

        a = published(path, "a", fleet)
        copy(fleet, lake)
        b = published(tmp_path / "b.store", "b", fleet)
        rows = [*expected((a, "a"), (b, "b")), (a, "a", LAST)]
        chance, kills = random.Random(7), 0
        for turn in range(20):
            new = LAST if turn == 0 else f"{1_817_300_000_000 + turn}-0"
            with streamkeep.open(path) as store:
                store.xadd("orders", {"of": "a", "n": "more"}, id=new)
                if turn % 5 == 4:
                    store.xtrim("orders", maxlen=50, approximate=False)
            rows += [(a, "a", new)] if turn else []
            for job in jobs:
                pid = fork(job)
                time.sleep(chance.uniform(0, 0.6))
                os.kill(pid, signal.SIGKILL)
                kills += server.wait(pid) == -signal.SIGKILL
        assert kills
        run("archive")
        run("fleet")
        assert rows_of(lake) == sorted(rows)
        assert problems(fleet, lake) == []
        version = Lake.open(lake).version
        assert run("fleet")["entries"] == 0
        assert Lake.open(lake).version == version
        assert_sound(path)  # which asks the server
