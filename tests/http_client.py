"""How tests call the ASGI application: in this process, whole replies or one event at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import httpx

from patience import PATIENCE_S
from streamkeep.server.http.app import App

T = TypeVar("T")

TOKEN: Final = "a-token-of-the-tests"
HEADERS: Final = {"authorization": f"Bearer {TOKEN}"}


class Client:
    """Calls an application; each call is a connection of its own."""

    def __init__(self, app: App, headers: dict[str, str] | None = None) -> None:
        self.app = app
        self.headers = HEADERS if headers is None else headers

    def __call__(
        self,
        method: str,
        path: str,
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request; the reply must have the status."""
        reply = self.send(method, path, headers=headers, **options)
        wanted = status or (201 if method == "PUT" else 200)
        assert reply.status_code == wanted, reply.text
        return reply

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; return the reply, whatever its status is."""

        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=self.headers
            ) as client:
                return await client.request(method, path, **options)

        return asyncio.run(run())

    def get(self, path: str, **options: Any) -> Any:
        return self("GET", path, **options).json()

    def post(self, path: str, **options: Any) -> Any:
        return self("POST", path, **options).json()


class EventClient:
    """One reader of an event stream, which takes what it is sent when the test says so."""

    def __init__(self, app: Callable[..., Awaitable[None]], path: str, **headers: str) -> None:
        self._app = app
        self._path, _, self._query = path.partition("?")
        given = {"host": "localhost", "accept": "text/event-stream", **HEADERS, **headers}
        self._headers = [
            (name.replace("_", "-").encode(), text.encode()) for name, text in given.items()
        ]
        self.taken = asyncio.Semaphore(0)  # chunks that the client may be sent
        self.sent: list[bytes] = []
        self.waiting = 0
        self.status = 0
        self._arrived = asyncio.Event()
        self._left = asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    async def __aenter__(self) -> EventClient:
        scope = {
            "type": "http",
            "method": "GET",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": self._query.encode(),
            "headers": self._headers,
            "root_path": "",
        }
        self._task = asyncio.ensure_future(self._app(scope, self._receive, self._send))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Close the connection, and wait until the application has noticed."""
        self._left.set()
        assert self._task is not None
        await asyncio.wait_for(asyncio.gather(self._task, return_exceptions=True), PATIENCE_S)

    async def ended(self) -> None:
        assert self._task is not None
        await asyncio.wait_for(asyncio.shield(self._task), PATIENCE_S)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.waiting += 1
        self._arrived.set()
        await self.taken.acquire()
        self.waiting -= 1
        self.sent.append(message["body"])
        self._arrived.set()

    def take(self, chunks: int = 1_000_000) -> None:
        """Take the next chunks as they come; without an argument, all."""
        for _ in range(min(chunks, 100_000)):
            self.taken.release()

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

        await asyncio.wait_for(wait(), PATIENCE_S)

    @property
    def ids(self) -> list[str]:
        """The IDs of the entries that have come, in order."""
        return [one["id"] for one in self.entries]

    @property
    def entries(self) -> list[dict[str, Any]]:
        lines = b"".join(self.sent).split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def run(call: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in an event loop of its own."""

    async def limited() -> T:
        return await asyncio.wait_for(call(), PATIENCE_S)

    return asyncio.run(limited())
