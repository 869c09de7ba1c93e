"""Workers: processes that take the jobs of queues and run their handlers.

    worker = Worker(queue, concurrency=4)
    worker.run()                             # until `stop`, from any thread or a signal handler

One process, in one of two modes. With *threads*, each thread takes and runs one job at a time.
With *asyncio*, one event loop runs `concurrency` jobs at a time; handlers that are ordinary
functions run in threads. `worker_processes` runs one such worker with one thread in each child.

A job is taken when there is room to run it, never before. So stopping returns only jobs that
run. The thread that calls `run` watches over the others:

1. A job that runs longer than its `max_runtime` ends as a failed attempt. Its thread is abandoned,
   since Python cannot end a thread, and another one takes its place.
2. After `stop`, no job is taken. Jobs that still run after the time of grace are given back to the
   queue, which counts as no attempt. Their threads are abandoned, and end with the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from streamkeep.engine.system.locks import reentrant_lock
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError, StoreClosedError, StreamkeepError
from streamkeep.format.core.values import as_given, whole
from streamkeep.jobs import worker_runs
from streamkeep.jobs.errors import QueueError
from streamkeep.jobs.handler_errors import FOR_GOOD, kind_of, return_job, text_of
from streamkeep.jobs.queue import Queue
from streamkeep.jobs.running import at_once, block
from streamkeep.jobs.take_call import Take, known_tasks, take
from streamkeep.jobs.worker_log import Report, Told, log

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job
    from streamkeep.jobs.running import Done, Outcome

Result = TypeVar("Result")
Mode = Literal["threads", "asyncio"]

EXIT_HUNG: Final = 70  # of a process whose handler ran too long
EXIT_RECYCLED: Final = 75  # of a process whose memory grew too large

_MODES: Final = ("threads", "asyncio")
_TICK_S: Final = 1.0
_MEMORY_TICK_S: Final = 0.1  # between looks at the memory while a job runs
_JOIN_S: Final = 5.0  # for threads that are about to end


class Worker:
    """Takes the jobs of one queue, or of several in one store, and runs their handlers.

    The end of a job that did its work is on disk soon, not at once; see `Core.sync_of_ends`.
    """

    def __init__(
        self,
        queues: Queue | Sequence[Queue],
        *,
        concurrency: int = 1,
        mode: Mode = "threads",
        grace: Duration = 30,
        exits: bool = False,
        max_memory: int = 0,
        report: Report | None = None,
    ) -> None:
        """Make a worker; it begins with `run`.

        Args:
            queues: several are of one store, and take turns.
            concurrency: how many jobs run at a time.
            mode: "threads", or "asyncio" for an event loop.
            grace: how long jobs may go on after `stop`: seconds, or a text such as "30s".
            exits: end the process in place of abandoning a thread; for one that is replaced.
            max_memory: end after a job that leaves the process with more bytes; 0 for no limit.
                With `exits`, also during a job: that attempt has failed if it is the first job of
                the process, else the job is given back.
            report: receives what happens; by default, the logger `streamkeep.worker`.

        Raises:
            ArgumentError: an argument is out of range.
        """
        self.queues: list[Queue] = list(queues) if isinstance(queues, Sequence) else [queues]
        if not self.queues or not all(isinstance(one, Queue) for one in self.queues):
            raise ArgumentError(f"a worker needs queues, not {as_given(queues)}")
        if mode not in _MODES:
            raise ArgumentError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
        self.concurrency = whole(concurrency, "concurrency", 1, 10_000)
        self.mode = mode
        self.recycled = False  # it ended because of its memory
        self._grace_s = milliseconds(grace, "grace") / 1000
        self._exits = exits
        self._max_memory = whole(max_memory, "max_memory", 0)
        self._report = report or Report()
        self._lock = reentrant_lock()
        self._runs: set[worker_runs.Run] = set()
        self._threads: set[threading.Thread] = set()
        self._stopping = False
        self._now = False  # stop without grace
        self._over = False  # it returns what runs, and begins no more
        self._told = Told(log, "no job can be taken, trying again: %s")
        self._ran = 0  # jobs that have ended here
        self._error: BaseException | None = None  # because of which it stops
        self._alarm = worker_runs.Alarm()

    # --- life -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Take and run jobs until `stop`; then finish, or return, those that run.

        Raises:
            QueueError: the worker ended because of an error that is in none of its jobs.
        """
        while not self._stopping:
            with self._patience():
                for queue in self.queues:
                    queue.register_periodic()
                break
        self._report.begun(self.queues, self.concurrency, self.mode)
        try:
            if self.mode == "threads":
                for _ in range(self.concurrency):
                    self._start(self._run_jobs, "streamkeep worker")
            else:
                self._start(lambda: asyncio.run(self._run_tasks()), "streamkeep worker loop")
            self._watch()
        except BaseException:  # Ctrl-C, in a program without a handler of it
            self.stop_once(now=True)
            self._watch()
            raise
        self._report.ended()
        if self._error is not None:
            kind, text = kind_of(self._error), text_of(self._error)
            raise QueueError(f"the worker ended because of an error: {kind}: {text}")

    def stop(self) -> None:
        """Take no more jobs, and end when those that run have ended; at the second call, at once.

        May be called in any thread, and by a signal handler.
        """
        self.stop_once(now=self._stopping)

    def stop_once(self, *, now: bool = False) -> None:
        """Do as the first call of `stop`; with `now`, as the second; again, nothing."""
        self._now = self._now or now
        self._stopping = True
        self._alarm.ring()

    def run_until_idle(self) -> int:
        """Run, in the calling thread, the jobs that are due, until there are none; for tests.

        Returns:
            How many jobs ran.
        """
        ran, cores = 0, [queue.core for queue in self.queues]
        while some := sum(core.run_until_idle(watch=self._reported) for core in cores):
            ran += some
        return ran

    def _reported(self, job: Job) -> Callable[[Outcome], None]:
        """Report that a job begins; return what reports its outcome."""
        run = worker_runs.Run(job, None, self._report)
        self._report.started(run)
        return partial(self._report.ran, run)

    @property
    def running(self) -> list[Job]:
        """The jobs that run now."""
        return [run.job for run in self._runs_now()]

    def _runs_now(self) -> list[worker_runs.Run]:
        with self._lock:
            return list(self._runs)

    # --- the watch ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch over the jobs that run, until the worker has stopped."""
        woken, deadline = False, float("inf")
        while True:
            if self._stopping:
                if not woken:
                    woken = True
                    deadline = time.monotonic() + self._grace_s
                    self._report.stopping(len(self.running), self._grace_s)
                for queue in self.queues:  # end the waits of the threads that take jobs
                    with suppress(StreamkeepError):
                        queue.store.ask_stops()
                with self._lock:
                    if not self._runs and not any(one.is_alive() for one in self._threads):
                        break
                if self._now or time.monotonic() >= deadline:
                    with self._lock:
                        self._over = True
                    for run in self._runs_now():
                        if self._abandon(run):
                            self._return(run)
                            run.cancel()
                    break
            left = min(_TICK_S, deadline - time.monotonic(), self._end_late())
            if self._max_memory and self._exits and self._runs:
                self._end_large()
                left = min(left, _MEMORY_TICK_S)
            self._alarm.wait(max(0.001, left + 0.001))
            self._alarm.silence()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(_JOIN_S if not self._now else 0.1)

    def _end_late(self) -> float:
        """End the jobs that have run too long; return in how many seconds the next one does."""
        least = _TICK_S
        for run in self._runs_now():
            left = run.left_s()
            if left > 0:
                least = min(least, left)
            elif self._abandon(run):
                self._report.too_long(run)
                limit_ms = run.job.queue.core.policy_of(run.job.fields).max_runtime_ms
                text = f"it ran longer than max_runtime, {limit_ms / 1000:g} s"
                error = "builtins.TimeoutError", text, ""
                self._end_outside(run, partial(run.job.end_attempt, error))
                if self._exits:
                    os._exit(EXIT_HUNG)
                run.cancel()
                if self.mode == "threads" and not self._stopping:
                    self._start(self._run_jobs, "streamkeep worker")
        return least

    def _end_large(self) -> None:
        """End the process if the job that runs has brought it above its memory limit."""
        used = worker_runs.resident_bytes()
        if used <= self._max_memory:
            return
        runs = [run for run in self._runs_now() if self._abandon(run)]
        if not runs:
            return  # its job has ended, which `_check_memory` follows
        self._report.too_large(used, self._max_memory)
        for run in runs:
            if self._ran:  # it may be the fault of the jobs before
                self._return(run)
            else:
                had = f"the process had {used:,} bytes of memory"
                text = f"{had}, the limit is {self._max_memory:,}"
                end = partial(run.job.end_attempt, ("builtins.MemoryError", text, ""))
                self._end_outside(run, end)
        os._exit(EXIT_RECYCLED)

    def _abandon(self, run: worker_runs.Run) -> bool:
        """Stop waiting for a job; return False if it has ended in the meantime."""
        with self._lock:
            if run not in self._runs:
                return False
            self._runs.discard(run)
            if run.thread is not None:
                self._threads.discard(run.thread)
            run.abandoned = True
            return True

    def _return(self, run: worker_runs.Run) -> None:
        if self._end_outside(run, run.job.give_back):
            self._report.given_back(run)

    def _end_outside(self, run: worker_runs.Run, end: Callable[[], object]) -> bool:
        """End a job that was abandoned; return whether that was possible.

        If it is not, another worker takes the job when the lease of this process ends with it.
        """
        try:
            end()
        except StreamkeepError as error:
            log.warning("job %s was not ended by the worker that watches it: %s", run.job.id, error)
            return False
        return True

    # --- threads --------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._stop_because_of(error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
            self._alarm.ring()

    def _stop_because_of(self, error: BaseException) -> None:
        """Stop because of an error that `run` then raises."""
        if not isinstance(error, StoreClosedError):  # which the program has closed
            log.error("the worker stops because of an error", exc_info=error)
            self._error = self._error or error
        self.stop_once()

    def _take(self, count: int) -> list[Job]:
        """Take jobs; [] when the worker stops."""
        jobs: list[Job] = []
        with self._patience():
            its, known = self.queues, known_tasks(self.queues)
            jobs = take(
                its, its[0].consumer, count, known=known, stop=lambda: self._stopping, begins=False
            )
            self._told.over()
        return jobs

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Log why the store cannot do what the block wants, such as a full disk, and wait."""
        try:
            yield
        except (*FOR_GOOD, ArgumentError):  # such as for queues of several stores
            raise  # a worker that is started again opens the store again
        except StreamkeepError as error:
            self._told.tell(error)
            time.sleep(worker_runs.FAILED_PAUSE_S)

    def _run_jobs(self) -> None:
        """Take and run one job at a time, in this thread.

        A job that did its work ends in the transaction that takes the next one.
        """
        runner: asyncio.Runner | None = None
        jobs: list[Job] = []
        try:
            while not self._stopping:
                jobs = jobs or self._take(1)
                if not jobs:
                    continue
                job = jobs.pop()
                task = job.queue.core.task_of(job)
                run = self._begin(job, thread=threading.current_thread())
                if run is None:
                    jobs.append(job)  # it goes back
                    break
                done = partial(self._done, job, jobs)
                try:
                    if task is not None and task.is_async:
                        runner = runner or asyncio.Runner()
                        outcome = runner.run(self._run_coroutine(run, done))
                    else:
                        outcome = at_once(worker_runs.run_job(run, done, block))
                except asyncio.CancelledError:  # of one that was abandoned, or cancelled itself
                    return_job(job)
                    if not self._end(run):
                        return
                    continue
                except BaseException:
                    self._end(run)
                    return_job(job)
                    raise
                if not self._end(run):
                    return  # another thread has taken its place
                self._report.ran(run, outcome)
                self._check_memory()
        finally:
            for job in jobs:
                return_job(job)
            if runner is not None:
                runner.close()

    def _done(self, job: Job, following: list[Job], result: Any) -> None:
        """End a job with its result, and take the next one if the worker goes on."""
        if self._stopping or self._max_memory:
            worker_runs.end_soon(job, result)
        else:
            queues, known = self.queues, known_tasks(self.queues)
            call = Take(queues, queues[0].consumer, 1, known, begins=False)
            following += call.after(job, result, job.queue.core.sync_of_ends())

    async def _run_coroutine(self, run: worker_runs.Run, done: Done | None) -> Outcome:
        _let_cancel(run)
        return await worker_runs.run_job(run, done, asyncio.sleep)

    def _begin(self, job: Job, thread: threading.Thread | None) -> worker_runs.Run | None:
        """Begin a job; return None if nobody watches over it any more."""
        run = worker_runs.Run(job, thread, self._report)
        job.extended = partial(self._report.extended, run)
        with self._lock:
            if self._over:
                return None
            self._runs.add(run)
        job.begin()
        if run.left_s() < _TICK_S or (self._max_memory and self._exits):
            self._alarm.ring()  # the watch must not sleep past its end
        self._report.started(run)
        return run

    def _end(self, run: worker_runs.Run) -> bool:
        """Note that a job has ended; return False if it was abandoned."""
        with self._lock:
            self._ran += run in self._runs
            self._runs.discard(run)
            return not run.abandoned

    def _check_memory(self) -> None:
        if self._max_memory and not self._stopping:
            used = worker_runs.resident_bytes()
            if used > self._max_memory:
                self.recycled = True
                self._report.too_large(used, self._max_memory)
                self.stop()

    # --- asyncio --------------------------------------------------------------------------------

    async def _run_tasks(self) -> None:
        """Take jobs when there is room, and run them as tasks."""
        room = asyncio.Semaphore(self.concurrency)
        tasks: dict[asyncio.Task[None], Job] = {}
        while not self._stopping:
            count = 0
            while not count or not room.locked():
                await room.acquire()
                count += 1
            if self._stopping:  # since then: it might take again what the watch has given back
                break
            try:
                jobs = await _in_thread(partial(self._take, count))
            except Exception as error:  # such as for lack of a thread
                self._stop_because_of(error)  # what runs has its time
                break
            for _ in range(count - len(jobs)):
                room.release()
            for job in jobs:
                task = asyncio.create_task(self._run_task(job, room))
                tasks[task] = job
                task.add_done_callback(tasks.pop)
        while tasks:
            last = self._now  # in which the watch gives back what runs
            await asyncio.wait(tasks, timeout=_TICK_S)
            if last:
                break
        for job in tasks.values():  # `asyncio.run` cancels their tasks, which is no failure
            return_job(job)

    async def _run_task(self, job: Job, room: asyncio.Semaphore) -> None:
        run = self._begin(job, thread=None)
        if run is None:
            return_job(job)
            room.release()
            return
        _let_cancel(run)
        task = job.queue.core.task_of(job)
        try:
            if task is not None and task.is_async:
                outcome = await self._run_coroutine(run, None)
            else:
                outcome = await _in_thread(lambda: at_once(worker_runs.run_job(run, None, block)))
            if self._end(run):
                self._report.ran(run, outcome)
                self._check_memory()
        except Exception as error:  # nobody waits for this task
            self._stop_because_of(error)
            return_job(job)
        finally:
            self._end(run)
            room.release()
            self._alarm.ring()


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Run a function in a thread of its own, which keeps no process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def finish(set_it: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            finished = partial(finish, future.set_result, work())
        except BaseException as error:
            finished = partial(finish, future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finished)

    threading.Thread(target=run, name="streamkeep handler", daemon=True).start()
    return await future


def _let_cancel(run: worker_runs.Run) -> None:
    """Have `cancel` of a run cancel the asyncio task that calls."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(task.cancel)

    run.cancel = cancel
