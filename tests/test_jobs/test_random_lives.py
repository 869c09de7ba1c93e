"""Random lives of many jobs: each job ends once, in order, and leaves no row."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Job, JobLostError, Queue
from streamkeep.jobs.options import Options
from test_jobs.test_deaths import Lives
from test_jobs.test_queue import letters
from tiers import daily_or_all


class World:
    """A queue, its jobs as they should be, and the jobs that workers have."""

    def __init__(self, store: Store[Any], lives: Lives, clock: ManualClock, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queue = Queue(store, "q", retries=2, backoff="1s..4s", max_deaths=3, result_ttl=0)
        self.lives = lives
        self.clock = clock
        self.latest_ms = clock.ms
        self.due: dict[str, int] = {}  # of each job that was put, or waits again
        self.until: dict[str, float] = {}  # its run may last
        self.failures = Counter[str]()
        self.unsure: set[str] = set()  # whether their last run failed or died
        self.keys: dict[str, str] = {}
        self.unique: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.order: dict[str, list[int]] = {}  # by key: the numbers of jobs, as they ended
        self.again: set[str] = set()  # that were put again after they had failed
        self.delayed: set[str] = set()
        self.limit = 0  # of the concurrency of the queue
        self.limited = self.queue.task(name="limited", concurrency=2)(print)
        self.taken: list[Job] = []
        self.lost: list[Job] = []
        self.puts = 0

    def put(self) -> None:
        self.puts += 1
        key = self.rng.choice([None, None, "a", "b"])
        delay_s = self.rng.choice([0, 0, 0, 5, 20])
        unique = self.rng.choice([None, None, None, "u1", "u2"])
        options = Options(
            key=key,
            delay=delay_s or None,
            unique=unique,
            priority=self.rng.choice(["high", "normal", "low"]) if key is None else None,
            max_runtime=self.rng.choice([None, None, 10]),
        )
        if self.rng.random() < 0.3:
            job = self.limited.options(**options).delay(self.puts)
        else:
            job = self.queue.put(self.puts, **options)
        named = [one for one, name in self.unique.items() if name == unique]
        holders = [one for one in named if one not in self.ended]
        assert holders == ([] if job.is_new else [job.id])
        if job.is_new:
            assert job.id not in self.due
            if unique is not None:
                self.unique[job.id] = unique
            if delay_s:
                self.delayed.add(job.id)
            self.due[job.id] = self.clock.ms + delay_s * 1000
            if key is not None:
                self.keys[job.id] = key

    def take(self) -> None:
        found = self.queue.get_many(self.rng.randint(1, 4))
        late = [job for job in self.taken if job.lost()]  # they ran for too long
        self.lost += late
        self.taken = [job for job in self.taken if job not in late]
        for job in late:
            assert self.until[job.id] <= self.latest_ms
            self.failures[job.id] += 1
        for job in found:
            assert self.due[job.id] <= self.latest_ms  # it may wait since before
            assert job.id not in self.ended
            assert job.id not in {one.id for one in self.taken}
            assert job.key == self.keys.get(job.id)
            assert job.attempt == 1 + self.failures[job.id] or job.id in self.unsure
            self.note_limit(job)
        self.taken += found
        keys = [one.key for one in self.taken if one.key is not None]
        assert len(keys) == len(set(keys)), "two jobs of a key at a time"
        assert sum(one.task == "limited" for one in self.taken) <= 2
        assert not found or not self.limit or len(self.taken) <= self.limit

    def note_limit(self, job: Job) -> None:
        has_limit = job.taken is not None and job.taken.runtime_key
        self.until[job.id] = self.clock.ms + 10_000 if has_limit else float("inf")

    def extend(self) -> None:
        for job in self.taken:
            if not job.lost():
                job.extend()
                self.note_limit(job)

    def end(self) -> None:
        if not self.taken:
            return
        job = self.taken.pop(self.rng.randrange(len(self.taken)))
        if job.lost():  # it ran for too long
            self.lost.append(job)
            return
        ways = ["done", "done", "done", "retry", "retry now", "fail", "back", "postpone"]
        what = self.rng.choice(ways)
        if what == "done":
            job.done()
            self.end_of(job, what)
        elif what == "fail":
            job.fail("no")
            self.end_of(job, what)
        elif what == "back":
            job.give_back()
            self.due[job.id] = self.clock.ms
        elif what == "postpone":
            job.postpone(3)
            self.due[job.id] = self.clock.ms + 3000
        elif job.retry(0 if what == "retry now" else None):
            self.failures[job.id] += 1
            self.due[job.id] = self.clock.ms + 500 * (what == "retry")
        else:
            self.end_of(job, "fail")

    def end_of(self, job: Job, what: str) -> None:
        assert job.id not in self.ended
        self.ended[job.id] = what
        if job.key is not None and job.id not in self.again | self.delayed:
            number = job.payload[0][0] if job.task else job.payload
            self.order.setdefault(job.key, []).append(number)

    def die(self) -> None:
        self.lives.die()
        self.unsure |= {job.id for job in self.taken if self.until[job.id] < float("inf")}
        self.lost += self.taken
        self.taken = []

    def end_lost(self) -> None:
        if self.lost and self.lost[-1].lost():  # a worker that is dead ends nothing
            job = self.lost.pop()
            for end in (job.done, job.retry, job.give_back):
                with pytest.raises(JobLostError):
                    end()

    def cancel(self) -> None:
        if self.due:
            job_id = self.rng.choice(list(self.due))
            if self.queue.cancel(job_id):
                assert job_id not in self.ended
                assert job_id not in {one.id for one in self.taken}
                self.ended[job_id] = "cancelled"

    def purge(self) -> None:
        self.queue.purge()
        for job_id in self.due.keys() - self.ended.keys():
            if Job(self.queue, job_id).state() == "cancelled":
                self.ended[job_id] = "cancelled"

    def requeue(self) -> None:
        for letter in self.queue.dead_letters():
            if self.queue.requeue(letter):  # no other job has its unique name
                del self.ended[letter.job], self.failures[letter.job]
                self.unsure.discard(letter.job)
                self.again.add(letter.job)

    def limit_queue(self) -> None:
        self.limit = self.rng.choice([0, 0, 1, 3])
        self.queue.set_limits(concurrency=self.limit)

    def wait(self, ms: int = 0) -> None:
        """Let time pass; at times, somebody sets the clock back."""
        self.clock.ms += ms or self.rng.choice([1, 700, 3000, 30_000, -5000])
        self.latest_ms = max(self.latest_ms, self.clock.ms)

    def check(self) -> None:
        found = self.queue.stats()
        buried = {letter["job"] for letter in letters(self.queue)}
        for job_id in buried - set(self.ended):  # by deaths, or by runs that took too long
            self.ended[job_id] = "fail"
        ended = list(self.ended.values())
        assert (found.done, found.failed, found.cancelled) == (
            ended.count("done"),
            ended.count("fail"),
            ended.count("cancelled"),
        )
        assert found.waiting + found.running + found.delayed == len(self.due) - len(self.ended)


@pytest.mark.parametrize("seed", range(daily_or_all(2, 40)))
def test_each_job_ends_once(
    store: Store, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(store, Lives(store, monkeypatch), clock, seed)
    steps = [world.put] * 6 + [world.take] * 3 + [world.end] * 5 + [world.wait] * 3
    steps += [world.die, world.end_lost, world.cancel, world.cancel, world.requeue]
    steps += [world.limit_queue] + [world.extend] * 2
    for _ in range(250):
        world.purge() if world.rng.random() < 0.01 else world.rng.choice(steps)()
        world.check()
    for _ in range(2000):
        world.wait(10_000)
        world.take()
        while world.taken:
            job = world.taken.pop()
            if not job.lost():
                job.done()
                world.end_of(job, "done")
        world.check()
        if len(world.ended) == len(world.due):
            break
    assert set(world.ended) == set(world.due)
    for key, numbers in world.order.items():
        assert numbers == sorted(numbers), key
    world.clock.ms += 100_000  # the end of the runs of workers that died
    world.take()
    left = {key[0] for key, _ in store.row_range("jobs:q")}
    assert left <= set(b"ncret"), left  # results are of cancelled jobs; t counts ends
    assert store.xlen("q") == store.xlen("q:high") == store.xlen("q:low") == 0
