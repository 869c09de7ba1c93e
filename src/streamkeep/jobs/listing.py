"""What a queue holds, for those who look at it: jobs by state, workers, and jobs per minute.

Functions of a snapshot. Each reads as many rows as it was asked for, and some more where others are
between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import ArgumentError, NoSuchGroupError, NoSuchKeyError
from streamkeep.jobs import finding, layout
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.dead_letters import Letter, letter_of_job, letters
from streamkeep.jobs.ending import ENDS, parse_result
from streamkeep.jobs.enqueue import oldest_waiting
from streamkeep.jobs.layout import (
    Attempt,
    Fields,
    JobState,
    ListState,
    Names,
    Place,
    parse_history,
    parse_past,
    place_of,
    unpack_time,
)
from streamkeep.jobs.state import (
    Step,
    delivered_up_to,
    fields_at,
    job_id_of,
    load_settings,
    numbered_fields,
    pending_row,
    rows_below,
)

_MOST_READ: Final = 5000  # rows, of which those of other kinds are passed over


class Listed(NamedTuple):
    """A job in a list.

    Attributes:
        fields: of its entry; of a job that has ended, what is kept of them.
        place: of its entry; None if it has none.
        queued_ms: when it was put; 0 if that is not known.
        begun_ms: when a worker took it for the last time; 0 if none has, or it is not known.
        ended_ms: when it ended, or was cancelled.
        due_ms: when a delayed job may start.
        worker: that has or had it.
        attempts: how often it was taken; those do not count that died with their worker.
        retries: it is delayed since an attempt failed.
        history: the last ten runs that did not end the job.
    """

    id: str
    state: JobState
    fields: Fields
    place: Place | None = None
    queued_ms: int = 0
    begun_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    worker: str = ""
    attempts: int = 0
    retries: bool = False
    history: Sequence[Attempt] = ()


class WorkerFacts(NamedTuple):
    """A process that lives and has taken a job.

    Attributes:
        since_ms: when it began to use the queue; 0 if its name does not say so.
        jobs: how many it has now.
    """

    name: str
    host: str
    process: int
    since_ms: int
    jobs: int


class Minute(NamedTuple):
    """How many jobs ended well, and attempts failed, in the minute that began then."""

    start_ms: int
    done: int
    failed_attempts: int


def jobs_in(snapshot: Snapshot[Any], names: Names, state: ListState, count: int) -> list[Listed]:
    """Return jobs of one state; see `Queue.jobs`."""
    if state not in list(_LISTS):  # what is given may have no hash
        known = ", ".join(_LISTS)
        raise ArgumentError(f"the state of the jobs to list is one of {known}, not {state!r}")
    return list(islice(_LISTS[state](snapshot, names, count), count))


def _entry(
    snapshot: Snapshot[Any], names: Names, state: JobState, place: Place, **more: Any
) -> Listed:
    """Return a job of an entry; if it was taken, with how often, and with its worker."""
    past = parse_past(snapshot.row_get(names.space, layout.PAST + place.pack()))
    if row := pending_row(snapshot, names, place):
        more["attempts"] = row["times_delivered"] - past.lost
        if row["consumer"]:
            more["begun_ms"] = snapshot.txn.now_ms() - row["time_since_delivered"]
            more["worker"] = row["consumer"].decode("utf-8", "replace")
    fields = fields_at(snapshot, names, place) or {}
    return _listed(state, place, fields, history=parse_history(past.history), **more)


def _listed(state: JobState, place: Place, fields: Fields, **more: Any) -> Listed:
    queued = layout.number_or_0(fields, layout.QUEUED) or place.ms
    return Listed(job_id_of(place, fields), state, fields, place, queued, **more)


def _waiting(snapshot: Snapshot[Any], names: Names, count: int) -> Iterator[Listed]:
    """Yield what no worker has taken, in the order of the streams; then what is held, or parked."""
    for priority in load_settings(snapshot, names).streams:
        name = names.streams[priority]
        after = b"(" + delivered_up_to(snapshot, name)
        for entry in snapshot.xrange(name, after, "+", count):
            yield _listed("waiting", place_of(priority, entry.id), entry.fields)
    for _, value in islice(rows_below(snapshot, names.space, layout.HELD), count):
        yield _numbered(snapshot, names, "waiting", unpack_time(value))
    yield from _parked(snapshot, names, count)


def _numbered(
    snapshot: Snapshot[Any], names: Names, state: JobState, number: int, due_ms: int = 0
) -> Listed:
    fields = numbered_fields(snapshot, names, layout.pack_time(number))
    queued = layout.number_or_0(fields, layout.QUEUED)
    job_id = fields.get(layout.ID, b"job-%d" % number).decode("utf-8", "replace")
    return Listed(job_id, state, fields, None, queued, due_ms=due_ms)


def _running(snapshot: Snapshot[Any], names: Names, count: int) -> Iterator[Listed]:
    for priority in load_settings(snapshot, names).streams:
        name = names.streams[priority]
        for consumer in _consumers(snapshot, name):
            if not consumer["pending"]:
                continue
            who = consumer["name"]
            for one in snapshot.xpending_range(name, layout.GROUP, "-", "+", count, who):
                yield _entry(snapshot, names, "running", place_of(priority, one["message_id"]))


def _delayed(snapshot: Snapshot[Any], names: Names, count: int) -> Iterator[Listed]:
    for prefix in (layout.LATE, layout.SCHEDULE):
        for key, _ in islice(rows_below(snapshot, names.space, prefix), _MOST_READ + count):
            due = layout.parse_due(key)
            if due.kind == layout.DELAYED:
                number = unpack_time(due.reference)
                yield _numbered(snapshot, names, "delayed", number, due.due_ms)
            elif due.kind == layout.RETRY:
                place = layout.unpack_place(due.reference)
                yield _entry(snapshot, names, "delayed", place, due_ms=due.due_ms, retries=True)


def _parked(snapshot: Snapshot[Any], names: Names, count: int) -> Iterator[Listed]:
    for key, _ in islice(rows_below(snapshot, names.space, layout.PARKED), count):
        yield _entry(snapshot, names, "waiting", layout.unpack_place(key[-layout.PLACE_SIZE :]))


def _ended(wanted: JobState, snapshot: Snapshot[Any], names: Names, count: int) -> Iterator[Listed]:
    """Yield the jobs that ended so, those first whose result is kept the longest."""
    low = layout.EXPIRY + layout.pack_time(snapshot.txn.now_ms())
    high, most = layout.EXPIRY + b"\xff" * 130, _MOST_READ + count
    for key, value in snapshot.row_range(names.space, low, high, most, reverse=True):
        one = _with_result(snapshot, names, key, value)
        if one is not None and one.state == wanted:
            yield one


def _failed(snapshot: Snapshot[Any], names: Names, _: int) -> Iterator[Listed]:
    return map(of_letter, letters(snapshot, names.dead, reverse=True))


def _with_result(snapshot: Snapshot[Any], names: Names, key: bytes, value: bytes) -> Listed | None:
    """Return the job that a row of EXPIRY is of; None if a later result has replaced it."""
    data = snapshot.row_get(names.space, layout.RESULT + key[9:])
    if data is None or (stored := parse_result(data)).expires_ms != unpack_time(key[1:]):
        return None
    facts = layout.unpack_fields(value)
    job_id = facts[layout.ID].decode("utf-8", "replace")
    return _kept(job_id, ENDS[stored.state], facts, layout.number_or_0(facts, layout.ENDED))


def _kept(job_id: str, state: JobState, fields: Fields, ended_ms: int) -> Listed:
    queued, begun, attempts = (
        layout.number_or_0(fields, name) for name in (layout.QUEUED, layout.BEGUN, layout.ATTEMPTS)
    )
    worker = fields.get(layout.WORKER, b"").decode("utf-8", "replace")
    history = parse_history(fields.get(layout.HISTORY, b""))
    return Listed(
        *(job_id, state, fields, None, queued, begun, ended_ms, 0, worker, attempts),
        history=history,
    )


_LISTS: Final[dict[ListState, Callable[[Snapshot[Any], Names, int], Iterator[Listed]]]] = {
    "waiting": _waiting,
    "running": _running,
    "delayed": _delayed,
    "parked": _parked,
    "done": partial(_ended, "done"),
    "failed": _failed,
    "cancelled": partial(_ended, "cancelled"),
}


def job_in(snapshot: Snapshot[Any], names: Names, job_id: str) -> Listed | None:
    """Return a job by its ID; None if there is none, no result of one, and no dead letter."""
    found = finding.find(snapshot, names, job_id)
    state: JobState = finding.STATES.get(found.state, found.state)
    if found.place is not None:
        return _entry(snapshot, names, state, found.place, retries=found.state == "retrying")
    if found.fields:
        queued = layout.number_or_0(found.fields, layout.QUEUED)
        return Listed(job_id, state, found.fields, None, queued, due_ms=found.due_ms)
    part = layout.part_of(job_id, "the ID of a job")
    data = snapshot.row_get(names.space, layout.RESULT + part)
    if data is None or parse_result(data).expires_ms <= snapshot.txn.now_ms():
        if found.state == "done":
            return Listed(job_id, "done", {})
        letter = letter_of_job(snapshot, names, job_id)
        return None if letter is None else of_letter(letter)
    key = layout.EXPIRY + data[:8] + part
    return _with_result(snapshot, names, key, snapshot.row_get(names.space, key) or b"")


def of_letter(letter: Letter) -> Listed:
    return _kept(letter.job, "failed", letter.fields, letter.failed_ms)


def call_text(fields: Fields, most: int) -> str:
    """Return the call that a job is, such as `fetch("http://...", 2, depth=1)`.

    Without a task, its payload; without a payload, the task. Of other codecs than JSON only the
    size is told: to read them may run code.

    Args:
        most: characters, after which it is cut.
    """
    task, payload = fields.get(layout.TASK, b""), fields.get(layout.PAYLOAD, b"")
    name = task.decode("utf-8", "replace")
    if layout.PAYLOAD not in fields:
        return name
    codec = fields.get(layout.CODEC, b"json").decode("utf-8", "replace")
    text = f"{len(payload):,} bytes of {codec}"
    if codec == JSON:
        text = payload.decode("utf-8", "replace")
        try:
            args, kwargs = json.loads(text) if task else ((), {})
            shown = [json.dumps(one, ensure_ascii=False) for one in args]
            shown += [f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in kwargs.items()]
            text = ", ".join(shown) if task else text
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass  # of another program: the payload as it is
    text = f"{name}({text})" if task else text
    return text if len(text) <= most else text[: most - 1] + "…"


# --- workers, and jobs per minute ---------------------------------------------------------------


def workers_of(snapshot: Snapshot[Any], names: Names) -> list[WorkerFacts]:
    """Return the processes that live and have taken a job; see `Core.consumer` for their names."""
    jobs: dict[str, int] = {}
    for priority in load_settings(snapshot, names).streams:
        for one in _consumers(snapshot, names.streams[priority]):
            if one["lease"] == "alive":
                name = one["name"].decode("utf-8", "replace")
                jobs[name] = jobs.get(name, 0) + one["pending"]
    return [_worker(name, count) for name, count in jobs.items()]


def _worker(name: str, jobs: int) -> WorkerFacts:
    host, process, since = (["", "", *name.rsplit("-", 2)])[-3:]
    try:
        return WorkerFacts(name, host, int(process), int(since[:-6] or "0", 16), jobs)
    except ValueError:  # a consumer of another program
        return WorkerFacts(name, "", 0, 0, jobs)


def _consumers(snapshot: Snapshot[Any], name: bytes) -> list[dict[str, Any]]:
    try:
        return snapshot.xinfo_consumers(name, layout.GROUP, leases=True)
    except (NoSuchKeyError, NoSuchGroupError):  # another program has made the stream
        return []


def minutes_of(snapshot: Snapshot[Any], names: Names, count: int) -> list[Minute]:
    """Return the last minutes in which something ended, ascending, of one day at most."""
    step = Step(snapshot, names)
    last = layout.MINUTE + b"\xff" * 8
    rows = snapshot.row_range(names.space, layout.MINUTE, last, count, reverse=True)
    found = [Minute(60_000 * unpack_time(key[1:]), *layout.MINUTES.unpack(value))
             for key, value in reversed(rows)]  # fmt: skip
    now = step.counters
    return [*found, Minute(60_000 * now.minute, now.minute_done, now.minute_failed)][-count:]


_MOST_PARKED: Final = 10_000


class QueueStats(NamedTuple):
    """The figures of a queue at one moment.

    Attributes:
        waiting: jobs that could start: in the streams, held for their key or their task, or left
            for a worker that knows their task.
        running: jobs that a worker has.
        delayed: jobs that wait for their time, retries included.
        failed: dead letters that are there.
        done: jobs that ended well, ever.
        oldest_ms: how long the oldest job of the streams has been waiting; 0 if none waits.
        workers: processes that live and have taken a job.
        held, retrying, parked: parts of `waiting`, `delayed` and `waiting`.
        failed_attempts: ever, also of jobs that ended well.
        buried: dead letters that were made, ever.
        cancelled: jobs that were cancelled, ever.
        paused, draining: whether it is.
    """

    waiting: int
    running: int
    delayed: int
    failed: int
    done: int
    oldest_ms: int
    workers: int
    held: int
    retrying: int
    parked: int
    failed_attempts: int
    buried: int
    cancelled: int
    paused: bool
    draining: bool


def stats_of(snapshot: Snapshot[Any], names: Names) -> QueueStats:
    """Return the figures of a queue; all are 0 if it has never been used."""
    step = Step(snapshot, names)
    settings, counters = step.settings, step.counters
    oldest = oldest_waiting(step)
    return QueueStats(
        waiting=step.count_waiting(),
        running=step.count_running(),
        delayed=counters.delayed + counters.retrying,
        failed=snapshot.xlen(names.dead),
        done=counters.done,
        oldest_ms=0 if oldest is None else max(0, step.now_ms - oldest[0].ms),
        workers=len(workers_of(snapshot, names)),
        held=counters.held,
        retrying=counters.retrying,
        parked=counters.parked,
        failed_attempts=counters.failed,
        buried=counters.dead,
        cancelled=counters.cancelled,
        paused=settings.paused,
        draining=settings.draining,
    )


def unknown_tasks(snapshot: Snapshot[Any], names: Names) -> dict[str, int]:
    """Return the tasks that no worker knew which took a job of theirs, and how many jobs wait.

    Of the first ten thousand jobs. A name of more than 100 bytes is cut.
    """
    found: dict[str, int] = {}
    for key, _ in islice(rows_below(snapshot, names.space, layout.PARKED), _MOST_PARKED):
        task = key[2 : -layout.PLACE_SIZE].decode(errors="replace")
        found[task] = found.get(task, 0) + 1
    return found
