"""What generated commands do not reach: options twice, transactions, clients that wait or watch.

Each case is a session of several clients, with the replies of Redis 8.10.2. The server has to send
the same bytes, and so does the `redis-server` of the machine if it is new enough for the case.

    a XADD s 1-0 f v            client `a` sends a command, and gets the reply in the next line:
      $3 1-0                    bytes, with a space for each end of a line
    b& XREAD BLOCK 0 ...        client `b` sends a command that waits
    b?                          the reply that `b` gets now
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from patience import wait_until
from real_redis.server import RealRedis
from resp_peer import Peer, Running, serving
from stores import open_at

pytestmark = pytest.mark.redis
SESSIONS = Path(__file__).with_name("sessions")


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Running]:
    """The server of a store, which may be flushed."""
    with open_at(tmp_path / "s", sync="none") as store, serving(store, tmp_path / "k") as running:
        running.server.settings.allow_flush = True
        yield running


def steps_of(text: str) -> list[tuple[str, str]]:
    """Return (what a client does, the reply or nothing) of each step of a session."""
    steps: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            steps[-1] = steps[-1][0], line[2:]
        elif line and not line.startswith("#"):
            steps.append((line, ""))
    return steps


def replies_of(path: Path | str, steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Run a session on a server; return its steps with the replies of that server."""
    with ExitStack() as stack:
        watcher = stack.enter_context(Peer(path))
        watcher.call("FLUSHALL")
        clients: dict[str, Peer] = {}
        found = []
        for step, _ in steps:
            head, *words = (
                b"" if word == "''" else word.encode().decode("unicode_escape").encode("latin-1")
                for word in step.split(" ")
            )
            name = head.decode().rstrip("&?")
            if name not in clients:
                clients[name] = stack.enter_context(Peer(path))
                clients[name].call("CLIENT", "SETNAME", name)
            reply = b""
            if words:
                clients[name].send(*words)
            if head.endswith(b"&"):
                wait_until(partial(is_blocked, watcher, name))
            else:
                reply = clients[name].read()
            found.append((step, as_text(reply)))
        return found


def as_text(reply: bytes) -> str:
    """Return a reply in one line."""
    return reply.removesuffix(b"\r\n").replace(b"\r\n", b" ").decode("latin-1")


def is_blocked(watcher: Peer, name: str) -> bool:
    """Return whether a client waits."""
    lines = watcher.ask("CLIENT", "LIST").decode().splitlines()
    return any(f" name={name} " in line and " flags=b" in line for line in lines)


@pytest.mark.parametrize("name", sorted(path.stem for path in SESSIONS.glob("*.txt")))
def test_a_session_goes_as_with_redis(real: RealRedis, ours: Running, name: str) -> None:
    first, text = (SESSIONS / f"{name}.txt").read_text().split("\n", 1)
    steps = steps_of(text)
    assert steps
    least = tuple(int(part) for part in first.removeprefix("# Redis ").split("."))
    if real.version >= least:
        assert replies_of(str(real.socket), steps) == steps
    assert replies_of(ours.path, steps) == steps
