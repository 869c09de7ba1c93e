"""The routes of streams: list, read, follow, append.

GET  /streams                  the streams, by name
GET  /streams/KEY              entries: JSON, NDJSON, or events
POST /streams/KEY              append: JSON, NDJSON, a form, or any body
GET  /streams/KEY/info         counters, retention, groups, archive
GET  /streams/KEY/search       entries with a text in a field or value
GET  /streams/KEY/figures      entries over time
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.server.http.entries import (
    MOST,
    Page,
    Wanted,
    entry_json,
    entry_line,
    read_page,
)
from streamkeep.server.http.events import EventReply, EventStream, starting_id
from streamkeep.server.http.figures import Span, figures
from streamkeep.server.http.multipart import FORM_DATA, form_pairs
from streamkeep.server.http.overview import list_streams, stream_facts
from streamkeep.server.http.search import search
from streamkeep.server.http.state import State, state_of
from streamkeep.server.http.wire import (
    Pairs,
    Parameters,
    Problem,
    allow,
    field_pairs,
    json_reply,
    media_type,
    parse_json,
    query_pairs,
    segment,
    user_of,
)

_RANGE: Final = ("start", "end", "count", "reverse", "history", "shape")
_EVENTS: Final = ("after", "shape")  # the same path, with another type of reply
_APPEND: Final = ("id", "maxlen", "nomkstream", "producer", "as", "headers")
_MOST_ENTRIES: Final = 10_000  # of one POST
_MS: Final = 1 << 60


def key_of(request: Request) -> bytes:
    """Return the key of a request: from its path, or else from the parameter `key`."""
    name = segment(request, "key")
    if name:
        return name
    return next(
        (value for given, value in query_pairs(request.scope["query_string"]) if given == b"key"),
        b"",
    )


async def streams(request: Request) -> Response:
    """List streams: GET /streams."""
    given = Parameters(request, ("after", "match", "count", "figures"))
    allow(request, "scan")
    state = allow(request, "xinfo|stream")
    span_ms = given.maybe_number("figures", 1000, _MS)
    if span_ms is not None:
        allow(request, "xrange")
    return json_reply(
        await asyncio.to_thread(
            list_streams,
            state.store,
            user_of(request),
            after=given.data("after"),
            match=given.data("match"),
            count=given.number("count", 50, 1, 1000),
            span_ms=span_ms,
        )
    )


async def stream(request: Request) -> Response | ASGIApp:
    """Read a stream, or append to it: GET and POST /streams/KEY."""
    key = key_of(request)
    if request.method == "POST":
        return await _append(request, key)
    kind = request.headers.get("accept", "")
    if "text/event-stream" in kind:
        return await _events(request, key)
    given = Parameters(request, _RANGE)
    state, wanted = _wanted(request, key, given)
    as_pairs = _as_pairs(given)
    if "application/x-ndjson" in kind:
        most = given.maybe_number("count", 1, _MS)
        first = await _page(state, wanted, 100 if most is None else min(most, 100))
        await _check_exists(state, key, first)
        lines = _lines(state, wanted, first, most, as_pairs)
        return EventReply(lines, "application/x-ndjson", state.stall_s)
    page = await _page(state, wanted, given.number("count", 100, 1, MOST))
    await _check_exists(state, key, page)
    return json_reply(
        {
            "key": json_bytes(key),
            "entries": [entry_json(one, as_pairs=as_pairs) for one in page.entries],
            "next": None if page.next is None else page.next.decode(),
        }
    )


def _wanted(request: Request, key: bytes, given: Parameters) -> tuple[State, Wanted]:
    """Return the range of a request that reads one."""
    newest_first = given.flag("reverse")
    state = allow(request, "xrevrange" if newest_first else "xrange", key)
    low, high = given.bound("start", "-", "from"), given.bound("end", "+", "to")
    return state, Wanted(key, low, high, newest_first, given.flag("history"))


async def info(request: Request) -> Response:
    """Describe a stream: GET /streams/KEY/info."""
    Parameters(request, ())
    key = key_of(request)
    state = allow(request, "xinfo|stream", key)
    return json_reply(await asyncio.to_thread(stream_facts, state.store, key))


async def searched(request: Request) -> Response:
    """Search a part of a stream: GET /streams/KEY/search."""
    given = Parameters(
        request, ("text", "field", "start", "end", "reverse", "history", "count", "shape")
    )
    state, wanted = _wanted(request, key_of(request), given)
    text, field = given.data("text") or b"", given.data("field")
    if not text and field is None:
        raise Problem(400, "one of the parameters 'text' and 'field' is needed")
    count = given.number("count", 100, 1, 1000)
    async with state.heavy:
        found = await asyncio.to_thread(search, state.store, wanted, text, field, count)
    as_pairs = _as_pairs(given)
    return json_reply(
        {
            "entries": [entry_json(one, as_pairs=as_pairs) for one in found.entries],
            "next": None if found.next is None else found.next.decode(),
            "examined": found.examined,
        }
    )


async def timeline(request: Request) -> Response:
    """Count entries over time: GET /streams/KEY/figures."""
    given = Parameters(request, ("start_ms", "end_ms", "buckets"))
    key = key_of(request)
    state = allow(request, "xrange", key)
    span = Span(
        given.maybe_number("start_ms", 0, _MS),
        given.maybe_number("end_ms", 1, _MS),
        given.number("buckets", 60, 1, 240),
    )
    state = state_of(request)
    async with state.heavy:
        return json_reply(await asyncio.to_thread(figures, state.store, key, span))


# --- reading ------------------------------------------------------------------------------------


async def _page(state: State, wanted: Wanted, count: int) -> Page:
    async with state.reading:
        return await asyncio.to_thread(read_page, state.store, wanted, count)


async def _check_exists(state: State, key: bytes, page: Page) -> None:
    if not page.entries:
        await state.async_store.xinfo_stream(key)  # raises if there is no such stream


def _as_pairs(given: Parameters) -> bool:
    shape = given.text("shape", "fields")
    if shape not in ("fields", "pairs"):
        raise Problem(400, f"the parameter 'shape' must be fields or pairs, not {shape!r}")
    return shape == "pairs"


async def _lines(
    state: State, wanted: Wanted, page: Page, most: int | None, as_pairs: bool
) -> AsyncIterator[bytes]:
    """Yield entries as lines, page by page; nothing is held while the client does not read."""
    done = 0
    while True:
        done += len(page.entries)
        yield b"".join(entry_line(one, as_pairs=as_pairs) + b"\n" for one in page.entries)
        left = 1000 if most is None else min(1000, most - done)
        rest = wanted.after(page.entries[-1].id) if page.entries else None
        if page.next is None or left <= 0 or rest is None:
            return
        wanted = rest
        page = await _page(state, wanted, left)


async def _events(request: Request, key: bytes) -> ASGIApp:
    given = Parameters(request, _EVENTS)
    state = allow(request, "xread", key)
    text = given.bound("after", "$", "after")
    last = request.headers.get("last-event-id")
    if last:
        text = last.encode("latin-1", "replace")
    after = await starting_id(state.async_store, key, text)
    events = EventStream(
        state.async_store,
        key,
        after,
        heartbeat_s=state.heartbeat_s,
        stop=state.stopping,
        as_pairs=_as_pairs(given),
        gate=state.reading,
    )
    return EventReply(_counted(state, events), "text/event-stream", state.stall_s)


async def _counted(state: State, events: EventStream) -> AsyncIterator[bytes]:
    """Yield the chunks of an event stream, and count it while it is open."""
    state.event_streams += 1
    try:
        async with aclosing(events.chunks()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk
    finally:
        state.event_streams -= 1


# --- appending ----------------------------------------------------------------------------------


async def _append(request: Request, key: bytes) -> Response:
    """Append the body, as one entry or several, in one transaction."""
    given = Parameters(request, _APPEND)
    store = allow(request, "xadd", key).async_store
    message = request.headers.get("idempotency-key")
    body = await request.body()
    entries = _entries(request, body, given)
    if isinstance(entries, list) and entries and isinstance(entries[0], list):
        if message is not None or any(name in given for name in _APPEND if name != "as"):
            text = "several entries at once take no ID, idempotency key or trimming"
            raise Problem(400, text, hint="send them one by one")
        ids = await store.xadd_many(key, entries)
        return json_reply({"ids": [one.decode() for one in ids]}, 201)
    options: dict[str, Any] = {
        "id": given.text("id", "*"),
        "maxlen": given.maybe_number("maxlen", 0, _MS),
        "nomkstream": given.flag("nomkstream"),
    }
    if message is not None:
        producer = given.data("producer") or b"http"
        options["idmp"] = (producer, message.encode("latin-1"))
    elif "producer" in given:
        raise ArgumentError("the parameter 'producer' needs the header Idempotency-Key")
    new_id = await store.xadd(key, entries, **options)  # type: ignore[arg-type]
    if new_id is None:
        raise Problem(404, "there is no such stream, and nomkstream=1 does not create one")
    return json_reply({"id": new_id.decode()}, 201)


def _entries(request: Request, body: bytes, given: Parameters) -> Pairs | list[Pairs]:
    """Return the pairs of one entry, or those of several."""
    kind = media_type(request)
    form = given.text("as", "")
    if form not in ("", "body"):
        raise Problem(400, f"the parameter 'as' can only be body, not {form!r}")
    known = (
        "application/json", "application/x-ndjson", "application/x-www-form-urlencoded", FORM_DATA
    )  # fmt: skip
    if form == "body" or kind not in known:
        return _whole_body(request, body, given)
    if "headers" in given:
        raise Problem(400, "the parameter 'headers' needs as=body")
    if kind == "application/json":
        value = parse_json(body)
        if isinstance(value, list):
            return _several([(one, f"entry {at}") for at, one in enumerate(value)])
        return field_pairs(value, "the body")
    if kind == "application/x-ndjson":
        lines = [(at, line) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]
        return _several([(parse_json(line), f"line {at}") for at, line in lines])
    if kind == FORM_DATA:
        pairs = form_pairs(request.headers["content-type"], body)
    else:
        pairs = query_pairs(body)
    if not pairs:
        raise Problem(400, "the form has no fields")
    return pairs


def _several(values: list[tuple[Any, str]]) -> list[Pairs]:
    if not values:
        raise Problem(400, "the body has no entries")
    if len(values) > _MOST_ENTRIES:
        raise Problem(413, f"{len(values)} entries, at most {_MOST_ENTRIES} at once")
    return [field_pairs(value, where) for value, where in values]


def _whole_body(request: Request, body: bytes, given: Parameters) -> Pairs:
    """Return the entry of a webhook: the body, its type, and the headers that were asked for."""
    pairs = [
        (b"body", body),
        (b"content_type", request.headers.get("content-type", "").encode("latin-1")),
    ]
    for name in filter(None, given.text("headers", "").lower().split(",")):
        if name in ("authorization", "cookie"):
            raise Problem(400, f"the header {name!r} is a secret, and is not stored")
        value = request.headers.get(name)
        if value is not None:
            pairs.append((name.encode(), value.encode("latin-1")))
    return pairs
