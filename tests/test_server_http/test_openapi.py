"""Each route that is described takes the parameters that are described."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from http_client import HEADERS, Client
from streamkeep import Store
from streamkeep.server.http.app import App
from streamkeep.server.http.routes import ROUTES, document


def ask(app: App, method: str, path: str) -> httpx.Response:
    """Send a request that may fail."""

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=HEADERS
        ) as client:
            return await client.request(method, path)

    return asyncio.run(call())


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_what_is_described_exists(store: Store, app: App, route: Any) -> None:
    store.xadd("k", {"n": 1})
    path = route.path.format(KEY="k", GROUP="g", NAME="q")
    reply = ask(app, route.method, path)
    assert "nothing at this path" not in reply.text
    assert reply.status_code != 405
    if route.method == "GET":  # load balancers ask so
        assert ask(app, "HEAD", path).status_code == reply.status_code
    for name in route.query.split():
        if name != "after" or path == "/streams":  # of the event stream, which does not end
            reply = ask(app, route.method, f"{path}?{name}=1")
            assert "unknown parameter" not in reply.text


def test_the_document_is_served(client: Client) -> None:
    assert client.get("/openapi.json") == document()
