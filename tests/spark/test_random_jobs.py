"""Random lives of a store, with jobs beside it that are killed: each entry is copied once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from conftest import assert_sound
from fork_server import Server, forking
from spark.in_process import LOCAL
from spark.killed_jobs import Plan
from spark.random_source import Life, Row, Rows
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.lake.executor import read_file
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import file_system
from test_properties.test_archive import Id, parse, text
from tiers import daily_or_all, slow_but

pytestmark = pytest.mark.crash

# Where a process of a job may be killed.
DRIVER: Final = {
    "to-lake": ["lake:made", "fleet:positions", "lake:commit", "lake:committed", "fleet:committed"],
    "compact": ["lake:commit", "lake:committed", "lake:swept"],
    "erase": ["erase:written", "erase:segment", "erase:stored", "lake:noted", "lake:commit"],
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
        self.killed = 0

    def run(self, job: str, *, kill: bool = True, **options: Any) -> dict[str, Any] | None:
        """Run a job while the store changes; return what it says, None if it was killed."""
        rng, said = self.life.rng, self.folder / "said"
        target = str(self.folder / ("lake" if job not in ("tail-store", "tail-delta") else job))
        plan = Plan(job, str(self.life.store.path), target, str(said), options=options)
        how = rng.choice(("driver", "worker", "time", "")) if kill else ""
        if how in ("driver", "worker"):
            plan.failpoint = rng.choice(DRIVER[job] if how == "driver" else WORKER)
            plan.passages = rng.choice((1, 1, 2))
            plan.in_worker = how == "worker"
        self.life.log.append((job, how, plan.failpoint, options))
        said.unlink(missing_ok=True)
        pid = self.server.fork(plan)
        for _ in range(rng.randrange(4) if kill else 0):
            time.sleep(rng.uniform(0, 0.1))
            if job != "erase":  # which has found out what it erases
                self.life.step()
        if how == "time":
            os.kill(pid, signal.SIGKILL)
        status = self.server.wait(pid)
        if status == -signal.SIGKILL:
            self.killed += 1
            return None
        assert status == 0, Path(f"{said}.err").read_text()[-3000:]
        found: dict[str, Any] = json.loads(said.read_text())
        return found

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
        if not strict:  # it may have committed something before it was killed
            ended = {at for at in before if at[0] in self.life.ended}
            self.forgiven |= (self.life.lost | ended) - now.keys()
        # What was lost before a query began, or before the first copy of a stream, is no loss.
        known = {number for number, _ in old}
        first = {at for at in self.life.lost if at[0] not in known}
        self.forgiven |= first if self.job == "to-lake" or not begun else set()
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
        ids = self.life.rng.sample(sorted(known | model.history.keys()), 1)
        found = self.run("erase", key=key, ids=[text(one) for one in ids])
        while found is None or found["problems"]:  # drafts of a worker that was killed
            self.run("compact", kill=False, retention_hours=0)
            found = self.run("erase", kill=False, key=key, ids=[text(one) for one in ids])
        model.erase([one for one in ids if one in model.history])
        self.life.gone |= {(number, one) for one in ids}
        self.erased |= {(number, one) for one in ids}

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
        elif self.job == "to-lake" and (self.folder / "lake" / "_delta_log").exists():
            lake = Lake.open(str(self.folder / "lake"))
            system, root = file_system(lake.uri)
            for file in lake.files():
                for batch in read_file(system, root, file, ("ms", "seq", "fields")):
                    for row in batch.to_pylist():
                        yield file.origin.number, (row["ms"], row["seq"]), value_of(row["fields"])


@pytest.mark.parametrize("job", slow_but(("to-lake", "tail-delta", "tail-store"), "to-lake"))
@pytest.mark.parametrize("seed", range(daily_or_all(1, 10)))
def test_jobs_that_are_killed_copy_each_entry_once(
    server: Server, open_store: Callable[..., Store[bytes]], tmp_path: Path, job: str, seed: int
) -> None:
    rng = random.Random(seed)
    life = Life(open_store("source", node_max_entries=10), rng, deletes=rng.random() < 0.3)
    # The target of a tail has keys, and no numbers; from a lake, only the job erases.
    life.never = {"rename", "delete"} if job == "tail-store" else {"erase"}
    world = World(server, life, tmp_path, job)
    for _ in range(daily_or_all(2, 25)):
        life.steps(6)
        world.copy()
        if job == "to-lake" and life.keys and rng.random() < 0.3 and (tmp_path / "lake").exists():
            rng.choice((world.erase, lambda: world.run("compact", retention_hours=0)))()
            world.copied()
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
