"""Jobs whose drivers and workers are killed at every commit point, and at any moment.

Afterwards the same job is run again until it says that it is done: what there is then equals the
model, entry for entry, and a further run changes nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from conftest import assert_sound
from fork_server import Server, forking
from spark.killed_jobs import ATTEMPTS, Plan
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.lake.executor import read_file
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import file_system, sweep
from tiers import daily_or_all, slow_but

pytestmark = pytest.mark.crash

Entry = tuple[str, list[tuple[bytes, bytes]]]
Model = dict[str, list[Entry]]

COUNT: Final = 2400
STEP_MS: Final = 60_000  # so that a stream spans two days
ERASED: Final = [f"{number * STEP_MS}-0" for number in (1, 600, 601, COUNT)]

# Where a process that restores is killed, and at which passage. `test_random_jobs` kills others.
DRIVER: Final = [
    ("restore:staged", 1),
    ("restore:step", 1),
    ("restore:step", 4),
    ("commit:journaled", 1),
    ("commit:journaled", 3),
    ("commit:made", 1),
    ("commit:made", 3),
]
WORKER: Final = [
    ("to-lake", "lake:file-written"),
    ("compact", "lake:file-named"),
    ("erase", "lake:file-written"),
    ("restore", "stage:written"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking("spark.killed_jobs") as one:
        yield one


class Prepared:
    """A store of two streams, partly archived, and a lake that took it over in two runs."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.model: Model = {}
        for first, last in ((1, COUNT // 2), (COUNT // 2 + 1, COUNT)):
            self._fill(first, last)
            wanted = Plan("to-lake", str(self.source), str(folder / "lake"), str(folder / "said"))
            assert server.wait(server.fork(wanted)) == 0

    def _fill(self, first: int, last: int) -> None:
        """Add entries to two streams, and archive half of one."""
        with Store(self.source, sync="none") as store:
            for key, count in (("orders", last), ("mail", first + 50)):
                numbers = range(first, count + 1)
                ids = [f"{number * STEP_MS}-0" for number in numbers]
                store.xadd_many(key, [{"n": str(n), "key": key} for n in numbers], ids=ids)
                made = [
                    (one, [(b"n", b"%d" % n), (b"key", key.encode())])
                    for one, n in zip(ids, numbers, strict=True)
                ]
                self.model[key] = self.model.get(key, []) + made
            store.set_retention("orders", archive=True)
            store.xtrim("orders", maxlen=COUNT // 4)
            store.archive()


@pytest.fixture(scope="module")
def prepared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(server, tmp_path_factory.mktemp("prepared"))


class Case:
    """A job with something to do, and what has to be there when it has done it."""

    def __init__(self, server: Server, prepared: Prepared, folder: Path, job: str) -> None:
        self.server = server
        self.folder = folder
        self.source = folder / "source"
        self.job = job
        self.model: Model = dict(prepared.model)
        shutil.copytree(prepared.folder / "source", self.source)
        lake = str(folder / "lake")
        if job in ("compact", "restore", "erase"):
            shutil.copytree(prepared.folder / "lake", lake)
        store = str(folder / "restored") if job == "restore" else str(self.source)
        self.plan = Plan(job, store, lake, self._result())
        if job == "compact":
            self.plan.options = {"retention_hours": 0}
        if job == "erase":
            self.plan.options = {"ids": ERASED}
            gone = set(ERASED)
            self.model["orders"] = [one for one in self.model["orders"] if one[0] not in gone]

    def _result(self) -> str:
        return str(self.folder / "said")

    def run(self, wanted: Plan) -> dict[str, Any]:
        """Run a job to its end; return what it says."""
        status = self.server.wait(self.server.fork(wanted))
        assert status == 0, self.errors()
        said: dict[str, Any] = json.loads(Path(wanted.result).read_text())
        return said

    def errors(self) -> str:
        return Path(f"{self._result()}.err").read_text()[-3000:]

    def killed(self, failpoint: str, passages: int = 1) -> None:
        """Run the job with a driver that is killed at a failpoint."""
        wanted = replace(self.plan, failpoint=failpoint, passages=passages)
        assert self.server.wait(self.server.fork(wanted)) == -signal.SIGKILL, self.errors()

    def killed_after(self, seconds: float) -> bool:
        """Run the job, and kill its driver after a while; say whether that was in time."""
        pid = self.server.fork(self.plan)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        return self.server.wait(pid) == -signal.SIGKILL

    def finish(self, done: bool = False) -> None:
        """Run the job until it is done, unless it is; check what is there, and what one more run
        changes: nothing.
        """
        if not done:
            said = self.run(self.plan)
            assert "error" not in said, said
            if self.job == "erase" and said["problems"]:  # drafts of a worker that was killed
                assert "unfinished files" in said["problems"][0]
                self.run(replace(self.plan, job="compact", options={"retention_hours": 0}))
                said = self.run(self.plan)
            assert not said.get("problems")
        self.check()
        before = self.contents(), self.named()
        again = self.run(self.plan)
        if self.job == "restore":
            assert again["already"] == len(self.model["orders"])
        if self.job != "erase":  # it counts what it was asked for
            assert again["entries"] == 0
        assert (self.contents(), self.named()) == before
        for path in (self.source, self.folder / "restored"):
            if (path / "data.mdb").exists():
                assert_sound(path)
                staging = path / "staging"
                with patch("time.time", return_value=time.time() + 8 * 86_400):
                    sweep(str(staging))
                assert not list(staging.glob("*"))

    def check(self) -> None:
        if self.job == "restore":
            assert self.contents() == {"orders": self.model["orders"]}
        else:
            assert self.contents() == self.model

    def contents(self) -> Model:
        """Return all entries at the target, in their order."""
        if self.job == "restore":
            return in_store(Path(self.plan.store))
        return in_lake(self.plan.target)

    def named(self) -> list[str]:
        """Return the files that the log of the lake names."""
        return [file.path for file in Lake.open(str(self.folder / "lake")).files()]


def in_store(path: Path) -> Model:
    with Store(path, readonly=True) as store:
        return {
            key.decode(): [(entry.id.decode(), list(entry.pairs)) for entry in store.scan(key)]
            for key in sorted(store.keys())
        }


def in_lake(path: str) -> Model:
    """Return what the files hold that the log names."""
    lake = Lake.open(path)
    system, root = file_system(path)
    found: Model = {}
    for file in lake.files():
        for batch in read_file(system, root, file, ("ms", "seq", "fields")):
            found.setdefault(file.key.decode(), []).extend(map(entry_of, batch.to_pylist()))
    return found


def entry_of(row: dict[str, Any]) -> Entry:
    pairs = [(pair["field"], pair["value"]) for pair in row["fields"]]
    return f"{row['ms']}-{row['seq']}", pairs


@pytest.fixture
def case(server: Server, prepared: Prepared, tmp_path: Path) -> Callable[[str], Case]:
    return lambda job: Case(server, prepared, tmp_path, job)


@pytest.mark.parametrize(("failpoint", "passages"), slow_but(DRIVER, *DRIVER[:1]))
def test_a_driver_is_killed(case: Callable[[str], Case], failpoint: str, passages: int) -> None:
    one = case("restore")
    one.killed(failpoint, passages)
    one.finish()


@pytest.mark.parametrize(("job", "failpoint"), slow_but(WORKER, WORKER[0]))
def test_a_worker_is_killed_once_and_its_task_comes_again(
    case: Callable[[str], Case], job: str, failpoint: str
) -> None:
    one = case(job)
    said = one.run(replace(one.plan, failpoint=failpoint, in_worker=True))
    assert "error" not in said, said
    assert said["entries"]
    one.finish(done=True)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "failpoint"), WORKER)
def test_a_task_that_dies_each_time_changes_nothing(
    case: Callable[[str], Case], job: str, failpoint: str
) -> None:
    one = case(job)
    wanted = replace(one.plan, failpoint=failpoint, in_worker=True)
    said = one.run(replace(wanted, attempts=ATTEMPTS))
    assert said == {"error": "TaskFailedError", "text": f"a task failed {ATTEMPTS} times"}
    if job in ("to-lake", "compact", "erase"):
        lake = Lake.open(one.plan.target)
        assert lake.version == (0 if job == "to-lake" else 2)
    one.finish()


@pytest.mark.slow
def test_a_driver_is_killed_again_and_again_at_any_moment(case: Callable[[str], Case]) -> None:
    one = case("restore")
    chance = random.Random(7)
    kills = sum(one.killed_after(chance.uniform(0, 0.25)) for _ in range(daily_or_all(3, 6)))
    assert kills
    one.finish()


@pytest.mark.slow
def test_what_dead_jobs_left_is_swept(case: Callable[[str], Case]) -> None:
    one = case("to-lake")
    one.killed("lake:commit")
    wanted = replace(one.plan, failpoint="lake:file-written", in_worker=True)
    assert "error" not in one.run(wanted)
    lake = Path(one.plan.target)
    on_disk = {str(path.relative_to(lake)) for path in lake.glob("bucket=*/**/*") if path.is_file()}
    assert any(path.endswith(".draft") for path in on_disk)
    assert len(on_disk) > len(one.named())
    one.run(replace(one.plan, job="compact", options={"retention_hours": 0}))
    on_disk = {str(path.relative_to(lake)) for path in lake.glob("bucket=*/**/*") if path.is_file()}
    assert on_disk == set(one.named())
    one.check()


@pytest.mark.parametrize(
    ("job", "other"),
    slow_but(
        [
            ("to-lake", "to-lake"),
            ("compact", "erase"),
            ("compact", "compact"),
            ("compact", "to-lake"),
            ("erase", "to-lake"),
            ("restore", "restore"),
        ],
        ("to-lake", "to-lake"),
    ),
)
def test_of_two_jobs_at_once_one_wins_and_the_other_says_so(
    case: Callable[[str], Case], job: str, other: str
) -> None:
    one = case(job)
    known: dict[str, dict[str, Any]] = {"erase": {"ids": ERASED}, "compact": {"retention_hours": 1}}
    plans = [
        replace(one.plan, result=f"{one.plan.result}.{at}", job=name, options=given)
        for at, (name, given) in enumerate(
            [(job, known.get(job, {})), (other, known.get(other, {}))]
        )
    ]
    pids = [one.server.fork(wanted) for wanted in plans]
    for pid, wanted in zip(pids, plans, strict=True):
        assert one.server.wait(pid) == 0, Path(f"{wanted.result}.err").read_text()
    said = [json.loads(Path(wanted.result).read_text()) for wanted in plans]
    lost = [report for report in said if "error" in report]
    assert len(lost) < 2
    for report in lost:
        assert report["error"] in ("LakeConflictError", "IdTooSmallError", "CommandError"), report
    if other == "erase":
        gone = set(ERASED)
        one.model["orders"] = [entry for entry in one.model["orders"] if entry[0] not in gone]
    if job == "restore":
        one.check()
    else:
        one.finish()
