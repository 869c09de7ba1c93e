"""Processes of `streamkeep work` that are killed at random: each job has its effect once.

Workers that are stopped and continued as well are in `test_queue_kills.py`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patience import PATIENCE_S
from queue_worker import make_queue

pytestmark = pytest.mark.crash


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
