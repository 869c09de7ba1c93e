"""The routes of consumer groups: list, create, deliver, acknowledge, claim, return.

GET    /groups/KEY                     the groups of a stream
GET    /groups/KEY/GROUP               one group, and its consumers
PUT    /groups/KEY/GROUP               create it
DELETE /groups/KEY/GROUP               destroy it
GET    /groups/KEY/GROUP/pending       pending entries by ID
POST   /groups/KEY/GROUP/deliver       new entries for a consumer
POST   /groups/KEY/GROUP/ack, claim, nack
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import NoSuchGroupError
from streamkeep.format.core.json_form import consumer_json, json_bytes, pending_json
from streamkeep.server.http.entries import entry_json
from streamkeep.server.http.events import gone
from streamkeep.server.http.overview import group_facts, now_ms
from streamkeep.server.http.streams import key_of
from streamkeep.server.http.wire import (
    Parameters,
    Problem,
    allow,
    checked_number,
    id_members,
    json_body,
    json_reply,
    name_member,
    query_pairs,
    segment,
)

_MOST: Final = 1000  # entries or IDs of one request
_MOST_BLOCK_MS: Final = 300_000
_MOST_IDLE_MS: Final = 1 << 53
_MAX_BYTES: Final = 8 << 20  # of a delivery; the first entry is always delivered


async def groups(request: Request) -> Response:
    """Serve /groups/KEY and all below it."""
    key = key_of(request)
    if "group" in request.path_params:
        group: bytes | None = segment(request, "group")
        action = request.path_params.get("action", "")
    else:
        group, action = _named(request)
    if group is None:
        if request.method != "GET":
            raise Problem(405, "name a group: /groups/KEY/GROUP")
        allow(request, "xinfo|groups", key)
        state = allow(request, "xpending", key)  # the oldest pending entry of each
        return json_reply(await asyncio.to_thread(_list, state.store, key))
    serve = _ROUTES.get((request.method, action))
    if serve is None:
        known = sorted({name for _, name in _ROUTES if name})
        if action not in ("", *known):
            raise Problem(404, f"no action {action!r}", hint=f"the actions are {', '.join(known)}")
        methods = sorted(method for method, name in _ROUTES if name == action)
        raise Problem(405, f"use {' or '.join(methods)}", headers={"allow": ", ".join(methods)})
    return await serve(request, key, group)


def _named(request: Request) -> tuple[bytes | None, str]:
    """Return group and action from the parameters, where the path has none."""
    given = dict(query_pairs(request.scope["query_string"]))
    return given.get(b"group"), given.get(b"action", b"").decode("latin-1")


# --- reading ------------------------------------------------------------------------------------


def _list(store: Store[bytes], key: bytes) -> dict[str, Any]:
    with store.snapshot() as snapshot:
        found = [group_facts(snapshot, key, one) for one in snapshot.xinfo_groups(key)]
    return {"key": json_bytes(key), "groups": found, "time_ms": now_ms()}


async def _show(request: Request, key: bytes, group: bytes) -> Response:
    Parameters(request, _NAMES)
    for command in ("xinfo|groups", "xinfo|consumers", "xpending"):
        state = allow(request, command, key)
    return json_reply(await asyncio.to_thread(_facts, state.store, key, group))


def _facts(store: Store[bytes], key: bytes, group: bytes) -> dict[str, Any]:
    with store.snapshot() as snapshot:
        for one in snapshot.xinfo_groups(key):
            if one["name"] == group:
                consumers = snapshot.xinfo_consumers(key, group)
                return {
                    "key": json_bytes(key),
                    **group_facts(snapshot, key, one),
                    "members": [consumer_json(row) for row in consumers],
                    "time_ms": now_ms(),
                }
    raise NoSuchGroupError(f"no group {group!r} in the stream {key!r}")


async def _pending(request: Request, key: bytes, group: bytes) -> Response:
    given = Parameters(request, (*_NAMES, "start", "count", "consumer", "min_idle_ms"))
    count = given.number("count", 100, 1, _MOST)
    rows = await allow(request, "xpending", key).async_store.xpending_range(
        key,
        group,
        given.bound("start", "-", "from"),
        "+",
        count,
        given.data("consumer"),
        given.maybe_number("min_idle_ms", 0, _MOST_IDLE_MS),
    )
    return json_reply(
        {
            "pending": [pending_json(row) for row in rows],
            "next": "(" + rows[-1]["message_id"].decode() if len(rows) == count else None,
        }
    )


# --- changing -----------------------------------------------------------------------------------


async def _create(request: Request, key: bytes, group: bytes) -> Response:
    Parameters(request, _NAMES)
    store = allow(request, "xgroup|create", key).async_store
    body = await json_body(request, ("start", "mkstream"))
    start = body.get("start", "$")
    mkstream = body.get("mkstream", False)
    if not isinstance(start, str) or not isinstance(mkstream, bool):
        raise Problem(400, "'start' must be an ID or $, and 'mkstream' true or false")
    await store.xgroup_create(key, group, id=start, mkstream=mkstream)
    return json_reply({"created": json_bytes(group)}, 201)


async def _destroy(request: Request, key: bytes, group: bytes) -> Response:
    Parameters(request, _NAMES)
    if not await allow(request, "xgroup|destroy", key).async_store.xgroup_destroy(key, group):
        raise NoSuchGroupError(f"no group {group!r} in the stream {key!r}")
    return json_reply({"destroyed": json_bytes(group)})


async def _deliver(request: Request, key: bytes, group: bytes) -> Response:
    """Deliver entries; a caller that goes while it waits gets none."""
    Parameters(request, _NAMES)
    store = allow(request, "xreadgroup", key).async_store
    body = await json_body(request, ("consumer", "count", "block_ms", "min_idle_ms", "noack"))
    block = body.get("block_ms")
    idle = body.get("min_idle_ms")
    noack = body.get("noack", False)
    if not isinstance(noack, bool):
        raise Problem(400, "the member 'noack' must be true or false")
    call = store.xreadgroup(
        group,
        name_member(body, "consumer"),
        {key: ">"},
        count=checked_number("count", body.get("count", 10), 1, _MOST),
        block=None if block is None else checked_number("block_ms", block, 1, _MOST_BLOCK_MS),
        noack=noack,
        claim_min_idle_time=(
            None if idle is None else checked_number("min_idle_ms", idle, 0, _MOST_IDLE_MS)
        ),
        max_size=_MAX_BYTES,
    )
    found: Any = await _unless_gone(request, call) if block is not None else await call
    entries = found[0][1] if found else []
    return json_reply({"entries": [entry_json(one) for one in entries]})


async def _unless_gone(request: Request, call: Any) -> Any:
    """Await a call that waits; cancel it when the caller disconnects."""
    waiting = asyncio.ensure_future(call)
    leaving = asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise Problem(503, "the caller has gone")
        return waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


async def _ack(request: Request, key: bytes, group: bytes) -> Response:
    Parameters(request, _NAMES)
    store = allow(request, "xack", key).async_store
    body = await json_body(request, ("ids",))
    ids = id_members(body, _MOST)
    done = await store.xack(key, group, *ids)
    return json_reply({"acknowledged": done})


async def _nack(request: Request, key: bytes, group: bytes) -> Response:
    Parameters(request, _NAMES)
    store = allow(request, "xnack", key).async_store
    body = await json_body(request, ("ids", "mode"))
    mode = body.get("mode", "FAIL")
    ids = id_members(body, _MOST)
    done = await store.xnack(key, group, mode, *ids)
    return json_reply({"returned": done})


async def _claim(request: Request, key: bytes, group: bytes) -> Response:
    """Give pending entries to a consumer: those named by `ids`, or the oldest ones."""
    Parameters(request, _NAMES)
    body = await json_body(request, ("consumer", "min_idle_ms", "ids", "start", "count"))
    store = allow(request, "xclaim" if "ids" in body else "xautoclaim", key).async_store
    consumer = name_member(body, "consumer")
    idle = checked_number("min_idle_ms", body.get("min_idle_ms", 0), 0, _MOST_IDLE_MS)
    if "ids" in body:
        ids = id_members(body, _MOST)
        found = await store.xclaim(key, group, consumer, idle, ids)
        return json_reply({"entries": [entry_json(one) for one in found], "next": None})
    count = checked_number("count", body.get("count", 100), 1, _MOST)
    start = body.get("start", "0-0")
    if not isinstance(start, str):
        raise Problem(400, "the member 'start' must be an ID")
    cursor, found, gone = await store.xautoclaim(key, group, consumer, idle, start, count)
    return json_reply(
        {
            "entries": [entry_json(one) for one in found],
            "next": None if cursor == b"0-0" else cursor.decode(),
            "deleted": [one.decode() for one in gone],
        }
    )


_NAMES: Final = ("key", "group", "action")
_ROUTES: Final = {
    ("GET", ""): _show,
    ("PUT", ""): _create,
    ("DELETE", ""): _destroy,
    ("GET", "pending"): _pending,
    ("POST", "deliver"): _deliver,
    ("POST", "ack"): _ack,
    ("POST", "nack"): _nack,
    ("POST", "claim"): _claim,
}
