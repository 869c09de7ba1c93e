"""Groups over HTTP: create, deliver, acknowledge, claim, return."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from http_client import HEADERS, Client, run
from streamkeep import Store
from streamkeep.server.http.app import App


def test_a_worker_over_http(store: Store, client: Client) -> None:
    for number in range(3):
        store.xadd("k", {"n": number}, id=f"{number + 1}-0")
    client("PUT", "/groups/k/g", json={"start": "0"})
    assert client("PUT", "/groups/k/g", status=409).json()["error"] == "GroupExistsError"
    body = {"consumer": "ann", "count": 2}
    got = client.post("/groups/k/g/deliver", json=body)["entries"]
    assert [one["id"] for one in got] == ["1-0", "2-0"]
    assert client.post("/groups/k/g/ack", json={"ids": ["1-0", "9-0"]}) == {"acknowledged": 1}
    pending = client.get("/groups/k/g/pending")["pending"]
    assert pending == [{"id": "2-0", "consumer": "ann", "idle_ms": 0, "times_delivered": 1}]
    moved = client.post("/groups/k/g/claim", json={"consumer": "bob", "ids": ["2-0"]})
    assert [one["id"] for one in moved["entries"]] == ["2-0"]
    facts = client.get("/groups/k/g")
    assert (facts["lag"], facts["pending"]) == (1, 1)
    assert [(one["name"], one["pending"]) for one in facts["members"]] == [("ann", 0), ("bob", 1)]
    assert client.post("/groups/k/g/nack", json={"ids": ["2-0"]}) == {"returned": 1}
    assert client.get("/groups/k/g/pending")["pending"][0]["consumer"] is None
    again = client.post("/groups/k/g/claim", json={"consumer": "cid", "count": 10})
    assert ([one["id"] for one in again["entries"]], again["next"]) == (["2-0"], None)
    assert [one["name"] for one in client.get("/groups/k")["groups"]] == ["g"]
    client("DELETE", "/groups/k/g", status=200)
    client.get("/groups/k/g", status=404)


def test_names_that_a_browser_would_resolve(store: Store, client: Client) -> None:
    store.xadd("..", {"n": 1}, id="1-0")
    store.xgroup_create("..", ".", id="0")
    store.xreadgroup(".", "", {"..": ">"})
    place = "/groups/?key=..&group=."
    assert client.get(place)["pending"] == 1
    assert client.get(f"{place}&action=pending&consumer=")["pending"][0]["id"] == "1-0"
    assert client.post(f"{place}&action=ack", json={"ids": ["1-0"]}) == {"acknowledged": 1}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "words"),
    [
        ("GET", "/groups/none", {}, 404, "no such key"),
        ("GET", "/groups/k/none", {}, 404, "no group"),
        ("DELETE", "/groups/k/none", {}, 404, "no group"),
        ("PUT", "/groups/none/g", {}, 404, "The XGROUP subcommand requires the key to exist"),
        ("GET", "/groups/k/g/else", {}, 404, "no action 'else'"),
        ("GET", "/groups/k/g/ack", {}, 405, "use POST"),
        ("POST", "/groups/k", {}, 405, "name a group"),
        ("POST", "/groups/k/g/deliver", {"json": {}}, 400, "'consumer' is missing"),
        ("POST", "/groups/k/g/deliver", {"json": {"consumer": "a", "cuont": 1}}, 400, "'cuont'"),
        ("POST", "/groups/k/g/ack", {"json": {"ids": []}}, 400, "list of IDs"),
        ("POST", "/groups/k/g/ack", {"json": {"ids": ["x"]}}, 400, "Invalid stream ID"),
        ("POST", "/groups/k/g/ack", {"content": b'{"ids":["1-0"]}'}, 415, "application/json"),
        ("POST", "/groups/k/g/nack", {"json": {"ids": ["1-0"], "mode": "x"}}, 400, "mode"),
    ],
)
def test_what_is_wrong_is_named(
    store: Store,
    client: Client,
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
    words: str,
) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    store.xgroup_create("k", "g", id="0")
    assert words in client(method, path, status=status, **options).json()["message"]


def test_a_delivery_waits_and_one_that_its_caller_or_the_server_ends_takes_nothing(
    store: Store, app: App
) -> None:
    store.xgroup_create("k", "g", id="0", mkstream=True)

    async def scenario() -> None:
        left = asyncio.Event()
        bodies = [{"type": "http.request", "body": b'{"consumer":"gone","block_ms":300000}'}]

        async def receive() -> Any:
            if bodies:
                return bodies.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        sent = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = {"host": "localhost", "content-type": "application/json", **HEADERS}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/groups/k/g/deliver",
            "query_string": b"",
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        first = asyncio.create_task(app(scope, receive, send))
        while not store.xinfo_consumers("k", "g"):
            await asyncio.sleep(0.001)
        left.set()
        await first
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=HEADERS
        ) as client:

            async def waiting(consumer: str) -> asyncio.Task[httpx.Response]:
                body = {"consumer": consumer, "block_ms": 300_000}
                task = asyncio.create_task(client.post("/groups/k/g/deliver", json=body))
                while all(
                    one["name"] != consumer.encode() for one in store.xinfo_consumers("k", "g")
                ):
                    await asyncio.sleep(0.001)
                return task

            second = await waiting("here")
            await app.state.async_store.xadd("k", {"n": 1}, id="1-0")
            reply = await second
            third = await waiting("late")
            app.stop()
            assert (await third).status_code == 503
        assert [one["id"] for one in reply.json()["entries"]] == ["1-0"]

    run(scenario)
    assert [one["consumer"] for one in store.xpending_range("k", "g", "-", "+", 9)] == [b"here"]
