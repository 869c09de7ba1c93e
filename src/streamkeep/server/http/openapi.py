"""The description of all routes, in the form of OpenAPI 3.1, which the page shows, too."""

from __future__ import annotations

import inspect
from typing import Any, Final

import streamkeep
from streamkeep.server.http.routes import ROUTES, Route

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
    "job": "the ID of a job",
    "letter": "or the ID of a dead letter",
    "match": "only keys that contain this, or match it as a pattern with `*`",
    "maxlen": "then trim the stream to about this many entries",
    "min_idle_ms": "only entries that were delivered at least this many milliseconds ago",
    "minutes": "of how many minutes in which something ended",
    "NAME": "the name of a queue, percent-encoded",
    "nomkstream": "1: append only if the stream exists",
    "producer": "the producer of the idempotency key; `http` by default",
    "reason": "only with this text in reason, error or message",
    "reasons": "1: count them by task and error",
    "reverse": "1: the newest entries first",
    "shape": "`pairs` for entries as lists of [field, value]; `fields` (the default) for objects",
    "state": "waiting (the default), running, delayed, parked, done, failed or cancelled",
    "start": "the first entry ID, a date or time in ISO 8601, or an age such as `-2h`, included; "
    "`(id` excludes it",
    "start_ms": "begin of the window, Unix milliseconds",
    "task": "only of this task",
    "text": "the text to find in names and values of fields; ASCII letters match in both cases",
    "as": "`body`: the body is one entry with the fields `body` and `content_type`, for any type",
}


def document(root_path: str = "") -> dict[str, Any]:
    """Return the description of all routes below a path."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
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
        "summary": " ".join((inspect.getdoc(route.serve) or "").split()),
        "parameters": [
            *(
                _parameter(name, "path", _MEANINGS[name])
                for name in ("KEY", "GROUP", "NAME")
                if f"{{{name}}}" in route.path
            ),
            *(_parameter(name, "query", _MEANINGS[name]) for name in route.query.split()),
            *(_parameter(name, "header", told) for name, told in route.headers.items()),
        ],
        "responses": {
            str(route.status): {
                "description": "done",
                "content": {kind: {} for kind in route.types.split()},
            },
            "default": {"description": '`{"error", "message", "next"}`'},
        },
    }
    if route.body or route.takes_any:
        members = {}
        for name, text in route.body.items():
            kind, meaning = text.split(": ", 1)
            kind = kind.replace("name", "string")
            members[name] = {"type": kind, "description": meaning}
        schema = {"type": "object", "properties": members} if members else {}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route.open:
        found["security"] = []
    return found


def _parameter(name: str, place: str, meaning: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": meaning,
        "schema": {"type": "string"},
    }
