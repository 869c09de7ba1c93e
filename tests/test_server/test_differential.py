"""The server against a real redis-server: the same bytes sent, the same bytes received.

IDs and times are pinned, or taken out of the replies. STREAMKEEP_REDIS_SERVER names the program to
compare with; for one that is older than 8.10, `real_redis.replies` says what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from patience import wait_until
from real_redis.clients import Clients
from real_redis.commands import BUDGETS, Generator
from real_redis.replies import Replies
from real_redis.server import RealRedis
from resp_peer import Peer, Running, serving
from stores import open_at
from streamkeep.format.redis.resp import encode_command
from tiers import daily_or_all


@pytest.mark.redis
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, daily_or_all(1_000, 6_000)), *(pytest.param(seed, 6_000, marks=[pytest.mark.slow])
                                      for seed in range(2, 26))],
)  # fmt: skip
def test_replies_are_the_bytes_of_redis(
    real: RealRedis, ours: Running, seed: int, count: int, protocol: int
) -> None:
    real.call(b"FLUSHALL")
    generator = Generator(seed, real.version)
    limits = generator.random.choice([(4096, 5), (4096, 5), (300, 10), (120, 3), (60, 2), (800, 0)])
    their_replies, our_replies = Replies(real.version), Replies(real.version)
    with Peer(real_path(real)) as theirs, Peer(ours.path) as mine:
        if protocol == 3:
            for peer in (theirs, mine):
                peer.call("HELLO", 3)
        for peer in (theirs, mine):
            peer.call("CONFIG", "SET", "stream-node-max-bytes", limits[0])
            peer.call("CONFIG", "SET", "stream-node-max-entries", limits[1])
        done = 0
        while done < count:
            batch = [words for _ in range(generator.random.randrange(1, 9))
                     for words in generator.command()]  # fmt: skip
            data = b"".join(encode_command(*words) for words in batch)
            for peer in (theirs, mine):
                peer.socket.sendall(data)
            for words in batch:
                expected = their_replies.comparable(words, theirs.read())
                found = our_replies.comparable(words, mine.read())
                assert found == expected, (done, words)
            done += len(batch)


@pytest.mark.redis
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, daily_or_all(300, 2_000)), *(pytest.param(seed, 6_000, marks=[pytest.mark.slow])
                                      for seed in range(2, 6))],
)  # fmt: skip
def test_clients_that_wait_and_watch_get_the_replies_of_redis(
    real: RealRedis, ours: Running, seed: int, count: int, protocol: int
) -> None:
    if real.version < BUDGETS:
        pytest.skip("an older server wakes clients otherwise; STREAMKEEP_REDIS_SERVER names one")
    real.call(b"FLUSHALL")
    paths = (real_path(real), ours.path)
    with closing(Clients(Generator(seed, real.version), paths, protocol)) as clients:
        for done in range(count):
            for client, words, replies in clients.step():
                assert replies[0] == replies[1], (done, client, words)


def real_path(real: RealRedis) -> str:
    return str(real._connection.path)


# --- what generated commands do not reach: options twice, transactions, waits and watches ---------

# Each case is a session of several clients, with the replies of Redis 8.10.2. The server has to
# send the same bytes, and so does the `redis-server` of the machine if it is new enough.
#
#     a XADD s 1-0 f v            client `a` sends a command, and gets the reply in the next line:
#       $3 1-0                    bytes, with a space for each end of a line
#     b& XREAD BLOCK 0 ...        client `b` sends a command that waits
#     b?                          the reply that `b` gets now

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
    return reply.removesuffix(b"\r\n").replace(b"\r\n", b" ").decode("latin-1")


def is_blocked(watcher: Peer, name: str) -> bool:
    lines = watcher.ask("CLIENT", "LIST").decode().splitlines()
    return any(f" name={name} " in line and " flags=b" in line for line in lines)


of_sessions = pytest.mark.parametrize(
    "path", sorted(SESSIONS.glob("*.txt")), ids=lambda one: one.stem
)


@of_sessions
def test_a_session_goes_as_with_redis(ours: Running, path: Path) -> None:
    steps = steps_of(path.read_text())
    assert steps
    assert replies_of(ours.path, steps) == steps


@pytest.mark.redis
@of_sessions
def test_a_session_says_what_redis_does(real: RealRedis, path: Path) -> None:
    first, text = path.read_text().split("\n", 1)
    steps = steps_of(text)
    least = tuple(int(part) for part in first.removeprefix("# Redis ").split("."))
    if real.version >= least:
        assert replies_of(str(real.socket), steps) == steps
