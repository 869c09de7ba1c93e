"""Fixtures for tests of programs that use stores and queues.

In `conftest.py`, or in a test module:

    pytest_plugins = ["streamkeep.pytest"]

    clock       the time of the stores of the test, which stands still until the test moves it
    store       an empty store
    queue       an empty queue in it, whose jobs run at once, in the test's own thread
    use_queue   makes a queue of the program use that store, and its jobs run at once

With `@pytest.mark.queue_worker`, a worker thread runs the jobs of both instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock, clock_replaced
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.jobs import Queue, Worker
from streamkeep.jobs.options import unix_ms

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_MARK = "queue_worker"
_JOIN_S = 60.0


class TestClock(ManualClock):
    """A clock that a test moves."""

    __test__ = False  # its name begins as that of a class of tests

    def __init__(self, ms: int) -> None:
        super().__init__(ms)
        self._after: list[Callable[[], object]] = []

    def move(self, by: Duration) -> None:
        """Let time pass: seconds, or a text such as "5m". Jobs that become due run.

        With a worker thread, they run within a second.
        """
        self.ms += milliseconds(by, "by")
        self._moved()

    def set(self, moment: datetime) -> None:
        """Set the time to an aware datetime, which may be in the past."""
        self.ms = unix_ms(moment, "moment")
        self._moved()

    def after_move(self, work: Callable[[], object]) -> None:
        """Call a function after each move."""
        self._after.append(work)

    def _moved(self) -> None:
        for work in self._after:
            work()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", f"{_MARK}: a worker thread runs the jobs of the queues")


@pytest.fixture
def clock() -> TestClock:
    """The time of the stores of the test; it begins at 2026-01-01T00:00:00Z."""
    return TestClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: TestClock) -> Iterator[Store[Any]]:
    """An empty store, which is closed after the test. It does not wait for the disk."""
    with clock_replaced(clock), Store(tmp_path / "test.store", sync="none") as opened:
        yield opened


@pytest.fixture
def use_queue(
    store: Store[Any], clock: TestClock, request: pytest.FixtureRequest
) -> Iterator[Callable[[Any], Any]]:
    """A function that makes a queue use the store of the test, and that runs its jobs."""
    by_worker = request.node.get_closest_marker(_MARK) is not None
    with ExitStack() as stack:

        def use(queue: Any) -> Any:  # or that of asyncio
            stack.enter_context(queue.core.moved_to(store, immediate=not by_worker))
            if by_worker:
                stack.enter_context(_working(Worker(queue.core.queue, grace=0)))
            else:
                clock.after_move(queue.core.run_until_idle)
            return queue

        yield use


@pytest.fixture
def queue(store: Store[Any], use_queue: Callable[[Queue], Queue]) -> Queue:
    """An empty queue of the name "default"."""
    return use_queue(Queue(store))


class _working:
    """A worker that runs in a thread for a block."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = threading.Thread(target=worker.run, name="worker of a test", daemon=True)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self._worker

    def __exit__(self, *error: object) -> None:
        self._worker.stop()
        self._thread.join(_JOIN_S)
