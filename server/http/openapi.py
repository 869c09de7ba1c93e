"""The description of all routes, in the form of OpenAPI 3.1: GET /openapi.json.

The page shows it; `test_openapi` compares it with the routes that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

import streamkeep
from streamkeep.server.http.wire import json_reply

# Names of parameters and members, with what they mean. Those of the path are in the path.
_MEANINGS: Final = {
    "KEY": "the key of a stream, percent-encoded: `/` is `%2F`. A key that a browser would "
    "resolve (`.`, `..`, the empty one) is given as `/streams/?key=..` instead",
    "GROUP": "the name of a consumer group, percent-encoded",
    "after": "begin above this: of events an entry ID, a date, an age, `$` for new entries only "
    "(the default) or 0 for all; of streams a key",
    "buckets": "number of buckets, 1 to 240",
    "consumer": "the name of a consumer",
    "count": "at most this many",
    "end": "the last entry ID, a date or time in ISO 8601, or an age such as `-2h`, included",
    "end_ms": "end of the window, Unix milliseconds",
    "field": "look only at values of this field",
    "figures": "also count the entries of this many last milliseconds, in 40 buckets",
    "headers": "names of request headers to store as fields, with commas between them; with "
    "as=body",
    "history": "1: also entries that were trimmed while the stream archived",
    "id": "the ID of the new entry, above the last one; `*` by default",
    "match": "only keys that contain this, or match it as a pattern with `*`",
    "maxlen": "then trim the stream to about this many entries",
    "min_idle_ms": "only entries that were delivered at least this many milliseconds ago",
    "NAME": "the name of a queue, percent-encoded",
    "nomkstream": "1: append only if the stream exists",
    "producer": "the producer of the idempotency key; `http` by default",
    "reverse": "1: the newest entries first",
    "shape": "`pairs` for entries as lists of [field, value]; `fields` (the default) for objects",
    "state": "waiting (the default), running, delayed or dead",
    "start": "the first entry ID, a date or time in ISO 8601, or an age such as `-2h`, included; "
    "`(id` excludes it",
    "start_ms": "begin of the window, Unix milliseconds",
    "text": "the text to find in names and values of fields; ASCII letters match in both cases",
    "as": "`body`: the body is one entry with the fields `body` and `content_type`, for any type",
}


class Route:
    """One method of one path."""

    def __init__(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        query: str = "",
        body: dict[str, str] | None = None,
        types: str = "application/json",
        headers: dict[str, str] | None = None,
        status: int = 200,
    ) -> None:
        self.method = method
        self.path = path
        self.summary = summary
        self.query = query.split()
        self.body = body
        self.types = types.split()
        self.headers = headers or {}
        self.status = status


_IDS: Final = {"ids": "array: entry IDs"}
_STREAMED: Final = "application/json application/x-ndjson text/event-stream"

ROUTES: Final = (
    Route("get", "/health", "Whether the store can be read. Needs no secret."),
    Route("get", "/metrics", "Figures for Prometheus.", types="text/plain"),
    Route("get", "/store", "Sizes, disk, durability, archive, backup and the last check."),
    Route("get", "/store/survey", "Sums over the streams, and the groups that are stuck."),
    Route(
        "post",
        "/store/check",
        "Begin to check the store (fsck); GET /store has the result. Changes nothing.",
        body={"quick": "boolean: check only the ends of each stream; true by default"},
        status=202,
    ),
    Route("get", "/streams", "List streams by key.", query="after match count figures"),
    Route(
        "get",
        "/streams/{KEY}",
        "Entries: a page as JSON, all as NDJSON, or Server-Sent Events that resume from "
        "Last-Event-ID. The header Accept chooses.",
        query="start end count reverse history shape after",
        types=_STREAMED,
        headers={"Last-Event-ID": "of events: continue after this entry"},
    ),
    Route(
        "post",
        "/streams/{KEY}",
        "Append: a JSON object or a form is one entry; a JSON array or NDJSON are several, all or "
        "none. A body of any other type is the field `body` of one entry, for webhooks.",
        query="id maxlen nomkstream producer as headers",
        body={},
        headers={"Idempotency-Key": "a second request with the same key appends nothing"},
        status=201,
    ),
    Route("get", "/streams/{KEY}/info", "Counters, retention, groups and archive of a stream."),
    Route(
        "get",
        "/streams/{KEY}/search",
        "Entries that hold a text. Reads for about half a second; `next` continues the search.",
        query="text field start end reverse history count shape",
    ),
    Route(
        "get",
        "/streams/{KEY}/figures",
        "Entries over time, live and archived; counted or, where they are many, estimated.",
        query="start_ms end_ms buckets",
    ),
    Route("get", "/groups/{KEY}", "The groups of a stream."),
    Route("get", "/groups/{KEY}/{GROUP}", "A group and its consumers."),
    Route(
        "put",
        "/groups/{KEY}/{GROUP}",
        "Create a group.",
        body={
            "start": "string: deliver entries above this ID; `$` (the default) for new ones only",
            "mkstream": "boolean: create the stream if it is missing",
        },
        status=201,
    ),
    Route("delete", "/groups/{KEY}/{GROUP}", "Destroy a group with its pending entries."),
    Route(
        "get",
        "/groups/{KEY}/{GROUP}/pending",
        "Pending entries by ID.",
        query="start count consumer min_idle_ms",
    ),
    Route(
        "post",
        "/groups/{KEY}/{GROUP}/deliver",
        "Deliver new entries to a consumer; they are pending until it acknowledges them.",
        body={
            "consumer": "string: the consumer",
            "count": "integer: at most this many; 10 by default",
            "block_ms": "integer: wait so long for entries, at most 300,000",
            "min_idle_ms": "integer: first take over entries that are pending for this long",
            "noack": "boolean: do not make the entries pending",
        },
    ),
    Route("post", "/groups/{KEY}/{GROUP}/ack", "Acknowledge entries.", body=_IDS),
    Route(
        "post",
        "/groups/{KEY}/{GROUP}/nack",
        "Return pending entries to the group, for any consumer to claim.",
        body={**_IDS, "mode": "string: FAIL (the default), SILENT or FATAL"},
    ),
    Route(
        "post",
        "/groups/{KEY}/{GROUP}/claim",
        "Give pending entries to a consumer: those of `ids`, or else the first from `start` on.",
        body={
            "consumer": "string: the consumer",
            "min_idle_ms": "integer: only entries that were delivered at least so long ago",
            "ids": "array: entry IDs",
            "start": "string: the ID to begin with; `next` of the reply continues",
            "count": "integer: at most this many; 100 by default",
        },
    ),
    Route("get", "/queues", "The durable queues and their figures."),
    Route(
        "get",
        "/queues/{NAME}/jobs",
        "Jobs of one state: waiting, running, delayed or dead.",
        query="state count",
    ),
    Route(
        "post",
        "/queues/{NAME}/cancel",
        "Remove jobs that have not started. `done` in the reply names those that were removed.",
        body={"ids": "array: IDs of jobs"},
    ),
    Route(
        "post",
        "/queues/{NAME}/run",
        "Let jobs start now that wait for their time or for a retry.",
        body={"ids": "array: IDs of jobs"},
    ),
    Route(
        "post",
        "/queues/{NAME}/requeue",
        "Put dead letters into the queue again, as new jobs.",
        body={"ids": "array: IDs of dead letters, or of their jobs"},
    ),
    Route("post", "/queues/{NAME}/pause", "Let no worker take a job. Running jobs continue."),
    Route("post", "/queues/{NAME}/resume", "End a pause."),
)


async def description(request: Request) -> Response:
    """Return the description: GET /openapi.json."""
    return json_reply(document(request.scope.get("root_path", "")))


def document(root_path: str = "") -> dict[str, Any]:
    """Return the description of all routes below a path."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Streamkeep",
            "version": streamkeep.__version__,
            "summary": "Streams of a store over HTTP",
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{"token": []}, {"password": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            }
        },
        "paths": paths,
    }


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": route.summary,
        "parameters": list(_parameters(route)),
        "responses": {
            str(route.status): {
                "description": "done",
                "content": {kind: {} for kind in route.types},
            },
            "default": {"description": '`{"error", "message", "next"}`'},
        },
    }
    if route.body is not None:
        members = {name: _member(text) for name, text in route.body.items()}
        schema = {"type": "object", "properties": members} if members else {}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route.path == "/health":
        found["security"] = []
    return found


def _member(text: str) -> dict[str, str]:
    kind, _, meaning = text.partition(": ")
    return {"type": kind, "description": meaning}


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in ("KEY", "GROUP", "NAME"):
        if f"{{{name}}}" in route.path:
            yield _parameter(name, "path", _MEANINGS[name])
    for name in route.query:
        yield _parameter(name, "query", _MEANINGS[name])
    for name, meaning in route.headers.items():
        yield _parameter(name, "header", meaning)


def _parameter(name: str, place: str, meaning: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": meaning,
        "schema": {"type": "string"},
    }
