"""One job that runs in a worker: its handler, its end, for how long it may run, its memory.

`Alarm` wakes the thread that watches over it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from streamkeep.jobs.ending import RUN_GRACE_MS
from streamkeep.jobs.job_calls import end_jobs
from streamkeep.jobs.layout import parse_due
from streamkeep.jobs.tracing import note_outcome, span_of

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job
    from streamkeep.jobs.running import Done, Outcome, Pause
    from streamkeep.jobs.worker_log import Report

FAILED_PAUSE_S: Final = 1.0  # after a failure of the store, such as a full disk


class Alarm:
    """Wakes a thread that waits for it. A signal handler, which may take no lock, may ring it."""

    handle = -1

    def __init__(self) -> None:
        self.handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Wake the thread now, or have its next wait return at once."""
        with suppress(OSError, ValueError):  # it was closed
            os.eventfd_write(self.handle, 1)

    def silence(self) -> None:
        """Forget the rings so far; before the caller looks at what they are about."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.handle)

    def wait(self, seconds: float | None, others: Iterable[int] = ()) -> list[int]:
        """Sleep until it rings, one of other descriptors is readable, or the time is over.

        Returns:
            Those of the others that are readable.
        """
        poller = select.poll()
        for handle in (self.handle, *others):
            poller.register(handle, select.POLLIN)
        ready = poller.poll(None if seconds is None else max(0.0, seconds) * 1000)
        return [handle for handle, _ in ready if handle != self.handle]

    def close(self) -> None:
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    __del__ = close


def on_signals(stop: Callable[[], object], *numbers: int) -> None:
    """Call a function at signals. A child that a handler forks, as a pool does, ends at SIGTERM."""
    mine = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() == mine:
            stop()
        elif number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for one in numbers or (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, handle)


class Run:
    def __init__(self, job: Job, thread: threading.Thread | None, report: Report) -> None:
        self.job = job
        self._context = job.queue.store._environment.context
        self._report = report
        self.task, self.attempt = job.task, job.attempt
        self.thread = thread  # that runs the handler, if the job has one of its own
        self.begun = time.monotonic()
        self.waits = False  # for the store, to be ended
        self.abandoned = False  # it was ended from outside, and its outcome does not count
        self.cancel: Callable[[], None] = lambda: None

    def left_s(self) -> float:
        """Return for how many seconds it may still run; `Job.extend` moves the end."""
        taken = self.job.taken
        # The handler of a job that waits for the store has ended.
        if self.waits or taken is None or not taken.runtime_key or self.job.ended:
            return float("inf")
        # The row of the schedule is there in case this process hangs as a whole, so it is later.
        end_ms = parse_due(taken.runtime_key).due_ms - RUN_GRACE_MS
        return (end_ms - self._context.now_ms()) / 1000

    def again(self, error: Exception) -> float:
        """Return in how many seconds the end of the job is tried again that the store did not take.

        The job did its work, or has failed, and so it must not run again because a disk is full.
        """
        if not self.waits:
            self.waits = True
            self._report.waits(self, error)
        return FAILED_PAUSE_S


async def run_job(run: Run, done: Done | None, pause: Pause) -> Outcome:
    """Run a handler in a span, and end the job; see `running.run_job`.

    Args:
        done: ends the job with its result, in place of `end_soon`.
    """
    job = run.job
    with span_of(job) as span:
        done = done or partial(end_soon, job)
        outcome = await job.queue.core.run_job(job, done, run.again, pause)
        note_outcome(span, outcome.state, outcome.error)
        return outcome


def end_soon(job: Job, result: Any) -> None:
    """End a job with its result, without a wait for the disk; see `Core.sync_of_ends`."""
    core = job.queue.core
    end_jobs(core, [job], [result], sync=core.sync_of_ends())


def resident_bytes(pid: int | str = "self") -> int:
    """Return the memory of a process; 0 if the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
