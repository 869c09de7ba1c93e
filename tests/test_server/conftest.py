"""A server of a store for each test, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from resp_peer import Peer, Running, serving
from stores import open_at

Connect = Callable[[], Peer]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server of a store; `running.server.store` is the store."""
    with open_at(tmp_path / "s") as store, serving(store, tmp_path / "k") as found:
        yield found


@pytest.fixture
def connect(running: Running) -> Iterator[Connect]:
    """A function that connects another client."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Peer(running.path))


@pytest.fixture
def peer(connect: Connect) -> Peer:
    """One client."""
    return connect()
