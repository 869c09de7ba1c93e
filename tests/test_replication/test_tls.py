"""TLS between a store and a real Redis, in both directions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from patience import wait_until
from real_redis.server import RealRedis, running_redis
from real_redis.shown import TIMES, stream
from streamkeep import ArgumentError
from streamkeep.replication import Follower, LinkLost
from test_replication.test_follow import check_same, fill
from test_server.conftest import served

pytestmark = pytest.mark.redis

Files = tuple[Path, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A certificate, which is its own authority, and its key."""
    return make_certificate(tmp_path)


@contextmanager
def with_tls(files: Files, **settings: str) -> Iterator[tuple[RealRedis, int]]:
    """Run a Redis that speaks TLS on a port; its Unix socket is without."""
    certificate, key = map(str, files)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    options = {"tls-port": str(port), "tls-cert-file": certificate, "tls-key-file": key}
    options |= {"tls-ca-cert-file": certificate, "repl-diskless-sync-delay": "0"}
    with running_redis(options | settings) as running:
        yield running, port


def test_a_redis_with_tls_is_followed(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_tls(files, **{"tls-auth-clients": "no"}) as (server, port):
        fill(server, "s", 5000)
        source = f"rediss://localhost:{port}"
        with pytest.raises(ArgumentError, match="its certificate: self-signed"):
            Follower(source, tmp_path / "s").run(once=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        Follower(source, tmp_path / "s").run(once=True)
        fill(server, "s", 5000)
        Follower(source, tmp_path / "s").run(once=True)
        check_same(server, tmp_path / "s", (b"s",))
        with pytest.raises(LinkLost, match="PING"):
            Follower(f"redis://localhost:{port}", tmp_path / "t").run(once=True)


def test_a_redis_gets_the_certificate_that_it_asks_for(tmp_path: Path, files: Files) -> None:
    """As Redis does by default."""
    certificate, key = files
    with with_tls(files) as (server, port):
        fill(server, "s", 5)
        source = f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}"
        with pytest.raises(LinkLost, match=r"add \?ssl_certfile=FILE&ssl_keyfile=FILE"):
            Follower(source, tmp_path / "s").run(once=True)
        both = f"{source}&ssl_certfile={certificate}&ssl_keyfile={key}"
        report = Follower(both, tmp_path / "s").run(once=True)
        assert (report.entries, report.source) == (5, f"rediss://localhost:{port}/0")
        with pytest.raises(ArgumentError, match="cannot be read"):
            Follower(f"{source}&ssl_certfile=/none", tmp_path / "s").run(once=True)


@pytest.mark.parametrize("asks", [False, True])
def test_a_redis_is_a_replica_over_tls(tmp_path: Path, files: Files, asks: bool) -> None:
    tls = (*files, files[0] if asks else None)
    socket_path = tmp_path / "u"
    with served(tmp_path / "s", bind=["127.0.0.1:0"], unix=socket_path, tls=tls) as at:
        peer: Any = RealRedis(socket_path)
        fill(peer, "s", 2000)
        settings = {"tls-replication": "yes", "replicaof": f"127.0.0.1 {at['port']}"}
        with with_tls(files, **settings) as (replica, _):
            wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"))
            fill(peer, "s", 2000)
            peer.call("XTRIM", "s", "MAXLEN", 1500)
            wait_until(lambda: peer.call("WAIT", 1, 1000) == 1)
            assert replica.call("XLEN", "s") == 1500
            assert stream(replica.call, b"s", *TIMES) == stream(peer.call, b"s", *TIMES)
        peer.close()
