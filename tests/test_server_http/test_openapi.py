"""The description names exactly the routes that there are, and the parameters that they take."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from http_client import HEADERS, Client
from streamkeep import Store
from streamkeep.server.http.app import App
from streamkeep.server.http.openapi import ROUTES, document


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
    reply = ask(app, route.method.upper(), path)
    assert "nothing at this path" not in reply.text
    assert reply.status_code != 405
    for name in route.query:
        if name != "after" or path == "/streams":  # of the event stream, which does not end
            reply = ask(app, route.method.upper(), f"{path}?{name}=1")
            assert "unknown parameter" not in reply.text


def test_every_route_of_the_application_is_described(client: Client) -> None:
    described = {re.sub(r"\{\w+\}", "*", one.path) for one in ROUTES}
    for route in client.app.routes.routes:
        path = re.sub(r"\{\w+(:\w+)?\}", "*", route.path)  # type: ignore[attr-defined]
        if path == "/groups/*/*/*":
            path = "/groups/*/*/ack"
        if path == "/queues/*/*":
            path = "/queues/*/cancel"
        assert path in {*described, "/", "/page", "/openapi.json"}


def test_the_document_is_served(client: Client) -> None:
    assert client.get("/openapi.json") == document()
