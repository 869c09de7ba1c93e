"""Workers and producers that are killed or stopped at random: no job is lost or has two effects.

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

MOST_NUMBERS = 1_000_000  # of jobs of one producer


@pytest.fixture
def server() -> Iterator[Server]:
    with forking(job_workers.__name__) as one:
        yield one


class Processes:
    """Processes of one kind, a given number at a time."""

    def __init__(self, server: Server, path: Path, then: str, count: int) -> None:
        self._server = server
        self._path = path
        self._then = then
        self.notes: list[Path] = []
        self._pids = [self._start() for _ in range(count)]

    def _start(self) -> int:
        first = len(self.notes) * MOST_NUMBERS
        self.notes.append(Path(f"{self._path}.{self._then}.{len(self.notes)}"))
        return self._server.fork(Worker(str(self._path), str(self.notes[-1]), self._then, first))

    def disturb_one(self, rng: random.Random) -> None:
        """Kill a process and start another; or stop one for a moment."""
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
        self._pids = []

    def noted(self, mark: str) -> set[int]:
        """Return the numbers that all processes have noted with a mark."""
        found: set[int] = set()
        for note in self.notes:
            lines = note.read_text().split("\n")[:-1] if note.exists() else []
            found.update(int(line[2:]) for line in lines if line.startswith(mark))
        return found


def entries(queue: Queue, stream: str, *names: str) -> list[tuple[Any, ...]]:
    """Return the ID and some fields of the entries of a stream."""
    found = queue.store.xrange(stream)
    return [(entry.id, *[entry.fields[name.encode()] for name in names]) for entry in found]


@pytest.mark.parametrize(
    ("seconds", "workers", "producers", "pause_s"),
    slow_but([(1.5, 2, 1, 0.3), (600, 4, 2, 0.3)], (1.5, 2, 1, 0.3)),
)
def test_every_job_has_its_effect_once(
    path: Path, server: Server, seconds: float, workers: int, producers: int, pause_s: float
) -> None:
    rng = random.Random(workers)
    queue = Queue(path, sync="none", max_deaths=1000)
    declare(queue)
    queue.core.set_up()
    pool = Processes(server, path, "work", workers)
    makers = Processes(server, path, "put", producers)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(makers.noted("!")) < 50:
            time.sleep(rng.random() * pause_s)
            rng.choice([pool, pool, makers]).disturb_one(rng)
        makers.end()
        done = -1
        while (found := queue.stats()).waiting or found.running or found.delayed:
            if found.done > done:  # the producers may have put more than a busy machine soon runs
                done, deadline = found.done, time.monotonic() + PATIENCE_S
            assert time.monotonic() < deadline, found
            time.sleep(rng.random() * pause_s)
            pool.disturb_one(rng)
    finally:
        pool.end()
        makers.end()
    starts = entries(queue, "starts", "number", "due")
    put = {int(number) for _, number, _ in starts}
    assert makers.noted("!") <= put <= makers.noted("?")
    early = [one for one in starts if int(one[0].partition(b"-")[0]) < int(one[2])]
    assert early == []
    good = [number for number in put if not fails_for_good(number)]
    effects = [(int(number), key) for _, number, key in entries(queue, "effects", "number", "key")]
    assert Counter(number for number, _ in effects) == Counter(good)
    for key in {key for _, key in effects if key}:
        its = [number for number, one in effects if one == key]
        assert its == sorted(its), key
    follow_ups = [int(number) for _, number in entries(queue, "follow-ups", "number")]
    assert sorted(follow_ups) == sorted(number for number in good if has_follow_up(number))
    dead = entries(queue, "default:dead", "payload", "reason")
    assert len(dead) == len(put) - len(good) == found.failed
    assert {reason for _, _, reason in dead} <= {b"builtins.ValueError is not retried"}
    assert found.done == len(good) + len(follow_ups)
    left = {key[:1] for key, _ in queue.store.row_range("jobs:default")}
    assert left <= {b"n", b"c", b"r", b"e", b"t"}
    queue.close()
    assert_sound(path)
