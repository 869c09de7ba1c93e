"""The routes of durable queues: what waits, runs, is delayed and dead; cancel, requeue, pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import NoSuchGroupError, NoSuchKeyError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.jobs import Queue, layout, queue_names
from streamkeep.jobs.layout import Fields, Names, Place, place_of
from streamkeep.jobs.state import job_id_of, load_settings
from streamkeep.jobs.stats import unknown_tasks
from streamkeep.server.http.overview import now_ms, sees_queue
from streamkeep.server.http.routes import Call, Found, route
from streamkeep.server.http.wire import Problem, id_members

_MOST: Final = 500
_SHOWN_BYTES: Final = 400  # of a payload or message, in lists
_MOST_QUEUES: Final = 500

_IDS: Final = {"ids": "array: IDs of jobs"}


@route("GET /queues", "scan xinfo|stream")
def queues(call: Call) -> Found:
    """The durable queues and their figures."""
    names = [name for name in queue_names(call.store) if sees_queue(call.user, name)]
    rows = [
        {"name": name, **Queue(call.store, name).stats()._asdict()} for name in names[:_MOST_QUEUES]
    ]
    return {"queues": rows, "time_ms": now_ms()}


@route("GET /queues/{NAME}/jobs", "xrange xpending", query="state count")
def jobs(call: Call) -> Found:
    """Jobs of one state: waiting, running, delayed or dead."""
    kind = call.text("state", "waiting")
    if kind not in _LISTS:
        known = ", ".join(_LISTS)
        raise Problem(400, f"the parameter 'state' must be one of {known}, not {kind!r}")
    count = call.number("count", 50, 1, _MOST)
    queue = _queue(call)
    with call.store.snapshot() as snapshot:
        found = list(islice(_LISTS[kind](snapshot, queue.core.names, count), count))
        unknown = unknown_tasks(snapshot, queue.core.names)
    stats = {**queue.stats()._asdict(), "unknown_tasks": unknown}
    return {"name": call.queue, "stats": stats, "jobs": found, "time_ms": now_ms()}


@route("POST /queues/{NAME}/cancel", "xdel", body=_IDS)
def cancel(call: Call) -> Found:
    """Remove jobs that have not started. `done` in the reply names those that were removed."""
    return _each(call, Queue.cancel)


@route("POST /queues/{NAME}/run", "xadd xdel", body=_IDS)
def run(call: Call) -> Found:
    """Let jobs start now that wait for their time or for a retry."""
    return _each(call, Queue.run_now)


@route(
    "POST /queues/{NAME}/requeue",
    "xadd xdel",
    body={"ids": "array: IDs of dead letters, or of their jobs"},
)
def requeue(call: Call) -> Found:
    """Put dead letters into the queue again, as new jobs."""
    return _each(call, Queue.requeue)


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


def _queue(call: Call) -> Queue:
    """Return a queue that exists; none is made by looking at it."""
    if call.queue not in queue_names(call.store):
        raise Problem(404, f"no queue {call.queue!r}", hint="GET /queues lists the queues")
    return Queue(call.store, call.queue)


# --- jobs by state ------------------------------------------------------------------------------


def _waiting(snapshot: Snapshot[bytes], names: Names, count: int) -> Iterator[dict[str, Any]]:
    """Yield jobs that no worker has taken, in the order in which they will be taken."""
    for priority in load_settings(snapshot, names).streams:
        name = names.streams[priority]
        for group in _groups(snapshot, name):
            after = b"(" + group["last-delivered-id"]
            for entry in snapshot.xrange(name, after, "+", count):
                place = place_of(priority, entry.id)
                yield _row(place, entry.fields, since_ms=place.ms)


def _running(snapshot: Snapshot[bytes], names: Names, count: int) -> Iterator[dict[str, Any]]:
    """Yield jobs that a worker has, by ID."""
    for priority in load_settings(snapshot, names).streams:
        name = names.streams[priority]
        try:
            found = snapshot.xpending_range(name, layout.GROUP, "-", "+", 2 * count, None, 0)
        except (NoSuchKeyError, NoSuchGroupError):
            continue
        for one in found:
            if not one["consumer"]:
                continue  # it waits for a retry, or for a worker that knows its task
            entries = snapshot.xrange(name, one["message_id"], one["message_id"], 1)
            yield _row(
                place_of(priority, one["message_id"]),
                entries[0].fields if entries else {},
                worker=json_bytes(one["consumer"]),
                running_ms=one["time_since_delivered"],
                times_delivered=one["times_delivered"],
            )


def _delayed(snapshot: Snapshot[bytes], names: Names, count: int) -> Iterator[dict[str, Any]]:
    """Yield jobs that wait for their time or for a retry, the next one first."""
    rows = [
        key
        for prefix in (layout.LATE, layout.SCHEDULE)
        for key, _ in snapshot.row_range(names.space, prefix, prefix + b"\xff" * 9, 2 * count)
    ]
    for key in rows:
        due = layout.parse_due(key)
        if due.kind == layout.DELAYED:
            number = layout.unpack_time(due.reference)
            data = snapshot.row_get(names.space, layout.NUMBERED + layout.pack_time(number))
            fields = {} if data is None else layout.unpack_fields(data)
            yield {**_facts(fields), "id": f"job-{number}", "due_ms": due.due_ms, "retry": False}
        elif due.kind == layout.RETRY:
            place = layout.unpack_place(due.reference)
            name = names.streams[place.priority]
            entries = snapshot.xrange(name, place.entry_id, place.entry_id, 1)
            fields = entries[0].fields if entries else {}
            yield _row(place, fields, due_ms=due.due_ms, retry=True)


def _dead(snapshot: Snapshot[bytes], names: Names, count: int) -> Iterator[dict[str, Any]]:
    """Yield dead letters, the newest first."""
    for entry in snapshot.xrevrange(names.dead, count=count):
        fields = entry.fields
        yield {
            **_facts(fields),
            "id": fields.get(b"job", b"").decode("utf-8", "replace"),
            "letter": entry.id.decode(),
            "reason": _shown(fields.get(b"reason", b"")),
            "error": _shown(fields.get(b"error", b"")),
            "message": _shown(fields.get(b"message", b"")),
            "attempts": _shown(fields.get(b"attempts", b"")),
            "died_ms": int(entry.id.partition(b"-")[0]),
        }


_LISTS: Final = {"waiting": _waiting, "running": _running, "delayed": _delayed, "dead": _dead}


def _groups(snapshot: Snapshot[bytes], name: bytes) -> list[dict[str, Any]]:
    try:
        return [one for one in snapshot.xinfo_groups(name) if one["name"] == layout.GROUP]
    except NoSuchKeyError:
        return []


def _row(place: Place, fields: Fields, **more: Any) -> dict[str, Any]:
    priority = layout.PRIORITIES[place.priority]
    return {**_facts(fields), "id": job_id_of(place, fields), "priority": priority, **more}


def _facts(fields: Fields) -> dict[str, Any]:
    payload = fields.get(b"payload", b"")
    return {
        "task": _shown(fields[b"task"]) if b"task" in fields else None,
        "payload": _shown(payload),
        "payload_bytes": len(payload),
    }


def _shown(data: bytes) -> Any:
    """Return the beginning of a value in JSON; a cut character is left out."""
    if len(data) <= _SHOWN_BYTES:
        return json_bytes(data)
    start = data[:_SHOWN_BYTES]
    for cut in range(4):
        try:
            return start[: len(start) - cut].decode() + "…"
        except UnicodeDecodeError:
            continue
    return json_bytes(start)
