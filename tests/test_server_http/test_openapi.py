"""Each route that is described takes the parameters that are described."""

from __future__ import annotations

from typing import Any

import pytest

from http_client import Client
from streamkeep import Store
from streamkeep.server.http.routes import ROUTES, document


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_what_is_described_exists(store: Store, client: Client, route: Any) -> None:
    store.xadd("k", {"n": 1})
    path = route.path.format(KEY="k", GROUP="g", NAME="q")
    reply = client.send(route.method, path)
    assert "nothing at this path" not in reply.text
    assert reply.status_code != 405
    if route.method == "GET":  # load balancers ask so
        assert client.send("HEAD", path).status_code == reply.status_code
    for name in route.query.split():
        if name != "after" or path == "/streams":  # of the event stream, which does not end
            reply = client.send(route.method, f"{path}?{name}=1")
            assert "unknown parameter" not in reply.text


def test_the_document_is_served(client: Client) -> None:
    assert client.get("/openapi.json") == document()
