"""The fixtures of `streamkeep.pytest`, as the tests of a program use them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PROGRAM = """
from streamkeep.jobs import Queue

queue = Queue("production.store")

@queue.task
def send(to):
    return f"sent to {to}"
"""

TESTS = """
import pathlib, threading
from datetime import datetime, timezone

import pytest
import program
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

@pytest.mark.queue_worker
def test_a_worker_thread_runs_them(use_queue):
    use_queue(program.queue)
    assert program.send.delay("bob").result(timeout=600) == "sent to bob"

def test_the_store_of_the_program_was_never_made():
    assert not pathlib.Path("production.store").exists()
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program=PROGRAM, test_program=TESTS)
    pytester.makeconftest('pytest_plugins = ["streamkeep.pytest"]')
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=5)
