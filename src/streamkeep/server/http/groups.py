"""The routes of consumer groups: list, create, deliver, acknowledge, claim, return."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from streamkeep.format.core.errors import NoSuchGroupError
from streamkeep.format.core.json_form import consumer_json, json_bytes, pending_json
from streamkeep.server.http.entries import entry_json
from streamkeep.server.http.events import unless_gone
from streamkeep.server.http.overview import group_facts, now_ms
from streamkeep.server.http.routes import Call, Found, route
from streamkeep.server.http.wire import Problem, checked_number, id_members, name_member

_MOST: Final = 1000  # entries or IDs of one request
_MOST_BLOCK_MS: Final = 300_000
_MOST_IDLE_MS: Final = 1 << 53
_MAX_BYTES: Final = 8 << 20  # of a delivery; the first entry is always delivered

_IDS: Final = {"ids": "array: entry IDs"}


@route("GET /groups/{KEY}", "xinfo|groups xpending")
def listed(call: Call) -> Found:
    """The groups of a stream."""
    with call.store.snapshot() as snapshot:
        found = [group_facts(snapshot, call.key, one) for one in snapshot.xinfo_groups(call.key)]
    return {"key": json_bytes(call.key), "groups": found, "time_ms": now_ms()}


@route("GET /groups/{KEY}/{GROUP}", "xinfo|groups xinfo|consumers xpending")
def shown(call: Call) -> Found:
    """A group and its consumers."""
    with call.store.snapshot() as snapshot:
        for one in snapshot.xinfo_groups(call.key):
            if one["name"] == call.group:
                consumers = snapshot.xinfo_consumers(call.key, call.group)
                return {
                    "key": json_bytes(call.key),
                    **group_facts(snapshot, call.key, one),
                    "members": [consumer_json(row) for row in consumers],
                    "time_ms": now_ms(),
                }
    raise _no_group(call)


def _no_group(call: Call) -> NoSuchGroupError:
    return NoSuchGroupError(f"no group {call.group!r} in the stream {call.key!r}")


@route("GET /groups/{KEY}/{GROUP}/pending", "xpending", query="start count consumer min_idle_ms")
async def pending(call: Call) -> Found:
    """Pending entries by ID."""
    count = call.number("count", 100, 1, _MOST)
    rows = await call.state.async_store.xpending_range(
        call.key,
        call.group,
        call.bound("start", "-", "from"),
        "+",
        count,
        call.data("consumer"),
        call.maybe_number("min_idle_ms", 0, _MOST_IDLE_MS),
    )
    last = "(" + rows[-1]["message_id"].decode() if len(rows) == count else None
    return {"pending": [pending_json(row) for row in rows], "next": last}


@route(
    "PUT /groups/{KEY}/{GROUP}",
    "xgroup|create",
    body={
        "start": "string: deliver entries above this ID; `$` (the default) for new ones only",
        "mkstream": "boolean: create the stream if it is missing",
    },
    status=201,
)
async def create(call: Call) -> Found:
    """Create a group."""
    start, mkstream = call.members.get("start", "$"), call.members.get("mkstream", False)
    await call.check_stream()
    await call.state.async_store.xgroup_create(call.key, call.group, id=start, mkstream=mkstream)
    return {"created": json_bytes(call.group)}


@route("DELETE /groups/{KEY}/{GROUP}", "xgroup|destroy")
async def destroy(call: Call) -> Found:
    """Destroy a group with its pending entries."""
    if not await call.state.async_store.xgroup_destroy(call.key, call.group):
        raise _no_group(call)
    return {"destroyed": json_bytes(call.group)}


@route(
    "POST /groups/{KEY}/{GROUP}/deliver",
    "xreadgroup",
    body={
        "consumer": "name: the consumer",
        "count": "integer: at most this many; 10 by default",
        "block_ms": "integer: wait so long for entries, at most 300,000",
        "min_idle_ms": "integer: first take over entries that are pending for this long",
        "noack": "boolean: do not make the entries pending",
    },
)
async def deliver(call: Call) -> Found:
    """Deliver new entries to a consumer; they are pending until it acknowledges them."""
    given = call.members
    block, idle = given.get("block_ms"), given.get("min_idle_ms")
    delivery = call.state.async_store.xreadgroup(
        call.group,
        name_member(given, "consumer"),
        {call.key: ">"},
        count=checked_number("count", given.get("count", 10), 1, _MOST),
        block=None if block is None else checked_number("block_ms", block, 1, _MOST_BLOCK_MS),
        noack=given.get("noack", False),
        claim_min_idle_time=(
            None if idle is None else checked_number("min_idle_ms", idle, 0, _MOST_IDLE_MS)
        ),
        max_size=_MAX_BYTES,
    )
    found: Any = await (delivery if block is None else _waiting(call, delivery))
    entries = found[0][1] if found else []
    return {"entries": [entry_json(one) for one in entries]}


async def _waiting(call: Call, delivery: Coroutine[Any, Any, Any]) -> object:
    """Await a delivery; it takes none if its caller goes, or if the server must not, or ends."""
    task, waiting = asyncio.ensure_future(delivery), call.state.deliveries
    waiting.add(task)
    try:
        return await unless_gone(call.request.receive, task)
    except asyncio.CancelledError:
        if task in waiting:  # uvicorn's patience has ended
            raise
        if call.state.stopping:
            hint = "repeat the request when it runs again; what was delivered is pending"
            raise Problem(503, "the server ends", hint=hint) from None
        hint = "write to the server of which this one is a replica"
        raise Problem(403, "this server has become a replica", hint=hint) from None
    finally:
        waiting.discard(task)


@route("POST /groups/{KEY}/{GROUP}/ack", "xack", body=_IDS)
async def ack(call: Call) -> Found:
    """Acknowledge entries."""
    ids = id_members(call.members, _MOST)
    return {"acknowledged": await call.state.async_store.xack(call.key, call.group, *ids)}


@route(
    "POST /groups/{KEY}/{GROUP}/nack",
    "xnack",
    body={**_IDS, "mode": "string: FAIL (the default), SILENT or FATAL"},
)
async def nack(call: Call) -> Found:
    """Return pending entries to the group, for any consumer to claim."""
    ids, mode = id_members(call.members, _MOST), call.members.get("mode", "FAIL")
    return {"returned": await call.state.async_store.xnack(call.key, call.group, mode, *ids)}


@route(
    "POST /groups/{KEY}/{GROUP}/claim",
    body={
        "consumer": "name: the consumer",
        "min_idle_ms": "integer: only entries that were delivered at least so long ago",
        "ids": "array: entry IDs",
        "start": "string: the ID to begin with; `next` of the reply continues",
        "count": "integer: at most this many; 100 by default",
    },
)
async def claim(call: Call) -> Found:
    """Give pending entries to a consumer: those of `ids`, or else the first from `start` on."""
    given, store = call.members, call.state.async_store
    call.allow("xclaim" if "ids" in given else "xautoclaim")
    consumer = name_member(given, "consumer")
    idle = checked_number("min_idle_ms", given.get("min_idle_ms", 0), 0, _MOST_IDLE_MS)
    if "ids" in given:
        ids = id_members(given, _MOST)
        found = await store.xclaim(call.key, call.group, consumer, idle, ids)
        return {"entries": [entry_json(one) for one in found], "next": None}
    count = checked_number("count", given.get("count", 100), 1, _MOST)
    cursor, found, deleted = await store.xautoclaim(
        call.key, call.group, consumer, idle, given.get("start", "0-0"), count
    )
    return {
        "entries": [entry_json(one) for one in found],
        "next": None if cursor == b"0-0" else cursor.decode(),
        "deleted": [one.decode() for one in deleted],
    }
