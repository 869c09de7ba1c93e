"""The event stream: the entries of a stream as Server-Sent Events, without gap or repeat.

The `id` of an event is the ID of its entry. A browser that connects again sends it as
`Last-Event-ID`, to this server or to a later one, and gets every entry above it, also those that
were trimmed and archived since. The first event of a stream that begins at "now" has an ID and no
data, so that a client that has received nothing also continues from where it began.

1. Read the entries above the last ID, up to the one with which they have `STEP_BYTES`.
2. Send them. While the client does not read, nothing more is read for it.
3. If there are none, sleep until a commit adds one; after `heartbeat_s` send a comment.

Nothing is kept between steps but the last ID: a thousand waiting clients take no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.commands.arguments import to_id
from streamkeep.format.core.entry import Entry, StreamId
from streamkeep.format.core.errors import NoSuchKeyError, StoreClosedError, StreamkeepError
from streamkeep.format.core.json_form import json_object
from streamkeep.server.http.entries import Wanted, entry_line, read_page

Result = TypeVar("Result")

HEARTBEAT_S: Final = 15.0
STALL_S: Final = 60.0  # how long a client may read nothing
RETRY_MS: Final = 1000

STEP_BYTES: Final = 1 << 18
_STEP: Final = 128  # entries


async def event_chunks(
    store: AsyncStore[bytes],
    key: bytes,
    after: bytes,
    *,
    heartbeat_s: float,
    stop: Callable[[], bool],
    as_pairs: bool,
    step_bytes: int = STEP_BYTES,
    gate: asyncio.Semaphore | None = None,
) -> AsyncIterator[bytes]:
    """Yield what to send to one client: the events of a stream, several at once, and heartbeats.

    Args:
        after: the events of entries above this ID; see `starting_id`.
        heartbeat_s: a comment is sent after this time without an entry, in seconds, so that proxies
            keep the connection and a server notices that its client has gone.
        stop: returns True when the stream is to end, as when a server stops.
        as_pairs: as in `entries.entry_json`.
        step_bytes: so much and one entry is read and sent at once.
        gate: is held while the stream is read.
    """
    gate = gate or asyncio.Semaphore()
    last = after
    block = max(1, round(1000 * heartbeat_s))
    yield b"retry: %d\nid: %b\n\n" % (RETRY_MS, last)
    try:
        while not stop():
            wanted = Wanted(key, b"(" + last, history=True)
            async with gate:
                page = await asyncio.to_thread(read_page, store._store, wanted, _STEP, step_bytes)
            found = page.entries
            if found:
                last = found[-1].id
                yield _taken(found, as_pairs)
                continue
            following = store.follow(key, last, count=1, block=block, stop=stop, history=True)
            async with aclosing(following):  # type: ignore[type-var]
                ended = await anext(following, None) is None
            if ended and not stop():
                yield b":\n\n"
    except StoreClosedError:
        return
    except StreamkeepError as error:  # the reply has begun
        text = json_object({"error": type(error).__name__, "message": str(error)})
        yield b"event: error\ndata: %b\n\n" % text.encode()


def _taken(found: list[Entry[bytes]], as_pairs: bool) -> bytes:
    """Return the events of entries, which are held no longer: a client may read slowly."""
    lines = [(one.id, entry_line(one, as_pairs=as_pairs)) for one in found]
    found.clear()
    return b"".join([b"id: %b\ndata: %b\n\n" % one for one in lines])


async def starting_id(store: AsyncStore[bytes], key: bytes, text: bytes) -> bytes:
    """Return the ID that a stream of events begins after, for an ID, or `$` for the last one.

    Raises:
        InvalidIdError: the text is not an ID.
    """
    if text != b"$":
        return str(StreamId(*to_id(text))).encode()
    try:
        last: bytes = (await store.xinfo_stream(key))["last-generated-id"]
    except NoSuchKeyError:
        return b"0-0"
    return last


class EventReply:
    """An ASGI reply that sends chunks until they end, or until the client goes or stalls.

    Args:
        stall_s: seconds after which a client that takes nothing gets nothing more.
        holds: then wait until the client has gone. A server cannot close a connection before the
            client has taken what was sent, so the memory of that is still in use.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        content_type: str,
        stall_s: float,
        *,
        holds: bool = False,
    ) -> None:
        self._chunks = chunks
        self._type = content_type
        self._stall_s = stall_s
        self._holds = holds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", self._type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # proxies must not collect events
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with suppress(ClientDisconnect):
            stalled = await unless_gone(receive, self._pump(send))
            if stalled and self._holds:
                await gone(receive)

    async def _pump(self, send: Send) -> bool:
        """Send the chunks; return whether the client has stalled, and the reply is cut off."""
        async with aclosing(self._chunks) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                message = {"type": "http.response.body", "body": chunk, "more_body": True}
                try:
                    # Not `wait_for`: that of Python 3.11 drops a cancellation which comes at the
                    # moment at which `send` ends, and the reply of a client that has gone would go
                    # on without end.
                    async with asyncio.timeout(self._stall_s):
                        await send(message)
                except TimeoutError:
                    return True  # the server drops the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return False


async def unless_gone(
    receive: Receive, work: Coroutine[Any, Any, Result] | asyncio.Future[Result]
) -> Result:
    """Await a call that may take long; cancel it if the client goes first.

    Raises:
        ClientDisconnect: the client has gone.
    """
    waiting, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


async def gone(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
