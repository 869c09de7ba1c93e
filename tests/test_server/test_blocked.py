"""Clients that wait in XREAD and XREADGROUP."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from patience import wait_until
from resp_peer import Peer, Running, decode
from streamkeep.format.redis.resp import encode_command
from streamkeep.server.resp.server import Server
from test_server.conftest import Connect

XREADGROUP = ("XREADGROUP", "GROUP", "g")
NIL = b"*-1\r\n"


def block(running: Running, connect: Connect, *words: bytes | str | int) -> Peer:
    """Return a client that is blocked in this command."""
    before = running.ask(lambda server: server.blocked.count)
    peer = connect()
    peer.send(*words)
    wait_until(lambda: running.ask(lambda server: server.blocked.count) == before + 1)
    return peer


def entry(key: str, entry_id: str, field: str = "f", value: str = "v") -> list[object]:
    """Return what a read of one entry replies with."""
    return [[key.encode(), [[entry_id.encode(), [field.encode(), value.encode()]]]]]


def read(peer: Peer) -> object:
    return decode(peer.read())


def test_a_blocked_client_is_served_before_the_next_command_of_a_pipeline(
    running: Running, connect: Connect, peer: Peer
) -> None:
    peer.call("XGROUP", "CREATE", "k", "g", 0, "MKSTREAM")
    waiting = block(running, connect, *XREADGROUP, "ann", "BLOCK", 0, "STREAMS", "k", ">")
    peer.send("XADD", "k", "1-0", "f", "v")
    peer.send("XPENDING", "k", "g")
    assert peer.read() == b"$3\r\n1-0\r\n"
    assert read(peer) == [1, b"1-0", b"1-0", [[b"ann", b"1"]]]
    assert read(waiting) == entry("k", "1-0")


@pytest.mark.parametrize("block_ms", [0, 60_000])
def test_a_client_that_was_served_here_is_woken_by_callers_of_the_library(
    running: Running, connect: Connect, peer: Peer, block_ms: int
) -> None:
    words = ("XREAD", "BLOCK", block_ms, "STREAMS", "k", "$")
    reader = block(running, connect, *words)
    for number in range(1, 6):
        peer.call("XADD", "k", f"{number}-0", "f", "v")
        assert read(reader) == entry("k", f"{number}-0")
        reader.send(*words)
        wait_until(lambda: running.ask(lambda server: server.blocked.count) == 1)
    running.server.store.xadd("k", {"f": "v"}, id="9-0")
    assert read(reader) == entry("k", "9-0")
    assert running.ask(lambda server: [one.served_here for one in server.clients.values()]) == [
        False, False
    ]  # fmt: skip


def test_a_wait_after_one_that_was_served_here_ends_in_time(
    running: Running, connect: Connect, peer: Peer
) -> None:
    reader = block(running, connect, "XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    peer.call("XADD", "k", "1-0", "f", "v")
    assert read(reader) == entry("k", "1-0")
    for block_ms in (1, 15, 40):
        assert reader.call("XREAD", "BLOCK", block_ms, "STREAMS", "k", "$") == NIL

    def wait_and_alarm(server: Server) -> None:
        client = next(one for one in server.clients.values() if one.served_here)
        client.data_received(encode_command("XREAD", "BLOCK", 40, "STREAMS", "k", "$"))
        server.loop.call_soon(server.environment.waiters.alarm)  # as when a worker dies

    running.ask(wait_and_alarm)
    assert reader.read() == NIL


def test_client_unblock_ends_a_wait(running: Running, connect: Connect, peer: Peer) -> None:
    for how, reply in {
        (): NIL,
        ("TIMEOUT",): NIL,
        ("ERROR",): b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n",
    }.items():
        reader = block(running, connect, "XREAD", "BLOCK", 0, "STREAMS", "k", "$")
        [number] = running.ask(lambda server: [one.id for one in server.clients.values()
                                               if one.blocked])  # fmt: skip
        assert peer.call("CLIENT", "UNBLOCK", number, *how) == b":1\r\n"
        assert reader.read() == reply
        assert peer.call("CLIENT", "UNBLOCK", number, *how) == b":0\r\n"


def test_a_client_that_disconnects_takes_no_entry(
    running: Running, connect: Connect, peer: Peer
) -> None:
    peer.call("XGROUP", "CREATE", "k", "g", 0, "MKSTREAM")
    gone, stays = (
        block(running, connect, *XREADGROUP, name, "BLOCK", 0, "STREAMS", "k", ">")
        for name in ("gone", "stays")
    )
    gone.close()
    wait_until(lambda: running.ask(lambda server: server.blocked.count) == 1)
    peer.call("XADD", "k", "1-0", "f", "v")
    assert read(stays) == entry("k", "1-0")


def test_a_claim_waits_until_an_entry_has_been_pending_long_enough(
    running: Running, connect: Connect, peer: Peer
) -> None:
    peer.call("XGROUP", "CREATE", "k", "g", 0, "MKSTREAM")
    peer.call("XADD", "k", "1-0", "f", "v")
    peer.call(*XREADGROUP, "ann", "STREAMS", "k", ">")
    claim = (*XREADGROUP, "bob", "BLOCK", 0, "CLAIM", 20, "STREAMS", "k", ">")
    [[name, [[entry_id, fields, idle, count]]]] = peer.ask(*claim)
    assert (name, entry_id, fields, count) == (b"k", b"1-0", [b"f", b"v"], 1)
    assert idle >= 20


@pytest.mark.slow
def test_a_thousand_clients_wait_at_once(running: Running, connect: Connect, peer: Peer) -> None:
    readers = [connect() for _ in range(1000)]
    for one in readers:
        one.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    wait_until(lambda: running.ask(lambda server: server.blocked.count) == 1000)
    peer.call("XADD", "k", "1-0", "f", "v")
    assert all(read(one) == entry("k", "1-0") for one in readers)


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_a_reply_that_is_not_wanted_does_not_come_later(
    running: Running, connect: Connect, peer: Peer, mode: str
) -> None:
    peer.call("XGROUP", "CREATE", "grouped", "g", "$", "MKSTREAM")
    waits = (
        ("XREAD", "BLOCK", 0, "STREAMS", "k", "$"),
        ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "grouped", ">"),
    )
    for words in waits:
        for end in ("XADD", "CLIENT"):
            one = connect()
            number = one.ask("CLIENT", "ID")
            one.send("CLIENT", "REPLY", mode)
            one.send(*words)
            wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 1)
            if end == "XADD":
                peer.call("XADD", words[-2], "*", "f", "v")
            else:
                assert peer.ask("CLIENT", "UNBLOCK", number) == 1
            one.send("CLIENT", "REPLY", "ON")
            assert one.read() == b"+OK\r\n"
    assert peer.ask("XPENDING", "grouped", "g")[0] == 1


@pytest.mark.parametrize("then", ["close", "shutdown", "kill"])
@pytest.mark.parametrize("words", [("XREAD", "BLOCK", 0, "STREAMS", "k", "$"), ("WAIT", 2, 0)])
def test_a_client_that_waits_with_much_behind_it_may_go(
    running: Running,
    connect: Connect,
    words: tuple[str | int, ...],
    then: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is read from it, so that the loop does not see its end."""
    connect().send("PSYNC", "?", -1)
    wait_until(lambda: running.ask(lambda server: server.primary.replicas))
    one = connect()
    number = one.ask("CLIENT", "ID")
    one.send("XADD", "k", "1-0", "f", "v")
    one.send(*words)
    one.socket.sendall(encode_command("PING") * 82_000)
    wait_until(lambda: running.ask(lambda server: any(c.paused for c in server.clients.values())))
    if then == "close":
        one.close()
    elif then == "kill":
        with Peer(running.path) as other:
            assert other.call("CLIENT", "KILL", "ID", number) == b":1\r\n"
    else:
        one.socket.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while one.socket.recv(1 << 20):
                pass
    wait_until(lambda: running.ask(lambda server: len(server.clients)) == 1)
    wait_until(lambda: caplog.text or not running.ask(lambda server: list(server._tasks)))
    assert running.ask(lambda server: server.blocked.blocked) == 0
    assert caplog.text == ""
