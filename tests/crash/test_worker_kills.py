"""Workers that are killed, stopped and continued at random: each job has its effect once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_runner import objects
from fork_server import Server, forking
from patience import PATIENCE_S
from queue_worker import Wanted, make_queue
from streamkeep import recovery
from tiers import slow_but

pytestmark = pytest.mark.crash

# (workers, jobs, seconds of one job, seconds between the kills of one worker)
RUNS = {
    "short": (2, 40, 0.005, 0.15),
    "a thousand jobs, four workers, each killed every second": (4, 1000, 0.02, 1.0),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking("queue_worker") as server:
        yield server


@pytest.mark.parametrize("run", slow_but(RUNS, "short"))
def test_killed_workers_do_each_job_once(server: Server, tmp_path: Path, run: str) -> None:
    workers, count, work_s, every_s = RUNS[run]
    rng = random.Random(run)
    path = tmp_path / "store"
    wanted = Wanted(str(path), work_s, str(tmp_path / "errors"))
    kills = 0
    with make_queue(str(path), work_s) as queue:
        for number in range(count):
            queue.core.tasks["step"].delay(number)
        pids = [server.fork(wanted) for _ in range(workers)]
        due = [time.monotonic() + every_s * rng.random() for _ in pids]
        deadline = time.monotonic() + PATIENCE_S
        while queue.stats().done < count:
            assert time.monotonic() < deadline, queue.stats()
            time.sleep(0.01)
            for place, pid in enumerate(pids):
                if time.monotonic() < due[place]:
                    continue
                if rng.random() < 0.2:  # a stopped worker keeps its job, and ends it later
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(every_s * rng.random() / 4)
                    os.kill(pid, signal.SIGCONT)
                else:
                    os.kill(pid, signal.SIGKILL)
                    server.wait(pid)
                    pids[place] = server.fork(wanted)
                    kills += 1
                due[place] = time.monotonic() + every_s * (0.5 + rng.random())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            server.wait(pid)
        numbers = [int(entry.fields[b"number"]) for entry in queue.store.scan("effects")]
    assert kills > 0
    assert sorted(numbers) == list(range(count))
    status, _ = objects("queue", "status", path)
    shown = {name: status[name] for name in ("waiting", "running", "delayed", "failed", "done")}
    assert shown == {"waiting": 0, "running": 0, "delayed": 0, "failed": 0, "done": count}
    assert status["failed_attempts"] == len(range(0, count, 50))
    assert [str(one) for one in recovery.check(path)] == []


@pytest.mark.slow
def test_children_of_the_command_are_killed_each_second(tmp_path: Path) -> None:
    """`streamkeep work` with four processes, as a user starts it."""
    rng = random.Random(4)
    count, path = 1000, tmp_path / "store"
    program = tmp_path / "jobs_to_kill.py"
    program.write_text(
        f"from queue_worker import make_queue\nqueue = make_queue({str(path)!r}, 0.02)\n"
    )
    tests = Path(__file__).parent.parent
    search = os.pathsep.join([str(tmp_path), str(tests), str(tests / "crash"), *sys.path])
    command = [sys.executable, "-m", "streamkeep", "work", "jobs_to_kill:queue", "-c", "4"]
    with make_queue(str(path), 0.02) as queue:
        for number in range(count):
            queue.core.tasks["step"].delay(number)
        parent = subprocess.Popen(
            [*command, "--processes"],
            env={**os.environ, "PYTHONPATH": search},
            stderr=subprocess.DEVNULL,
        )
        kills = before = 0
        deadline = time.monotonic() + PATIENCE_S
        while (done := queue.stats().done) < count:
            assert time.monotonic() < deadline, queue.stats()
            time.sleep(0.25 * rng.uniform(0.5, 1.5))
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            if children and done > before:  # on a busy machine a child needs longer to begin
                os.kill(int(rng.choice(children)), signal.SIGKILL)
                kills += 1
                before = done
        parent.terminate()
        assert parent.wait(PATIENCE_S) == 0
        numbers = [int(entry.fields[b"number"]) for entry in queue.store.scan("effects")]
    assert kills > 10
    assert sorted(numbers) == list(range(count))
    printed = subprocess.check_output(
        [sys.executable, "-m", "streamkeep", "queue", "status", str(path), "--json"],
        env={**os.environ, "PYTHONPATH": search},
    )
    shown = json.loads(printed.splitlines()[0])
    names = ("waiting", "running", "delayed", "failed", "done")
    assert {name: shown[name] for name in names} == dict(
        zip(names, (0, 0, 0, 0, count), strict=True)
    )
