"""`queue`: what a queue of jobs holds, and the work of its operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Duration, Number, store_argument
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.opening import confirm_loss, open_store
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    from streamkeep.jobs.dead_letters import Letter
    from streamkeep.jobs.queue import Queue
    from streamkeep.jobs.stats import QueueStats

_ENDED: Final = ("ended", "unknown")  # states of jobs that may be dead letters
_MOST_TEXT: Final = 60


def queue_option(function: Any) -> Any:
    """Add the option that names a queue."""
    return click.option(
        "--queue",
        "name",
        default="default",
        show_default=True,
        metavar="NAME",
        help="The queue.",
    )(function)


@group_command()
def queue() -> None:
    """Look at queues of jobs, and control them.

    The jobs are those of `streamkeep.jobs`; `streamkeep work` runs their handlers.

    \b
    Examples:
      streamkeep queue status jobs.store
      streamkeep queue dead jobs.store
      streamkeep queue requeue jobs.store --reason Timeout
    """


@contextmanager
def _opened(store_path: Path, name: str, *, create: bool = False) -> Iterator[Queue]:
    """Open a queue, which must exist unless `create`."""
    from streamkeep.jobs.queue import Queue, queue_names

    with open_store(store_path, create=create) as store:
        known = queue_names(store)
        if name not in known and not create:
            has = f"its queues are {', '.join(known)}" if known else "it has no queue"
            raise Failure(f"there is no queue {name!r}", hint=has, status=Exit.MISSING)
        yield Queue(store, name)


# --- look ---------------------------------------------------------------------------------------


@queue.command("status")
@store_argument
@click.argument("name", metavar="[QUEUE]", required=False)
def status(store_path: Path, name: str | None) -> None:
    """Print what waits, runs, is delayed and is dead.

    Of QUEUE, or of all queues.

    `done` and `failed` count jobs that ended well and attempts that failed, since the queue was
    made. `per-min` is how many jobs ended well in the last minute. `oldest` is how long the oldest
    job has been waiting. `workers` are processes that live and have taken a job.

    Jobs whose task no worker knows wait for one that does. A line names the task: it may have been
    renamed, or its program is not deployed.

    \b
    Examples:
      streamkeep queue status jobs.store
      streamkeep queue status jobs.store mail --json
    """
    from streamkeep.jobs.layout import Names
    from streamkeep.jobs.queue import queue_names
    from streamkeep.jobs.stats import stats_of, unknown_tasks

    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        names = queue_names(store)
        if name is not None and name not in names:
            raise Failure(f"there is no queue {name!r}", status=Exit.MISSING)
        found = {
            one: stats_of(snapshot.as_bytes(), Names(one))
            for one in ([name] if name is not None else names)
        }
        unknown = {
            one: unknown_tasks(snapshot.as_bytes(), Names(one))
            for one, stats in found.items()
            if stats.parked
        }
    headings = ("queue", "waiting", "running", "delayed", "dead", "done", "per-min", "failed")
    output.listing(
        "queue",
        [*found],
        lambda one: {
            "name": one,
            **found[one]._asdict(),
            "unknown_tasks": unknown.get(one, {}),
        },
        (*headings, "oldest", "workers", "state"),
        lambda one: _cells(one, found[one]),
        left=(0, 10),
    )
    output.total(count_text(len(found), "queue"), queues=len(found))
    for one, tasks in unknown.items():
        for task, count in tasks.items():
            output.note(
                f"queue {one!r}: {count_text(count, 'job')} of the task {task!r}, which no worker "
                "has that took one; next: start a worker that has it, or remove the jobs and "
                "Queue.unschedule the rule of a periodic task"
            )


def _cells(name: str, stats: QueueStats) -> tuple[output.Cell, ...]:
    return (
        name,
        stats.waiting,
        stats.running,
        stats.delayed,
        stats.dead,
        stats.done,
        round(stats.done_per_minute),
        stats.failed,
        output.span_text(stats.oldest_ms / 1000) if stats.waiting else "-",
        stats.workers,
        "paused" if stats.paused else "draining" if stats.draining else "open",
    )


@queue.command("show")
@store_argument
@click.argument("job_id", metavar="JOB")
@queue_option
def show(store_path: Path, job_id: str, name: str) -> None:
    """Print one job: its state, its options and its payload.

    A job whose task no worker knows is `parked`: it stays until a worker has the task.

    \b
    Example:
      streamkeep queue show jobs.store job-17
    """
    with _opened(store_path, name) as found:
        place = found.find(job_id)
        letters = _letters_of(found, job_id, place.state)
    if place.state == "unknown" and not letters:
        problem = f"there is no job {job_id!r}; it ended, and its result was not kept, or never was"
        raise Failure(problem, status=Exit.MISSING)
    state = "dead" if letters else place.state
    fields = letters[-1].fields if letters else place.fields
    members: dict[str, Any] = {
        "job": job_id,
        "queue": name,
        "state": state,
        "due_ms": place.due_ms or None,
        "worker": place.consumer or None,
        "deliveries": place.deliveries,
    }
    members |= {key.decode(): json_bytes(value) for key, value in fields.items()}
    if common.as_json():
        output.summary(**members)
        return
    for key, value in members.items():
        if value not in (None, ""):
            output.line(f"{key:<12} {value}")


def _letters_of(queue: Queue, job_id: str, state: str) -> list[Letter]:
    """Return the dead letters of a job; or the letter of this ID, if there is no such job."""
    dead = queue.dead_letters() if state in _ENDED else []
    letters = [one for one in dead if one.job == job_id]
    if not letters and state == "unknown":
        letters = [one for one in dead if one.id == job_id]
    return letters


@queue.command("dead")
@store_argument
@queue_option
@click.option("--reason", metavar="TEXT", help="Only with this text in reason or error.")
@click.option("--task", metavar="TASK", help="Only of this task.")
@click.option("-n", "--count", type=Number(min=1), default=100, help="At most N.")
@click.option("--drop", is_flag=True, help="Remove them for good.")
@click.option("--yes", is_flag=True, help="With --drop: do not ask.")
def dead(
    store_path: Path,
    name: str,
    reason: str | None,
    task: str | None,
    count: int,
    drop: bool,
    yes: bool,
) -> None:
    """List dead letters: jobs that failed for good.

    \b
    Examples:
      streamkeep queue dead jobs.store
      streamkeep queue dead jobs.store --task send --json
      streamkeep queue dead jobs.store --reason 404 --drop --yes
    """
    with _opened(store_path, name) as found:
        if drop:
            chosen = found.dead_letters(reason=reason, task=task)
            if chosen:
                lost = count_text(len(chosen), "dead letter")
                confirm_loss([lost], "Remove them for good?", yes=yes)
            dropped = found.drop_dead(*chosen) if chosen else 0
            output.result(str(dropped), dropped=dropped)
            return
        _print_letters(found.dead_letters(reason=reason, task=task, count=count))


def _print_letters(letters: list[Letter]) -> None:
    output.listing(
        "letter",
        letters,
        _letter_json,
        ("job", "task", "attempts", "deaths", "reason", "error"),
        lambda one: (
            one.job,
            one.task,
            one.attempts,
            one.deaths,
            _brief(one.reason),
            _brief(_error(one)),
        ),
        left=(0, 1, 4, 5),
    )
    output.total(count_text(len(letters), "dead letter"), letters=len(letters))


def _letter_json(letter: Letter) -> dict[str, Any]:
    members = letter._asdict()
    fields = members.pop("fields")
    return {**members, "payload": json_bytes(fields.get(b"payload", b""))}


def _error(letter: Letter) -> str:
    kind = letter.error.rpartition(".")[2]
    return f"{kind}: {letter.message}" if kind else letter.message


def _brief(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + output.ellipsis()


# --- change -------------------------------------------------------------------------------------


@queue.command("put")
@store_argument
@click.argument("payload", metavar="JSON")
@queue_option
@click.option("--task", metavar="TASK", help="Call this task; JSON is the list of its arguments.")
@click.option("--delay", type=Duration(), help="Not before this time is over.")
@click.option("--key", metavar="KEY", help="At most one job of this key runs at a time.")
@click.option("--unique", metavar="NAME", help="Only if no job of this name waits or runs.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), help="Its priority.")
def put(
    store_path: Path,
    payload: str,
    name: str,
    task: str | None,
    delay: int | None,
    key: str | None,
    unique: str | None,
    priority: str | None,
) -> None:
    """Put a job into a queue, and print the ID of the job.

    The queue is made if it is missing.

    \b
    Examples:
      streamkeep queue put jobs.store '{"to": "ann@example.org"}'
      streamkeep queue put jobs.store '["ann@example.org"]' --task send --delay 5m
    """
    try:
        value = json.loads(payload)
    except ValueError as error:
        problem = f"the payload is not JSON: {error}"
        raise Failure(problem, hint="quote it for the shell", status=Exit.USAGE) from None
    if task is not None and not isinstance(value, list):
        raise click.UsageError("with --task, JSON is the list of its arguments, such as '[1, 2]'")
    delay_s = None if delay is None else delay / 1000
    with _opened(store_path, name, create=True) as found:
        if task is None:
            job = found.put(value, delay=delay_s, key=key, unique=unique, priority=priority)
        else:
            called = found.task(name=task)(_never_called)
            options = called.options(delay=delay_s, key=key, unique=unique, priority=priority)
            job = options.delay(*value)
        output.result(job.id, job=job.id, new=job.is_new)


def _never_called(*args: Any) -> None:
    """Be the task of a program that has it."""


@queue.command("cancel")
@store_argument
@click.argument("job_id", metavar="JOB")
@queue_option
def cancel(store_path: Path, job_id: str, name: str) -> None:
    """Remove a job that has not started.

    \b
    Example:
      streamkeep queue cancel jobs.store job-17
    """
    with _opened(store_path, name) as found:
        if not found.cancel(job_id):
            state = found.find(job_id).state
            raise Failure(f"job {job_id} cannot be cancelled: it is {state}", status=Exit.MISSING)
        output.done(job=job_id)


@queue.command("retry")
@store_argument
@click.argument("job_id", metavar="JOB")
@queue_option
def retry(store_path: Path, job_id: str, name: str) -> None:
    """Start a job now that waits for its time or its next attempt.

    A dead letter is put again as a new job, as by `queue requeue`.

    \b
    Example:
      streamkeep queue retry jobs.store job-17
    """
    with _opened(store_path, name) as found:
        if found.run_now(job_id):
            output.done(job=job_id)
            return
        state = found.find(job_id).state
        letters = _letters_of(found, job_id, state)
        if letters and found.requeue(*letters):
            output.done(job=job_id, requeued=True)
        else:
            raise Failure(f"job {job_id} does not wait: it is {state}", status=Exit.MISSING)


@queue.command("requeue")
@store_argument
@click.argument("letters", metavar="[JOB]...", nargs=-1)
@queue_option
@click.option("--reason", metavar="TEXT", help="Only with this text in reason or error.")
@click.option("--task", metavar="TASK", help="Only of this task.")
@click.option("--all", "every", is_flag=True, help="All dead letters.")
def requeue(
    store_path: Path,
    letters: tuple[str, ...],
    name: str,
    reason: str | None,
    task: str | None,
    every: bool,
) -> None:
    """Put dead letters into the queue again, as new jobs.

    \b
    Examples:
      streamkeep queue requeue jobs.store job-18
      streamkeep queue requeue jobs.store --reason "Connection refused"
      streamkeep queue requeue jobs.store --all
    """
    if not (letters or reason or task or every):
        raise click.UsageError("name jobs, or one of --reason, --task and --all")
    with _opened(store_path, name) as found:
        count = found.requeue(*letters, reason=reason, task=task)
        output.result(str(count), requeued=count)
    if letters and count < len(letters):
        problem = f"{len(letters) - count} of {len(letters)} are no dead letters, or their unique"
        raise Failure(f"{problem} names are taken", status=Exit.MISSING)


@queue.command("pause")
@store_argument
@queue_option
def pause(store_path: Path, name: str) -> None:
    """Let no worker take a job until `queue resume`.

    Jobs that run continue.

    \b
    Example:
      streamkeep queue pause jobs.store --queue mail
    """
    with _opened(store_path, name) as found:
        found.pause()
    output.done(queue=name, paused=True)


@queue.command("resume")
@store_argument
@queue_option
def resume(store_path: Path, name: str) -> None:
    """End `queue pause` and `queue drain`.

    \b
    Example:
      streamkeep queue resume jobs.store --queue mail
    """
    with _opened(store_path, name) as found:
        found.resume()
    output.done(queue=name, paused=False)


@queue.command("drain")
@store_argument
@queue_option
@click.option("--timeout", type=Duration(), help="Wait no longer.")
def drain(store_path: Path, name: str, timeout: int | None) -> None:
    """Refuse new jobs, and wait until all others have ended.

    `queue resume` ends it.

    \b
    Exit status: 0  the queue is empty
                 8  there are jobs left after --timeout

    \b
    Example:
      streamkeep queue drain jobs.store --queue mail --timeout 10m
    """
    with _opened(store_path, name) as found:
        empty = found.drain(None if timeout is None else timeout / 1000)
        left = found.stats()
    if not empty:
        count = left.waiting + left.running + left.delayed
        problem = f"the queue {name!r} still has {count_text(count, 'job')}"
        raise Failure(problem, status=Exit.ATTENTION)
    output.done(queue=name, draining=True)


@queue.command("purge")
@store_argument
@queue_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(store_path: Path, name: str, yes: bool) -> None:
    """Remove every job that has not started.

    Jobs that run and dead letters stay.

    \b
    Example:
      streamkeep queue purge jobs.store --queue mail --yes
    """
    with _opened(store_path, name) as found:
        stats = found.stats()
        count = stats.waiting + stats.delayed
        if count:
            confirm_loss([count_text(count, "job")], "Remove them for good?", yes=yes)
        removed = found.purge()
        output.result(str(removed), removed=removed)
