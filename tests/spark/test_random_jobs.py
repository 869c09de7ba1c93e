"""Random lives of a store, with jobs beside it that are killed: each entry is copied once.

And two jobs at once, of which one wins.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from conftest import assert_sound
from fork_server import Server, forking
from spark.in_process import LOCAL
from spark.killed_jobs import ATTEMPTS, Plan
from spark.lakes import DAY_MS, rows_in
from spark.random_source import Life, Row, Rows
from streamkeep.arrow.keys import key_text
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.lake.files import LakeFile
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import sweep
from test_properties.test_archive import Id, parse, text
from tiers import daily_or_all, slow_but

pytestmark = pytest.mark.crash

# Where a process of a job may be killed.
DRIVER: Final = {
    "to-lake": ["lake:made", "fleet:positions", "lake:commit", "lake:committed", "fleet:committed"],
    "compact": ["lake:commit", "lake:committed", "lake:swept"],
    "erase": ["erase:written", "erase:segment", "erase:stored", "lake:noted", "lake:commit"],
    "restore": ["restore:staged", "restore:step", "commit:journaled", "commit:made"],
    "tail-delta": ["tail:batch", "tail:committed"],
    "tail-store": ["sink:staged", "sink:applied", "commit:journaled", "sink:committed"],
}
WORKER: Final = ["lake:file-written", "lake:file-named", "stage:written"]
REFUSED: Final = (None, "DataLossError", "StreamReplacedError", "MissingSegmentError")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking("spark.killed_jobs") as one:
        yield one


def value_of(pairs: list[dict[str, bytes]]) -> bytes:
    ((_, value),) = [tuple(pair.values()) for pair in pairs]
    return value


def row_of(value: bytes) -> Row:
    number, one = value.split(b":")
    return int(number), parse(one)


class World:
    """A store that changes, and a job that copies it, in processes that are killed.

    Attributes:
        forgiven: what was lost before it could be copied, as somebody was told.
        erased: what the job `erase` has erased.
    """

    def __init__(self, server: Server, life: Life, folder: Path, job: str) -> None:
        self.server, self.life, self.folder, self.job = server, life, folder, job
        self.forgiven: set[Row] = set()
        self.erased: set[Row] = set()
        self.restores = 0

    def run(self, job: str, *, kill: bool = True, **options: Any) -> dict[str, Any] | None:
        """Run a job while the store changes; return what it says, None if it was killed."""
        rng, plan = self.life.rng, self.plan(job, options)
        how = rng.choice(("driver", "worker", "time", "")) if kill else ""
        if how in ("driver", "worker"):
            plan.failpoint = rng.choice(DRIVER[job] if how == "driver" else WORKER)
            plan.passages = rng.choice((1, 1, 2))
            plan.in_worker = how == "worker"
            plan.attempts = rng.choice((1, 1, ATTEMPTS))
        self.life.log.append((job, how, plan.failpoint, options))
        version = self.version()
        pid = self.server.fork(plan)
        for _ in range(rng.randrange(4) if kill else 0):
            time.sleep(rng.uniform(0, 0.1))
            if job != "erase":  # which has found out what it erases
                self.life.step()
        if how == "time":
            os.kill(pid, signal.SIGKILL)
        found = self.said(plan, pid)
        if found and found.get("error") == "TaskFailedError":  # which changes nothing
            assert plan.in_worker
            assert self.version() == version
            return None
        return found

    def plan(self, job: str, options: dict[str, Any], said: str = "said") -> Plan:
        """Return the plan of a job; the option `store` is the target of a restore."""
        target = str(self.folder / ("lake" if job not in ("tail-store", "tail-delta") else job))
        store = str(options.pop("store", self.life.store.path))
        result = self.folder / said
        result.unlink(missing_ok=True)
        return Plan(job, store, target, str(result), options=options)

    def said(self, plan: Plan, pid: int) -> dict[str, Any] | None:
        """Wait for a job; return what it says, None if it was killed."""
        status = self.server.wait(pid)
        if status == -signal.SIGKILL:
            return None
        assert status == 0, Path(f"{plan.result}.err").read_text()[-3000:]
        found: dict[str, Any] = json.loads(Path(plan.result).read_text())
        return found

    def lake(self) -> Lake | None:
        path = self.folder / "lake"
        return Lake.open(str(path)) if (path / "_delta_log").exists() else None

    def version(self) -> int:
        lake = self.lake()
        return lake.version if lake else 0

    def copy(self, kill: bool = True) -> None:
        """Copy what is new, and check that nothing is missing of which nobody was told."""
        strict = self.life.rng.random() < 0.6
        before, old = self.life.rows(), self.copied()
        lost = {at for at in self.life.lost if at[0] in self.life.keys.values()}
        options: dict[str, Any] = {"fail_on_data_loss": strict}
        if self.life.rng.random() < 0.2:
            options["tail_export"] = str(self.folder / "export")
        begun = (self.folder / f"{self.job}.checkpoint" / "offsets" / "0").exists()
        found = self.run(self.job, kill=kill, **options)
        now = self.copied()
        assert old.items() <= now.items()
        ended = {at for at in before if at[0] in self.life.ended}  # perhaps before it was planned
        if not strict:  # it may have committed something before it was killed
            self.forgiven |= (self.life.lost | ended) - now.keys()
        # What was lost before a query began, or before the first copy of a stream, is no loss.
        known = {number for number, _ in old}
        first = {at for at in self.life.lost | ended if at[0] not in known}
        # And no query knows of a stream that came and went between two of its batches.
        late = self.job != "to-lake" and begun
        self.forgiven |= {at for at in first if at[0] in self.life.ended or not late}
        if found is None:
            return
        told = found.get("problems") or found.get("error")
        if told:
            assert self.life.lost or self.life.ended or self.life.gone, found
            assert found.get("error") in REFUSED, found
            return
        missing = before.keys() - now.keys() - self.life.gone - self.forgiven
        assert not missing, missing
        silent = lost - now.keys() - self.forgiven - self.life.gone
        assert not strict or not silent, silent

    def erase(self) -> None:
        key, number, model = self.life.some()
        known = {one for at, one in (row for row in self.copied()) if at == number}
        if not (known or model.history):
            return
        ids = self.life.rng.sample(sorted(known | model.history.keys()), 1)
        found = self.run("erase", key=key, ids=[text(one) for one in ids])
        while found is None or found["problems"]:  # unfinished files of a worker that was killed
            self.run("compact", kill=False, retention_hours=0)
            found = self.run("erase", kill=False, key=key, ids=[text(one) for one in ids])
        model.erase([one for one in ids if one in model.history])
        self.life.gone |= {(number, one) for one in ids}
        self.erased |= {(number, one) for one in ids}

    def restore(self) -> None:
        """Restore a stream into a new store, and compare; one more run changes nothing."""
        lake, rows = self.lake(), self.copied()
        if lake is None or not rows:
            return
        file = self.life.rng.choice(lake.files())
        self.restores += 1
        path = self.folder / f"restored-{self.restores}"
        where: dict[str, Any] = {"store": path, "key": key_text(file.origin.key)}
        where["incarnation"] = file.origin.number
        while self.run("restore", **where) is None:
            pass
        self.restored(path, file, rows)
        again = self.run("restore", kill=False, **where)
        assert again is not None
        assert (again["entries"], again["already"]) == (0, self.restored(path, file, rows))

    def restored(self, path: Path, file: LakeFile, rows: Rows) -> int:
        """Check that a store has what the lake has of a stream; return how many entries."""
        assert_sound(path)
        expected = [(at[1], rows[at]) for at in sorted(rows) if at[0] == file.origin.number]
        with Store(path, readonly=True) as store:
            found = [(parse(one.id), one.pairs[0][1]) for one in store.scan(file.origin.key)]
        assert found == expected
        with patch("time.time", return_value=time.time() + 8 * 86_400):
            sweep(str(path / "staging"))
        assert not list((path / "staging").glob("*"))
        return len(found)

    def sweep(self) -> None:
        """Compact: of the files that dead jobs left, none is there then."""
        self.run("compact", kill=False, retention_hours=0)
        lake = self.lake()
        assert lake is not None
        root = Path(lake.uri)
        on_disk = {path for path in root.glob("bucket=*/**/*") if path.is_file()}
        assert on_disk == {root / file.path for file in lake.files()}

    def copied(self) -> Rows:
        """Return what the job has copied, which must be true, and of which nothing comes twice."""
        found: Rows = {}
        for number, one, value in self._rows():
            at = row_of(value)
            assert at == (number or at[0], one)
            assert at not in found, f"{at} comes twice"
            found[at] = value
        assert found.items() <= self.life.added.items()
        assert not found.keys() & self.erased
        return found

    def _rows(self) -> Iterator[tuple[int | None, Id, bytes]]:
        path = self.folder / self.job
        if self.job == "tail-store" and (path / "data.mdb").exists():
            with Store(path) as store:  # for writing: after a kill it needs recovery
                for key in store.keys():  # noqa: SIM118
                    for entry in store.scan(key):
                        yield None, parse(entry.id), entry.pairs[0][1]
        elif self.job == "tail-delta" and (path / "_delta_log").exists():
            for row in DeltaTable(path).to_pyarrow_table().to_pylist():
                yield None, (row["ms"], row["seq"]), value_of(row["fields"])
        elif (lake := self.lake()) is not None:
            for file, row in rows_in(lake, ("ms", "seq", "fields")):
                yield file.origin.number, (row["ms"], row["seq"]), value_of(row["fields"])


@pytest.mark.parametrize("job", slow_but(("to-lake", "tail-delta", "tail-store"), "to-lake"))
@pytest.mark.parametrize("seed", range(daily_or_all(1, 10)))
def test_jobs_that_are_killed_copy_each_entry_once(
    server: Server, open_store: Callable[..., Store[bytes]], tmp_path: Path, job: str, seed: int
) -> None:
    rng = random.Random(seed)
    life = Life(open_store("source", node_max_entries=10), rng, deletes=rng.random() < 0.3)
    life.next_ms = DAY_MS - 100  # files of a lake end with their day
    # The target of a tail has keys, and no numbers; from a lake, only the job erases.
    life.never = {"rename", "delete"} if job == "tail-store" else {"erase"}
    world = World(server, life, tmp_path, job)
    for _ in range(daily_or_all(2, 25)):
        life.steps(6)
        world.copy()
        if job == "to-lake" and life.keys and rng.random() < 0.3 and world.lake():
            rng.choice((world.erase, lambda: world.run("compact", retention_hours=0)))()
            world.copied()
    if job == "to-lake":
        for _ in range(daily_or_all(1, 5)):
            world.restore()
        if world.lake():
            world.sweep()
    life.frozen = True
    for _ in range(2):
        assert world.run(job, kill=False, fail_on_data_loss=False) is not None
    assert life.rows().keys() <= world.copied().keys()
    again = world.run(job, kill=False)
    assert again is not None
    assert again["entries"] == 0
    if job == "to-lake":
        lake = str(tmp_path / "lake")
        assert audit(LOCAL, str(life.store.path), lake=lake).problems == []
    elif job == "tail-store":
        assert_sound(tmp_path / job)


PAIRS: Final = [
    ("to-lake", "to-lake"),
    ("compact", "erase"),
    ("compact", "compact"),
    ("compact", "to-lake"),
    ("erase", "to-lake"),
    ("restore", "restore"),
]


@pytest.mark.parametrize(("job", "other"), slow_but(PAIRS, PAIRS[0]))
def test_of_two_jobs_at_once_one_wins_and_the_other_says_so(
    server: Server, open_store: Callable[..., Store[bytes]], tmp_path: Path, job: str, other: str
) -> None:
    life = Life(open_store("source", node_max_entries=10), random.Random(1), deletes=False)
    world = World(server, life, tmp_path, "to-lake")
    life.make()
    for _ in range(2):
        for _ in range(20):
            life.add()
        assert world.run("to-lake", kill=False) is not None
    if "to-lake" in (job, other):
        life.add()
    ((key, number),) = life.keys.items()
    gone = random.Random(2).sample(sorted(life.models[number].live), 4)
    options: dict[str, dict[str, Any]] = {
        "to-lake": {},
        "compact": {"retention_hours": 1},
        "erase": {"key": key, "ids": [text(one) for one in gone]},
        "restore": {"key": key, "store": tmp_path / "restored"},
    }
    plans = [world.plan(job, dict(options[job]), "one"), world.plan(other, dict(options[other]))]
    pids = [server.fork(plan) for plan in plans]
    said = [world.said(*both) for both in zip(plans, pids, strict=True)]
    lost = [one["error"] for one in said if one and "error" in one]
    assert len(lost) < 2
    assert set(lost) <= {"LakeConflictError", "IdTooSmallError", "CommandError"}
    assert world.run("to-lake", kill=False) is not None
    erased = {(number, one) for one in gone if "erase" in (job, other)}
    assert world.copied().keys() == life.rows().keys() - erased
    if job == "restore":
        lake = world.lake()
        assert lake is not None
        world.restored(tmp_path / "restored", lake.files()[0], world.copied())
