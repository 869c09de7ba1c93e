"""The routes of durable queues: what waits, runs, is delayed and dead; cancel, requeue, pause.

GET  /queues                    the queues and their figures
GET  /queues/NAME/jobs          jobs of one state
POST /queues/NAME/cancel        remove jobs that have not started
POST /queues/NAME/pause, resume
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import NoSuchGroupError, NoSuchKeyError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.jobs import Queue, queue_names
from streamkeep.jobs.layout import (
    DELAYED,
    GROUP,
    LATE,
    NUMBERED,
    PRIORITIES,
    RETRY,
    SCHEDULE,
    Fields,
    Names,
    Place,
    pack_time,
    parse_due,
    place_of,
    unpack_fields,
    unpack_place,
    unpack_time,
)
from streamkeep.jobs.state import job_id_of, load_settings
from streamkeep.server.access import User
from streamkeep.server.http.overview import keys_of, now_ms, sees_queue
from streamkeep.server.http.wire import (
    Parameters,
    Problem,
    allow,
    json_body,
    json_reply,
    segment,
    user_of,
)

_MOST: Final = 500
_SHOWN_BYTES: Final = 400  # of a payload or message, in lists
_MOST_QUEUES: Final = 500

Rows = list[dict[str, Any]]


async def queues(request: Request) -> Response:
    """List the queues: GET /queues."""
    Parameters(request, ())
    allow(request, "scan")
    state = allow(request, "xinfo|stream")
    rows = await asyncio.to_thread(_list, state.store, user_of(request))
    return json_reply({"queues": rows, "time_ms": now_ms()})


async def jobs(request: Request) -> Response:
    """List the jobs of a queue that are in a state: GET /queues/NAME/jobs."""
    given = Parameters(request, ("state", "count"))
    name = _name(request)
    kind = given.text("state", "waiting")
    if kind not in _LISTS:
        known = ", ".join(_LISTS)
        raise Problem(400, f"the parameter 'state' must be one of {known}, not {kind!r}")
    count = given.number("count", 50, 1, _MOST)
    keys = keys_of(name)
    allow(request, "xrange", *keys)
    store = allow(request, "xpending", *keys).store

    def read() -> dict[str, Any]:
        queue = _queue(store, name)
        with store.snapshot() as snapshot:
            found = list(islice(_LISTS[kind](snapshot, queue.core.names, count), count))
        return {"name": name, "stats": queue.stats()._asdict(), "jobs": found, "time_ms": now_ms()}

    return json_reply(await asyncio.to_thread(read))


async def act(request: Request) -> Response:
    """Cancel, hurry or requeue jobs, pause or resume a queue: POST /queues/NAME/ACTION."""
    Parameters(request, ())
    name = _name(request)
    action = request.path_params["action"]
    if action in ("pause", "resume"):
        # Over Redis's protocol, to move a group to the end of its stream is the nearest to it.
        store = allow(request, "xgroup|setid", *keys_of(name)).store
        await json_body(request, ())
        queue = await asyncio.to_thread(_queue, store, name)
        await asyncio.to_thread(queue.pause if action == "pause" else queue.resume)
        return json_reply({"paused": action == "pause"})
    if action not in _ACTIONS:
        known = ", ".join((*_ACTIONS, "pause", "resume"))
        raise Problem(404, f"no action {action!r}", hint=f"the actions are {known}")
    change, commands = _ACTIONS[action]
    for command in commands:
        store = allow(request, command, *keys_of(name)).store
    ids = _ids(await json_body(request, ("ids",)))
    queue = await asyncio.to_thread(_queue, store, name)
    done = await asyncio.to_thread(lambda: [one for one in ids if change(queue, one)])
    return json_reply({"done": done})


def _ids(body: dict[str, Any]) -> list[str]:
    ids = body.get("ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise Problem(400, "the member 'ids' must be a list of IDs of jobs, or of dead letters")
    if len(ids) > _MOST:
        raise Problem(413, f"{len(ids)} IDs, at most {_MOST} at once")
    return ids


# What each does, and what it would be in commands of Redis.
_ACTIONS: Final[dict[str, tuple[Callable[[Queue, str], object], tuple[str, ...]]]] = {
    "cancel": (Queue.cancel, ("xdel",)),
    "run": (Queue.run_now, ("xadd", "xdel")),
    "requeue": (Queue.requeue, ("xadd", "xdel")),
}


def _name(request: Request) -> str:
    name = segment(request, "name")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Problem(404, f"no queue {name!r}") from None


def _queue(store: Store[bytes], name: str) -> Queue:
    """Return a queue that exists; none is made by looking at it."""
    if name not in queue_names(store):
        raise Problem(404, f"no queue {name!r}", hint="GET /queues lists the queues")
    return Queue(store, name)


def _list(store: Store[bytes], user: User) -> Rows:
    names = [name for name in queue_names(store) if sees_queue(user, name)]
    return [{"name": name, **Queue(store, name).stats()._asdict()} for name in names[:_MOST_QUEUES]]


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
            found = snapshot.xpending_range(name, GROUP, "-", "+", 2 * count, None, 0)
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
        for prefix in (LATE, SCHEDULE)
        for key, _ in snapshot.row_range(names.space, prefix, prefix + b"\xff" * 9, 2 * count)
    ]
    for key in rows:
        due = parse_due(key)
        if due.kind == DELAYED:
            number = unpack_time(due.reference)
            data = snapshot.row_get(names.space, NUMBERED + pack_time(number))
            fields = {} if data is None else unpack_fields(data)
            yield {**_facts(fields), "id": f"job-{number}", "due_ms": due.due_ms, "retry": False}
        elif due.kind == RETRY:
            place = unpack_place(due.reference)
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
        return [one for one in snapshot.xinfo_groups(name) if one["name"] == GROUP]
    except NoSuchKeyError:
        return []


def _row(place: Place, fields: Fields, **more: Any) -> dict[str, Any]:
    priority = PRIORITIES[place.priority]
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
