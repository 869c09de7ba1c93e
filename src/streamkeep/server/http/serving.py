"""The server: uvicorn with bounds for hostile peers, in the event loop of the caller or on its own.

uvicorn has no limit for the time that the head of a request takes, and answers 503 only to requests
of connections beyond its limit. `Protocol` adds both, so that a client that sends a byte now and
then (slow loris) does not keep a connection, and connections do not use up the descriptors of the
process. It also bounds what waits for all clients together. A client that takes nothing for
`STALL_S` is dropped by the kernel (TCP_USER_TIMEOUT), whatever it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import termios
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from streamkeep.format.core.errors import StoreError
from streamkeep.server.handshakes import SecureListener
from streamkeep.server.http.app import App
from streamkeep.server.http.events import STALL_S
from streamkeep.server.http.guard import MAX_HEAD

KEEP_ALIVE_S: Final = 15
_MORE: Final = 64  # connections that are answered with 503; further ones are closed
STOP_S: Final = 5
_MOMENT_S: Final = 0.05
_NONE: Final = bytes(4)  # a number of the kernel


class Protocol(H11Protocol):
    """HTTP/1.1 with limits for the time that the head of a request takes, and for connections.

    When more than `most_unsent` bytes wait for several clients, the one that was paused for
    the longest time is dropped. There is a class for each server, which counts these bytes.
    """

    head_s = 10.0  # how long the head of a request may take
    most = 4096
    most_unsent = 256 << 20
    paused: dict[Protocol, None]  # whose clients do not read, in the order of time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.most + _MORE:
            transport.abort()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take data. While no request is served, a head must come in time, and what is left of the
        body of a request that was answered before its end.
        """
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # junk in a body whose request was answered before its end
            self.transport.abort()
            return
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()  # uvicorn has no limit any more: the bytes have ended its keep-alive
        else:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse junk; if it is in the body of a request, that gets no other answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.paused.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.paused[self] = None
        while len(self.paused) > 1 and self._unsent() > self.most_unsent:
            longest = next(iter(self.paused))
            del self.paused[longest]
            longest.transport.abort()

    def resume_writing(self) -> None:
        self.paused.pop(self, None)
        super().resume_writing()

    def _unsent(self) -> int:
        """Return the bytes that wait now: a paused client may have read since."""
        return sum(one.transport.get_write_buffer_size() for one in self.paused)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()


class HttpServer(uvicorn.Server):
    """Serves an application on sockets that are already bound.

    Args:
        files: how many descriptors its connections may take.
        tls: the certificate and key of the server; None for plain HTTP.
    """

    def __init__(
        self,
        app: App,
        sockets: list[socket.socket],
        files: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._most = max(1, min(Protocol.most, files - _MORE))
        self._sockets = sockets
        self.app = app
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            app,
            http=type("Bounded", (Protocol,), {"paused": {}, "most": self._most}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=self._most,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S + 1,  # `stop` has ended all connections by then
        )
        config.load()
        self._tls = tls
        self._secure: list[SecureListener] = []
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept; with TLS a connection counts before its handshake, too."""
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        kind: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        make = partial(kind, config=self.config, **state)
        self._secure = [SecureListener(one, self._tls, make, self._has_room) for one in sockets]

    def _has_room(self, handshakes: int) -> bool:
        return len(self.server_state.connections) + handshakes < self._most + _MORE

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self._secure:
            one.close()
        ending = asyncio.create_task(self._end_tls())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_tls(self) -> None:
        """End the connections that only wait for their peers to answer the end of TLS."""
        waiting: set[asyncio.BaseTransport] = set()
        while True:
            await asyncio.sleep(_MOMENT_S)
            former, waiting = waiting, set()
            for one in list(self.server_state.connections):
                transport = one.transport
                sent = transport.is_closing() and not transport.get_write_buffer_size()
                place = transport.get_extra_info("socket")
                if not sent or place is None or place.fileno() < 0:  # it is as good as closed
                    continue
                # The transport under that of TLS has bytes only if those of the socket wait. At the
                # first look, they may just be on their way from one to the other.
                if fcntl.ioctl(place, termios.TIOCOUTQ, _NONE) == _NONE:
                    waiting.add(transport)
                    if transport in former:
                        transport.abort()

    async def start(self) -> None:
        """Begin to accept connections; return when they are accepted."""
        self._task = asyncio.create_task(self.serve(self._sockets))
        while not self.started:
            if self._task.done():
                self._task.result()
                raise StoreError("the HTTP server ended before it began")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop accepting, end the event streams, and wait a few seconds for other requests."""
        self.app.stop()
        self.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_S)
            for one in list(self.server_state.connections):  # whose clients do not read, or slowly
                one.transport.abort()
            await self._task


def bind(address: str, port: int) -> list[socket.socket]:
    """Return sockets that are bound to an address, to all that its name has."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, place in dict.fromkeys(infos):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # The kernel drops connections whose peer takes nothing; accepted sockets inherit it.
            timeout: Any = getattr(socket, "TCP_USER_TIMEOUT", None)
            if timeout is not None:
                one.setsockopt(socket.IPPROTO_TCP, timeout, round(1000 * STALL_S))
            if not port and found[:-1]:  # the port that the first has got
                place = (place[0], found[0].getsockname()[1], *place[2:])
            one.bind(place)
            one.setblocking(False)
    except OSError:
        for one in found:
            one.close()
        raise
    return found
