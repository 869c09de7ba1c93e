"""The application: every route, inside the guard.

    >>> import streamkeep
    >>> from streamkeep.server.access import Access
    >>> from streamkeep.server.http.app import create_app
    >>> app = create_app(streamkeep.open("orders.store"), Access("a-long-password"), write=True)

It is an ASGI application. Another one mounts it with `Mount("/streamkeep", app)`; uvicorn serves it
as it is, and `serving` with the limits that a server on its own needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.server.access import Access
from streamkeep.server.http import groups, health, queues, streams  # noqa: F401  # routes
from streamkeep.server.http.guard import Guard
from streamkeep.server.http.routes import State, document, nothing, serve
from streamkeep.server.http.wire import Problem, json_reply

MAX_BODY: Final = 1 << 20
PAGE: Final = "/page/"


class App:
    """The ASGI application for one store; `create_app` makes it."""

    def __init__(self, guarded: ASGIApp, state: State) -> None:
        self.state = state
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    def stop(self) -> None:
        """End event streams and waits for entries: a server need not wait for their clients."""
        self.state.stopping = True
        self.state.end_deliveries()


def create_app(
    store: Store[bytes] | AsyncStore[bytes],
    access: Access | None = None,
    *,
    write: bool = False,
    hosts: Sequence[str] | None = (),
    origins: Sequence[str] = (),
    max_body: int = MAX_BODY,
) -> App:
    """Return an ASGI application that serves a store, which the caller opens and closes.

    Args:
        store: open without `decode_responses`.
        access: who may do what; by default, any caller may do anything without a password.
        write: callers may change the store, as far as their rights go.
        hosts: names that a request may have in `Host`, in addition to `localhost` and numeric
            addresses; None to accept any, where another server has checked it.
        origins: origins of other sites whose pages may call (CORS); none by default.
        max_body: bytes that the body of a request may have.
    """
    access = access or Access()
    state = State(store, write=write)
    state.checker = health.Checker(state.store)
    router = Router(
        [Route("/", _to_page), Mount("/page", _page), Route("/openapi.json", _description)],
        redirect_slashes=False,
        default=partial(serve, state),
    )

    async def routes(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await router({**scope, "app": router}, receive, send)  # so that it raises these
        except HTTPException as error:
            if error.status_code == 405:
                raise Problem(405, "no such method here", headers=error.headers) from None
            raise nothing() from None

    guarded: ASGIApp = Guard(
        routes, access, hosts=hosts, origins=origins, open_below=PAGE, max_body=max_body
    )
    if origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
        )
    return App(guarded, state)


async def _description(request: Request) -> Response:
    return json_reply(document(request.scope.get("root_path", "")))


async def _to_page(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PAGE}", 307)


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a file of the page, whole: to sort thousands of ranges, Starlette takes seconds."""
    headers = [one for one in scope["headers"] if one[0] != b"range"]
    await _STATIC({**scope, "headers": headers}, receive, send)


_STATIC: Final = StaticFiles(packages=[("streamkeep.server.ui", "static")], html=True)
