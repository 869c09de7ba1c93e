"""Workers of a queue that are killed at random: no job is lost, and no effect happens twice.

The workers also promote what is delayed, and the retries, so that these steps are cut off as well.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import job_workers
from conftest import assert_sound
from fork_server import Server, forking
from job_workers import Worker, declare, fails_for_good, has_follow_up
from patience import PATIENCE_S
from streamkeep.jobs import Queue
from tiers import slow_but

pytestmark = pytest.mark.crash


@pytest.fixture
def server() -> Iterator[Server]:
    with forking(job_workers.__name__) as one:
        yield one


class Workers:
    """Processes that work, a given number at a time."""

    def __init__(self, server: Server, path: Path, count: int) -> None:
        self._server = server
        self._path = path
        self._started = 0
        self._pids = [self._start() for _ in range(count)]

    def _start(self) -> int:
        self._started += 1
        note = f"{self._path}.{self._started}"
        return self._server.fork(Worker(str(self._path), note, "work"))

    def kill_one(self, rng: random.Random) -> None:
        """Kill a worker and start another; or stop one for a moment."""
        index = rng.randrange(len(self._pids))
        pid = self._pids[index]
        if rng.random() < 0.2:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(rng.random() / 20)
            os.kill(pid, signal.SIGCONT)
            return
        os.kill(pid, signal.SIGKILL)
        assert self._server.wait(pid) == -signal.SIGKILL
        self._pids[index] = self._start()

    def end(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            self._server.wait(pid)


def entries(queue: Queue, stream: str, *names: str) -> list[tuple[Any, ...]]:
    """Return the ID and some fields of the entries of a stream."""
    found = queue.store.xrange(stream)
    return [(entry.id, *[entry.fields[name.encode()] for name in names]) for entry in found]


@pytest.mark.parametrize(
    ("jobs", "workers", "pause_s"), slow_but([(150, 2, 0.3), (5000, 4, 0.2)], (150, 2, 0.3))
)
def test_every_job_has_its_effect_once(
    tmp_path: Path, server: Server, jobs: int, workers: int, pause_s: float
) -> None:
    rng = random.Random(jobs)
    path = tmp_path / "store"
    queue = Queue(path, sync="none", max_deaths=1000)
    work = declare(queue)
    keys = ["", *[f"k{number}" for number in range(7)]]
    pool = Workers(server, path, workers)
    try:
        for number in range(jobs):
            key = rng.choice(keys)
            delay_s = rng.choice([0, 0, 0, rng.random() * 2]) if not key else 0
            due_ms = time.time_ns() // 1_000_000 + round(delay_s * 1000)
            options = work.options(
                key=key or None,
                delay=delay_s or None,
                priority=rng.choice(["high", "normal", "low"]) if not key else None,
            )
            options.delay(number, key, rng.choice([0, 0, 0, 1, 2]), due_ms)
            if rng.random() < 0.02:
                pool.kill_one(rng)
        deadline = time.monotonic() + PATIENCE_S
        while (found := queue.stats()).waiting or found.running or found.delayed:
            assert time.monotonic() < deadline, found
            time.sleep(rng.random() * pause_s)
            pool.kill_one(rng)
    finally:
        pool.end()
    good = [number for number in range(jobs) if not fails_for_good(number)]
    effects = [(int(number), key) for _, number, key in entries(queue, "effects", "number", "key")]
    assert Counter(number for number, _ in effects) == Counter(good)
    for key in keys[1:]:
        its = [number for number, one in effects if one.decode() == key]
        assert its == sorted(its), key
    starts = entries(queue, "starts", "number", "due")
    assert {int(number) for _, number, _ in starts} == set(range(jobs))
    early = [one for one in starts if int(one[0].partition(b"-")[0]) < int(one[2])]
    assert early == []
    follow_ups = [int(number) for _, number in entries(queue, "follow-ups", "number")]
    assert sorted(follow_ups) == [number for number in good if has_follow_up(number)]
    dead = entries(queue, "default:dead", "payload", "reason")
    assert len(dead) == jobs - len(good) == found.dead
    assert {reason for _, _, reason in dead} <= {b"builtins.ValueError is not retried"}
    assert found.done == len(good) + len(follow_ups)
    left = {key[:1] for key, _ in queue.store.row_range("jobs:default")}
    assert left <= {b"n", b"c", b"r", b"e"}
    queue.close()
    assert_sound(path)
