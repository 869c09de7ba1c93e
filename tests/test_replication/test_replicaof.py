"""REPLICAOF on a server: it follows a Redis, with what can go wrong."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

import streamkeep
from addresses import free_ports
from cli_runner import run, start
from patience import PATIENCE_S, line_of, wait_until
from real_redis.server import RealRedis, running_redis
from resp_peer import Peer
from streamkeep import StoreError, StoreLockedError
from streamkeep.format.redis.resp import encode_command
from streamkeep.replication import Follower, attach, detach, following
from streamkeep.replication.commands import put_row
from streamkeep.replication.synchronize import Synchronization
from streamkeep.server.access import Access
from streamkeep.server.http.serving import HttpServer
from test_replication.test_follow import (
    AT_ONCE,
    check_same,
    fill,
    followed,
    following_of,
    history,
    once,
    source,
)
from test_replication.test_link import FILE, FULL, SELECT, Primary, drain, sized
from test_server.conftest import served
from tiers import slow_but

pytestmark = pytest.mark.redis

READONLY = b"-READONLY You can't write against a read only replica.\r\n"
OK = b"+OK\r\n"


@pytest.fixture
def server(free_port: int) -> Iterator[RealRedis]:
    with running_redis({**AT_ONCE, "port": str(free_port), "repl-timeout": "5"}) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s"


def port_of(server: RealRedis) -> bytes:
    found: Any = server.call(b"CONFIG", b"GET", b"port")
    return bytes(found[1])


@contextmanager
def replica(store: Path, **options: Any) -> Iterator[Peer]:
    path = store.parent / "u"
    with served(store, unix=path, **options), Peer(path) as peer:
        yield peer


def follow(peer: Peer, server: RealRedis) -> None:
    """Let a server follow another one, and wait until it does."""
    assert peer.call("REPLICAOF", "127.0.0.1", port_of(server)) == OK
    linked(peer)


def linked(peer: Peer) -> None:
    wait_until(lambda: peer.ask("ROLE")[3] == b"connected")


def info(peer: Peer) -> dict[str, str]:
    text = peer.ask("INFO", "replication").decode()
    return dict(line.split(":", 1) for line in text.splitlines()[1:])


def problem(peer: Peer) -> str:
    return info(peer).get("streamkeep_link_problem", "")


def forget(store: Path) -> None:
    """Have all streams taken anew."""
    row = following_of(store)
    with streamkeep.open(store) as opened, opened.transaction() as transaction:
        put_row(transaction.txn, row._replace(replication_id=""))


def caught_up(server: RealRedis) -> None:
    wait_until(lambda: server.call(b"WAIT", 1, 1000) == 1)


def test_a_server_follows_and_is_promoted(server: RealRedis, store: Path) -> None:
    first = fill(server, "s", 20)
    with replica(store) as peer:
        assert info(peer)["role"] == "master"
        follow(peer, server)
        port = port_of(server)
        assert peer.ask("ROLE")[:4] == [b"slave", b"127.0.0.1", int(port), b"connected"]
        again = peer.call("SLAVEOF", "127.0.0.1", port)
        assert again == b"+OK Already connected to specified master\r\n"
        assert peer.call("REPLICAOF", "127.0.0.1", -1) == b"-ERR Invalid master port\r\n"
        assert peer.call("REPLICAOF", "a b/c", 1).startswith(b"-ERR 'redis://a b/c:1' is not the")
        more = fill(server, "s", 30, "MAXLEN", "5")
        caught_up(server)
        found = info(peer)
        assert (found["role"], found["master_host"], found["master_port"]) == (
            "slave", "127.0.0.1", port.decode(),
        )  # fmt: skip
        assert (found["master_link_status"], found["master_sync_in_progress"]) == ("up", "0")
        assert (found["slave_read_only"], found["slave_priority"]) == ("1", "0")
        assert int(found["slave_repl_offset"]) > 0
        assert 0 <= int(found["master_last_io_seconds_ago"]) < PATIENCE_S
        assert peer.ask("XLEN", "s") == 5
        assert peer.call("REPLICAOF", "NO", "ONE") == OK
        assert peer.ask("ROLE")[0] == b"master"
        assert peer.ask("XADD", "s", "*", "own", "1") is not None
        assert peer.ask("XADD", "new", "*", "own", "1") is not None
        assert peer.call("SLAVEOF", "no", "one") == OK
        fill(server, "s", 1)
        assert peer.ask("XLEN", "s") == 6
    assert following_of(store) is None
    assert history(store, "s")[:-1] == first + more
    assert not list(streamkeep.recovery.check(store))


def test_clients_of_a_replica_only_read(server: RealRedis, store: Path) -> None:
    with replica(store) as peer, Peer(store.parent / "u") as other:
        other.call("MULTI")
        assert other.call("XADD", "x", "*", "a", "b") == b"+QUEUED\r\n"
        follow(peer, server)
        assert other.call("EXEC").startswith(b"-EXECABORT Transaction discarded because of: ")
        for words in (
            ("XADD", "s", "*", "a", "b"),
            ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
            ("DEL", "s"),
            ("SET", "lock", "me"),
            ("FLUSHALL",),
        ):
            assert peer.call(*words) == READONLY, words
            assert other.call(*words) == READONLY, words
        for text in ("WAIT 0 0", "WAITAOF 1 0 0"):
            assert b"cannot be used with replica instances" in peer.call(*text.split())
        peer.call("MULTI")
        assert b"not allowed inside a transaction" in peer.call("REPLICAOF", "NO", "ONE")
        assert peer.call("EXEC").startswith(b"-EXECABORT")
        assert peer.ask("CONFIG", "GET", "replica-read-only") == [b"replica-read-only", b"yes"]
        assert b"must be 'yes' or 'no'" in peer.call("CONFIG", "SET", "replica-read-only", "x")
        assert peer.call("CONFIG", "SET", "slave-read-only", "no") == OK
        assert peer.ask("XADD", "x", "*", "a", "b") is not None
        assert peer.call("CONFIG", "SET", "replica-read-only", "yes") == OK
        assert peer.call("XADD", "x", "*", "a", "b") == READONLY


def test_callers_over_http_only_read(server: RealRedis, store: Path) -> None:
    word = "a-long-password"
    options: dict[str, Any] = {"http": "127.0.0.1:0", "write": True, "access": Access(word)}
    with served(store, unix=store.parent / "u", **options) as at, Peer(store.parent / "u") as peer:

        def post() -> httpx.Response:
            headers = {"authorization": f"Bearer {word}"}
            return httpx.post(f"http://{at['http']}/streams/k", json={"n": 2}, headers=headers)

        peer.call("AUTH", word)
        assert post().status_code == 201
        peer.call("DEL", "k")
        follow(peer, server)
        refused = post()
        assert refused.status_code == 403
        assert "write to the server of which this one is a replica" in refused.text
        survey = httpx.get(f"http://{at['http']}/store/survey", auth=("default", word))
        assert survey.json()["write"] is False
        peer.call("REPLICAOF", "NO", "ONE")
        assert post().status_code == 201


def test_a_caller_over_http_that_waits_takes_nothing_from_a_replica(
    server: RealRedis, store: Path
) -> None:
    """To take an entry is a write. The store has the group from an earlier copy."""
    server.call(b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM")
    once(server, store)
    word = "a-long-password"
    options: dict[str, Any] = {"http": "127.0.0.1:0", "write": True, "access": Access(word)}
    with (
        served(store, unix=store.parent / "u", **options) as at,
        Peer(store.parent / "u") as peer,
        ThreadPoolExecutor() as pool,
    ):
        peer.call("AUTH", word)
        body = {"consumer": "c", "block_ms": 60_000}
        url = f"http://{at['http']}/groups/s/g/deliver"
        user = ("default", word)
        waits = pool.submit(httpx.post, url, json=body, auth=user, timeout=PATIENCE_S)
        wait_until(lambda: b"name" in peer.call("XINFO", "CONSUMERS", "s", "g"))
        follow(peer, server)
        assert waits.result().status_code == 403
        fill(server, "s", 1)
        caught_up(server)
        assert peer.ask("XPENDING", "s", "g")[0] == 0


def test_the_first_caller_over_http_only_reads(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, roles = HttpServer.start, []

    async def start(self: HttpServer) -> None:
        roles.append(self.app.state.is_replica())
        await begin(self)

    monkeypatch.setattr(HttpServer, "start", start)
    with replica(store, http="127.0.0.1:0", replicaof="redis://127.0.0.1:1"):
        assert roles == [True]


def test_clients_that_wait(server: RealRedis, store: Path) -> None:
    """What waited before is disconnected, since it may take entries; later reads get them."""
    with replica(store) as peer, Peer(store.parent / "u") as before:
        peer.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        before.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        wait_until(lambda: b"blocked_clients:1" in peer.ask("INFO", "clients"))
        peer.call("DEL", "s")
        assert before.read().startswith(b"-NOGROUP")
        before.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_until(lambda: b"blocked_clients:1" in peer.ask("INFO", "clients"))
        follow(peer, server)
        assert before.read().startswith(b"-UNBLOCKED force unblock from blocking operation")
        assert before.is_closed()
        with Peer(store.parent / "u") as later:
            later.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
            wait_until(lambda: b"blocked_clients:1" in peer.ask("INFO", "clients"))
            [one] = fill(server, "s", 1)
            assert one in later.read()


def test_a_server_goes_on_after_a_restart(server: RealRedis, store: Path) -> None:
    """Without --replicaof too, as the store says whom it follows."""
    first = fill(server, "s", 5)
    with replica(store, replicaof=f"redis://127.0.0.1:{port_of(server).decode()}") as peer:
        linked(peer)
        assert peer.call("XADD", "s", "*", "a", "b") == READONLY
    second = fill(server, "s", 5)
    with replica(store) as peer:
        assert peer.call("XADD", "s", "*", "a", "b") == READONLY
        linked(peer)
        caught_up(server)
        assert peer.ask("XLEN", "s") == 10
    row = following_of(store)
    assert row.full == 1  # it went on where it was
    check_same(server, store)
    assert history(store, "s") == first + second
    with replica(store, replicaof="") as peer:  # "NO ONE"
        assert peer.ask("ROLE")[0] == b"master"
    assert following_of(store) is None


def test_a_redis_is_the_replica_of_a_replica(
    server: RealRedis, store: Path, tmp_path: Path
) -> None:
    with (
        served(store, unix=tmp_path / "u", bind=["127.0.0.1:0"]) as at,
        Peer(tmp_path / "u") as peer,
        running_redis(AT_ONCE) as last,
    ):
        follow(peer, server)
        fill(server, "s", 10)
        caught_up(server)
        last.call(b"REPLICAOF", b"127.0.0.1", at["port"].encode())
        ids = fill(server, "s", 10)
        wait_until(lambda: last.call(b"XLEN", b"s") == 20)
        assert [one for one, _ in last.call(b"XREVRANGE", b"s", b"+", b"-", b"COUNT", 10)] == [
            *reversed(ids)
        ]


def test_a_replica_without_a_connection_feeds_nobody(
    server: RealRedis, store: Path, tmp_path: Path
) -> None:
    """So one that follows itself, or those that follow it, shows nothing that it does not have."""
    with (
        served(store, unix=tmp_path / "u", bind=["127.0.0.1:0"]) as at,
        Peer(tmp_path / "u") as peer,
    ):
        assert peer.call("REPLICAOF", "127.0.0.1", at["port"]) == OK
        wait_until(lambda: "NOMASTERLINK" in problem(peer))
        assert info(peer)["master_link_status"] == "down"
        assert info(peer)["master_last_io_seconds_ago"] == "-1"
        follow(peer, server)  # which ends that
        fill(server, "s", 3)
        caught_up(server)
        assert peer.ask("XLEN", "s") == 3


def test_a_store_with_keys_of_its_own_is_refused(server: RealRedis, store: Path) -> None:
    with replica(store) as peer:
        for name in "abcde":
            peer.call("XADD", name, "1-1", "n", "1")
        peer.call("SET", "lock", "me")
        port = port_of(server)
        refused = peer.call("REPLICAOF", "127.0.0.1", port)
        assert refused.startswith(b"-ERR the store has keys of its own")
        assert b"'a', 'b', 'c' and others; next: delete them" in refused
        assert peer.ask("ROLE")[0] == b"master"
        assert peer.ask("XADD", "a", "*", "n", "1") is not None
        peer.call("DEL", *"abcde")
        assert b": 'lock'; next" in peer.call("REPLICAOF", "127.0.0.1", port)
        peer.call("DEL", "lock")
        follow(peer, server)
    with streamkeep.open(store) as opened:
        opened.xadd("another", {"a": "b"})
    with replica(store) as peer:  # it goes on, and leaves alone what others have added
        linked(peer)
        assert peer.ask("XLEN", "another") == 1
        refused = peer.call("REPLICAOF", "127.0.0.1", "1")
        assert b": 'another'; next" in refused
        linked(peer)
        assert info(peer)["master_port"] == port.decode()


def test_what_was_promoted_is_not_overwritten(server: RealRedis, store: Path) -> None:
    """Not by the option of a server that is started again either."""
    fill(server, "s", 3)
    address = f"redis://127.0.0.1:{port_of(server).decode()}"
    with replica(store, replicaof=address) as peer:
        linked(peer)
        assert peer.call("REPLICAOF", "NO", "ONE") == OK
        peer.call("XADD", "s", "*", "own", "1")
        assert b": 's'; next" in peer.call("REPLICAOF", "127.0.0.1", port_of(server))
    with pytest.raises(StoreError, match="keys of its own"), replica(store, replicaof=address):
        pass
    with streamkeep.open(store) as opened:
        assert opened.xlen("s") == 4


def test_a_stream_of_another_process_under_a_name_of_the_server(
    server: RealRedis, store: Path
) -> None:
    """Following ends there, and says why, until the name is free; nothing is overwritten."""
    with replica(store) as peer:
        follow(peer, server)
        with streamkeep.open(store) as other:
            other.xadd("s", {"own": "1"})
            ids = fill(server, "s", 2)
            wait_until(lambda: "a stream 's' of its own" in problem(peer))
            assert peer.ask("XLEN", "s") == 1
            other.rename("s", "mine")
        linked(peer)
        caught_up(server)
        assert [one for one, _ in peer.ask("XRANGE", "s", "-", "+")] == ids


def test_another_server_that_has_another_history(server: RealRedis, store: Path) -> None:
    """Its streams do not take the place of those that the store follows, unless that is asked."""
    fill(server, "s", 3)
    with replica(store, replicaof=source(server)) as peer:
        linked(peer)
        peer.call("REPLICAOF", "127.0.0.1", "1")
        wait_until(lambda: "cannot connect" in problem(peer))
        assert peer.ask("XLEN", "s") == 3
        peer.call("REPLICAOF", "127.0.0.1", port_of(server))
        linked(peer)
    with running_redis(AT_ONCE) as other:
        fill(other, "s", 1)
        with replica(store, replicaof=source(other)) as peer:
            wait_until(lambda: "does not go on" in problem(peer))
            assert peer.ask("XLEN", "s") == 3
        once(other, store, resync=True)
        with replica(store) as peer:
            linked(peer)
            assert peer.ask("XLEN", "s") == 1


def test_a_server_that_was_promoted_goes_on_with_the_history(
    server: RealRedis, store: Path
) -> None:
    with free_ports(1) as [port], running_redis({**AT_ONCE, "port": str(port)}) as second:
        second.call("REPLICAOF", "127.0.0.1", port_of(server))
        wait_until(lambda: b"master_link_status:up" in second.call("INFO", "replication"))
        with replica(store) as peer:
            follow(peer, server)
            ids = fill(server, "s", 3)
            wait_until(lambda: server.call(b"WAIT", 2, 1000) == 2)
            second.call("REPLICAOF", "NO", "ONE")
            follow(peer, second)
            ids += fill(second, "s", 3, "MAXLEN", "2")
            caught_up(second)
    assert following_of(store).full == 1
    assert history(store, "s") == ids


def test_a_process_that_follows_is_not_disturbed(server: RealRedis, store: Path) -> None:
    fill(server, "s", 1)
    with followed(server, store):
        wait_until(lambda: following_of(store))
        with replica(store) as peer:
            port = port_of(server)
            assert b"another process follows" in peer.call("REPLICAOF", "127.0.0.1", port)
            assert b"--detach" in peer.call("REPLICAOF", "NO", "ONE")
            assert peer.ask("ROLE")[0] == b"master"
            assert peer.ask("XADD", "own", "*", "a", "b") is not None
            peer.call("DEL", "own")
    with replica(store) as peer:
        assert peer.ask("ROLE")[0] == b"master"  # the store follows only when a process does that
        assert b"--detach" in peer.call("REPLICAOF", "NO", "ONE")
        assert following_of(store).full == 1
        follow(peer, server)
        with pytest.raises(StoreLockedError, match="another process follows"):
            once(server, store)
        with streamkeep.open(store) as opened, pytest.raises(StoreLockedError):
            detach(opened)
        assert following_of(store).full == 1


def test_passwords(server: RealRedis, store: Path) -> None:
    server.call("ACL", "SETUSER", "copier", "on", ">p@ss", "+psync", "+replconf", "+ping")
    server.call("CONFIG", "SET", "requirepass", "secret")
    with replica(store) as peer:
        assert peer.call("REPLICAOF", "127.0.0.1", port_of(server)) == OK
        wait_until(lambda: "NOAUTH" in problem(peer))
        peer.call("CONFIG", "SET", "masterauth", "wrong")
        wait_until(lambda: "WRONGPASS" in problem(peer))
        assert peer.call("CONFIG", "SET", "masterauth", "secret") == OK
        linked(peer)
        assert not problem(peer)
        peer.call("CONFIG", "SET", "masteruser", "copier", "masterauth", b"p@ss")
        assert peer.ask("CONFIG", "GET", "masterauth") == [b"masterauth", b"p@ss"]
        server.call("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: b"user=copier" in server.call("CLIENT", "LIST", "TYPE", "replica"))
    with streamkeep.open(store) as opened:
        assert "p@ss" not in str(following(opened))


def test_another_database(server: RealRedis, store: Path) -> None:
    server.call("SELECT", 2)
    server.call("XADD", "s", "1-1", "a", "b")
    with replica(store, replicaof=f"{source(server)}?db=2") as peer:
        linked(peer)
        assert peer.ask("KEYS", "*") == [b"s"]
    with replica(store) as peer:
        linked(peer)
        assert info(peer)["master_port"] == "0"


def test_the_password_of_the_address_is_not_in_the_store(server: RealRedis, store: Path) -> None:
    server.call(b"CONFIG", b"SET", b"requirepass", b"secret")
    address = f"redis://:secret@127.0.0.1:{port_of(server).decode()}"
    with replica(store, replicaof=address) as peer:
        linked(peer)
    assert "secret" not in str(following_of(store))


def test_a_primary_that_goes_away_and_comes_back(store: Path, free_port: int) -> None:
    settings = {**AT_ONCE, "port": str(free_port)}
    with replica(store, replicaof=f"redis://127.0.0.1:{free_port}") as peer:
        wait_until(lambda: "cannot connect" in problem(peer))
        with running_redis(settings) as first:
            ids = fill(first, "s", 3)
            linked(peer)
            wait_until(lambda: peer.ask("XLEN", "s") == 3)
        wait_until(lambda: info(peer)["master_link_status"] == "down")
        assert peer.call("XADD", "s", "*", "a", "b") == READONLY
        with running_redis(settings) as again:  # restarted, with what it had
            again.call_all([["XADD", "s", one.decode(), "n", n] for n, one in enumerate(ids)])
            ids += fill(again, "s", 2)
            wait_until(lambda: peer.ask("XLEN", "s") == 5)
    assert history(store, "s") == ids
    assert following_of(store).full == 2


def test_a_port_that_is_no_redis(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def answer() -> None:
            while not ended.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(100)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with replica(store) as peer:
                port = listener.getsockname()[1]
                assert peer.call("REPLICAOF", "127.0.0.1", port) == OK
                wait_until(lambda: problem(peer))
                assert info(peer)["master_link_status"] == "down"
                assert peer.call("REPLICAOF", "NO", "ONE") == OK
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "words",
    [("h", "x"), ("h", "99999"), ("h", "-1"), ("h/i", "1"), (b"\xff", "1"), ("h" * 64, "1")],
)
def test_addresses_that_cannot_be_used(words: tuple[str | bytes, str], store: Path) -> None:
    with replica(store) as peer:
        assert peer.call("REPLICAOF", *words).startswith(b"-ERR ")
        hostile = peer.call("REPLICAOF", b"h\r\n+OK", 1)
        assert hostile.count(b"\r\n") == 1
        peer.call("REPLICAOF", "NO", "ONE")
        assert peer.ask("XADD", "s", "*", "a", "b") is not None


@pytest.mark.parametrize("hostile", [b"\rrole:master", b"\xff"])
def test_words_of_the_server_are_no_lines_of_info(store: Path, hostile: bytes) -> None:
    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL + sized(FILE) + SELECT + encode_command("XGROUP", hostile, "s"))
        drain(client)

    with (
        closing(Primary(store.parent / "primary", [script])) as server,
        replica(store, replicaof=f"unix://{server.path}") as peer,
    ):
        wait_until(lambda: "unknown subcommand" in problem(peer))
        assert info(peer)["role"] == "slave"


def test_the_end_of_following_does_not_wait_for_a_host_that_is_silent(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary whose machine is gone is when it is needed most."""
    reached, gone = threading.Event(), threading.Event()

    def connect(*_: object) -> None:
        reached.set()
        gone.wait(PATIENCE_S)
        raise OSError("no answer")

    with replica(store) as peer:
        monkeypatch.setattr("streamkeep.replication.link._connect", connect)
        assert peer.call("REPLICAOF", "127.0.0.1", 1) == OK
        assert reached.wait(PATIENCE_S)
        assert peer.call("REPLICAOF", "NO", "ONE") == OK
        assert peer.ask("XADD", "s", "*", "a", "b") is not None
        gone.set()


def test_the_end_of_following_while_the_connection_is_dropped(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Mock()
    looks = iter([interrupted, None])  # the other thread drops it after the first look
    follower = Follower("redis://127.0.0.1:1", store)
    monkeypatch.setattr(Follower, "_link", property(lambda _: next(looks)), raising=False)
    follower.end()
    assert interrupted.interrupt.called


def test_no_one_in_the_middle_of_a_file(store: Path) -> None:
    """What the store had stays as it was, and is its own."""
    with running_redis({**AT_ONCE, "repl-diskless-sync": "yes"}) as server:
        ids = fill(server, "s", 3)
        once(server, store)
        forget(store)
        server.call(b"CONFIG", b"SET", b"rdb-key-save-delay", 100_000)
        for name in range(100):
            server.call(b"XADD", b"s%d" % name, b"*", b"a", b"x" * 100)
        with replica(store, replicaof=source(server)) as peer:
            wait_until(lambda: info(peer)["master_sync_in_progress"] == "1")
            assert peer.ask("ROLE")[3] == b"sync"
            assert peer.call("REPLICAOF", "NO", "ONE") == OK
            assert peer.ask("XADD", "s", "*", "own", "1") is not None
            assert peer.ask("XLEN", "s") == len(ids) + 1
    with streamkeep.open(store) as opened:
        assert opened.keys() == [b"s"]
    assert not list(streamkeep.recovery.check(store))


def test_no_one_in_the_middle_of_a_difference(
    server: RealRedis, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store gets all of it, so that it is a state which the server had."""
    fill(server, "s", 3)
    once(server, store)
    fill(server, "s", 3)
    began, goes_on = threading.Event(), threading.Event()
    finish = Synchronization._finish

    def slow(self: Any, txn: Any, same: Any) -> None:
        began.set()
        assert goes_on.wait(PATIENCE_S)
        finish(self, txn, same)

    monkeypatch.setattr(Synchronization, "_finish", slow)
    forget(store)
    with replica(store, replicaof=source(server)) as peer:
        assert began.wait(PATIENCE_S)
        peer.send("REPLICAOF", "NO", "ONE")
        with Peer(store.parent / "u") as other:  # others are served meanwhile
            assert other.ask("PING") == "PONG"
            assert other.call("XADD", "s", "*", "a", "b") == READONLY
        goes_on.set()
        assert peer.read() == OK
        assert peer.ask("XLEN", "s") == 6
        assert peer.ask("XADD", "s", "*", "own", "1") is not None


@pytest.mark.parametrize("how", slow_but([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
def test_a_server_that_ends_in_the_middle_of_a_file_begins_anew(
    how: signal.Signals, store: Path
) -> None:
    with running_redis({**AT_ONCE, "repl-diskless-sync": "yes"}) as server:
        fill(server, "s", 3)
        server.call(b"CONFIG", b"SET", b"rdb-key-save-delay", 100_000)
        for name in range(50):
            server.call(b"XADD", b"s%d" % name, b"*", b"a", b"x" * 100)
        address = str(store.parent / "u")
        words = ("serve", str(store), "--socket", address)
        with start(*words, "--replicaof", source(server)) as process:
            assert process.stderr is not None
            line_of(process, process.stderr)
            with Peer(address) as peer:
                wait_until(lambda: info(peer)["master_sync_in_progress"] == "1")
            process.send_signal(how)
            assert process.wait(PATIENCE_S) == (0 if how == signal.SIGTERM else -how)
        server.call(b"CONFIG", b"SET", b"rdb-key-save-delay", 0)
        with replica(store) as peer:
            linked(peer)
            assert len(peer.ask("KEYS", "*")) == 51
        check_same(server, store, (b"s", *sorted(b"s%d" % name for name in range(50))))


def test_rights_and_servers_that_are_only_read(server: RealRedis, store: Path) -> None:
    port = port_of(server)
    access = Access(None, ["user default on nopass ~* +@all -@admin", "user a on nopass ~* +@all"])
    with replica(store, access=access) as peer:
        for name in ("REPLICAOF", "SLAVEOF", "ROLE"):
            words = (name,) if name == "ROLE" else (name, "127.0.0.1", port)
            assert peer.call(*words).startswith(b"-NOPERM")
        peer.call("AUTH", "a", "x")
        follow(peer, server)
    said = run("serve", store, "--readonly", "--replicaof", "h 1", status=2).stderr
    assert "and so no --replicaof" in said
    for text in ("h", "h x", "h 1 2"):
        said = run("serve", store, "--replicaof", text, status=2).stderr
        assert f"'HOST PORT', an address or 'NO ONE', not {text!r}" in said


def test_the_server_ends_while_it_follows(server: RealRedis, store: Path) -> None:
    fill(server, "s", 3)
    address = str(store.parent / "u")
    words = ("serve", str(store), "--socket", address, "--replicaof")
    with start(*words, f"127.0.0.1 {port_of(server).decode()}") as process:
        assert process.stderr is not None
        line_of(process, process.stderr)
        with Peer(address) as peer:
            linked(peer)
            assert peer.call("REPLICAOF", "127.0.0.1", port_of(server)).startswith(b"+OK Already")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    check_same(server, store)


def test_a_server_that_cannot_begin_follows_no_more(server: RealRedis, store: Path) -> None:
    """Its store is closed, whose files a thread would use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(StoreError, match="cannot listen"),
            replica(store, replicaof=source(server), http=at),
        ):
            pass
    wait_until(lambda: all(one.name != "streamkeep-replica" for one in threading.enumerate()))


def test_a_store_that_is_attached_says_whom_it_follows(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "s") as opened:
        attach(opened, "redis://user:secret@h:7")
        row = following(opened)
        assert row is not None
        assert (row.source, row.replicaof, row.full) == ("redis://h:7/0", "redis://h:7/0", 0)
        follower = Follower("redis://h:7", opened)
        follower.end()
        assert follower.run().full == 0
        assert detach(opened) == 0
        assert following(opened) is None
