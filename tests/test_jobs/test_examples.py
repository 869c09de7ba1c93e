"""The examples of the queue, a golden store with one, and the fixtures of `streamkeep.pytest`."""

from __future__ import annotations

import importlib.util
import logging
import runpy
from pathlib import Path
from typing import Any

import pytest

import golden_stores
import stores
from conftest import ROOT, assert_sound
from streamkeep import recovery
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import JobCancelledError, JobFailedError, Queue
from streamkeep.jobs.listing import Minute

PRINTS = {
    "fan_out": ["mail about 7", "reserved for 7"],
    "exactly_once": ["the 3", "and 2"],
    "mail_retries": ["ann: attempt 2", "bob: attempt 2", "builtins.ValueError is not retried"],
    "thumbnails": ["[[4, 3], [4, 3], [4, 3]]", "['small-0.pgm', 'small-1.pgm', 'small-2.pgm']"],
    "nightly": ["report 0 3 * * * Europe/Berlin", "made"],
    "web_outbox": ["2 forwarded", "2 shipped"],
}
OTHERS = ("web_outbox_postgresql", "../programs/audit", "../programs/migrate")


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_shows(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/queue/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path / "store"
    monkeypatch.setattr(logging.root.manager, "disable", 0)  # an example silences the log
    module.main(
        str(path), *([str(tmp_path / "more")] if name in ("web_outbox", "thumbnails") else [])
    )
    assert capsys.readouterr().out.splitlines() == PRINTS[name]
    assert_sound(path)


@pytest.mark.parametrize("name", [*PRINTS, *OTHERS])
def test_an_example_without_its_arguments_says_which_it_needs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ROOT / f"examples/queue/{name}.py"
    monkeypatch.setattr("sys.argv", [str(program)])
    with pytest.raises(SystemExit, match=f"python {program.name} [2Sr]"):
        runpy.run_path(str(program), run_name="__main__")


def test_every_example_is_run() -> None:
    found = {one.stem for one in (ROOT / "examples/queue").glob("*.py")}
    assert found == {*PRINTS, "web_outbox_postgresql"}  # which test_outbox_postgresql runs


# --- the queue in a golden store opens today, and each of its jobs goes on where it was -----------

# `tests/golden/stores/write_queue.py` wrote the store.

NOW_MS = 1_718_004_800_000  # 2024-06-10T07:33:20Z, when its process was killed


def test_the_jobs_of_a_golden_store_go_on_where_they_were(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    store = stores.open_at(golden_stores.unpack("queue", tmp_path), clock=clock)
    queue, other = Queue(store), Queue(store, "other")
    stats = queue.stats()
    assert stats[:5] == (6, 2, 2, 1, 1)  # waiting, running, delayed, dead, done
    assert (stats.held, stats.retrying, stats.failed_attempts, stats.cancelled) == (2, 1, 2, 1)
    assert (stats.workers, other.stats().parked) == (0, 1)
    assert queue.minutes() == [Minute(NOW_MS // 60_000 * 60_000, 1, 2)]
    assert queue.settings().max_length == 1000
    [rule] = queue.schedules()
    assert (rule.name, rule.cron, rule.zone) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert rule.next_ms == 1_718_067_600_000  # 2024-06-11T03:00+02:00
    assert queue.job(f"{NOW_MS}-0").result(0) == {"made": "Zürich"}
    with pytest.raises(JobFailedError, match="no paper"):
        queue.job(f"{NOW_MS}-1").result(0)
    with pytest.raises(JobCancelledError):
        queue.job("job-1").result(0)
    [letter] = queue.dead_letters()
    assert (letter.job, letter.attempts) == (f"{NOW_MS}-1", 1)
    assert not queue.put({"n": "again"}, unique="report").is_new

    seen: list[Any] = []
    for _ in range(3):
        while jobs := queue.get_many(1):
            for job in jobs:
                shown = job.payload["n"] if isinstance(job.payload, dict) else job.payload
                seen.append((job.task or shown, job.attempt))
                job.done()
        clock.ms += 15 * 60_000
    names = [("limited", 1), ("limited", 1), (b"\x00\xff", 1), ("retrying", 2), ("delayed", 1)]
    names += [(name, 1) for name in ("runs", "also runs", "held", "unique", "low")]
    assert sorted(seen, key=repr) == sorted(names, key=repr)
    order = [name for name, _ in seen]
    assert order.index("also runs") < order.index("held")  # of one key
    assert order[-2:] == ["retrying", "delayed"]
    [parked] = other.get_many(9)
    parked.done()
    clock.ms = rule.next_ms
    [nightly] = queue.get_many(9)
    assert nightly.task == "nightly"
    nightly.done()
    assert queue.stats()[:3] == other.stats()[:3] == (0, 0, 0)
    store.close()
    assert [str(one) for one in recovery.check(tmp_path / "store")] == []


# --- the fixtures of `streamkeep.pytest`, as the tests of a program use them ----------------------

pytest_plugins = ["pytester"]

PROGRAM = """
from streamkeep.jobs import Queue

queue = Queue("production.store")

@queue.task
def send(to):
    return f"sent to {to}"
"""

TESTS = """
import asyncio, pathlib, threading, time
from datetime import datetime, timezone

import pytest
import program
from streamkeep import aio
from streamkeep.jobs import Queue

def test_jobs_run_at_once(queue, store):
    ran = []
    task = queue.task(name="note")(ran.append)
    task.delay(1)
    assert ran == [1] and queue.stats().done == 1

def test_the_queue_of_the_program(use_queue):
    use_queue(program.queue)
    assert program.send.delay("ann").result(timeout=0) == "sent to ann"

def test_time_moves_only_when_the_test_says_so(queue, clock):
    ran = []
    task = queue.task(name="note")(ran.append)
    task.options(delay="1h").delay(1)
    assert ran == []
    clock.move("59m")
    assert ran == []
    clock.move("1m")
    assert ran == [1]
    clock.set(datetime(2027, 1, 1, tzinfo=timezone.utc))
    assert clock.now_ms() == 1_798_761_600_000

def test_a_queue_of_asyncio(use_queue, clock):
    queue = use_queue(aio.Queue("production.store"))
    ran = []
    @queue.task
    async def note(number): ran.append(number)
    asyncio.run(queue.delay(note, 1))
    asyncio.run(queue.delay(note.options(delay="1h"), 2))
    clock.move("1h")
    assert ran == [1, 2]

@pytest.mark.queue_worker
def test_a_worker_thread_runs_those_of_asyncio(use_queue):
    queue = use_queue(aio.Queue("production.store"))
    add = queue.task(name="add")(lambda one: one + 1)
    assert add.delay(1).result(timeout=60) == 2

@pytest.mark.queue_worker
def test_a_worker_thread_runs_them(use_queue):
    use_queue(program.queue)
    assert program.send.delay("bob").result(timeout=600) == "sent to bob"

@pytest.mark.queue_worker
def test_the_worker_thread_runs_tasks_that_the_test_declares(queue):
    time.sleep(0.2)  # until the worker waits for a job
    add = queue.task(name="add", max_runtime="1h")(lambda one: time.sleep(0.1) or one + 1)
    assert add.delay(1).result(timeout=60) == 2

def test_the_store_of_the_program_was_never_made():
    assert not pathlib.Path("production.store").exists()
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program=PROGRAM, test_program=TESTS)
    pytester.makeconftest('pytest_plugins = ["streamkeep.pytest"]')
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=8)
