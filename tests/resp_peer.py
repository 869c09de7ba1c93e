"""A server of a store in a thread of the test, and clients that see the bytes of its replies."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import PATIENCE_S, wait_until
from streamkeep.engine.api.store import Store
from streamkeep.format.redis.resp import encode_command
from streamkeep.server.resp.connection import Connection
from streamkeep.server.resp.server import Server

Word = bytes | str | int


class Running:
    """A server that runs in a thread."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.path = path
        self.loop = loop
        self.server = server

    def ask(self, question: Callable[[Server], Any]) -> Any:
        """Return what a function says of the server, run in its event loop."""

        async def answer() -> Any:
            return question(self.server)

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(PATIENCE_S)


@contextmanager
def serving(store: Store[bytes], path: Path, **options: Any) -> Iterator[Running]:
    ready = threading.Event()
    found: list[Running] = []
    problems: list[BaseException] = []
    ended: list[asyncio.Future[None]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended.append(loop.create_future())
        server = Server(store, **options)
        sockets = await loop.create_unix_server(lambda: Connection(server), str(path))
        found.append(Running(path, loop, server))
        ready.set()
        await ended[0]
        sockets.close()
        await server.close()

    def in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            problems.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=in_thread, name="server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        assert found, problems
        yield found[0]
    finally:
        if found:
            found[0].loop.call_soon_threadsafe(ended[0].set_result, None)
        thread.join(PATIENCE_S)
        assert not problems, problems


class Peer:
    """A client that sends words or bytes, and returns the bytes of each reply."""

    def __init__(self, path: Path | str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        wait_until(lambda: self._connected(str(path)))
        self._data = b""

    def _connected(self, path: str) -> bool:
        try:
            self.socket.connect(path)
        except BlockingIOError:  # more clients wait to be accepted than the system queues
            return False
        return True

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *words: Word) -> None:
        self.socket.sendall(encode_command(*words))

    def call(self, *words: Word) -> bytes:
        """Send one command, and return the bytes of its reply."""
        self.send(*words)
        return self.read()

    def ask(self, *words: Word) -> Any:
        """Send one command, and return its reply as a value."""
        return decode(self.call(*words))

    def read(self) -> bytes:
        while True:
            end = reply_end(self._data, 0)
            if end is not None:
                reply, self._data = self._data[:end], self._data[end:]
                return reply
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError(f"the server closed the connection after {self._data!r}")
            self._data += more

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection; waits for a byte otherwise."""
        try:
            return not self._data and not self.socket.recv(1)
        except ConnectionError:
            return True


def reply_end(data: bytes, at: int) -> int | None:
    """Return where the reply at a place ends; None if it is not complete."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, number = data[at : at + 1], data[at + 1 : line_end]
    after = line_end + 2
    if kind in b"$=" and number != b"-1":
        end = after + int(number) + 2
        return end if end <= len(data) else None
    if kind in b"*%~" and number != b"-1":
        for _ in range(int(number) * (2 if kind == b"%" else 1)):
            end_of_one = reply_end(data, after)
            if end_of_one is None:
                return None
            after = end_of_one
    return after


class Line(str):
    """A simple string, or with a minus an error."""


def decode(data: bytes) -> Any:
    """Return a reply as bytes, Line, int, None, list, or dict of RESP3."""
    value, end = _decode(data, 0)
    assert end == len(data), data
    return value


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    line_end = data.index(b"\r\n", at)
    kind, text, after = data[at : at + 1], data[at + 1 : line_end], line_end + 2
    if kind == b"+":
        return Line(text.decode()), after
    if kind == b"-":
        return Line("-" + text.decode("utf-8", "replace")), after
    if kind == b":":
        return int(text), after
    if kind == b"_" or text == b"-1":
        return None, after
    if kind in b"$=":
        end = after + int(text)
        return data[after:end], end + 2
    values = []
    for _ in range(int(text) * (2 if kind == b"%" else 1)):
        value, after = _decode(data, after)
        values.append(value)
    if kind == b"%":
        return dict(zip(values[0::2], values[1::2], strict=True)), after
    return values, after
