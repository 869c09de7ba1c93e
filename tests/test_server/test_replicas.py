"""A real Redis as replica of a server, whose store other processes write to."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from patience import beside, line_of, wait_until
from real_redis.server import RealRedis, running_redis
from replica_load import batch, in_processes, shown
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.replication import Follower
from streamkeep.replication.primary import Primary
from streamkeep.server.access import Access
from tiers import daily_or_all

from .conftest import served

pytestmark = pytest.mark.redis


class Fed:
    """A server with a client of it."""

    def __init__(self, peer: RealRedis, port: str, primary: Primary | None) -> None:
        self.call = peer.call
        self.port = port
        self._primary = primary

    @property
    def primary(self) -> Primary:
        """What feeds replicas, of a server in this process."""
        assert self._primary is not None
        return self._primary

    def figure(self, name: bytes) -> int:
        return int(info(self.call, b"stats")[name])

    def catch_up(self, replica: RealRedis) -> None:
        """Wait until a replica has everything, and compare it."""
        wait_until(lambda: info(replica.call)[b"master_link_status"] == b"up")
        wait_until(lambda: self.call(b"WAIT", b"1", b"1000") >= 1)
        wait_until(lambda: shown(replica.call) == shown(self.call))  # WAIT counts any of several
        assert b"failed_calls=1" not in replica.call(b"INFO", b"commandstats")


def info(call: Callable[..., Any], section: bytes = b"replication") -> dict[bytes, bytes]:
    lines = call(b"INFO", section).split(b"\r\n")
    return dict(line.split(b":", 1) for line in lines if b":" in line)


@contextmanager
def feeding(
    folder: Path,
    *,
    store: str = "s",
    socket: str = "k",
    access: Access | None = None,
    password: str | None = None,
    **settings: Any,
) -> Iterator[Fed]:
    """Serve the store of a folder; `settings` are attributes of `Primary`."""
    primaries: list[Primary] = []

    def prepare(server: Any) -> None:
        primaries.append(server.primary)
        for name, value in settings.items():
            setattr(server.primary, name, value)

    options = {"bind": ["127.0.0.1:0"], "unix": folder / socket, "allow_flush": True}
    options |= {} if access is None else {"access": access}
    with served(folder / store, prepare, **options) as at:
        peer = RealRedis(folder / socket, password)
        try:
            yield Fed(peer, at["port"], primaries[0])
        finally:
            peer.close()


@contextmanager
def apart(folder: Path, port: str = "0") -> Iterator[tuple[subprocess.Popen[str], Fed]]:
    """Serve the store of a folder in another process, which is killed at the end."""
    words = ["serve", f"{folder}/s", "--socket", f"{folder}/k", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [sys.executable, "-m", "streamkeep", "--json", *words], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            found = line_of(server).partition("127.0.0.1:")[2].partition('"')[0]
            with closing(RealRedis(folder / "k")) as peer:
                yield server, Fed(peer, found, None)
        finally:
            server.kill()


@contextmanager
def stopped_for(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def replica_of(port: str, **settings: str) -> Iterator[RealRedis]:
    with running_redis({"replicaof": f"127.0.0.1 {port}", **settings}) as replica:
        yield replica


def write(fed: Fed, count: int, size: int = 100) -> None:
    for number in range(count):
        fed.call(b"XADD", b"written", b"*", b"n", b"%d" % number, b"text", b"x" * size)


def test_random_commands_of_three_processes(tmp_path: Path) -> None:
    with feeding(tmp_path) as fed, replica_of(fed.port) as replica:
        for seed in range(daily_or_all(1, 5)):
            processes = in_processes(tmp_path / "s", seed * 10, daily_or_all(200, 1500))
            rng, ids = random.Random(seed), [b"1-1"]
            while any(one.is_alive() for one in processes):
                batch(rng, ids, lambda words: fed.call(*words))
            for one in processes:
                one.join()
                assert one.exitcode == 0
            fed.catch_up(replica)
        assert fed.figure(b"sync_full") == 1


def _has(fed: Fed, partial_syncs: int) -> bool:
    return fed.figure(b"sync_partial_ok") == partial_syncs


def test_replica_that_loses_its_connection_goes_on(tmp_path: Path) -> None:
    with feeding(tmp_path) as fed, replica_of(fed.port) as replica:
        fed.catch_up(replica)
        for cut in range(1, 3):
            write(fed, 20)
            assert fed.call(b"CLIENT", b"KILL", b"TYPE", b"replica") == 1
            write(fed, 20)
            wait_until(partial(_has, fed, cut))
            fed.catch_up(replica)
        assert fed.figure(b"sync_full") == 1


def test_replica_gets_all_again_where_the_backlog_is_too_small(tmp_path: Path) -> None:
    with feeding(tmp_path, backlog_bytes=1000) as fed, replica_of(fed.port) as replica:
        fed.catch_up(replica)
        replica.call(b"REPLICAOF", b"NO", b"ONE")
        write(fed, 100)
        replica.call(b"REPLICAOF", b"127.0.0.1", fed.port.encode())
        fed.catch_up(replica)
        assert (fed.figure(b"sync_full"), fed.figure(b"sync_partial_err")) == (2, 1)


def test_stopped_replica_loses_its_connection_and_delays_nobody(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "most_behind_bytes": 4 << 20,
        "backlog_bytes": 1 << 20,
        "timeout_s": 1e9,
    }
    with feeding(tmp_path, **limits) as fed, replica_of(fed.port) as stopped:
        with replica_of(fed.port) as other:
            wait_until(lambda: info(fed.call)[b"connected_slaves"] == b"2")
            write(fed, 1)
            fed.catch_up(other)
            with stopped_for(int(info(stopped.call, b"server")[b"process_id"])):
                while fed.call(b"INFO", b"replication").count(b"state=online") == 2:
                    write(fed, 5, 100_000)
                    assert fed.primary.end - fed.primary.start < 6 << 20
                fed.catch_up(other)
        fed.catch_up(stopped)
        # More where a checkpoint retires a file of 1 MiB before the busy server has read it.
        assert fed.figure(b"sync_full") >= 3


@pytest.mark.slow
def test_while_the_only_replica_is_stopped_nothing_is_kept_for_it(tmp_path: Path) -> None:
    with feeding(tmp_path, timeout_s=1.0) as fed, replica_of(fed.port) as replica:
        fed.catch_up(replica)
        with stopped_for(int(info(replica.call, b"server")[b"process_id"])):
            while info(fed.call)[b"connected_slaves"] == b"1":
                write(fed, 50, 10_000)
                fed.call(b"XTRIM", b"written", b"MAXLEN", b"10")
            assert fed.primary.end - fed.primary.start < 32 << 20
        fed.catch_up(replica)


def test_server_that_was_killed_sends_all_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with apart(tmp_path) as (_, fed):
            replica = stack.enter_context(replica_of(fed.port))
            fed.catch_up(replica)
            write(fed, 10)
        with apart(tmp_path, fed.port) as (_, fed):
            write(fed, 10)
            fed.catch_up(replica)


def test_large_streams(tmp_path: Path) -> None:
    with feeding(tmp_path) as fed, replica_of(fed.port) as replica:
        fed.catch_up(replica)
        write(fed, 100, 30_000)  # more than one transaction of the feed
        fed.call(b"XGROUP", b"CREATE", b"written", b"g", b"0")
        fed.call(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"50", b"STREAMS", b"written", b">")
        fed.call(b"COPY", b"written", b"copied")
        fed.catch_up(replica)
        payload = fed.call(b"DUMP", b"written")
        fed.call(b"MULTI")
        fed.call(b"RENAME", b"copied", b"x")  # names go round in a circle
        fed.call(b"RENAME", b"written", b"copied")
        fed.call(b"RENAME", b"x", b"written")
        fed.call(b"XADD", b"written", b"*", b"one", b"more")
        fed.call(b"RESTORE", b"restored", b"0", payload)
        fed.call(b"EXEC")
        fed.catch_up(replica)
        fed.call(b"FLUSHALL")
        fed.catch_up(replica)
        assert replica.call(b"DBSIZE") == 0
        assert fed.figure(b"sync_full") == 1


def test_entries_without_an_owner_go_to_nobody(tmp_path: Path) -> None:
    with feeding(tmp_path) as fed, replica_of(fed.port) as replica:
        fed.catch_up(replica)
        fed.call(b"XADD", b"s", b"1-1", b"f", b"v")
        fed.call(b"XGROUP", b"CREATE", b"s", b"g", b"0")
        fed.call(b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", b"s", b">")
        wait_until(lambda: fed.call(b"WAIT", b"1", b"1000") == 1)
        fed.call(b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", b"1-1")
        wait_until(lambda: fed.call(b"WAIT", b"1", b"1000") == 1)
        [[one, owner, _, count]] = replica.call(b"XPENDING", b"s", b"g", b"-", b"+", b"9")
        assert (one, owner, count) == (b"1-1", b"nobody", 1)
        fed.call(b"XCLAIM", b"s", b"g", b"d", b"0", b"1-1")
        wait_until(lambda: fed.call(b"WAIT", b"1", b"1000") == 1)
        assert replica.call(b"XPENDING", b"s", b"g", b"-", b"+", b"9")[0][1] == b"d"


def test_redis_cli_writes_a_file(tmp_path: Path) -> None:
    with feeding(tmp_path) as fed:
        write(fed, 10)
        target = tmp_path / "file.rdb"
        command = ["redis-cli", "-p", fed.port, "--rdb", str(target)]
        subprocess.run(command, check=True, capture_output=True)
        with running_redis(file=target) as copy:
            assert shown(copy.call) == shown(fed.call)


def test_password_of_a_replica(tmp_path: Path) -> None:
    lines = ["user default on >w ~* +@all", "user copy on >secret +psync +replconf +ping"]
    with (
        feeding(tmp_path, access=Access(None, lines), password="w") as fed,
        replica_of(fed.port, masteruser="copy", masterauth="secret") as replica,
        replica_of(fed.port, masterauth="wrong") as refused,
    ):
        write(fed, 10)
        fed.catch_up(replica)
        assert info(refused.call)[b"master_link_status"] == b"down"


@pytest.mark.slow
def test_server_that_was_stopped_while_others_wrote(tmp_path: Path) -> None:
    """The journal that it has not read is gone, so its replicas get everything again."""
    with apart(tmp_path) as (server, fed), replica_of(fed.port) as replica:
        fed.catch_up(replica)
        with stopped_for(server.pid), streamkeep.open(tmp_path / "s", sync="none") as store:
            for number in range(700):
                store.xadd("s", {"n": str(number), "text": "x" * 100_000}, maxlen=10)
        fed.catch_up(replica)
        assert fed.figure(b"sync_full") == 2


def test_another_streamkeep_follows(tmp_path: Path) -> None:
    with feeding(tmp_path, target=TARGETS["8.10"]) as fed:
        follower = Follower(f"redis://127.0.0.1:{fed.port}", tmp_path / "copy")
        with beside(follower.run, stop=follower.stop.set):
            processes = in_processes(tmp_path / "s", 1, daily_or_all(100, 4000))
            for one in processes:
                one.join()
            wait_until(lambda: fed.call(b"WAIT", b"1", b"1000") >= 1)
        with feeding(tmp_path, store="copy", socket="copied") as copy:
            assert streams(copy.call) == streams(fed.call)


def streams(call: Callable[..., Any]) -> dict[bytes, Any]:
    """Return what a server shows of its streams; `streamkeep follow` leaves out the rest."""
    return {key: one for key, (one, _) in shown(call).items() if isinstance(one, dict)}
