"""A queue whose machine loses power: nothing that was promised is lost, and nothing happens twice.

One process works on a queue, in random steps, and the power is lost after steps and inside of them.
Each folder that a disk may hold then is opened as in another boot, and its queue is worked off to
the end, so that every job is accounted for.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stores
from crash.losses import small_journal, watching
from crash.power import Disk, after_a_loss, watched
from streamkeep import recovery
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Job, Queue
from streamkeep.jobs.dead_letters import Letter
from streamkeep.jobs.periodic import SCHEDULED
from streamkeep.jobs.worker_runs import end_soon
from tiers import daily_or_all

pytestmark = pytest.mark.crash

MINUTE_MS = 60_000
START_MS = 1000 * MINUTE_MS


@dataclass
class Told:
    """What calls have promised, and what was begun; numbers are those of jobs."""

    tried: set[int] = field(default_factory=set)
    put: set[int] = field(default_factory=set)
    tried_ends: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    due_ms: dict[int, int] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    has_rule: bool = False
    now_ms: int = START_MS


def make_queue(path: Path, clock: ManualClock, sync: Sync = "commit") -> Queue:
    store = stores.open_at(path, sync=sync, clock=clock)
    queue = Queue(store, "q", retries=2, backoff="1s..4s", max_deaths=1000, result_ttl=0)

    @queue.periodic("* * * * *", missed="all")
    def tick() -> None: ...

    return queue


def number_of(job: Job) -> int:
    return int(job.payload["number"])


def end_well(job: Job) -> None:
    """Do the work of a job: its effect happens with its acknowledgement."""
    collect_effect(job)
    job.done()


def collect_effect(job: Job) -> None:
    if job.task:
        job.transaction.xadd("ticks", {"at": job.fields[SCHEDULED]})
    else:
        job.transaction.xadd("effects", {"number": number_of(job), "key": job.key or ""})


class Work:
    """Random steps of one process; `told` is what it knows at each moment."""

    def __init__(self, path: Path, rng: random.Random, sync: Sync) -> None:
        self.rng = rng
        self.clock = ManualClock(START_MS)
        self.queue = make_queue(path, self.clock, sync)
        self.told = Told()
        self.taken: list[Job] = []
        self._steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.put),
            (2, self.put_many),
            (2, self.put_with_append),
            (5, self.take),
            (6, self.end),
            (3, self.wait),
            (1, self.cancel),
            (1, self.requeue),
        ]

    def begin(self) -> None:
        self.queue.register_periodic()
        self.told.has_rule = True

    def step(self) -> None:
        weights = [weight for weight, _ in self._steps]
        self.rng.choices(self._steps, weights)[0][1]()

    def _options(self, numbers: range) -> dict[str, Any]:
        key = self.rng.choice([None, None, "a", "b"])
        delay_s = self.rng.choice([0, 0, 5, 20]) if key is None else 0
        for number in numbers:
            self.told.tried.add(number)
            self.told.due_ms[number] = self.clock.ms + delay_s * 1000
            if key is not None:
                self.told.keys[number] = key
        priority = self.rng.choice(["high", "normal", "low"]) if key is None else "normal"
        runtime = self.rng.choice([None, 30])
        return {"key": key, "delay": delay_s, "priority": priority, "max_runtime": runtime}

    def _next(self, count: int = 1) -> range:
        first = len(self.told.tried) + 1
        return range(first, first + count)

    def put(self) -> None:
        numbers = self._next()
        self.queue.put({"number": numbers[0]}, **self._options(numbers))
        self.told.put.update(numbers)

    def put_many(self) -> None:
        numbers = self._next(self.rng.randint(2, 30))
        options = self._options(numbers)
        self.queue.put_many([{"number": number} for number in numbers], **options)
        self.told.put.update(numbers)

    def put_with_append(self) -> None:
        """Put in a transaction of the store, which also appends."""
        numbers = self._next()
        options = self._options(numbers)
        with self.queue.store.transaction() as txn:
            txn.xadd("orders", {"number": numbers[0]})
            self.queue.put({"number": numbers[0]}, **options)
        self.told.put.update(numbers)

    def take(self) -> None:
        found = self.queue.get_many(self.rng.randint(1, 4))
        self.taken = [job for job in self.taken if not job.lost()]
        for job in found:
            if job.task:
                end_well(job)  # the ticks
            else:
                assert self.told.due_ms[number_of(job)] <= self.clock.ms
                self.taken.append(job)

    def end(self) -> None:
        live = [job for job in self.taken if not job.lost()]
        if not live:
            return
        job = self.rng.choice(live)
        self.taken = [one for one in live if one is not job]
        number = number_of(job)
        how = self.rng.choice(["done", "done", "soon", "soon", "retry", "fail", "back"])
        last = how == "retry" and job.attempt > 2
        if how in ("done", "soon", "fail") or last:
            self.told.tried_ends[number] = "done" if how in ("done", "soon") else "dead"
        if how == "done":
            end_well(job)
        elif how == "soon":  # as a worker does: a power loss may undo it, with its effect
            collect_effect(job)
            end_soon(job, None)
            return
        elif how == "fail":
            job.fail("for good")
        elif how == "retry":
            job.retry()
        else:
            job.give_back()
        if number in self.told.tried_ends:
            self.told.ended.add(number)

    def wait(self) -> None:
        self.clock.ms += self.rng.choice([1, 700, 3000, 30_000])
        self.told.now_ms = self.clock.ms

    def cancel(self) -> None:
        """Put a job for later, and cancel it."""
        number = self._next()[0]
        self.told.tried.add(number)
        self.told.due_ms[number] = self.clock.ms + 3_600_000
        job = self.queue.put({"number": number}, delay="1h")
        self.told.put.add(number)
        self.told.tried_ends[number] = "cancelled"
        assert self.queue.cancel(job.id)
        self.told.ended.add(number)

    def requeue(self) -> None:
        """Put the oldest dead letter again."""
        for letter in self.queue.dead_letters(count=1):
            number = number_of_letter(letter)
            self.told.tried_ends.pop(number, None)
            self.told.ended.discard(number)
            self.told.tried_ends[number] = "requeued"
            assert self.queue.requeue(letter) == 1
            self.told.due_ms[number] = 0
            self.told.keys.pop(number, None)  # it is a new job, after those of its key


class Losses:
    """Folders that power losses left, each with what was told by then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.count = 0
        self.kept = 0  # jobs that were found in a queue afterwards
        self._folder = folder
        self._random = random.Random(seed)
        self._taken: list[tuple[Path, Told]] = []

    def take(self, disk: Disk, told: Told) -> None:
        path = self._folder / f"lost-{self.count}"
        disk.lose_power(path, self._random)
        self._taken.append((path, deepcopy(told)))
        self.count += 1

    def check_all(self) -> None:
        for number, (path, told) in enumerate(self._taken):
            with after_a_loss(number):
                self._work_off(path, told)
            assert [str(one) for one in recovery.check(path)] == []
            shutil.rmtree(path)
        self._taken = []

    def _work_off(self, path: Path, told: Told) -> None:
        """Open what is left, end every job, and account for each."""
        clock = ManualClock(told.now_ms)
        queue = make_queue(path, clock)
        store = queue.store
        effects, dead = numbers(store, "effects"), numbers_of_letters(queue)
        done = {number for number, how in told.tried_ends.items() if how == "done"}
        assert set(effects) <= done
        assert {one for one in done if one in told.ended} <= set(effects)
        for number, how in told.tried_ends.items():
            if how == "dead" and number in told.ended:
                assert number in dead, number
        if not told.has_rule:
            queue.register_periodic()
        seen: set[int] = set()
        for _ in range(10_000):
            jobs = queue.get_many(5)
            keys = [job.key for job in jobs if job.key is not None]
            assert len(keys) == len(set(keys)), "two jobs of a key at a time"
            for job in jobs:
                if not job.task:
                    number = number_of(job)
                    assert number not in effects, f"{number} is done, and was given out again"
                    assert told.due_ms[number] <= clock.ms, f"{number} is early"
                    seen.add(number)
                end_well(job)
            if not jobs:
                stats = queue.stats()
                if not (stats.waiting or stats.running or stats.delayed):
                    break
                clock.ms += 20_000
        self.kept += len(seen)
        effects, dead = numbers(store, "effects"), numbers_of_letters(queue)
        assert max(Counter(effects).values(), default=1) == 1
        assert max(Counter(dead).values(), default=1) == 1
        assert not set(effects) & set(dead)
        accounted = {*effects, *dead}
        cancelled = {one for one, how in told.tried_ends.items() if how == "cancelled"}
        assert told.put <= accounted | cancelled, told.put - accounted - cancelled
        assert accounted <= told.tried
        for key in ("a", "b"):
            its = [one for one in effects if told.keys.get(one) == key]
            assert its == sorted(its), key
        orders = numbers(store, "orders")
        assert max(Counter(orders).values(), default=1) == 1
        assert set(orders) <= told.tried
        self._check_ticks(queue, clock.ms)
        stats = queue.stats()
        assert (stats.waiting, stats.running, stats.delayed) == (0, 0, 0)
        assert stats.failed == len(dead)
        assert stats.done == len(effects) + len(store.xrange("ticks"))
        clock.ms += 10 * MINUTE_MS  # the ends of runs that died
        queue.unschedule("tick")
        queue.get_many(1)
        left = {key[:1] for key, _ in store.row_range("jobs:q")}
        assert left <= {b"n", b"c", b"r", b"e", b"t"}
        store.close()

    def _check_ticks(self, queue: Queue, now_ms: int) -> None:
        """Every minute since the rule was stored has fired, once."""
        ticks = [int(entry.fields[b"at"]) for entry in queue.store.xrange("ticks")]
        rules = {one.name: one for one in queue.schedules()}
        assert "tick" in rules, "the rule was lost"
        rule = rules["tick"]
        assert ticks == sorted(ticks)
        if ticks:
            assert ticks == list(range(ticks[0], ticks[-1] + 1, MINUTE_MS))
            assert rule.next_ms == ticks[-1] + MINUTE_MS
        assert rule.next_ms > now_ms


def numbers(store: Any, stream: str) -> list[int]:
    return [int(entry.fields[b"number"]) for entry in store.xrange(stream)]


def number_of_letter(letter: Letter) -> int:
    return int(json.loads(letter.fields[b"payload"])["number"])


def numbers_of_letters(queue: Queue) -> list[int]:
    return [number_of_letter(letter) for letter in queue.dead_letters(count=10_000)]


@contextmanager
def losing_power(
    folder: Path, seed: int, share: float, sync: Sync = "commit"
) -> Iterator[tuple[Work, Losses, Disk]]:
    """A queue at work whose power is lost at a share of the failpoints that it passes."""
    losses = Losses(folder, seed)
    path = folder / "store"
    with ExitStack() as stack:
        stack.enter_context(small_journal())
        disk = stack.enter_context(watched(path))
        work = Work(path, random.Random(seed), sync)
        stack.callback(work.queue.store.close)

        def hit(name: str) -> None:
            if losses._random.random() < share:
                losses.take(disk, work.told)

        stack.enter_context(watching(hit))
        yield work, losses, disk
    losses.check_all()


@pytest.mark.parametrize("seed", range(daily_or_all(1, 20)))
def test_a_power_loss_loses_no_job_and_repeats_no_effect(tmp_path: Path, seed: int) -> None:
    steps = daily_or_all(60, 200)
    with losing_power(tmp_path, seed, share=0.01) as (work, losses, disk):
        work.begin()
        for step in range(steps):
            work.step()
            if step % 8 == 0:
                losses.take(disk, work.told)
    assert losses.count >= 8
    assert losses.kept > 0


@pytest.mark.slow
def test_the_losses_are_seen_where_nothing_is_synced(tmp_path: Path) -> None:
    """A control: what calls promise does not hold with `sync="none"`."""
    with (
        pytest.raises(AssertionError),
        losing_power(tmp_path, 0, share=0, sync="none") as (work, losses, disk),
    ):
        work.begin()
        for step in range(60):
            work.step()
            if step % 8 == 0:
                losses.take(disk, work.told)
