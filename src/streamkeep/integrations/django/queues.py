"""The queue of a project: a queue of `streamkeep.jobs` that runs tasks as Django defines it.

A job names the path of its function, such as `shop.tasks.send`. The function is imported when its
first job comes, outside of any transaction. A process that cannot import it, because it has another
version of the program, leaves that job and all others of that name to processes that can.

The record of a task is written in the transaction that ends the attempt. So its result and its
acknowledgement are there together, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from streamkeep.engine.api.views import Transaction
from streamkeep.format.core.durations import Duration
from streamkeep.integrations.django import interface
from streamkeep.integrations.django.records import FAILED, SUCCESSFUL, Record, expire_left
from streamkeep.integrations.django.records import load as load_record
from streamkeep.integrations.django.records import save as save_record
from streamkeep.integrations.django.results import add_attempts, result_of, task_at
from streamkeep.jobs import Job, JobLostError, PayloadError, Queue, UnknownTaskError, running
from streamkeep.jobs import Task as QueueTask
from streamkeep.jobs.core import Core
from streamkeep.jobs.enqueue import check_room
from streamkeep.jobs.handler_errors import (
    DONE,
    GIVEN_UP,
    LOST,
    RETRYING,
    STORE_FAILS,
    return_job,
    texts_of,
)
from streamkeep.jobs.job import current
from streamkeep.jobs.layout import TASK, short
from streamkeep.jobs.options import DEFAULT_BACKOFF, Options
from streamkeep.jobs.putting import collect, is_follow_up, plan_put
from streamkeep.jobs.state import Step

log = logging.getLogger("streamkeep.django")

RESULT_HEADER: Final = "django-result"
BACKEND_HEADER: Final = "django-backend"


class QueueSettings(NamedTuple):
    """The options of a backend that its queues have."""

    retries: int = 0
    backoff: Any = DEFAULT_BACKOFF
    result_ttl: Duration = "7d"
    max_runtime: Duration = 0
    max_deaths: int = 5
    max_result_bytes: int = 1 << 20
    sync: Any = "commit"


class Possible(Collection[bytes]):
    """The names of the tasks that a process may have: all but those that it failed to import."""

    def __init__(self) -> None:
        self.failed: set[bytes] = set()

    def __contains__(self, name: object) -> bool:
        return name not in self.failed

    def __iter__(self) -> Iterator[bytes]:
        return iter(())  # they cannot be listed

    def __len__(self) -> int:
        return 0


class Run:
    def __init__(self, job: Job, task: Any, result: Any, record: Record) -> None:
        self.job = job
        self.task = task
        self.result = result  # Django's, with the status RUNNING
        self.record = record
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args = self.record.args
        if self.task.takes_context:
            args = [interface.TaskContext(task_result=self.result), *args]
        return args, self.record.kwargs

    def send(self, signal: Any) -> None:
        signal.send(sender=type(self.task.get_backend()), task_result=self.result)


class TaskCore(Core):
    """What is below a queue of Django's tasks.

    Attributes:
        new_threads: each handler has a thread of its own, whose connections are to be closed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.new_threads = False
        self.possible = Possible()
        self._looked_at = ""  # the last record that `expire_left` saw
        self.most_payload = min(self.most_payload, self.max_result_bytes)  # its record has it, too

    # --- tasks ----------------------------------------------------------------------------------

    def known_tasks(self) -> Collection[bytes]:
        """Return the names of the tasks that this process has not failed to import."""
        return self.possible

    def task_of(self, job: Job) -> QueueTask[Any, Any] | None:
        """Return the task of a job, which is imported; None if this program does not have it."""
        path, name = job.task, job.fields.get(TASK, b"")
        known = self.tasks.get(name)
        if known is None:
            try:
                task = task_at(path)
            except Exception as error:  # of the module: any can happen
                if name not in self.possible.failed:
                    log.error("the task %r cannot be imported: %r", path, error)
                self.possible.failed |= {name, short(name)}
                return None
            known = self.tasks[name] = QueueTask(self.queue, task.func, {"name": path})
        return known

    # --- run ------------------------------------------------------------------------------------

    async def run_job(
        self,
        job: Job,
        done: running.Done | None = None,
        again: running.Again | None = None,
        pause: running.Pause = asyncio.sleep,
    ) -> running.Outcome:
        """Run a task and end its job; what the task raises does not leave this call.

        Args:
            done: not used: a job ends in the transaction that writes its record.
            again, pause: see `running.run_job`.
        """
        plain = pause is running.block
        if plain:
            close_old_connections()
        token = current.set(job)
        try:
            run = await running.end_when_possible(partial(self._begin, job), again, pause)
            if isinstance(run, running.Outcome):
                return run
            try:
                if plain:
                    run.send(interface.task_started)
                else:
                    sender = type(run.task.get_backend())
                    await interface.task_started.asend(sender=sender, task_result=run.result)
                args, kwargs = run.arguments
                task = run.task
                value = task.call(*args, **kwargs) if plain else await task.acall(*args, **kwargs)
                end = self._succeed(run, value)
            except BaseException as error:
                if running.is_interrupt(error, again) and not isinstance(error, SystemExit):
                    raise  # as Django has it: an exit is a failure
                end = partial(self._fail, run, error)
            return await running.end_when_possible(end, again, pause)
        except BaseException:
            return_job(job)
            raise
        finally:
            current.reset(token)
            if plain and self.new_threads:
                connections.close_all()
            elif plain:
                close_old_connections()
            else:
                with suppress(RuntimeError):  # called by a program that itself runs in a coroutine
                    await sync_to_async(close_old_connections)()

    def _begin(self, job: Job) -> Run | running.Outcome:
        """Begin an attempt; return an outcome if it cannot begin."""
        begun = time.monotonic()
        try:
            if self.task_of(job) is None:
                raise UnknownTaskError(f"this program has no task {job.task!r}")
            return self._prepare_run(job)
        except STORE_FAILS:
            raise
        except Exception as error:
            return running.failed(job, error, time.monotonic() - begun)

    def _prepare_run(self, job: Job) -> Run:
        args, kwargs = running.arguments_of(job)
        headers = job.headers
        result_id = headers.get(RESULT_HEADER, job.id)
        record = self.read(lambda one: load_record(one, result_id))
        if record is None:  # it has expired, and a dead letter was requeued
            backend = headers.get(BACKEND_HEADER, "default")
            record = Record(self.name, job.task, backend, enqueued=job.queued_ms)
        if job.attempt > 1:
            add_attempts(record, job.history())
        now_ms = time.time_ns() // 1_000_000
        record.job, record.status, record.finished, record.value = job.id, "", 0, None
        record.started, record.attempted = record.started or now_ms, now_ms
        record.args, record.kwargs = args, kwargs
        record.workers = [*record.workers, self.consumer.decode()]
        result = result_of(result_id, record, interface.TaskResultStatus.RUNNING)
        return Run(job, result.task, result, record)

    # --- end ------------------------------------------------------------------------------------

    def _succeed(self, run: Run, value: Any) -> Callable[[], running.Outcome]:
        job, record = run.job, run.record
        if job.ended:  # the task did it
            return partial(running.Outcome, DONE, run.seconds)
        record.value = interface.normalize_json(value)
        record.finished, record.status = time.time_ns() // 1_000_000, SUCCESSFUL
        size = len(json.dumps(record.value, separators=(",", ":"), ensure_ascii=False).encode())
        if size > self.max_result_bytes:
            record.value = None
            raise PayloadError(
                f"the result of task {run.result.id} has {size:,} bytes, at most "
                f"{self.max_result_bytes:,} are kept; next: return the name of what is large"
            )
        ttl_ms = self.policy_of(job.fields).result_ttl_ms
        job.transaction.collect(
            lambda txn: self._save_end(txn.as_bytes(), run.result.id, record, ttl_ms)
        )
        return partial(self._done, run)

    def _done(self, run: Run) -> running.Outcome:
        try:
            run.job.done()
        except JobLostError as error:
            log.warning("%s; its result is dropped", error)
            return running.Outcome(LOST, run.seconds, error)
        except STORE_FAILS:  # the work was done, and this is no failure
            raise
        except Exception as error:
            return self._fail(run, error)
        _show(run, interface.TaskResultStatus.SUCCESSFUL)
        return running.Outcome(DONE, run.seconds)

    def _fail(self, run: Run, error: BaseException) -> running.Outcome:
        """End an attempt whose task has raised: a retry, or a dead letter."""
        job = run.job
        if job.ended:
            return running.failed(job, error, run.seconds)
        kind, _, lines = texts_of(error)
        errors = [*run.record.errors, [kind, lines]]  # of a copy: the store may be full
        record = replace(run.record, errors=errors, value=None, status="", finished=0)
        ttl_ms = self.policy_of(job.fields).result_ttl_ms
        with self.store.transaction() as txn:
            outcome = running.failed(job, error, run.seconds)
            if outcome.state == RETRYING:
                kept = replace(record, args=[], kwargs={})
                save_record(txn.as_bytes(), run.result.id, kept, ttl_ms)
            elif outcome.state == GIVEN_UP:
                record.finished, record.status = time.time_ns() // 1_000_000, FAILED
                self._save_end(txn.as_bytes(), run.result.id, record, ttl_ms)
        if outcome.state == GIVEN_UP:
            run.record = record
            _show(run, interface.TaskResultStatus.FAILED)
        return outcome

    def _save_end(self, txn: Transaction[Any], result_id: str, record: Record, ttl_ms: int) -> None:
        save_record(txn, result_id, record, ttl_ms)
        self._looked_at = expire_left(txn, self._looked_at, ttl_ms)


class TaskQueue(Queue):
    """A queue of Django's tasks; a process has one object per store and queue."""

    _core_type = TaskCore
    core: TaskCore

    def __init__(self, path: str | Path, name: str, settings: QueueSettings) -> None:
        options = settings._asdict()
        max_runtime = options.pop("max_runtime")
        super().__init__(path, name, **options)
        self.core.policy = self.core.policy.with_options({"max_runtime": max_runtime})

    # --- put ------------------------------------------------------------------------------------

    def prepare(
        self,
        result_id: str,
        record: Record,
        at: datetime | None,
        headers: Mapping[str, str] | None = None,
        *,
        later: bool = False,
    ) -> Callable[[], None]:
        """Check a task; return what puts its job and writes its record, in one transaction.

        What that returns raises QueueFullError or QueueDrainingError, and nothing was put.

        Args:
            headers: the context of a trace, if it is not that of this thread.
            later: what this returns is called after the commit of a database, when nobody can be
                refused any more. So the room in the queue is checked here, and not there.

        Raises:
            PayloadError: the arguments are too large, or are not JSON.
            ArgumentError: the time is none that a job may have.
            QueueFullError, QueueDrainingError: with `later`.
        """
        if later and not is_follow_up(self.core):
            self.core.read(lambda one: check_room(Step(one, self.core.names)))
        rank = record.priority
        options = Options(
            priority="normal" if not rank else "high" if rank > 0 else "low",
            headers={**(headers or {}), RESULT_HEADER: result_id, BACKEND_HEADER: record.backend},
        )
        if at is not None:
            options["at"] = at
        payload = [record.args, record.kwargs]
        common = {TASK: record.task.encode()}
        put, [job] = plan_put(self.core, [(payload, options)], common, always=later)

        def work(txn: Transaction[Any]) -> None:
            put(txn)
            kept = replace(record, job=job.id, args=[], kwargs={})  # the job has the arguments
            save_record(txn.as_bytes(), result_id, kept, 0)

        def enqueue() -> None:
            self.core.set_up()
            if not collect(self.core, work):
                self.core.apply(work)

        return enqueue


def _show(run: Run, status: Any) -> None:
    """Say in Django's result how the attempt ended, and send the signal."""
    ended = result_of(run.result.id, run.record, status)
    for name in ("status", "finished_at", "errors", "_return_value"):
        object.__setattr__(run.result, name, getattr(ended, name))
    try:
        run.send(interface.task_finished)
    except Exception:  # the task has ended; a receiver cannot change that
        log.exception("a receiver of the signal task_finished failed")


# --- the queues of this process -----------------------------------------------------------------

_queues: dict[tuple[str, str, str], TaskQueue] = {}


def queue_of(path: str, name: str, settings: QueueSettings) -> TaskQueue:
    """Return the queue of a store, of which a process has one; Django makes backends per thread."""
    key = path, name, repr(settings)
    found = _queues.get(key)
    return _queues.setdefault(key, TaskQueue(path, name, settings)) if found is None else found
