"""The routes of streams: list, read, follow, append, search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import ASGIApp

from streamkeep.engine.archive.segments import iter_retired
from streamkeep.engine.commands import keys
from streamkeep.engine.commands.glob import Glob
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.core.keys import KEYS
from streamkeep.server.http import events, overview, wire
from streamkeep.server.http.entries import (
    MOST,
    PAGE_BYTES,
    Page,
    Wanted,
    entry_json,
    entry_line,
    read_page,
    search,
)
from streamkeep.server.http.events import STEP_BYTES, EventReply, event_chunks, starting_id
from streamkeep.server.http.routes import Call, Found, State, route
from streamkeep.server.http.wire import MAX_PARAMETERS, Pairs, Problem

FORM_DATA: Final = "multipart/form-data"


def form_pairs(content_type: str, body: bytes) -> Pairs:
    """Return the fields of a form, in order; a file is three: its contents, name and type.

    Raises:
        Problem: the body is not such a form.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Problem(400, f"the type {FORM_DATA} needs a boundary")
    pairs: Pairs = []
    headers: dict[bytes, bytes] = {}
    gathered = {"field": b"", "value": b""}  # of the header that comes
    data: list[bytes] = []
    parts = 0
    complete = False

    def gather(kind: str, piece: bytes, start: int, end: int) -> None:
        gathered[kind] += piece[start:end]

    def begin() -> None:
        nonlocal parts
        parts += 1
        if parts > MAX_PARAMETERS:
            raise Problem(400, f"more than {MAX_PARAMETERS} parts")
        headers.clear()
        data.clear()

    def header_end() -> None:
        headers[gathered["field"].lower()] = gathered["value"]
        gathered.update(field=b"", value=b"")

    def end() -> None:
        kind, options = parse_options_header(headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise Problem(400, f"part {parts} of the form has no name")
        pairs.append((name, b"".join(data)))
        if b"filename" in options:
            pairs.append((name + b".filename", options[b"filename"]))
            pairs.append((name + b".content_type", headers.get(b"content-type", b"")))

    def finish() -> None:
        nonlocal complete
        complete = True

    calls: dict[str, Any] = {
        "on_part_begin": begin,
        "on_header_field": partial(gather, "field"),
        "on_header_value": partial(gather, "value"),
        "on_header_end": header_end,
        "on_part_data": lambda piece, start, stop: data.append(piece[start:stop]),
        "on_part_end": end,
        "on_end": finish,
    }
    try:
        parser = MultipartParser(boundary, calls)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, f"the body is not {FORM_DATA}: {error}") from None
    if not complete:
        raise Problem(400, f"the body is not {FORM_DATA}: its end is missing")
    return pairs


_RANGE: Final = ("start", "end", "count", "reverse", "history", "shape")
_EVENTS: Final = ("after", "shape")  # the same path, with another type of reply
_APPEND: Final = ("id", "maxlen", "nomkstream", "producer", "as", "headers")
_MOST_ENTRIES: Final = 10_000  # of one POST
_SHORT: Final = 1 << 14  # bytes of a body that is read at once: a thread takes as long
_PIECE: Final = 1000  # entries that are sent at once, up to the one with which they have STEP_BYTES
_MS: Final = 1 << 60
_SPARK_BUCKETS: Final = 40
_LEAST_MS: Final = 60_000  # of a window that is not given
_MOST_RETIRED: Final = 2000  # nodes that wait to be archived, and are looked at


@route("GET /streams", "scan xinfo|stream", query="after match count figures")
def streams(call: Call) -> Found:
    """List streams by key."""
    after, match = call.data("after"), call.data("match")
    count = call.number("count", 50, 1, 1000)
    span_ms = call.maybe_number("figures", 1000, _MS)
    found: list[dict[str, Any]] = []
    more = False
    edges = None
    pattern = Glob(match) if match and b"*" in match else None
    text = b"" if match is None or pattern is not None else match.lower()
    if span_ms is not None:
        call.allow("xrange")
        end = overview.now_ms()
        edges = overview.bucket_edges(end - span_ms, end, _SPARK_BUCKETS)
    with call.store.snapshot() as snapshot, translated():
        for name, _ in keys.iter_keys(snapshot.txn):
            if (after is not None and name <= after) or not call.sees(name):
                continue
            if pattern is not None and not pattern.matches(name):
                continue
            if text not in name.lower():
                continue
            if len(found) == count:
                more = True
                break
            found.append(overview.row(snapshot, name, edges))
        total = snapshot.txn.rows(KEYS)
    return {
        "streams": found,
        "next": found[-1]["key"] if more else None,
        "total": total if call.user.sees_all else None,
        "time_ms": overview.now_ms(),
        "edges_ms": edges,
    }


@route(
    "GET /streams/{KEY}",
    query=" ".join((*_RANGE, "after")),
    types="application/json application/x-ndjson text/event-stream",
    headers={"Last-Event-ID": "of events: continue after this entry"},
)
async def read(call: Call) -> Found | ASGIApp:
    """Entries: a page as JSON, all as NDJSON, or Server-Sent Events that resume from Last-Event-ID.
    The header Accept chooses.
    """
    kind = call.request.headers.get("accept", "")
    if "text/event-stream" in kind:
        call.check(_EVENTS)
        return await _events(call)
    call.check(_RANGE)
    state, wanted, as_pairs = call.state, _wanted(call), _as_pairs(call)
    lasts = "application/x-ndjson" in kind
    most = call.maybe_number("count", 1, _MS if lasts else MOST)
    page = await _page(state, wanted, most, piece=lasts)
    if not page.entries:
        await state.async_store.xinfo_stream(call.key)  # raises if there is no such stream
    if lasts:
        lines = _lines(state, wanted, page, most, as_pairs)
        return EventReply(lines, "application/x-ndjson", events.STALL_S)
    return {"key": json_bytes(call.key), **_shown(page, as_pairs)}


def _wanted(call: Call) -> Wanted:
    newest_first = call.flag("reverse")
    call.allow("xrevrange" if newest_first else "xrange")
    low, high = call.bound("start", "-", "from"), call.bound("end", "+", "to")
    return Wanted(call.key, low, high, newest_first, call.flag("history"))


def _shown(page: Page, as_pairs: bool) -> Found:
    return {
        "entries": [entry_json(one, as_pairs=as_pairs) for one in page.entries],
        "next": None if page.next is None else page.next.decode(),
    }


@route("GET /streams/{KEY}/info", "xinfo|stream")
def info(call: Call) -> Found:
    """Counters, retention, groups and archive of a stream."""
    with call.store.snapshot() as snapshot, translated():
        stream = existing_stream(snapshot.txn, call.key)
        record = stream.record
        facts: dict[str, Any] = {
            "key": json_bytes(call.key),
            "length": record.length,
            "entries_added": record.entries_added,
            "nodes": stream.nodes(),
            "size_bytes": stream.node_bytes(),
            "tombstones": record.tombstones,
            "first_id": str(StreamId(*record.first_id())) if record.length else None,
            "last_id": str(StreamId(*record.last_live_id())) if record.length else None,
            "last_generated_id": f"{record.last_ms}-{record.last_seq}",
            "groups": [
                overview.group_facts(snapshot, call.key, one)
                for one in snapshot.xinfo_groups(call.key)
            ],
            "retention": snapshot.retention(call.key)._asdict(),
            "time_ms": overview.now_ms(),
        }
    segments = call.store.archived_segments(call.key)
    facts["archive"] = {
        "segments": len(segments),
        "entries": sum(one.entries for one in segments),
        "size_bytes": sum(one.size_bytes for one in segments),
        "erased_entries": sum(one.erased for one in segments),
        "first_id": str(segments[0].first_id) if segments else None,
        "last_id": str(segments[-1].last_id) if segments else None,
    }
    return facts


@route(
    "GET /streams/{KEY}/search",
    query="text field start end reverse history count shape",
    heavy=True,
)
def searched(call: Call) -> Found:
    """Entries that hold a text. Reads for about half a second; `next` continues the search."""
    wanted = _wanted(call)
    text, field = call.data("text") or b"", call.data("field")
    if not text and field is None:
        raise wire.Problem(400, "one of the parameters 'text' and 'field' is needed")
    count, as_pairs = call.number("count", 100, 1, 1000), _as_pairs(call)
    page = search(call.store, wanted, text, field, count)
    return {**_shown(page, as_pairs), "examined": page.examined}


@route("GET /streams/{KEY}/figures", "xrange", query="start_ms end_ms buckets", heavy=True)
def timeline(call: Call) -> Found:
    """Entries over time, live and archived; counted or, where they are many, estimated."""
    start_ms, end_ms = call.maybe_number("start_ms", 0, _MS), call.maybe_number("end_ms", 1, _MS)
    with call.store.snapshot() as snapshot, translated():
        stream = existing_stream(snapshot.txn, call.key)
        segments = call.store.archived_segments(call.key)
        waiting = list(islice(iter_retired(snapshot.txn, stream.number), _MOST_RETIRED))
        record = stream.record
        firsts = [one.first_ms for one in segments] + [node.first_id.ms for node in waiting]
        lasts = [one.last_ms for one in segments] + [node.last_id.ms for node in waiting]
        if record.length:
            firsts.append(record.first_ms)
            lasts.append(record.last_live_ms)
        start = min(firsts, default=0) if start_ms is None else start_ms
        end = max(lasts, default=0) + 1 if end_ms is None else end_ms
        if start_ms is None:
            start = max(0, min(start, end - _LEAST_MS))
        edges = overview.bucket_edges(start, end, call.number("buckets", 60, 1, 240))
        live = overview.count_live(snapshot.txn, stream, edges)
    archived = [0.0] * (len(edges) - 1)
    retired = archived.copy()
    erased = archived.copy()
    for node in waiting:
        overview.spread(retired, edges, node.first_id.ms, node.last_id.ms, node.entries)
    for one in segments:
        overview.spread(erased, edges, one.first_ms, one.last_ms, one.erased)
        overview.spread(archived, edges, one.first_ms, one.last_ms, one.entries)
    return {
        "key": json_bytes(call.key),
        "edges_ms": edges,
        "live": live.entries,
        "trimmed": [round(count) for count in retired],
        "archived": [round(count) for count in archived],
        "erased": [round(count) for count in erased],
        "exact": live.exact and not segments and not waiting,
        "first_live_ms": record.first_ms if record.length else None,
        "last_live_ms": record.last_live_ms if record.length else None,
        "archived_entries": sum(one.entries for one in segments),
        "trimmed_entries": sum(node.entries for node in waiting),
        "erased_entries": sum(one.erased for one in segments),
    }


# --- reading ------------------------------------------------------------------------------------


async def _page(state: State, wanted: Wanted, most: int | None, *, piece: bool) -> Page:
    """Return a page; or one of the size that is sent at once, of a reply that has no end."""
    count = (_PIECE if most is None else min(_PIECE, most)) if piece else most or 100
    async with state.reading:
        return await asyncio.to_thread(
            read_page, state.store, wanted, count, STEP_BYTES if piece else PAGE_BYTES
        )


def _as_pairs(call: Call) -> bool:
    shape = call.text("shape", "fields")
    if shape not in ("fields", "pairs"):
        raise wire.Problem(400, f"the parameter 'shape' must be fields or pairs, not {shape!r}")
    return shape == "pairs"


async def _lines(
    state: State, wanted: Wanted, page: Page, most: int | None, as_pairs: bool
) -> AsyncIterator[bytes]:
    """Yield entries as lines, page by page; nothing else is held while the client does not read."""
    while True:
        lines = b"".join(entry_line(one, as_pairs=as_pairs) + b"\n" for one in page.entries)
        rest = wanted.after(page.entries[-1].id) if page.entries and page.next else None
        most = None if most is None else most - len(page.entries)
        del page
        yield lines
        if rest is None or most == 0:
            return
        wanted = rest
        page = await _page(state, wanted, most, piece=True)


async def _events(call: Call) -> ASGIApp:
    state = call.state
    call.allow("xread")
    text = call.bound("after", "$", "after")
    last = call.request.headers.get("last-event-id")
    if last:
        text = last.encode("latin-1", "replace")
    chunks = event_chunks(
        state.async_store,
        call.key,
        await starting_id(state.async_store, call.key, text),
        heartbeat_s=events.HEARTBEAT_S,
        stop=lambda: state.stopping,
        as_pairs=_as_pairs(call),
        gate=state.reading,
    )
    return EventReply(_counted(state, chunks), "text/event-stream", events.STALL_S)


async def _counted(state: State, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of an event stream, and count it while it is open."""
    state.event_streams += 1
    try:
        async with aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk
    finally:
        state.event_streams -= 1


# --- appending ----------------------------------------------------------------------------------


@route(
    "POST /streams/{KEY}",
    "xadd",
    query=" ".join(_APPEND),
    takes_any=True,
    headers={"Idempotency-Key": "a repeated request appends nothing, while XCFGSET remembers it"},
    status=201,
)
async def append(call: Call) -> Found:
    """Append: a JSON object or a form is one entry; a JSON array or NDJSON are several, all or
    none. A body of any other type is the field `body` of one entry, for webhooks.
    """
    store = call.state.async_store
    message = call.request.headers.get("idempotency-key")
    body = await call.request.body()
    if len(body) < _SHORT:
        entries = _entries(call, body)
    else:  # perhaps a hundred thousand fields, for which other clients would wait
        entries = await asyncio.to_thread(_entries, call, body)
    await call.check_stream()
    if isinstance(entries, list) and entries and isinstance(entries[0], list):
        if message is not None or any(name in call for name in _APPEND if name != "as"):
            text = "several entries at once take no ID, idempotency key or trimming"
            raise wire.Problem(400, text, hint="send them one by one")
        ids = await store.xadd_many(call.key, entries)
        return {"ids": [one.decode() for one in ids]}
    options: dict[str, Any] = {
        "id": call.text("id", "*"),
        "maxlen": call.maybe_number("maxlen", 0, _MS),
        "nomkstream": call.flag("nomkstream"),
    }
    if message is not None:
        options["idmp"] = (call.data("producer") or b"http", message.encode("latin-1"))
    elif "producer" in call:
        raise ArgumentError("the parameter 'producer' needs the header Idempotency-Key")
    new_id = await store.xadd(call.key, entries, **options)  # type: ignore[arg-type]
    if new_id is None:
        raise wire.Problem(404, "there is no such stream, and nomkstream=1 does not create one")
    return {"id": new_id.decode()}


def _entries(call: Call, body: bytes) -> wire.Pairs | list[wire.Pairs]:
    """Return the pairs of one entry, or those of several."""
    kind = wire.media_type(call.request)
    form = call.text("as", "")
    if form not in ("", "body"):
        raise wire.Problem(400, f"the parameter 'as' can only be body, not {form!r}")
    known = (
        "application/json", "application/x-ndjson", "application/x-www-form-urlencoded", FORM_DATA
    )  # fmt: skip
    if form == "body" or kind not in known:
        return _whole_body(call, body)
    if "headers" in call:
        raise wire.Problem(400, "the parameter 'headers' needs as=body")
    if kind == "application/json":
        value = wire.parse_json(body, exact=True)
        if isinstance(value, list):
            return _several([(one, f"entry {at}") for at, one in enumerate(value)])
        return wire.field_pairs(value, "the body")
    if kind == "application/x-ndjson":
        lines = [(at, line) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]
        named = [(f"line {at}", line) for at, line in lines]
        return _several([(wire.parse_json(line, at, exact=True), at) for at, line in named])
    if kind == FORM_DATA:
        pairs = form_pairs(call.request.headers["content-type"], body)
    else:
        pairs = wire.query_pairs(body)
    if not pairs:
        raise wire.Problem(400, "the form has no fields")
    return pairs


def _several(values: list[tuple[Any, str]]) -> list[wire.Pairs]:
    if not values:
        raise wire.Problem(400, "the body has no entries")
    if len(values) > _MOST_ENTRIES:
        raise wire.Problem(413, f"{len(values)} entries, at most {_MOST_ENTRIES} at once")
    return [wire.field_pairs(value, where) for value, where in values]


def _whole_body(call: Call, body: bytes) -> wire.Pairs:
    """Return the entry of a webhook: the body, its type, and the headers that were asked for."""
    pairs = [
        (b"body", body),
        (b"content_type", call.request.headers.get("content-type", "").encode("latin-1")),
    ]
    for name in filter(None, call.text("headers", "").lower().split(",")):
        if name in ("authorization", "cookie"):
            raise wire.Problem(400, f"the header {name!r} is a secret, and is not stored")
        value = call.request.headers.get(name)
        if value is not None:
            pairs.append((name.encode(), value.encode("latin-1")))
    return pairs
