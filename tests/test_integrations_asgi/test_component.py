"""The event stream as a component: resuming, appending, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="the extra `asgi` is not installed")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route

import streamkeep
from http_client import EventClient, run
from streamkeep import ArgumentError, Store
from streamkeep.integrations.asgi import EventStream


def send(app: Any, method: str, path: str = "/", **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(call())


def read(app: Any, count: int, path: str = "/", **headers: str) -> list[str]:
    async def call() -> list[str]:
        async with EventClient(app, path, **headers) as reader:
            reader.take()
            await reader.until(lambda: len(reader.ids) >= count)
            return reader.ids

    return run(call)


def test_a_request_can_say_where_to_begin(store: Store) -> None:
    for number in (1, 2, 3):
        store.xadd("k", {"n": number}, id=f"{number}-0")
    app = EventStream(store, "k")
    assert read(app, 2, "/?after=1-0") == ["2-0", "3-0"]
    assert read(app, 1, "/?after=1-0", last_event_id="2-0") == ["3-0"]
    assert send(app, "GET", "/?after=1-0&x=1").status_code == 400
    assert send(app, "GET", headers={"last-event-id": "x"}).status_code == 400


def test_it_is_mounted_with_a_stream_per_path(store: Store) -> None:
    def key(request: Request) -> str | None:
        name: str = request.path_params["name"]
        return None if name == "secret" else f"answer:{name}"

    events = EventStream(store, key, start="0", append=True)
    app = Starlette(routes=[Route("/a/{name}", events), Mount("/b/{name}", events)])
    reply = send(app, "POST", "/a/7", json={"text": "hello"})
    assert reply.status_code == 201
    assert store.xrange("answer:7")[0].fields == {b"text": b"hello"}
    assert read(app, 1, "/a/7") == read(app, 1, "/b/7/") == [reply.json()["id"]]
    assert send(app, "GET", "/a/secret").status_code == 404


def test_a_post_appends_once_for_each_idempotency_key(store: Store) -> None:
    app = EventStream(store, "k", append=True, maxlen=100)
    headers = {"idempotency-key": "order-7"}
    first = send(app, "POST", json={"sku": "7", "count": 2}, headers=headers)
    again = send(app, "POST", json={"sku": "7", "count": 2}, headers=headers)
    assert first.json() == again.json()
    assert [entry.fields for entry in store.xrange("k")] == [{b"sku": b"7", b"count": b"2"}]
    form = send(app, "POST", data={"sku": "8"})
    several = send(app, "POST", json=[{"sku": "9"}, [["sku", "10"], ["sku", "11"]]])
    assert [form.status_code, several.status_code] == [201, 201]
    assert len(several.json()["ids"]) == 2
    assert store.xlen("k") == 4


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ({"json": [{"n": 1}, {"n": 2}], "headers": {"idempotency-key": "x"}}, 400),
        ({"json": {"n": 1}, "params": {"id": "1-0"}}, 400),
        ({"json": {"n": "x" * 2000}}, 413),
        ({"json": {"n": 1}, "headers": {"origin": "https://evil.example"}}, 403),
    ],
)
def test_a_wrong_post_changes_nothing(store: Store, options: dict[str, Any], status: int) -> None:
    reply = send(EventStream(store, "k", append=True, max_body=1000), "POST", **options)
    assert reply.status_code == status
    assert reply.json()["message"]
    assert not store.exists("k")


def test_nothing_is_appended_unless_it_is_allowed(store: Store) -> None:
    reply = send(EventStream(store, "k"), "POST", json={"n": 1})
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
    assert not store.exists("k")


def test_the_hook_decides(store: Store) -> None:
    async def later(request: Request) -> bool:
        return request.headers.get("authorization") == "Bearer x"

    def now(request: Request) -> bool:
        return request.headers.get("authorization") == "Bearer x"

    for hook in (later, now):
        app = EventStream(store, "k", append=True, authorize=hook)
        assert send(app, "POST", json={"n": 1}).status_code == 403
        assert send(app, "HEAD").status_code == 403
        headers = {"authorization": "Bearer x"}
        assert send(app, "POST", json={"n": 1}, headers=headers).status_code == 201
        assert send(app, "HEAD", headers=headers).status_code == 200
    assert store.xlen("k") == 2


def test_other_sites_read_only_where_they_are_named(store: Store) -> None:
    headers = {"origin": "https://shop.example"}
    closed = send(EventStream(store, "k"), "HEAD", headers=headers)
    assert "access-control-allow-origin" not in closed.headers
    app = EventStream(store, "k", append=True, origins=["https://shop.example"])
    assert send(app, "HEAD", headers=headers).headers["access-control-allow-origin"] == (
        "https://shop.example"
    )
    assert send(app, "POST", json={"n": 1}, headers=headers).status_code == 201
    other = send(app, "HEAD", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


async def test_clients_above_the_limit_are_asked_to_come_later(store: Store) -> None:
    app = EventStream(store, "k", max_clients=1)
    async with EventClient(app, "/") as reader:
        reader.take()
        await reader.until(lambda: reader.sent)
        assert app.clients == 1
        async with EventClient(app, "/") as second:
            second.take()
            await second.ended()
            assert second.status == 503
        app.stop()
        await reader.ended()
    assert app.clients == 0


def test_a_store_that_cannot_be_opened_is_not_shown_to_clients(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    reply = send(EventStream(tmp_path / "file", "k"), "GET")
    assert reply.status_code == 503
    assert str(tmp_path) not in reply.text


def test_requests_go_to_the_store_in_place_of_one_that_was_moved(tmp_path: Path) -> None:
    app = EventStream(str(tmp_path / "s"), "k", append=True, start="0")
    kept = EventStream(str(tmp_path / "s"), "k")
    assert send(app, "POST", json={"n": "1"}).status_code == 201
    assert send(kept, "HEAD").status_code == 200
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    assert send(app, "POST", json={"n": "2"}).status_code == 503
    assert send(kept, "HEAD").status_code == 503
    streamkeep.open(tmp_path / "s").close()
    assert send(kept, "HEAD").status_code == 200
    new_id = send(app, "POST", json={"n": "3"}).json()["id"]
    assert read(app, 1) == [new_id]
    for one in (app, kept):
        one.close()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with (
        streamkeep.open(tmp_path / "s", decode_responses=True) as store,
        pytest.raises(ArgumentError, match="decode_responses"),
    ):
        EventStream(store, "k")  # type: ignore[arg-type]
    for wrong in ({"start": "now"}, {"store": ""}):
        arguments: Any = {"store": tmp_path / "s", "key": "k", **wrong}
        with pytest.raises((streamkeep.StreamkeepError, TypeError)):
            EventStream(**arguments)
