"""What lets a request in: hosts, origins, secrets, rights, sizes; and the headers of replies."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from http_client import HEADERS, TOKEN, Client
from streamkeep import Store
from streamkeep.server.http import guard
from streamkeep.server.http.app import create_app
from streamkeep.server.http.wire import Problem
from test_server_http.test_rights import Case, status_of

Make = Callable[..., Client]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REFUSED_S", 0)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("store.example:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("[::1]evil.example", 421),
        ("[::1]:2evil", 421),
        ("localhost:1:2", 421),
        ("::1", 421),
        ("", 421),
    ],
)
def test_only_known_hosts_are_served(client_of: Make, host: str, status: int) -> None:
    client = client_of(hosts=["Store.Example"])
    found = client("GET", "/streams", headers={"host": host}, status=status)
    assert status == 200 or "serve --http-host" in found.json()["next"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"origin": "http://localhost"}, 201),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "http://localhost:81"}, 403),
        ({"origin": "http://localhost", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(
    store: Store, client_of: Make, headers: dict[str, str], status: int
) -> None:
    client = client_of(HEADERS, token=TOKEN, write=True)
    client("POST", "/streams/k", data={"a": "1"}, headers=headers, status=status)
    assert store.xlen("k") == (status == 201)


@pytest.mark.parametrize(
    "authorization",
    [
        f"Bearer {TOKEN}",
        f"bearer  {TOKEN}",
        "Basic " + base64.b64encode(f"default:{TOKEN}".encode()).decode(),
        "Basic " + base64.b64encode(f":{TOKEN}".encode()).decode(),
    ],
)
def test_the_secret_lets_in(client_of: Make, authorization: str) -> None:
    client_of({"authorization": authorization}, token=TOKEN).get("/streams")


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer x",
        f"Token {TOKEN}",
        TOKEN,
        "Basic x",
        "Basic /w==",
        "Basic YQ==",
        "Basic " + base64.b64encode(f"ann:{TOKEN}".encode()).decode(),
    ],
)
def test_nothing_is_told_without_the_secret(
    store: Store, client_of: Make, authorization: str
) -> None:
    store.xadd("confidential", {"n": 1})
    client = client_of({"authorization": authorization}, token=TOKEN, write=True)
    for path in ("/streams", "/streams/confidential", "/store", "/groups/confidential", "/else"):
        reply = client("GET", path, status=401)
        assert "confidential" not in reply.text
        assert reply.headers["www-authenticate"].startswith("Bearer")
    client("GET", "/health")
    client("POST", "/streams/confidential", status=401, json={"n": 1})
    assert store.xlen("confidential") == 1


def test_a_reader_changes_nothing(store: Store, client_of: Make) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    store.xgroup_create("k", "g", id="0")
    client = client_of(HEADERS, token=TOKEN)
    before = store.durability().last_commit
    for method, path in (
        ("POST", "/streams/k"),
        ("PUT", "/groups/k/h"),
        ("DELETE", "/groups/k/g"),
        ("POST", "/groups/k/g/deliver"),
        ("POST", "/groups/k/g/ack"),
        ("POST", "/groups/k/g/claim"),
        ("POST", "/groups/k/g/nack"),
    ):
        assert "read-only" in client(method, path, status=403, json={}).text
    assert store.durability().last_commit == before


def test_a_user_is_listed_only_its_keys(store: Store, client_of: Make) -> None:
    for name in ("a:1", "b:1"):
        store.xadd(name, {"n": 1})
    login = "Basic " + base64.b64encode(b"ann:pw").decode()
    users = ["user ann on >pw ~a:? +@all"]
    client = client_of({"authorization": login}, users=users, write=True)
    listed = client.get("/streams")
    assert ([one["key"] for one in listed["streams"]], listed["total"]) == (["a:1"], None)
    assert client.get("/store/survey")["streams"] == 1


def test_a_body_is_bounded_with_and_without_its_length(store: Store, client_of: Make) -> None:
    client = client_of(write=True, max_body=1000)
    client.post("/streams/k", status=413, content=b"x" * 1001)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 100

    client.post("/streams/k", status=413, content=parts())
    client.post("/streams/k", status=201, content=b"x" * 1000)
    assert store.xlen("k") == 1


def test_a_body_that_does_not_come_is_given_up(
    client_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkeep.server.http.guard.BODY_S", 0.01)

    async def never() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    client_of(write=True).post("/streams/k", status=408, content=never())


def test_cors_is_off_unless_an_origin_is_named(client_of: Make) -> None:
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    off = client_of(write=True)("OPTIONS", "/streams/k", headers=asks, status=405)
    assert "access-control-allow-origin" not in off.headers
    client = client_of(write=True, origins=["https://app.example"])
    on = client("OPTIONS", "/streams/k", headers=asks)
    assert on.headers["access-control-allow-origin"] == "https://app.example"
    client("POST", "/streams/k", status=201, json={"n": 1}, headers=asks)
    asks["origin"] = "https://other.example"
    client("POST", "/streams/k", status=403, json={"n": 1}, headers=asks)


def test_a_refused_request_leaves_nothing_to_the_collector(client: Client) -> None:
    gc.collect()
    gc.disable()
    try:
        client.get("/none", status=404)
        assert not any(type(one) is Problem for one in gc.get_objects())
    finally:
        gc.enable()


def test_browsers_are_told_to_trust_nothing(client: Client) -> None:
    for path, status in (("/page/", 200), ("/streams", 200), ("/none", 404), ("/health", 200)):
        headers = client("GET", path, status=status).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2f..%2fapp.py",
        "/page/%2e%2e/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/..\\..\\app.py",
        "/page/\x00",
    ],
)
def test_no_path_leads_out_of_the_page(client: Client, path: str) -> None:
    assert asyncio.run(status_of(client.app, Case(f"GET {path}"), None)) in (400, 401, 404)


def test_a_file_of_the_page_is_sent_whole(client: Client) -> None:
    """Anyone may ask for it, and thousands of ranges of it would keep all other clients waiting."""
    reply = client("GET", "/page/page.css", headers={"range": "bytes=0-0,2-2"}, status=200)
    assert len(reply.content) == int(reply.headers["content-length"]) > 1000


def test_it_works_mounted_in_another_application(store: Store) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    store.xadd("a/b", {"n": 1}, id="1-0")
    inner = create_app(store, hosts=None)
    outer = Starlette(routes=[Mount("/keep", inner)])
    client = Client(outer, {"host": "any.example"})  # type: ignore[arg-type]
    assert client.get("/keep/streams/a%2Fb")["entries"][0]["id"] == "1-0"
    assert client("GET", "/keep/", status=307).headers["location"] == "/keep/page/"
    assert client.get("/keep/openapi.json")["servers"] == [{"url": "/keep"}]
