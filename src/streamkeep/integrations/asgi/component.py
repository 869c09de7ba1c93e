"""The component: which stream, which callers, and what they may send."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.arguments import to_bytes, to_id
from streamkeep.format.core.errors import ArgumentError, StreamkeepError
from streamkeep.integrations.values import OpenedStore
from streamkeep.server.http import events, wire
from streamkeep.server.http.guard import bounded, check_origin

Answer = bool | Awaitable[bool]
Key = str | bytes
KeyOf = Callable[[Request], Key | None]

log = logging.getLogger("streamkeep.asgi")

_MOST_ENTRIES: Final = 1000  # of one POST
_STEP_BYTES: Final = 1 << 16  # for each client
_HEADERS: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class EventStream:
    """An ASGI application for one stream, or for the streams that `key` chooses.

    GET sends entries as Server-Sent Events: `id` is the ID of the entry, and `data` is
    `{"id": ..., "fields": {...}}`. It begins above the header `Last-Event-ID`, which a browser
    sends when it connects again, or else above the parameter `after`, or else at `start`. Entries
    that were trimmed and archived are included. Nothing is sent twice, and nothing is left out,
    also over restarts of the server.

    POST appends the body, and answers `{"id": ...}` when the entry is durable: a JSON object, a
    list of them, or a form. With the header `Idempotency-Key`, a repeated request appends nothing
    and gets the ID of the first one (XADD IDMP), as long as the stream remembers the key: for 100
    seconds, and of the last 100 keys of all clients, unless XCFGSET says otherwise.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store[bytes] | AsyncStore[bytes],
        key: Key | KeyOf,
        *,
        start: str = "$",
        append: bool = False,
        authorize: Callable[[Request], Answer] | None = None,
        maxlen: int | None = None,
        producer: str = "http",
        heartbeat_s: float = events.HEARTBEAT_S,
        stall_s: float = events.STALL_S,
        max_clients: int = 10_000,
        max_body: int = 1 << 20,
        body_s: float = 30.0,
        origins: Sequence[str] = (),
        as_pairs: bool = False,
    ) -> None:
        """Name a stream. Nothing is opened before the first request.

        Args:
            store: a path, which each process opens for itself, also after a fork; or a store that
                is open, without `decode_responses`.
            key: the stream; or a function that returns it for a request, None for 404.
            start: where a client begins that names no ID: "$" for what is added from now on, "0"
                for all that there is, or an ID.
            append: whether POST is allowed.
            authorize: called with each request; False, or a coroutine that returns it, is 403.
            maxlen: trim the stream to about this many entries with each POST.
            producer: the name under which idempotency keys are remembered.
            heartbeat_s: seconds without an entry after which a comment is sent.
            stall_s: seconds after which a client that reads nothing gets nothing more.
            max_clients: how many clients may follow at a time in this process, those that read
                nothing included; others get 503.
            max_body, body_s: bytes of a body, and seconds between two parts of it.
            origins: of pages of other sites that may use it (CORS); none by default.
            as_pairs: send `pairs`, a list of [field, value], in place of `fields`.

        Raises:
            ArgumentError: an argument is wrong.
        """
        given = store._store if isinstance(store, AsyncStore) else store
        if isinstance(given, Store) and given._decode:
            raise ArgumentError("open the store without decode_responses: values may be any bytes")
        self._opened = OpenedStore(given)
        self._key = key if callable(key) else to_bytes(key, "key")
        self._start = start.encode()
        if self._start != b"$":
            to_id(self._start)
        self._append = append
        self._authorize = authorize
        self._maxlen = maxlen
        self._producer = producer.encode()
        self._heartbeat_s = heartbeat_s
        self._stall_s = stall_s
        self._max_clients = max_clients
        self._max_body = max_body
        self._body_s = body_s
        self._origins = frozenset(origins)
        self._as_pairs = as_pairs
        self._stopping = False
        self.clients = 0  # that follow
        self._whole: ASGIApp = self._serve
        if origins:
            self._whole = CORSMiddleware(
                self._serve,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
                allow_credentials=True,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._whole(scope, receive, send)
        else:
            raise RuntimeError(f"an event stream serves no {scope['type']!r}; mount it at a path")

    def stop(self) -> None:
        """Have all replies end, within a second, so that a server need not wait for clients."""
        self._stopping = True

    def close(self) -> None:
        """Close the store, if a path was given. A later request opens it again."""
        self._opened.close()

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def sender(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        request = Request(scope, bounded(receive, self._max_body, self._body_s))
        try:
            reply = await self._answer(request)
            await reply(scope, receive, sender)
        except (wire.Problem, StreamkeepError) as error:
            if began:
                raise
            problem = error if isinstance(error, wire.Problem) else wire.problem_of(error)
            if problem.status >= 500 and not isinstance(error, wire.Problem):
                log.error("%s %s: %s", scope["method"], scope["path"], error)
                text = "the store cannot serve this request; the log of the server says why"
                problem = wire.Problem(problem.status, text)  # which may name paths
            problem.headers = {**_HEADERS, **problem.headers}
            await wire.problem_reply(problem)(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        allowed = ("GET", "HEAD", "POST") if self._append else ("GET", "HEAD")
        if request.method not in allowed:
            headers = {"allow": ", ".join(allowed)}
            raise wire.Problem(405, f"{request.method} is not allowed here", headers=headers)
        if request.method == "POST":
            check_origin(request.headers, self._origins)
        if self._authorize is not None:
            answer = self._authorize(request)
            if not (answer if isinstance(answer, bool) else await answer):
                raise wire.Problem(403, "no permission for this stream")
        key = self._key(request) if callable(self._key) else self._key
        if key is None:
            raise wire.Problem(404, "there is no such stream")
        name = to_bytes(key, "key")
        if request.method == "POST":
            return await self._add(request, name)
        return await self._follow(request, name)

    # --- GET ------------------------------------------------------------------------------------

    async def _follow(self, request: Request, key: bytes) -> ASGIApp:
        given = wire.Parameters(request, ("after",))
        text = given.data("after") or self._start
        last = request.headers.get("last-event-id")
        if last:
            text = last.encode("latin-1", "replace")

        async def begin(store: AsyncStore[bytes]) -> tuple[AsyncStore[bytes], bytes]:
            self._opened.check()
            return store, await events.starting_id(store, key, text)

        store, after = await self._opened.use_async(begin)
        if request.method == "HEAD":
            return Response(headers=_HEADERS, media_type="text/event-stream")
        if self.clients >= self._max_clients:
            headers = {"retry-after": "5"}
            raise wire.Problem(503, "too many clients follow this stream", headers=headers)
        chunks = events.event_chunks(
            store,
            key,
            after,
            heartbeat_s=self._heartbeat_s,
            stop=lambda: self._stopping,
            as_pairs=self._as_pairs,
            step_bytes=_STEP_BYTES,
        )
        reply = events.EventReply(chunks, "text/event-stream", self._stall_s, holds=True)

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.clients += 1
            try:
                await reply(scope, receive, send)
            finally:
                self.clients -= 1

        return counted

    # --- POST -----------------------------------------------------------------------------------

    async def _add(self, request: Request, key: bytes) -> Response:
        wire.Parameters(request, ())
        message = request.headers.get("idempotency-key")
        found = _entries(wire.media_type(request), await request.body())
        trim: dict[str, Any] = {} if self._maxlen is None else {"maxlen": self._maxlen}
        use = self._opened.use_async
        if len(found) != 1:
            if message is not None:
                text = "several entries at once take no Idempotency-Key"
                raise wire.Problem(400, text, hint="send them one by one")
            ids = await use(lambda store: store.xadd_many(key, found))
            if trim:
                await use(lambda store: store.xtrim(key, approximate=True, **trim))
            return wire.json_reply({"ids": [one.decode() for one in ids]}, 201, _HEADERS)
        if message is not None:
            trim["idmp"] = (self._producer, message.encode("latin-1"))
        new_id = await use(lambda store: store.xadd(key, found[0], **trim))
        assert new_id is not None
        return wire.json_reply({"id": new_id.decode()}, 201, _HEADERS)


def _entries(kind: str, body: bytes) -> list[wire.Pairs]:
    if kind == "application/x-www-form-urlencoded":
        pairs = wire.query_pairs(body)
        if not pairs:
            raise wire.Problem(400, "the form has no fields")
        return [pairs]
    if kind != "application/json":
        raise wire.Problem(415, f"the body must be JSON or a form, not {kind!r}")
    value = wire.parse_json(body, exact=True)
    if not isinstance(value, list):
        return [wire.field_pairs(value, "the body")]
    if not 0 < len(value) <= _MOST_ENTRIES:
        raise wire.Problem(413, f"{len(value)} entries; 1 to {_MOST_ENTRIES} are possible at once")
    return [wire.field_pairs(one, f"entry {at}") for at, one in enumerate(value)]
