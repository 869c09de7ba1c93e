"""The routes of durable queues: jobs by state, dead letters, workers; cancel, requeue, pause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, cast

from streamkeep.format.core.entry import Entry
from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.jobs import JobFailedError, Queue, QueueError, queue_names
from streamkeep.jobs.dead_letters import Letter, letter_of, matches
from streamkeep.jobs.layout import ListState
from streamkeep.jobs.listing import Listed, call_text, job_in, of_letter, unknown_tasks
from streamkeep.server.http.entries import SEARCH_S, Page, Wanted, read_page
from streamkeep.server.http.overview import now_ms, sees_queue
from streamkeep.server.http.routes import Call, Found, route
from streamkeep.server.http.wire import Problem, id_members

_MOST: Final = 500
_SHOWN: Final = 400  # characters of a call or message, in lists
_MOST_QUEUES: Final = 500
_MOST_REASONS: Final = 50
_MOST_RUNS: Final = 5  # jobs of one worker that are shown

_IDS: Final = {"ids": "array: IDs of jobs"}
_LETTERS: Final = {
    "ids": "array: IDs of dead letters, or of their jobs; without it, those that match the others",
    "task": "string: only of this task",
    "reason": "string: only with this text in reason, error or message",
    "start": "string: the first ID or time; `next` of a reply continues",
    "end": "string: the last ID or time",
}


@route("GET /queues", "scan xinfo|stream")
def queues(call: Call) -> Found:
    """The durable queues and their figures."""
    names = [name for name in queue_names(call.store) if sees_queue(call.user, name)]
    rows = [
        {"name": name, **Queue(call.store, name).stats()._asdict()} for name in names[:_MOST_QUEUES]
    ]
    return {"queues": rows, "time_ms": now_ms()}


# --- look ---------------------------------------------------------------------------------------


@route("GET /queues/{NAME}/jobs", "xrange xpending", query="state count")
def jobs(call: Call) -> Found:
    """Jobs of one state: waiting, running, delayed, parked, done, failed or cancelled."""
    queue = _queue(call)
    state = cast("ListState", call.text("state", "waiting"))  # which `jobs` checks
    found = queue.jobs(state, call.number("count", 50, 1, _MOST))
    rows = [_row(queue, one) for one in found]
    return {"name": call.queue, "stats": _stats(queue), "jobs": rows, "time_ms": now_ms()}


@route("GET /queues/{NAME}/job", "xrange xpending", query="job letter", heavy=True)
def job(call: Call) -> Found:
    """One job or dead letter with all fields of its entry, and its result if it is kept."""
    queue = _queue(call)
    letter, job_id = call.text("letter", ""), call.text("job", "")
    found = None
    if letter:
        page = read_page(
            call.store, Wanted(queue.core.names.dead, letter.encode(), letter.encode()), 1
        )
        found = next((_letter_row(queue, _letter(one), whole=True) for one in page.entries), None)
        fields = page.entries[0].fields if page.entries else {}
    elif one := queue.core.read(lambda snapshot: job_in(snapshot, queue.core.names, job_id)):
        found, fields = _row(queue, one, whole=True), one.fields
    if found is None:
        raise Problem(404, f"the queue has no job {letter or job_id!r}, and no result of one")
    pairs = [[json_bytes(name), json_bytes(value)] for name, value in fields.items()]
    if not letter and b"reason" not in fields and found["state"] in ("done", "failed"):
        found |= _result(queue, job_id)  # a letter has its error itself
    return {**found, "pairs": pairs, "time_ms": now_ms()}


def _result(queue: Queue, job_id: str) -> Found:
    """Return what a job returned, as text; or what it raised."""
    try:
        value = queue.job(job_id).result(0)
    except JobFailedError as error:
        return {"error": error.error_type, "message": error.text, "traceback": error.traceback_text}
    except QueueError as error:  # it has just expired, or has another codec than JSON
        return {"result": str(error)}
    return {"result": json.dumps(value, ensure_ascii=False, default=repr)}


@route(
    "GET /queues/{NAME}/letters", "xrange", query="task reason start end count reasons", heavy=True
)
def letters(call: Call) -> Found:
    """Dead letters, the newest first. Reads for about half a second; `next` continues, as `end`.

    With `reasons`, it counts them by task and error instead: `complete` says if that was all.
    """
    queue = _queue(call)
    task, reason = call.text("task", ""), call.text("reason", "")
    low, high = call.bound("start", "-", "from"), call.bound("end", "+", "to")
    wanted = Wanted(queue.core.names.dead, low, high, True)
    counts: dict[tuple[str, str], Found] = {}

    def count(letter: Letter) -> bool:
        label = letter.error or letter.reason
        known = counts.setdefault((letter.task, label), {"task": letter.task, "reason": label})
        known.setdefault("message", _cut(letter.message))
        known.setdefault("last_ms", letter.failed_ms)
        known |= {"first_ms": letter.failed_ms, "count": known.get("count", 0) + 1}
        return False  # so that none is kept in memory

    most = call.number("count", 50, 1, _MOST)
    page = _chosen(call, wanted, task, reason, most, count if call.flag("reasons") else None)
    rows = [_letter_row(queue, _letter(one)) for one in page.entries]
    ranked = sorted(counts.values(), key=lambda one: -int(one["count"]))
    return {
        "letters": rows,
        "next": None if page.next is None else page.next.decode(),
        "reasons": ranked[:_MOST_REASONS],
        "count": sum(int(one["count"]) for one in ranked),
        "complete": page.next is None,
        "stats": _stats(queue),
        "time_ms": now_ms(),
    }


@route("GET /queues/{NAME}/activity", "xinfo|consumers xrange xpending", query="minutes")
def activity(call: Call) -> Found:
    """Workers and what they run; how many jobs ended, and attempts failed, in each minute."""
    queue = _queue(call)
    running = [_row(queue, one) for one in queue.jobs("running", _MOST)]
    workers = [
        {
            **one._asdict(),
            "runs": [row for row in running if row["worker"] == one.name][:_MOST_RUNS],
        }
        for one in queue.workers()
    ]
    minutes = queue.minutes(call.number("minutes", 60, 1, 1440))
    return {"workers": workers, "minutes": minutes, "time_ms": now_ms()}


# --- change -------------------------------------------------------------------------------------


@route("GET /queues/{NAME}/schedules", "xrange")
def schedules(call: Call) -> Found:
    """The rules of periodic tasks: their times, and jobs of them that wait for a worker with the
    task.
    """
    queue = _queue(call)
    unknown = queue.core.read(lambda one: unknown_tasks(one, queue.core.names))
    rows = [{**one.shown(), "parked": unknown.get(one.task, 0)} for one in queue.schedules()]
    return {"schedules": rows, "time_ms": now_ms()}


@route("POST /queues/{NAME}/unschedule", "xdel", body={"ids": "array: names of rules"})
def unschedule(call: Call) -> Found:
    """Remove rules of periodic tasks; a program that has one stores it again when it starts."""
    return _each(call, Queue.unschedule)


@route("POST /queues/{NAME}/cancel", "xdel", body=_IDS)
def cancel(call: Call) -> Found:
    """Remove jobs that have not started. `done` in the reply names those that were removed."""
    return _each(call, Queue.cancel)


@route("POST /queues/{NAME}/run", "xadd xdel", body=_IDS)
def run(call: Call) -> Found:
    """Let jobs start now that wait for their time or for a retry."""
    return _each(call, Queue.run_now)


@route("POST /queues/{NAME}/requeue", "xadd xdel", body=_LETTERS)
def requeue(call: Call) -> Found:
    """Put dead letters into the queue again. A job keeps its ID. Without IDs, the oldest 500 that
    match: `count` is how many were put, and `next` continues, as `start`.
    """
    return _each(call, Queue.requeue) if "ids" in call.members else _all(call, Queue.requeue)


@route("POST /queues/{NAME}/drop", "xdel", body=_LETTERS)
def drop(call: Call) -> Found:
    """Remove dead letters for good; the members are those of `requeue`."""
    return _each(call, Queue.drop_dead) if "ids" in call.members else _all(call, Queue.drop_dead)


# Over Redis's protocol, to move a group to the end of its stream is the nearest to a pause.
@route("POST /queues/{NAME}/pause", "xgroup|setid")
def pause(call: Call) -> Found:
    """Let no worker take a job. Running jobs continue."""
    _queue(call).pause()
    return {"paused": True}


@route("POST /queues/{NAME}/resume", "xgroup|setid")
def resume(call: Call) -> Found:
    """End a pause."""
    _queue(call).resume()
    return {"paused": False}


def _each(call: Call, change: Callable[[Queue, str], object]) -> Found:
    ids = id_members(call.members, _MOST, "of jobs, or of dead letters")
    queue = _queue(call)
    return {"done": [one for one in ids if change(queue, one)]}


def _all(call: Call, change: Callable[..., int]) -> Found:
    call.allow("xrange")
    queue = _queue(call)
    task, reason = call.members.get("task", ""), call.members.get("reason", "")
    low, high = call.bound("start", "-", "from"), call.bound("end", "+", "to")
    page = _chosen(call, Wanted(queue.core.names.dead, low, high), task, reason, _MOST)
    chosen = [_letter(one) for one in page.entries]
    done = change(queue, *chosen) if chosen else 0
    return {"count": done, "next": None if page.next is None else page.next.decode()}


# --- parts --------------------------------------------------------------------------------------


def _queue(call: Call) -> Queue:
    """Return a queue that exists; none is made by looking at it."""
    if call.queue not in queue_names(call.store):
        raise Problem(404, f"no queue {call.queue!r}", hint="GET /queues lists the queues")
    return Queue(call.store, call.queue)


def _stats(queue: Queue) -> Found:
    names = queue.core.names
    unknown = queue.core.read(lambda snapshot: unknown_tasks(snapshot, names))
    return {**queue.stats()._asdict(), "unknown_tasks": unknown}


def _chosen(
    call: Call,
    wanted: Wanted,
    task: str,
    reason: str,
    count: int,
    tell: Callable[[Letter], bool] | None = None,
) -> Page:
    """Return the dead letters of a range that match, as far as half a second goes."""

    def holds(entry: Entry[bytes]) -> bool:
        letter = _letter(entry)
        return matches(letter, reason or None, task or None) and (tell is None or tell(letter))

    try:
        return read_page(call.store, wanted, count, holds=holds, seconds=SEARCH_S)
    except NoSuchKeyError:
        return Page([], None, 0)


def _letter(entry: Entry[bytes]) -> Letter:
    return letter_of(entry.id, entry.fields)


def _row(queue: Queue, one: Listed, *, whole: bool = False) -> Found:
    place = one.place
    names = queue.core.names
    entry = None
    if place is not None:
        entry = {"key": json_bytes(names.streams[place.priority]), "id": place.entry_id}
    members = one._asdict()
    del members["fields"], members["place"], members["history"]
    if whole:
        members["history"] = [run._asdict() for run in one.history]
    task = one.fields.get(b"task")
    return {
        **members,
        "task": None if task is None else json_bytes(task),
        "call": call_text(one.fields, 1 << 30 if whole else _SHOWN),
        "entry": entry,
    }


def _letter_row(queue: Queue, letter: Letter, *, whole: bool = False) -> Found:
    return {
        **_row(queue, of_letter(letter), whole=whole),
        "letter": letter.id,
        "entry": {"key": json_bytes(queue.core.names.dead), "id": letter.id},
        "reason": _cut(letter.reason),
        "error": _cut(letter.error),
        "message": letter.message if whole else _cut(letter.message),
        **({"traceback": letter.traceback} if whole else {}),
        "deaths": letter.deaths,
    }


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
