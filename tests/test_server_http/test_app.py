"""Random requests: each gets a reply that says what is wrong, and none ends in an exception."""

from __future__ import annotations

import asyncio
import fcntl
import random
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import streamkeep
from cli_runner import run as run_command
from http_client import HEADERS, Client
from patience import PATIENCE_S
from streamkeep import Store
from streamkeep.engine.journal.write_lock import LOCK_FILE
from streamkeep.jobs import Queue
from streamkeep.server import ui
from streamkeep.server.access import Access
from streamkeep.server.http.app import App, create_app
from streamkeep.server.http.routes import ROUTES, document

JSON = b"application/json"
TYPES = [JSON, JSON, b"application/x-ndjson", b"application/x-www-form-urlencoded", b"\xff"]
VALUES = [
    b"0", b"1", b"-1", b"9" * 20, b"+", b"-", b"(", b"(5-5", b"$", b"", b"x", b"%ff", b"%00",
    b"18446744073709551615-18446744073709551615", b"(18446744073709551615-18446744073709551615",
    b"2024-01-01", b"2024-13-01", b"9999-12-31T23:59:59.999999+23:59", b"body", b"dead",
    b"a" * 300, b"1e3", b"\xd9\xa3",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b"{", b"\xff", b'{"ids":["5-5"]}', b'{"ids":["x"]}', b'{"ids":[1]}',
    b'{"consumer":"c","count":1}', b'{"consumer":{"base64":"/w=="}}', b'{"consumer":[]}',
    b'{"a":1e999}', b'{"a":NaN}', b'[[["a","b"]]]', b'{"start":5}', b'{"start":"x"}',
    b'{"a":"\\ud800"}', b'{"\\ud800":"a"}', b'{"consumer":"\\ud800"}', b'{"ids":["\\ud800"]}',
    b'{"mode":5,"ids":["5-5"]}', b'{"min_idle_ms":1.5,"consumer":"c"}',
]  # fmt: skip


async def ask(app: App, chance: random.Random) -> int:
    """Send a random request to a random route; return the status of the reply."""
    route = chance.choice(ROUTES)
    names = {name: chance.choice(["k", "g", "q", "%ff", "", ".."]) for name in ("KEY", "GROUP")}
    path = route.path.format(NAME="q", **names).encode()
    known = [*route.query.split(), "key", "group", "action", "other"]
    query = b"&".join(
        chance.choice(known).encode() + b"=" + chance.choice(VALUES)
        for _ in range(chance.randrange(3))
    )
    headers = [(b"host", b"localhost"), (b"content-type", chance.choice(TYPES))]
    for name in (b"last-event-id", b"idempotency-key", b"content-length", b"authorization"):
        if chance.random() < 0.1:
            headers.append((name, chance.choice([*VALUES, b"Basic \xff", b"x" * 100_000])))
    if chance.random() < 0.2:
        headers.append((b"accept", chance.choice([b"text/event-stream", b"application/x-ndjson"])))
    bodies = [chance.choice(BODIES)]
    statuses: list[int] = []

    async def receive() -> Any:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": route.method.upper() if chance.random() < 0.9 else "PATCH",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": headers,
    }
    await asyncio.wait_for(app(scope, receive, send), PATIENCE_S)
    assert len(statuses) == 1, scope
    assert statuses[0] < 500 or statuses[0] == 503, scope
    return statuses[0]


@pytest.mark.slow
def test_random_requests_get_a_reply(store: Store) -> None:
    store.xadd("k", {"n": 1}, id="5-5")
    store.xgroup_create("k", "g", id="0")
    Queue(store, "q").put(1)
    app = create_app(store, Access(), write=True)
    chance = random.Random(22)

    async def run() -> set[int]:
        return {await ask(app, chance) for _ in range(5000)}

    assert {200, 201, 400, 404} <= asyncio.run(run())


async def test_a_short_request_does_not_wait_for_long_ones(store: Store, app: App) -> None:
    store.xadd("k", {"n": 1}, id="1-0")

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=HEADERS
    ) as client:
        async with app.state.reading, app.state.reading:  # others read pages
            pages = [asyncio.create_task(client.get("/streams/k")) for _ in range(50)]
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/streams/k", json={"n": 2})).status_code == 201
            assert not any(page.done() for page in pages)
        for page in pages:
            assert (await page).status_code == 200


# --- each route that is described takes the parameters that are described -------------------------


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


async def test_changes_that_wait_for_the_write_lock_delay_no_reads(store: Store, app: App) -> None:
    Queue(store, "q").put(1)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", headers=HEADERS
    ) as client:
        with Path(store.path, "journal", LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another open file than that of the store
            changes = [asyncio.create_task(client.post("/queues/q/pause")) for _ in range(50)]
            await asyncio.sleep(0.1)
            assert (await asyncio.wait_for(client.get("/queues"), PATIENCE_S)).status_code == 200
            assert not any(change.done() for change in changes)
        assert {change.status_code for change in await asyncio.gather(*changes)} == {200}


# --- the page and the server name no command that does not run ------------------------------------

# Such as `streamkeep retention set STORE KEY --archive`.
COMMAND = re.compile(r"\bstreamkeep ([a-z]+(?: (?:[a-z]+\b|--[a-z-]+|[A-Z]+\b))*)")


def test_commands_that_the_page_prints_run(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with streamkeep.open(store) as opened:
        opened.xadd("k", {"n": 1})
    found = set()
    for path in Path(ui.__file__).parent.rglob("*.*"):
        if path.suffix in (".js", ".html", ".css"):
            text = path.read_text()
            found |= {one[1] for one in COMMAND.finditer(text)}
            assert text.count('command("streamkeep ') == text.count('command("')
    assert {"retention set STORE KEY --archive", "fsck STORE", "dump STORE KEY"} <= found
    values = {"STORE": str(store), "KEY": "k"}
    for words in found:
        known = words.split()
        # What a sentence goes on with is no argument: `streamkeep ui prints its token`.
        name = (
            [*known[:1], "--help"]
            if "STORE" not in known
            else [values.get(one, one) for one in known]
        )
        run_command(*name)
