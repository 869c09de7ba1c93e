"""The thread in which the asyncio twin of a store writes.

Tasks hand it commands and wait for their futures; it takes all that is there. What came while it
was busy is one batch: one transaction, one disk sync, one call into the event loop, however many
tasks wait for it. So a busy store commits less often, and nobody waits longer than for the batch
before. A command that breaks a rule fails alone, as in a pipeline. When the transaction as a
whole fails, each command of the batch runs again in its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.api.redis_pipeline import convert_all, run_together
from streamkeep.engine.system.failures import copy_of
from streamkeep.format.core.errors import StoreClosedError

if TYPE_CHECKING:
    from streamkeep.engine.txn.txn import WriteTxn

MOST_AT_ONCE: Final = 512

Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Job:
    """Something to run for a task.

    `step` is a command (convert, command, arguments), which shares a transaction with others;
    `alone` runs the command, or whatever else there is to run, without the others.
    """

    def __init__(self, alone: Callable[[], Any], step: Any) -> None:
        self.alone = alone
        self.step = step
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class Worker:
    """One thread, started with its first job, that ends with `stop`."""

    def __init__(self, run_steps: Callable[..., Any], check: Callable[[], object]) -> None:
        """Prepare to run jobs.

        Args:
            check: raises where there can be no thread: in a forked child.
        """
        self._run_steps = run_steps
        self._check = check
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False
        self._stopped = False

    async def run(
        self,
        alone: Callable[[], Any],
        step: Any = None,
    ) -> Any:
        """Run something in the thread and return its result."""
        self._check()
        job = Job(alone, step)
        with self._lock:
            if self._stopped:
                raise StoreClosedError("the store is closed")
            if not self._started:
                threading.Thread(target=self._work, name="streamkeep", daemon=True).start()
                self._started = True  # not where the system granted no thread: jobs would wait
            self._jobs.put(job)
        return await job.future

    def stop(self) -> None:
        """Take no more jobs; end when those there are done."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.put(None)

    # --- in the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        more = True
        while more:
            batch: list[Job] = []
            job = self._jobs.get()
            while job is not None:
                if not job.future.cancelled():  # then its task does not want it any more
                    batch.append(job)
                if len(batch) >= MOST_AT_ONCE or self._jobs.empty():
                    break
                job = self._jobs.get()
            more = job is not None
            self._deliver(self._run_batch(batch))

    def _run_batch(self, batch: list[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        together: list[Job] = []
        for job in batch:
            if job.step is None:
                outcomes += self._run_together(together)
                together = []
                outcomes.append(_run_alone(job))
            else:
                together.append(job)
        return outcomes + self._run_together(together)

    def _run_together(self, jobs: list[Job]) -> list[Outcome]:
        if len(jobs) > 1:
            txns: list[WriteTxn] = []
            steps = [job.step for job in jobs]
            together = run_together(steps)
            run_all = together.run

            def run(txn: WriteTxn, steps: list[Any]) -> object:
                txns.append(txn)
                return run_all(txn, steps)

            together.run = run
            try:
                results = self._run_steps(together)
            except BaseException as error:  # nothing may end the thread: its tasks would wait
                if txns and txns[-1].committed:
                    return [(job.future, None, copy_of(error)) for job in jobs]
                # Nothing was changed; whose fault it was comes out below.
            else:
                return [
                    (job.future, *outcome)
                    for job, outcome in zip(jobs, convert_all(steps, results), strict=True)
                ]
        return [_run_alone(job) for job in jobs]

    def _deliver(self, outcomes: list[Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        for outcome in outcomes:
            by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
        for loop, its in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, its)
            except RuntimeError:  # the loop was closed; nobody waits any more
                continue


def _run_alone(job: Job) -> Outcome:
    try:
        return job.future, job.alone(), None
    except StopIteration as stop:  # a future takes any error but this
        error = RuntimeError(f"the function raised {stop!r}")
        error.__cause__ = stop
        return job.future, None, error
    except BaseException as error:
        return job.future, None, error


def _resolve(outcomes: list[Outcome]) -> None:
    """Hand results to the tasks; in the event loop."""
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
