"""MULTI and WATCH, beyond what `test_beside_redis` compares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from resp_peer import Peer, Running
from streamkeep.format.redis.resp import encode_command
from test_server.conftest import Connect

REFUSED = b"-ERR Command not allowed inside a transaction\r\n"
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


@pytest.mark.parametrize("words", [("SHUTDOWN",), ("CLIENT", "REPLY", "OFF"), ("FLUSHALL",)])
def test_what_a_transaction_cannot_have_ends_it(peer: Peer, words: tuple[str, ...]) -> None:
    assert peer.call("MULTI") == b"+OK\r\n"
    refused = peer.call(*words)
    assert refused == REFUSED or b"--allow-flush" in refused
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"+QUEUED\r\n"
    assert peer.call("EXEC") == ABORTED
    assert peer.call("EXISTS", "k") == b":0\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
def test_each_command_of_a_transaction_has_one_reply(
    running: Running, peer: Peer, protocol: int
) -> None:
    running.server.settings.allow_flush = True
    peer.call("HELLO", protocol)
    queued = [
        ("XADD", "k", "1-0", "f", "v"), ("FLUSHDB",), ("WAITAOF", 1, 0, 0), ("KEYS", "*"),
        ("XADD", "k", "2-0", "f", "v"), ("FLUSHALL", "SYNC"), ("INFO",), ("RANDOMKEY",),
        ("CONFIG", "GET", "hz"), ("COMMAND",), ("CLIENT", "LIST"), ("ROLE",), ("DBSIZE",),
        ("XGROUP", "HELP"), ("SCAN", 0), ("GET", "k"), ("DUMP", "k"), ("TIME",),
    ]  # fmt: skip
    data = b"".join(encode_command(*words) for words in [("MULTI",), *queued, ("EXEC",), ("PING",)])
    peer.socket.sendall(data)
    assert peer.read() == b"+OK\r\n"
    assert [peer.read() for _ in queued] == [b"+QUEUED\r\n"] * len(queued)
    replies = peer.read()
    assert replies.startswith(b"*%d\r\n" % len(queued))
    assert b"*2\r\n:1\r\n:0\r\n*0\r\n$3\r\n2-0\r\n+OK\r\n" in replies
    assert peer.read() == b"+PONG\r\n"


def test_commands_in_a_transaction_are_counted(peer: Peer) -> None:
    peer.call("MULTI")
    for words in (("XADD", "k", "1-0", "f", "v"), ("XADD", "k", "1-0", "f", "v"), ("PING",)):
        peer.call(*words)
    peer.call("EXEC")
    stats = peer.ask("INFO", "commandstats").decode()
    calls = {
        line.split(":")[0]: line.rsplit(",", 1)[1]
        for line in stats.splitlines()
        if line.startswith("cmdstat_") and "calls=2" in line
    }
    assert calls == {"cmdstat_xadd": "failed_calls=1"}


def test_a_change_of_another_process_is_seen_at_exec(running: Running, peer: Peer) -> None:
    peer.call("XADD", "k", "1-0", "f", "v")
    store = running.server.store  # what it changes is not by a command of the server
    changes: tuple[tuple[Callable[[], object], bytes], ...] = (
        (partial(store.xadd, "k", {"f": "v"}), b"*-1\r\n"),
        (partial(store.xtrim, "k", maxlen=0), b"*-1\r\n"),
        (partial(store.xgroup_create, "k", "g", id="0"), b"*1\r\n+PONG\r\n"),
        (partial(store.delete, "k"), b"*-1\r\n"),
    )
    for change, reply in changes:
        peer.call("WATCH", "k")
        change()
        peer.call("MULTI")
        peer.call("PING")
        assert peer.call("EXEC") == reply


def test_watched_keys_of_clients_that_left_are_forgotten(
    running: Running, connect: Connect, peer: Peer
) -> None:
    leaving = connect()
    for client in (leaving, peer):
        client.call("WATCH", "k", "l")
    leaving.close()
    assert peer.call("SET", "k", "v") == b"+OK\r\n"
    peer.call("RESET")
    assert running.ask(lambda server: (server.blocked.watches.by_key, server.blocked.count)) == (
        {},
        0,
    )
