"""Workers in processes: a parent that runs no handler, and children that run one job at a time.

The parent forks each child, and replaces one that ends: after a crash, after its memory grew beyond
the limit, or after a handler that ran too long. It opens no store and starts no thread, so that it
can fork at any time.

Two pipes connect parent and child. Through one the child says which job it runs, so that the parent
can kill a child that hangs as a whole. Through the other the parent says `s` (stop) and `n` (now).
The other end of it closes when the parent dies, which is a stop as well. Children do not react to
Ctrl-C, which the terminal sends to all processes, but to the parent only.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final

from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.values import whole
from streamkeep.jobs.ending import RUN_GRACE_MS
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.worker import EXIT_RECYCLED, Worker
from streamkeep.jobs.worker_log import Report, log
from streamkeep.jobs.worker_runs import Alarm, Run, on_signals, resident_bytes

if TYPE_CHECKING:
    from streamkeep.jobs.running import Outcome

_EARLY_S: Final = 1.0  # a child that ends so soon has not worked
_MOST_EARLY: Final = 5  # rounds with such an end in a row, after which the parent gives up
_LONGEST_PAUSE_S: Final = 5.0
_TICK_S: Final = 0.5
_KILL_AFTER_S: Final = 5.0  # beyond the time of grace
_LAST_S: Final = 30.0  # for what is done beside, after the last worker
# Beyond the limit of a run: by then the row of the schedule is due, with which the next take books
# a failed attempt. Before, the death of the process would count in place of it.
_HANGS_S: Final = RUN_GRACE_MS / 1000 + 0.5
_LARGE_S: Final = 2.0  # in which a child itself ends when it has too much memory


class Child:
    def __init__(self, pid: int, orders: int, events: int, *, works: bool) -> None:
        self.pid = pid
        self.works = works  # else it does what is done beside
        self.orders = orders  # the parent writes to it
        self.events = events  # the parent reads from it
        self.begun = time.monotonic()
        self.job = ""  # what it runs
        self.worked = False  # it has begun to run a job
        self.kill_at = float("inf")
        self.large_since = float("inf")  # it has more memory than it may
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        with suppress(BlockingIOError):
            self._rest += os.read(self.events, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def order(self, what: bytes) -> None:
        """Tell it to stop, if it lives."""
        with suppress(OSError):
            os.write(self.orders, what)

    def close(self) -> None:
        os.close(self.orders)
        os.close(self.events)


class ChildReport(Report):
    """What a child reports: to the log, and to its parent, which itself begins, stops and ends."""

    abandons = "its process ends"

    def __init__(self, events: int) -> None:
        self._events = events

    def _nothing(self, *facts: Any, **more: Any) -> None:
        """Report nothing: the parent does."""

    begun = stopping = ended = _nothing

    def started(self, run: Run) -> None:
        left = run.left_s()
        self._tell(job=run.job.id, left=None if left == float("inf") else left)

    extended = started

    def waits(self, run: Run, error: Exception) -> None:
        super().waits(run, error)
        self._tell(job=run.job.id, left=None)  # it waits for the store, and does not hang

    def ran(self, run: Run, outcome: Outcome) -> None:
        super().ran(run, outcome)
        self._tell(job="", left=None)

    def too_long(self, run: Run) -> None:
        super().too_long(run)
        self._tell(job="", left=None)  # the job is ended first, and this process with it

    def _tell(self, **event: Any) -> None:
        with suppress(OSError):
            os.write(self._events, json.dumps(event).encode() + b"\n")


class Processes:
    """Runs the handlers of queues in child processes, one job in each."""

    def __init__(
        self,
        queues: Sequence[Queue],
        *,
        concurrency: int = 1,
        grace: Duration = 30,
        max_memory: int = 0,
        beside: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        """Name the queues; the children open their stores.

        Args:
            concurrency: the number of children.
            grace: how long jobs may go on after `stop`.
            max_memory: bytes; a child that has more, during a job or after it, is replaced; 0 for
                no limit. See `Worker`.
            beside: what one more child does, from before the others begin to work until all of them
                have ended: such as shipping the store, since this process opens none.
        """
        self.queues = list(queues)
        self._concurrency = whole(concurrency, "concurrency", 1, 1000)
        self._grace_s = milliseconds(grace, "grace") / 1000
        self._max_memory = max_memory
        self._report = Report()
        self._beside = beside
        self._children: dict[int, Child] = {}
        self._stops = 0
        self._early = 0
        self._wait_until = 0.0  # before this time, no child is started
        self._alarm = Alarm()

    def stop(self) -> None:
        """Stop all children, with grace at the first call; may be called by a signal handler."""
        self._stops += 1
        self._alarm.ring()

    def run(self) -> bool:
        self._report.begun(self.queues, self._concurrency, "processes")
        told = 0
        alone = False
        deadline = float("inf")
        while True:
            if not self._stops:
                workers = sum(child.works for child in self._children.values())
                missing = [True] * (self._concurrency - workers)
                if self._beside is not None and workers == len(self._children):
                    missing.insert(0, False)
                while missing and time.monotonic() >= self._wait_until:
                    self._start(works=missing.pop(0))
            elif told < min(self._stops, 2):
                told = min(self._stops, 2)
                grace_s = self._grace_s if told == 1 else 0.0
                deadline = time.monotonic() + grace_s + _KILL_AFTER_S
                running = sum(bool(child.job) for child in self._children.values())
                self._report.stopping(running, grace_s)
                for child in self._children.values():
                    if child.works:
                        child.order(b"sn"[told - 1 : told])
            if self._stops and not any(child.works for child in self._children.values()):
                if not self._children:
                    break
                if not alone:  # what the workers have done is not shipped yet
                    alone = True
                    deadline = time.monotonic() + _LAST_S
                    for child in self._children.values():
                        child.order(b"s")
            self._sleep()
            self._reap()
            now = time.monotonic()
            for child in self._children.values():
                self._watch_memory(child, now)
                if now >= min(child.kill_at, deadline):
                    doing = f"in job {child.job}" if child.works else "in its last step"
                    log.error("process %d hangs %s and is killed", child.pid, doing)
                    child.kill_at = float("inf")
                    os.kill(child.pid, signal.SIGKILL)
        self._report.ended()
        return self._early < _MOST_EARLY

    def _watch_memory(self, child: Child, now: float) -> None:
        """Have a child killed that is too large and does not end: no other of its threads runs."""
        if not self._max_memory or not child.works or resident_bytes(child.pid) <= self._max_memory:
            child.large_since = float("inf")
        elif now >= (since := min(child.large_since, now)) + _LARGE_S:
            child.large_since = float("inf")
            child.kill_at = now
        else:
            child.large_since = since

    def _sleep(self) -> None:
        """Sleep until a child says something or ends, or `stop` is called."""
        by_events = {child.events: child for child in self._children.values()}
        for events in self._alarm.wait(_TICK_S, by_events):
            self._hear(by_events[events])
        self._alarm.silence()

    def _hear(self, child: Child) -> None:
        for event in child.read():
            child.job, child.worked = event["job"], True
            child.kill_at = float("inf")
            if event["left"] is not None:
                child.kill_at = time.monotonic() + event["left"] + _HANGS_S

    # --- children -------------------------------------------------------------------------------

    def _start(self, *, works: bool) -> None:
        orders_read, orders = os.pipe()
        events, events_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for child in self._children.values():
                    child.close()
                os.close(orders)
                os.close(events)
                self._alarm.close()
                be = self._be_child if works else self._be_beside
                status = be(orders_read, events_write)
            except BaseException:
                log.exception("a worker process failed")
            finally:
                with suppress(BaseException):
                    logging.shutdown()
                os._exit(status)
        os.close(orders_read)
        os.close(events_write)
        os.set_blocking(events, False)
        os.set_blocking(orders, False)
        self._children[pid] = Child(pid, orders, events, works=works)

    def _be_child(self, orders: int, events: int) -> int:
        worker = Worker(
            self.queues,
            grace=self._grace_s,
            exits=True,
            max_memory=self._max_memory,
            report=ChildReport(events),
        )

        def obey() -> None:
            while order := os.read(orders, 1):  # b"" when the parent has died
                worker.stop_once(now=order == b"n")
            worker.stop_once()

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        on_signals(worker.stop_once, signal.SIGTERM)
        threading.Thread(target=obey, name="streamkeep orders", daemon=True).start()
        worker.run()
        for queue in self.queues:
            queue.close()
        return EXIT_RECYCLED if worker.recycled else 0

    def _be_beside(self, orders: int, events: int) -> int:
        assert self._beside is not None
        for number in (signal.SIGINT, signal.SIGTERM):  # which all processes may get
            signal.signal(number, signal.SIG_IGN)
        with self._beside():
            os.read(orders, 1)  # returns when the parent says so, or has died
        return 0

    def _reap(self) -> None:
        """Note which children have ended."""
        for pid, child in list(self._children.items()):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # who started this process has had it ignore SIGCHLD
                found, status = pid, 0
            if not found:
                continue
            self._hear(child)
            child.close()
            del self._children[pid]
            code = os.waitstatus_to_exitcode(status)
            if self._stops:
                continue
            early = not child.worked and time.monotonic() - child.begun < _EARLY_S
            if not early:
                self._early = 0
                self._wait_until = 0.0
                for queue in self.queues:  # the child had opened the store; if it is gone, it was
                    queue.core.creates = False  # moved, and the next child is not to make another
            elif child.begun >= self._wait_until:  # the others that began with it tell no more
                self._early += 1
                pause = min(_LONGEST_PAUSE_S, 0.1 * 2**self._early)
                self._wait_until = time.monotonic() + pause
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            what = f" while it ran job {child.job}" if child.job else ""
            log.log(
                logging.INFO if code == EXIT_RECYCLED else logging.ERROR,
                "process %d %s%s; another one takes its place",
                pid,
                how,
                what,
                extra={"streamkeep": {"event": "child_ended", "status": code, "job": child.job}},
            )
            if self._early >= _MOST_EARLY:
                log.error(
                    "processes ended without work %d times in a row; the worker gives up",
                    self._early,
                )
                self.stop()
