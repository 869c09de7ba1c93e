"""The server on real sockets: slow, huge, silent and too many peers; stopping; Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from certificates import make_certificate
from http_client import HEADERS, TOKEN, run
from patience import PATIENCE_S
from streamkeep import Store
from streamkeep.server.access import Access
from streamkeep.server.http import serving
from streamkeep.server.http.app import create_app
from streamkeep.server.http.guard import MAX_HEAD
from streamkeep.server.http.serving import HttpServer, Protocol, bind
from streamkeep.server.serve import tls_context

pytestmark = pytest.mark.slow

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = f"Host: localhost\r\nAuthorization: {HEADERS['authorization']}\r\n"


class Served:
    """A server that a test talks to by bytes."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port

    async def peer(self) -> Peer:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes until the server closes."""
        reader, writer = await self.peer()
        writer.write(data)
        found = await asyncio.wait_for(_until_closed(reader), PATIENCE_S)
        writer.close()
        return found


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection is closed, or reset with unread bytes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1 << 16):
            found += part
    return found


def serve(
    store: Store[bytes],
    scenario: Callable[[Served], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    **limits: float,
) -> None:
    """Run a scenario beside a server; `limits` are attributes of its protocol."""

    async def both() -> None:
        sockets = bind("127.0.0.1", 0)
        port = sockets[0].getsockname()[1]
        app = create_app(store, Access(TOKEN), write=True)
        server = HttpServer(app, sockets, 10_000, tls=tls)
        await server.start()
        try:
            await scenario(Served(server, port))
        finally:
            await server.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamkeep.server.http.guard.BODY_S", 0.1)
        for name, value in limits.items():
            patch.setattr(Protocol, name, value)
        run(both)


def get(path: str, more: str = "Connection: close\r\n") -> bytes:
    return f"GET {path} HTTP/1.1\r\n{HEAD}{more}\r\n".encode()


def test_a_head_that_comes_slowly_is_given_up(store: Store[bytes]) -> None:
    async def scenario(served: Served) -> None:
        for start in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            reader, writer = await served.peer()
            writer.write(start)
            assert await asyncio.wait_for(_until_closed(reader), PATIENCE_S) == b""
            writer.close()
        # So is a second head on a connection.
        reader, writer = await served.peer()
        writer.write(get("/health", "") + b"GET /health HT")
        assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"TP/1.1\r\nHost")
        assert await asyncio.wait_for(_until_closed(reader), PATIENCE_S) == b""
        writer.close()

    serve(store, scenario, head_s=0.05)


@pytest.mark.parametrize("rest", [b"x", b"xyz"])
def test_the_rest_of_an_answered_request_keeps_no_connection(
    store: Store[bytes], rest: bytes
) -> None:
    async def scenario(served: Served) -> None:
        reader, writer = await served.peer()
        writer.write(b"POST /streams/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 401")
        writer.write(rest)
        assert await asyncio.wait_for(_until_closed(reader), PATIENCE_S) == b""
        writer.close()

    serve(store, scenario, head_s=0.05)


def test_huge_heads_and_junk_are_refused(store: Store[bytes]) -> None:
    async def scenario(served: Served) -> None:
        huge = get("/health", "X: " + "x" * (2 * MAX_HEAD) + "\r\n")
        many = get("/health", "".join(f"X-{at}: {at}\r\n" for at in range(20_000)))
        # In one piece, so that the parser never sees a head that has not ended.
        whole = get("/health", "".join(f"X-{at}: {'x' * 100}\r\n" for at in range(700)))
        assert MAX_HEAD < len(whole) < 2 * MAX_HEAD
        junk = b"\x16\x03\x01\x02\x00\x01" + bytes(range(256)) + b"\r\n\r\n"
        long = get("/streams/" + "%41" * MAX_HEAD)
        for data in (huge, many, whole, junk, long):
            assert b" 200 " not in await served.ask(data)
        assert b'{"status":"ok"}' in await served.ask(get("/health"))

    serve(store, scenario)


def test_chunks_and_false_lengths(store: Store[bytes]) -> None:
    async def scenario(served: Served) -> None:
        start = f"POST /streams/k HTTP/1.1\r\n{HEAD}Connection: close\r\n"
        chunked = f"{start}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        assert b" 201 " in await served.ask(chunked.encode())
        for wrong in (
            f"{start}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            f"{start}Content-Length: 99999999999\r\n\r\nabc",
            f"{start}Content-Length: -1\r\n\r\nabc",
            f"{start}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            f"{start}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ):
            assert b" 201 " not in await served.ask(wrong.encode())

    serve(store, scenario)
    assert store.xlen("k") == 1


def test_a_client_that_goes_before_its_body_or_ends_it_with_junk_is_no_error(
    store: Store[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(served: Served) -> None:
        for _ in range(3):
            _, writer = await served.peer()
            length = "Content-Type: application/json\r\nContent-Length: 100\r\n"
            writer.write(f"POST /streams/k HTTP/1.1\r\n{HEAD}{length}\r\n{{".encode())
            await writer.drain()
            while not served.server.server_state.tasks:
                await asyncio.sleep(0.001)
            writer.close()
            while served.server.server_state.tasks:
                await asyncio.sleep(0.001)
        reader, writer = await served.peer()
        chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        writer.write(f"POST /nothing HTTP/1.1\r\n{HEAD}{chunked}".encode())
        assert b" 404 " in await reader.readuntil(b"}\n")
        writer.write(b"junk\r\n")
        assert await asyncio.wait_for(_until_closed(reader), PATIENCE_S) == b""
        writer.close()
        early = f"POST /streams/k HTTP/1.1\r\nHost: elsewhere\r\n{chunked[:28]}\r\n\r\njunk\r\n"
        assert b" 400 " in await served.ask(early.encode())
        assert b'{"status":"ok"}' in await served.ask(get("/health"))

    serve(store, scenario)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told == ["Invalid HTTP request received."] * 2


def test_others_are_served_while_many_connections_idle(store: Store[bytes]) -> None:
    async def scenario(served: Served) -> None:
        idle = [await served.peer() for _ in range(50)]
        assert b'{"status":"ok"}' in await served.ask(get("/health"))
        more = [await served.peer() for _ in range(10)]
        assert b" 503 " in await served.ask(get("/health"))
        for _, writer in (*idle, *more):
            writer.close()

    serve(store, scenario, most=55)


def test_connections_beyond_the_limit_are_closed(store: Store[bytes]) -> None:
    async def scenario(served: Served) -> None:
        peers = [await served.peer() for _ in range(200)]
        while len(served.server.server_state.connections) > 5 + 64:
            await asyncio.sleep(0.001)
        for reader, writer in peers[100:]:
            assert await asyncio.wait_for(_until_closed(reader), PATIENCE_S) == b""
            writer.close()
        for _, writer in peers[:100]:
            writer.close()
        while served.server.server_state.connections:
            await asyncio.sleep(0.001)
        assert b'{"status":"ok"}' in await served.ask(get("/health"))

    serve(store, scenario, most=5)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
def test_a_client_that_reads_nothing_is_sent_little_and_closed_at_the_end(
    store: Store[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    store.xadd_many("k", [{"v": b"x" * 100_000}] * 200)
    monkeypatch.setattr(serving, "STOP_S", 0.5)
    path = "/streams/k?after=0" if "event" in kind else "/streams/k"

    async def scenario(served: Served) -> None:
        silent = socket.create_connection(("127.0.0.1", served.port))
        silent.sendall(get(path, f"Accept: {kind}\r\n"))
        assert b'{"status":"ok"}' in await served.ask(get("/health"))
        found: Any = served.server.server_state.connections
        while not any(one.flow.write_paused for one in found):
            await asyncio.sleep(0.001)
        (connection,) = found
        assert connection.transport.get_write_buffer_size() < 3_000_000
        await served.server.stop()
        await asyncio.sleep(0)  # in which a connection that was aborted ends
        assert not found
        silent.close()

    serve(store, scenario)
    assert not caplog.records  # such as a traceback of its request


def test_the_end_waits_for_no_idle_client_with_tls(
    store: Store[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serving, "STOP_S", 10 * PATIENCE_S)
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    size = 8_000_000
    store.xadd("k", {"v": b"x" * size})

    def connect(port: int, request: bytes) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        one = context.wrap_socket(plain, server_hostname="localhost")
        one.sendall(request)
        return one

    def read(one: ssl.SSLSocket) -> int:
        return sum(len(part) for part in iter(lambda: one.recv(1 << 16), b""))

    async def scenario(served: Served) -> None:
        idle = await asyncio.to_thread(connect, served.port, get("/health", ""))
        assert await asyncio.to_thread(idle.recv, 1 << 16)
        slow = await asyncio.to_thread(connect, served.port, get("/streams/k", ""))
        found: Any = served.server.server_state.connections
        while not all(one.cycle and one.cycle.response_complete for one in found):
            await asyncio.sleep(0.001)
        ending = asyncio.create_task(served.server.stop())
        while len(found) > 1:  # the idle one ends
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(read, slow) > size  # it lost nothing
        await asyncio.wait_for(ending, PATIENCE_S)
        idle.close()
        slow.close()

    serve(store, scenario, tls=tls_context(certificate, key))


def test_one_connection_without_a_socket_keeps_no_other_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_MOMENT_S", 0.001)
    ours, theirs = socket.socketpair()

    def connection(place: socket.socket | None) -> Any:
        one = mock.Mock()
        one.transport.is_closing.return_value = True
        one.transport.get_write_buffer_size.return_value = 0
        one.transport.get_extra_info.return_value = place
        return one

    closed = socket.socket()
    closed.close()
    gone, invalid, waits = (connection(one) for one in (None, closed, ours))
    server = mock.Mock(server_state=mock.Mock(connections=[gone, invalid, waits]))

    async def scenario() -> None:
        ending = asyncio.create_task(HttpServer._end_tls(server))
        while not waits.transport.abort.called:
            assert not ending.done()
            await asyncio.sleep(0)
        assert waits.transport.is_closing.call_count > 1  # looks
        ending.cancel()

    with ours, theirs:
        asyncio.run(scenario())
    assert not gone.transport.abort.called
    assert not invalid.transport.abort.called


def test_a_name_is_bound_on_all_its_addresses() -> None:
    sockets = bind("localhost", 0)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
    finally:
        for one in sockets:
            one.close()


def test_a_client_that_reads_slowly_counts_with_what_waits_for_it_now() -> None:
    class Transport:
        aborted = False

        def __init__(self, size: int) -> None:
            self.size = size

        def get_write_buffer_size(self) -> int:
            return self.size

        def abort(self) -> None:
            self.aborted = True

    bounded: Any = type("Bounded", (Protocol,), {"most_unsent": 1000, "paused": {}})

    def pause(size: int) -> Transport:
        one = bounded.__new__(bounded)
        one.transport = transport = Transport(size)
        one.flow = FlowControl(one.transport)
        one.pause_writing()
        return transport

    reader = pause(900)
    reader.size = 70
    newer = pause(200)
    assert not reader.aborted
    newer.size = 850
    pause(100)
    assert (reader.aborted, newer.aborted) == (True, False)  # the one that was paused first


def test_what_waits_for_all_clients_is_bounded(store: Store[bytes]) -> None:
    store.xadd("k", {"v": b"x" * 8_000_000})

    async def scenario(served: Served) -> None:
        silent = []
        for _ in range(6):
            silent.append(socket.create_connection(("127.0.0.1", served.port)))
            silent[-1].sendall(get("/streams/k", "Accept: application/x-ndjson\r\n"))
        connections = served.server.server_state.connections
        while sum(one.flow.write_paused for one in connections) < 6:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
            if len(connections) < 6:
                break
        held = [one.transport.get_write_buffer_size() for one in connections]
        assert 8_000_000 < sum(held) <= 20_000_000
        assert b'{"status":"ok"}' in await served.ask(get("/health"))
        assert b"x" * 8_000_000 in await served.ask(get("/streams/k"))  # one reply always fits
        for one in silent:
            one.close()

    serve(store, scenario, most_unsent=20_000_000)
