"""A server of a store for each test, and clients of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from patience import PATIENCE_S, thread_of
from real_redis.server import RealRedis, running_redis
from resp_peer import Peer, Running, serving
from stores import open_at
from streamkeep.server import serve
from streamkeep.server.access import Access
from streamkeep.server.resp.server import Server

Connect = Callable[[], Peer]


@contextmanager
def served(
    path: Path, prepare: Callable[[Server], object] | None = None, **options: Any
) -> Iterator[dict[str, str]]:
    """Serve a store in a thread until the block ends; yield where it is reached."""
    ready = threading.Event()
    found: list[Server] = []

    def note(server: Server) -> None:
        found.append(server)
        if prepare is not None:
            prepare(server)
        ready.set()

    given = serve.Options(ready=note, **options)
    failures: list[BaseException] = []

    def in_thread() -> None:
        try:
            with streamkeep.open(path) as store:
                asyncio.run(serve.serve(store, given))
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = thread_of(in_thread)
    assert ready.wait(PATIENCE_S)
    try:
        if failures:
            raise failures[0]
        yield found[0].settings.shown
    finally:
        if found:
            loop = found[0].loop  # in its next turn: a client may just be accepted
            loop.call_soon_threadsafe(loop.call_soon, found[0].stopped)
        thread.join(PATIENCE_S)


@pytest.fixture
def access() -> Access | None:
    """The users of the server that runs, unless a test has parameters for that."""
    return None


@pytest.fixture
def running(tmp_path: Path, access: Access | None) -> Iterator[Running]:
    """A server of a store; `running.server.store` is the store."""
    with open_at(tmp_path / "s") as store, serving(store, tmp_path / "k", access=access) as found:
        yield found


@pytest.fixture
def connect(running: Running) -> Iterator[Connect]:
    """A function that connects another client."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Peer(running.path))


@pytest.fixture
def peer(connect: Connect) -> Peer:
    return connect()


@pytest.fixture(scope="module")
def real() -> Iterator[RealRedis]:
    """A server to compare with, for all tests of a file."""
    with running_redis() as server:
        yield server
