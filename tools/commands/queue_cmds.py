"""`queue`: what a queue of jobs holds, and the work of its operator."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text, time_text
from streamkeep.jobs import Queue, queue_names
from streamkeep.jobs.dead_letters import Letter, parked
from streamkeep.jobs.layout import ListState, Names
from streamkeep.jobs.listing import Listed, call_text, job_in, of_letter, stats_of, unknown_tasks
from streamkeep.jobs.options import Options
from streamkeep.jobs.periodic import rules
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Ms, Positive, StorePath, Yes
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import confirm_loss, open_store

STATES: Final = ("waiting", "parked", "running", "delayed", "failed")  # columns of tables

QueueName = Annotated[str, "(--queue NAME): The queue; without it, the only one of the store."]
Count = Annotated[Positive, "(-n N): At most N."]
Reason = Annotated[str, "(TEXT): Only with this text in reason or error."]
OfTask = Annotated[str, "(TASK): Only of this task."]


@group_command()
def queue() -> None:
    """Look at queues of jobs, and control them.

    The jobs are those of `streamkeep.jobs`; `streamkeep work` runs their handlers.

    Examples:
      streamkeep queue status jobs.store
      streamkeep queue jobs jobs.store running
      streamkeep queue dead jobs.store
      streamkeep queue requeue jobs.store --reason Timeout
    """


@contextmanager
def _opened(
    store_path: Path, given: str | None, *, create: bool = False, readonly: bool = False
) -> Iterator[Queue]:
    """Open a queue, which must exist unless `create`."""
    with open_store(store_path, create=create, readonly=readonly) as store:
        known = queue_names(store)
        name = given or (known[0] if len(known) == 1 else "default")
        hint = "name one with --queue" if known else ""
        if name not in known and known and given is None:
            has = f"{store_path} has several queues: {', '.join(known)}"
            raise Failure(has, hint=hint, status=Exit.USAGE)
        if name not in known and not create:
            its = f"; its queues are {', '.join(known)}" if known else ", and no other one"
            problem = f"{store_path} has no queue {name!r}{its}"
            raise Failure(problem, hint=hint, status=Exit.MISSING)
        yield Queue(store, name)


@queue.command("status")
def status(
    store_path: StorePath,
    queue: str | None = None,
    name: Annotated[str, "(--queue NAME): The same as QUEUE."] | None = None,
) -> None:
    """Count the jobs in each state, of QUEUE or of all queues.

    `failed` are dead letters. `done` counts jobs that ended well since the queue was made; for
    their rate, see `top`. `oldest` is how long the oldest job has been waiting. `workers` are
    processes that live and have taken a job.

    `parked` are those waiting jobs whose task no worker has. A line names the task: it may have
    been renamed, or its program is not deployed.

    Examples:
      streamkeep queue status jobs.store
      streamkeep queue status jobs.store mail --json
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        queue, names = queue or name, queue_names(store)
        if queue is not None and queue not in names:
            raise Failure(f"there is no queue {queue!r}", status=Exit.MISSING)
        names = names if queue is None else [queue]
        reader = snapshot.as_bytes()
        found = {one: stats_of(reader, Names(one)) for one in names}
        unknown = {one: unknown_tasks(reader, Names(one)) for one in names if found[one].parked}
        texts = [one for each in unknown for one in parked_texts(snapshot, each, store_path)]

    def cells(one: str) -> tuple[output.Cell, ...]:
        stats = found[one]
        counts = (*(getattr(stats, state) for state in STATES), stats.done)
        oldest = output.span_text(stats.oldest_ms / 1000) if stats.oldest_ms else "-"
        state = "paused" if stats.paused else "draining" if stats.draining else "open"
        return one, *counts, oldest, stats.workers, state

    output.listing(
        "queue",
        [*found],
        lambda one: {"name": one, **found[one]._asdict(), "unknown_tasks": unknown.get(one, {})},
        ("queue", *STATES, "done", "oldest", "workers", "state"),
        cells,
        left=(0, 9),
    )
    output.total(count_text(len(found), "queue"), queues=len(found))
    for text in texts:
        output.note(text)


def parked_texts(snapshot: Snapshot[Any], name: str, store: Path) -> Iterator[str]:
    """Yield a line for each task of which jobs wait, and that no worker has."""
    for task, count in unknown_tasks(snapshot.as_bytes(), Names(name)).items():
        wait = f"{count_text(count, 'job waits', 'jobs wait')} for a worker that has the task"
        text = f"queue {name!r}: {wait} {task!r}; next: start one"
        for rule in rules(snapshot, Names(name)):
            if rule.task == task:
                words = (str(store), "--queue", name, "--remove", rule.name)
                text += f", or `streamkeep queue schedules {shlex.join(words)}`"
        yield text


@queue.command("show")
def show(store_path: StorePath, job: str, name: QueueName | None = None) -> None:
    """Print one job: its state, call and options; if it failed, why.

    The state is waiting, delayed, running, done, failed or cancelled. JOB may also be the ID of a
    dead letter.

    Example:
      streamkeep queue show jobs.store job-17
    """
    with _opened(store_path, name, readonly=True) as found:
        listed, _ = _look_up(found, job)
    members = _members(listed, found.name)
    # Shown under other names, or not at all.
    left_out = {"id", "queued", "begun", "ended", "failed", *members}
    fields = {key.decode(errors="replace"): json_bytes(one) for key, one in listed.fields.items()}
    members |= {key: one for key, one in fields.items() if key not in left_out}
    if common.as_json():
        output.summary(**members)
        return
    trace = str(members.pop("traceback", ""))
    history = members.pop("history")
    del members["task"], members["call" if members["call"] is None else "payload"]
    for key, value in members.items():
        if value not in (None, "", 0):
            text = time_text(value) if key.endswith("_ms") else value
            output.line(f"{key.removesuffix('_ms'):<12} {text}")
    for run in history:
        times = " to ".join(time_text(run[ms]) for ms in ("begun_ms", "ended_ms") if run[ms])
        output.line(f"{'former run':<12} {times} {run['worker']}: {run['error']}")
    for one in trace.splitlines():
        output.line(one)


def _members(job: Listed, queue: str) -> dict[str, Any]:
    task = job.fields.get(b"task", b"").decode(errors="replace")
    call = call_text(job.fields, 1000) if b"payload" in job.fields else None
    known = {"job": job.id, "queue": queue, "state": job.state, "task": task, "call": call}
    later = {name: getattr(job, name) or None for name in ("due_ms", "begun_ms", "ended_ms")}
    history = [one._asdict() for one in job.history]
    more = {"worker": job.worker or None, "attempts": job.attempts, "history": history}
    return {**known, "queued_ms": job.queued_ms, **later, **more}


@queue.command("jobs")
def jobs(
    store_path: StorePath,
    state: ListState = "waiting",
    name: QueueName | None = None,
    count: Count = 50,
) -> None:
    """List the jobs of one state; without STATE, those that wait.

    Jobs that wait are in the order in which they are taken, delayed ones in that of their times. Of
    those that have ended, the newest comes first: `failed` are the dead letters, others are listed
    as long as their result is kept. `parked` is the part of `waiting` whose task no worker has.

    Examples:
      streamkeep queue jobs jobs.store
      streamkeep queue jobs jobs.store running --json
    """
    with _opened(store_path, name, readonly=True) as found:
        rows = found.jobs(state, count)

    def cells(one: Listed) -> tuple[output.Cell, ...]:
        times = (one.queued_ms, one.due_ms, one.begun_ms, one.ended_ms)
        shown = (time_text(ms) if ms else "-" for ms in times)
        call = output.cut(call_text(one.fields, 60))
        return one.id, call, *shown, one.attempts, one.worker or "-"

    output.listing(
        "job",
        rows,
        lambda one: _members(one, found.name),
        ("job", "call", "queued", "due", "begun", "ended", "attempts", "worker"),
        cells,
        left=(0, 1, 2, 3, 4, 5, 7),
    )
    output.total(count_text(len(rows), "job"), jobs=len(rows))


def _look_up(queue: Queue, job_id: str) -> tuple[Listed, Letter | None]:
    """Return a job, and its dead letter if it failed; or those of the letter that has this ID."""
    job = queue.core.read(lambda one: job_in(one, queue.core.names, job_id))
    letters = [] if job is not None and job.state != "failed" else queue.dead_letters()
    found = [one for one in letters if one.job == job_id]
    found = found or [one for one in letters if job is None and one.id == job_id]
    if found:
        return of_letter(found[-1]), found[-1]
    if job is None:
        problem = f"there is no job {job_id!r}: it ended and its result was not kept, or never was"
        hint = f"streamkeep queue status {shlex.quote(str(queue.store.path))}"
        raise Failure(problem, hint=hint, status=Exit.MISSING)
    return job, None


@queue.command("schedules")
def schedules(
    store_path: StorePath, name: QueueName | None = None, remove: str | None = None
) -> None:
    """List the schedules of periodic tasks, and remove one.

    Each is shown with its last and its next time. It stays until it is removed, also if its task
    was renamed. A worker whose program has the task stores it again when it starts.

    Examples:
      streamkeep queue schedules jobs.store
      streamkeep queue schedules jobs.store --remove nightly

    Args:
        remove (NAME): Remove this schedule.
    """
    with _opened(store_path, name, readonly=remove is None) as found:
        if remove is not None:
            if not found.unschedule(remove):
                its = ", ".join(one.name for one in found.schedules()) or "none"
                problem = f"the queue {found.name!r} has no schedule {remove!r}; it has {its}"
                raise Failure(problem, status=Exit.MISSING)
            output.result(f"the schedule {remove!r} was removed", removed=remove)
            output.note("a worker whose program declares it puts it back when it starts")
            return
        rows = found.schedules()
    output.listing(
        "schedule",
        rows,
        lambda one: one.shown(),
        ("schedule", "task", "cron", "zone", "missed", "last", "next"),
        lambda one: (
            *(one.name, one.task, one.cron, one.zone, one.missed),
            *(time_text(ms) if ms else "-" for ms in (one.last_ms, one.next_ms)),
        ),
        left=tuple(range(7)),
    )
    output.total(count_text(len(rows), "schedule"), schedules=len(rows))


@queue.command("dead")
def dead(
    store_path: StorePath,
    name: QueueName | None = None,
    reason: Reason | None = None,
    task: OfTask | None = None,
    count: Count = 100,
    drop: bool = False,
    yes: Yes = False,
) -> None:
    """List dead letters: jobs that failed for good.

    Examples:
      streamkeep queue dead jobs.store
      streamkeep queue dead jobs.store --task send --json
      streamkeep queue dead jobs.store --reason 404 --drop --yes

    Args:
        drop: Remove them for good.
    """
    with _opened(store_path, name, readonly=not drop) as found:
        if drop:
            chosen = found.dead_letters(reason=reason, task=task)
            if chosen:
                lost = count_text(len(chosen), "dead letter")
                confirm_loss([lost], "Remove them for good?", yes=yes)
            dropped = found.drop_dead(*chosen) if chosen else 0
            output.result(f"{count_text(dropped, 'dead letter')} removed", dropped=dropped)
            return
        letters = found.dead_letters(reason=reason, task=task, count=count)

    def cells(one: Letter) -> tuple[output.Cell, ...]:
        kind = one.error.rpartition(".")[2]
        error = f"{kind}: {one.message}" if kind else one.message
        texts = (output.cut(text.partition("\n")[0], 60) for text in (one.reason, error))
        return (one.job, one.task, one.attempts, one.deaths, *texts)

    output.listing(
        "letter",
        letters,
        lambda one: {
            **{name: value for name, value in one._asdict().items() if name != "fields"},
            "payload": one.fields.get(b"payload", b""),
        },
        ("job", "task", "attempts", "deaths", "reason", "error"),
        cells,
        left=(0, 1, 4, 5),
    )
    output.total(count_text(len(letters), "dead letter"), letters=len(letters))


@queue.command("put")
def put(
    store_path: StorePath,
    payload: str,
    name: QueueName | None = None,
    task: str | None = None,
    delay: Ms | None = None,
    key: str | None = None,
    unique: str | None = None,
    priority: Literal["high", "normal", "low"] | None = None,
) -> None:
    """Put a job into a queue, and print the ID of the job.

    The queue is made if it is missing.

    Examples:
      streamkeep queue put jobs.store '{"to": "ann@example.org"}'
      streamkeep queue put jobs.store '["ann@example.org"]' --task send --delay 5m

    Args:
        payload (JSON):
        task (TASK): Call this task; JSON is the list of its arguments.
        delay: Not before this time is over.
        key (KEY): At most one job of this key runs at a time.
        unique (NAME): Only if no job of this name waits or runs.
        priority: Its priority.
    """
    try:
        value = json.loads(payload)
    except ValueError as error:
        problem = f"the payload is not JSON: {error}"
        raise Failure(problem, hint="quote it for the shell", status=Exit.USAGE) from None
    if task is not None and not isinstance(value, list):
        raise click.UsageError("with --task, JSON is the list of its arguments, such as '[1, 2]'")
    delay_s = None if delay is None else delay / 1000
    options = Options(key=key, unique=unique, priority=priority, delay=delay_s)
    with _opened(store_path, name, create=True) as found:
        if task is None:
            job = found.put(value, **options)
        else:
            job = found.task(name=task)(lambda *args: None).options(**options).delay(*value)
        output.result(job.id, job=job.id, new=job.is_new)


@queue.command("cancel")
def cancel(store_path: StorePath, job: str, name: QueueName | None = None) -> None:
    """Remove a job that has not started.

    Example:
      streamkeep queue cancel jobs.store job-17
    """
    with _opened(store_path, name) as found:
        if not found.cancel(job):
            state = _look_up(found, job)[0].state
            raise Failure(f"job {job} cannot be cancelled: it is {state}", status=Exit.MISSING)
        output.done(job=job)


@queue.command("retry")
def retry(store_path: StorePath, job: str, name: QueueName | None = None) -> None:
    """Start a job now that waits for its time or its next attempt.

    A dead letter is put again, as by `queue requeue`.

    Example:
      streamkeep queue retry jobs.store job-17
    """
    with _opened(store_path, name) as found:
        if found.run_now(job):
            output.done(job=job)
            return
        listed, letter = _look_up(found, job)
        if letter is None or not found.requeue(letter):
            state = "failed, and its unique name is taken" if letter else listed.state
            raise Failure(f"job {job} does not wait: it is {state}", status=Exit.MISSING)
        output.done(job=job, requeued=True)


@queue.command("requeue")
def requeue(
    store_path: StorePath,
    letters: tuple[str, ...] = (),
    name: QueueName | None = None,
    reason: Reason | None = None,
    task: OfTask | None = None,
    every: bool = False,
) -> None:
    """Put dead letters into the queue again.

    A job keeps its ID, and has all its attempts again.

    Examples:
      streamkeep queue requeue jobs.store job-18
      streamkeep queue requeue jobs.store --reason "Connection refused"
      streamkeep queue requeue jobs.store --all

    Args:
        letters ([JOB]...):
        every (--all): All dead letters.
    """
    if not (letters or reason or task or every):
        raise click.UsageError("name jobs, or one of --reason, --task and --all")
    with _opened(store_path, name) as found:
        named = list(dict.fromkeys(letters))
        chosen = [] if named else found.dead_letters(reason=reason, task=task)
        left = [one for one in named if not found.requeue(one, reason=reason, task=task)]
        count = found.requeue(*chosen) if chosen else len(named) - len(left)
        stay = len(chosen) - count if chosen else 0
        why = f"; {stay} stayed: another job has their unique name" if stay else ""
        output.result(f"{count_text(count, 'job')} requeued{why}", requeued=count)
        if left:
            states = "; ".join(f"job {one} is {_look_up(found, one)[0].state}" for one in left)
            problem = f"not requeued: {states}; what failed stays if its unique name is taken"
            raise Failure(problem, status=Exit.MISSING)


@queue.command("pause")
def pause(store_path: StorePath, name: QueueName | None = None) -> None:
    """Let no worker take a job until `queue resume`.

    Jobs that run continue.

    Example:
      streamkeep queue pause jobs.store --queue mail
    """
    with _opened(store_path, name) as found:
        found.pause()
    output.done(queue=found.name, paused=True)


@queue.command("resume")
def resume(store_path: StorePath, name: QueueName | None = None) -> None:
    """End `queue pause` and `queue drain`.

    Example:
      streamkeep queue resume jobs.store --queue mail
    """
    with _opened(store_path, name) as found:
        found.resume()
    output.done(queue=found.name, paused=False)


@queue.command("drain")
def drain(store_path: StorePath, name: QueueName | None = None, timeout: Ms | None = None) -> None:
    """Refuse new jobs, and wait until all others have ended.

    `queue resume` ends it.

    Exit status: 0  the queue is empty
                 8  there are jobs left after --timeout

    Example:
      streamkeep queue drain jobs.store --queue mail --timeout 10m

    Args:
        timeout: Wait no longer.
    """
    with _opened(store_path, name) as found:
        empty = found.drain(None if timeout is None else timeout / 1000)
        left = found.stats()
    if not empty:
        jobs = count_text(left.waiting + left.running + left.delayed, "job")
        raise Failure(f"the queue {found.name!r} still has {jobs}", status=Exit.ATTENTION)
    output.done(queue=found.name, draining=True)


@queue.command("purge")
def purge(store_path: StorePath, name: QueueName | None = None, yes: Yes = False) -> None:
    """Remove every job that has not started.

    Jobs that run and dead letters stay.

    Example:
      streamkeep queue purge jobs.store --queue mail --yes
    """
    with _opened(store_path, name) as found:
        stats, core = found.stats(), found.core
        held = len(core.read(lambda one: parked(one, core.names))) if stats.parked else 0
        if count := stats.waiting - stats.parked + held + stats.delayed - stats.retrying:
            confirm_loss([count_text(count, "job")], "Remove them for good?", yes=yes)
        removed = found.purge()
        output.result(f"{count_text(removed, 'job')} removed", removed=removed)
