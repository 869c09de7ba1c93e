"""The server against a real redis-server: the same bytes sent, the same bytes received.

IDs and times are pinned, or taken out of the replies. STREAMKEEP_REDIS_SERVER names the program to
compare with; for one that is older than 8.10, `real_redis.replies` says what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from real_redis.clients import Clients
from real_redis.commands import BUDGETS, Generator
from real_redis.replies import Replies
from real_redis.server import RealRedis
from resp_peer import Peer, Running, serving
from stores import open_at
from streamkeep.format.redis.resp import encode_command
from tiers import daily_or_all

pytestmark = pytest.mark.redis


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Running]:
    """The server of a store."""
    with open_at(tmp_path / "s", sync="none") as store, serving(store, tmp_path / "k") as running:
        yield running


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
    ours.server.settings.allow_flush = True
    paths = (real_path(real), ours.path)
    with closing(Clients(Generator(seed, real.version), paths, protocol)) as clients:
        for done in range(count):
            for client, words, replies in clients.step():
                assert replies[0] == replies[1], (done, client, words)


def real_path(real: RealRedis) -> str:
    """Return the path of the server's socket."""
    return str(real._connection.path)
