"""What a server says to a client that says it is a replica, byte by byte."""

from __future__ import annotations

import errno
import gc
import io
import logging
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from patience import wait_until
from resp_peer import Peer, Running, decode
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.rdb import StreamObject, read_rdb
from streamkeep.format.redis.resp import encode_command, read_commands
from streamkeep.format.redis.stream_parts import Node
from streamkeep.replication.primary import Replica
from streamkeep.server.access import Access
from streamkeep.server.resp.server import Server

from .conftest import Connect


class FakeReplica:
    """A replica that keeps what it is sent.

    Attributes:
        feed, position: what it would ask to go on with.
        file: the RDB file that it was sent.
    """

    def __init__(self, peer: Peer, *, marks: bool = True) -> None:
        self.peer = peer
        assert peer.call("REPLCONF", "listening-port", 7000) == b"+OK\r\n"
        if marks:
            assert peer.call("REPLCONF", "capa", "eof", "capa", "psync2") == b"+OK\r\n"
        self.feed, self.position, self.file = "?", -1, b""
        self.data = b""

    def _line(self) -> bytes:
        while b"\r\n" not in self.data:
            self._more()
        line, _, self.data = self.data.partition(b"\r\n")
        return line

    def _more(self) -> None:
        more = self.peer.socket.recv(1 << 16)
        assert more
        self.data += more

    def sync(self) -> str:
        """Send PSYNC; return the first word of the answer, after the file if there is one."""
        self.peer.send("PSYNC", self.feed, self.position)
        word, *rest = self._line().decode().split()
        if word != "+FULLRESYNC":
            return word
        self.feed, self.position = rest[0], int(rest[1]) + 1
        head = self._line()
        if head.startswith(b"$EOF:"):
            mark = head[5:]
            while not self.data.endswith(mark):
                self._more()
            self.file, self.data = self.data[: -len(mark)], b""
            self.acknowledge()
        else:
            size = int(head[1:])
            while len(self.data) < size:
                self._more()
            self.file, self.data = self.data[:size], self.data[size:]
        return word

    def acknowledge(self) -> None:
        """Say how far it is."""
        self.peer.send("REPLCONF", "ACK", self.position - 1)

    def commands(self, until: str) -> list[list[bytes]]:
        """Return the commands that come, up to one with this name."""
        while True:
            with suppress(CorruptionError):  # the last one has not arrived whole
                found = [words for _, words in read_commands(io.BytesIO(self.data).read, "feed")]
                if until.encode() in [words[0] for words in found]:
                    return found
            self._more()

    def take(self) -> None:
        """Note that what has come was executed."""
        self.position += len(self.data)
        self.data = b""
        self.acknowledge()


@pytest.mark.parametrize("marks", [True, False])
def test_file_then_commands(connect: Connect, peer: Peer, marks: bool) -> None:
    peer.call("XADD", "a", "1-1", "f", "v")
    peer.call("SET", "k", "v")
    replica = FakeReplica(connect(), marks=marks)
    assert replica.sync() == "+FULLRESYNC"
    found = [
        (one.key, sum(isinstance(part, Node) for part in one.parts))
        for one in read_rdb(io.BytesIO(replica.file).read, "file")
        if isinstance(one, StreamObject)
    ]
    assert found == [(b"a", 1)]
    peer.call("XADD", "a", "1-2", "f", "w")
    add = [b"XADD", b"a", b"1-2", b"f", b"w"]
    assert replica.commands("EXEC") == [[b"SELECT", b"0"], [b"MULTI"], add, [b"EXEC"]]


def test_a_replica_that_has_gone_is_freed_without_the_collector(
    running: Running, connect: Connect, peer: Peer
) -> None:
    replica = connect()
    number = replica.ask("CLIENT", "ID")
    replica.call("REPLCONF", "LISTENING-PORT", 1)
    gc.disable()
    try:
        client = running.ask(lambda server: weakref.ref(server.clients[number]))
        replica.close()
        wait_until(lambda: peer.call("PING") and client() is None)
    finally:
        gc.enable()


def test_transaction_stays_one(connect: Connect, peer: Peer) -> None:
    replica = FakeReplica(connect())
    replica.sync()
    replica.commands("SELECT")
    replica.take()
    for words in (["MULTI"], ["XADD", "a", "1-1", "f", "v"], ["XADD", "b", "1-1", "f", "v"]):
        peer.call(*words)
    peer.call("EXEC")
    names = [words[0] for words in replica.commands("EXEC")]
    assert names == [b"MULTI", b"RESTORE", b"RESTORE", b"EXEC"]


def test_wait_counts_replicas_that_have_everything(connect: Connect, peer: Peer) -> None:
    assert peer.ask("WAIT", 1, 1) == 0
    replica = FakeReplica(connect())
    replica.sync()
    peer.call("XADD", "a", "1-1", "f", "v")
    assert peer.ask("WAIT", 1, 50) == 0
    peer.send("WAIT", 1, 0)
    replica.commands("REPLCONF")
    replica.take()
    assert peer.read() == b":1\r\n"
    assert peer.ask("WAITAOF", 0, 0, 0) == [0, 0]  # it has no append-only file
    replica.peer.send("REPLCONF", "ACK", replica.position - 1, "FACK", replica.position - 1)
    wait_until(lambda: peer.ask("WAITAOF", 0, 0, 0) == [0, 1])
    role = peer.ask("ROLE")
    assert role[:1] == [b"master"]
    assert role[2] == [[b"", b"7000", b"%d" % (replica.position - 1)]]
    assert role[1] >= replica.position - 1


def test_a_client_that_waits_for_copies_is_not_idle(
    connect: Connect, peer: Peer, running: Running
) -> None:
    FakeReplica(connect()).sync()
    number = peer.ask("CLIENT", "ID")
    for _ in range(2):
        peer.send("WAIT", 2, 200)
        wait_until(lambda: running.ask(lambda server: server._tasks))
        running.ask(lambda server: setattr(server.clients[number], "active", 0.0))
        running.ask(lambda server: setattr(server.settings, "timeout_s", 1000))
        running.ask(lambda server: server._close_idle())
        assert peer.read() == b":1\r\n"
        running.ask(lambda server: server._close_idle())


def test_wait_ends_at_its_time_while_the_copies_cannot_be_counted(
    connect: Connect, peer: Peer, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeReplica(connect()).sync()
    error = OSError(errno.EMFILE, "Too many open files")
    with monkeypatch.context() as patched:
        patched.setattr(Server, "copies_with", Mock(side_effect=error))
        assert peer.ask("WAIT", 1, 20) == 0
    wait_until(lambda: peer.ask("WAIT", 1, 1) == 1)
    assert running.ask(lambda server: list(server._tasks)) == []


@pytest.mark.parametrize("marks", [True, False])
def test_a_replica_that_loads_its_file_has_nothing(
    connect: Connect, peer: Peer, monkeypatch: pytest.MonkeyPatch, marks: bool
) -> None:
    peer.call("XADD", "a", "1-1", "f", "v")
    replica = FakeReplica(connect(), marks=marks)
    with monkeypatch.context() as patched:
        patched.setattr(replica, "acknowledge", lambda: None)
        replica.sync()
    replica.peer.send("REPLCONF", "ACK", 0, "FACK", 0)
    replica.peer.send("XLEN", "a")
    while not replica.data.endswith(b":1\r\n"):
        replica._more()
    assert replica.data.startswith(b":1") == marks  # what follows a mark waits for the real answer
    assert peer.ask("WAIT", 1, 1) == 0
    assert peer.ask("WAITAOF", 0, 0, 0) == [0, 0]
    replica.acknowledge()
    wait_until(lambda: peer.ask("WAIT", 1, 1) == 1)
    assert peer.ask("WAITAOF", 0, 0, 0) == [0, 0]  # it has no append-only file


def test_a_wait_whose_reply_is_not_wanted_leaves_the_one_before(
    connect: Connect, peer: Peer
) -> None:
    replica = FakeReplica(connect())
    replica.sync()
    sent = b""
    for words in (
        ("XADD", "s", "2-2", "f", "v"),
        ("CLIENT", "REPLY", "SKIP"),
        ("WAIT", 3, 20),
        ("WAIT", 3, 20),
        ("ECHO", "end"),
    ):
        sent += encode_command(*words)
    peer.socket.sendall(sent)
    assert [decode(peer.read()) for _ in range(3)] == [b"2-2", 0, b"end"]


def test_going_on_and_anew(running: Running, connect: Connect, peer: Peer) -> None:
    replica = FakeReplica(connect())
    replica.sync()
    replica.commands("SELECT")
    replica.take()
    replica.peer.close()
    peer.call("XADD", "a", "1-1", "f", "v")
    feed, position = replica.feed, replica.position
    for asked, at, answer in (
        (feed, position, "+CONTINUE"),
        (feed, position + 1_000_000, "+FULLRESYNC"),
        (feed, -1, "+FULLRESYNC"),
        ("0" * 40, position, "+FULLRESYNC"),
    ):
        again = FakeReplica(connect())
        again.feed, again.position = asked, at
        assert again.sync() == answer
        if answer == "+CONTINUE":
            assert again.commands("RESTORE")
        again.peer.close()
    lines = peer.ask("INFO", "stats")
    assert b"sync_full:4\r\nsync_partial_ok:1\r\nsync_partial_err:3\r\n" in lines


def test_answer_is_sent_once_and_first(running: Running) -> None:
    """A step may end in the same round of the loop in which PSYNC comes."""
    replicas = []
    for _ in range(2):
        transport = Mock(is_closing=Mock(return_value=False))
        client = SimpleNamespace(transport=transport, out=[], full=False, closing=False, active=0)
        replicas.append(Replica(client))

    def attach(server: Server) -> None:
        server.primary.attach(replicas[0], "?", -1)
        server.store.xadd("a", {"f": "v"})
        server.primary._work()
        server.primary.attach(replicas[1], server.primary.id, 1)
        server.primary.ask(0)

    def sent(replica: Replica) -> bytes:
        return b"".join(call.args[0] for call in replica.client.transport.write.call_args_list)

    running.ask(attach)
    wait_until(lambda: replicas[0].online and b"GETACK" in sent(replicas[1]))
    assert sent(replicas[0]).startswith(b"+FULLRESYNC")
    assert sent(replicas[1]).startswith(b"+CONTINUE")
    assert b"+CONTINUE" not in sent(replicas[0])


def test_clients_that_are_replicas(connect: Connect, peer: Peer) -> None:
    replica = FakeReplica(connect())
    replica.sync()
    replica.commands("SELECT")
    assert b"state=online" in peer.ask("INFO", "replication")
    [line] = peer.ask("CLIENT", "LIST", "TYPE", "replica").splitlines()
    assert b" flags=S " in line
    assert b"flags=S" not in peer.ask("CLIENT", "LIST", "TYPE", "normal")
    assert peer.ask("CLIENT", "KILL", "TYPE", "slave") == 1
    assert replica.peer.is_closed()
    wait_until(lambda: b"connected_slaves:0" in peer.ask("INFO", "replication"))


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["REPLCONF", "capa"], b"-ERR syntax error\r\n"),
        (["REPLCONF", "x", "y"], b"-ERR Unrecognized REPLCONF option: x\r\n"),
        (["REPLCONF", "listening-port", "x"], b"-ERR value is not an integer or out of range\r\n"),
        (["PSYNC", "?"], b"-ERR wrong number of arguments for 'psync' command\r\n"),
        (["PSYNC", "?", "x"], b"-ERR value is not an integer or out of range\r\n"),
        (["REPLICAOF", "no", "one"], b"+OK\r\n"),
        (["SLAVEOF", "h", "x"], b"-ERR Invalid master port\r\n"),
        (["REPLICAOF", "h", -1], b"-ERR Invalid master port\r\n"),
        (["REPLICAOF", "h", 65536], b"-ERR Invalid master port\r\n"),
    ],
)
def test_replies(peer: Peer, words: list[Any], reply: bytes) -> None:
    assert peer.call(*words) == reply


def test_client_that_is_a_replica_does_not_choose_what_is_followed(peer: Peer) -> None:
    peer.send("PSYNC", "?", -1)
    peer.send("REPLICAOF", "h", 1)
    data = b""
    while b"-ERR Command is not valid when client is a replica.\r\n" not in data:
        data += peer.socket.recv(1 << 16)


def test_rights(running: Running, connect: Connect) -> None:
    lines = ["user default on nopass ~* +@all -psync -sync", "user copy on nopass ~* +psync"]
    access = Access(None, lines)
    running.ask(lambda server: server.access.users.update(access.users))
    peer = connect()
    assert peer.call("PSYNC", "?", -1).startswith(b"-NOPERM")
    assert peer.call("SYNC").startswith(b"-NOPERM")
    peer.call("AUTH", "copy", "x")
    assert peer.call("REPLCONF", "capa", "eof").startswith(b"-NOPERM")
    peer.send("PSYNC", "?", -1)
    assert peer.socket.recv(5) == b"+FULL"


def test_what_replicas_do_not_get_is_said_once(
    running: Running, connect: Connect, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    running.server.store.set_retention("kept", archive=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            FakeReplica(connect()).sync()
    [line] = [one for one in caplog.messages if "retention" in one]
    assert "replicas do not get: retention of a stream (1)" in line


def test_erased_entries_leave_the_feed(running: Running, connect: Connect, peer: Peer) -> None:
    replica = FakeReplica(connect())
    replica.sync()
    peer.call("XADD", "a", "1-1", "f", "secret")
    replica.commands("RESTORE")
    replica.take()
    with streamkeep.open(running.server.store.path) as other:
        other.erase("a", "1-1")
    while replica.peer.socket.recv(1 << 16):
        pass
    again = FakeReplica(connect())
    again.feed, again.position = replica.feed, replica.position
    assert again.sync() == "+FULLRESYNC"
    assert b"secret" not in again.file
