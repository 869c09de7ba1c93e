"""Turns: what clients share, what fails alone, and what hostile peers cannot do."""

from __future__ import annotations

import errno
import gc
import random
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S, thread_of, wait_until
from resp_peer import Line, Peer, Running, serving
from stores import open_at
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn import txn as txn_module
from streamkeep.engine.txn.begin import begin_write
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.errors import RecoveryNeededError
from streamkeep.format.redis.resp import encode_command
from streamkeep.server.access import Access
from streamkeep.server.resp import server as server_module
from streamkeep.server.resp import turn
from streamkeep.server.resp.connection import Connection
from streamkeep.server.resp.server import Server
from test_server.conftest import Connect


def test_commands_of_one_turn_share_a_commit(running: Running, peer: Peer) -> None:
    before = running.server.environment.durability().last_commit
    data = b"".join(encode_command("XADD", "k", f"{n}-0", "f", "v") for n in range(1, 101))
    peer.socket.sendall(data)
    assert [peer.read() for _ in range(100)][-1] == b"$5\r\n100-0\r\n"
    durable = running.server.environment.durability()
    assert durable.last_commit - before < 20
    assert durable.durable_commit == durable.last_commit


@pytest.mark.usefixtures("no_collections")
def test_a_transaction_leaves_nothing_to_the_collector(peer: Peer) -> None:
    """No client is served in the 0.1 s that the garbage of a few thousand takes."""

    def turns() -> int:
        return sum(type(one) is turn.Turn for one in gc.get_objects())

    before = turns()
    for number in range(1, 10):
        peer.call("MULTI")
        peer.call("XADD", "k", f"{number}-1", "f", "v")
        peer.call("EXEC")
    assert turns() <= before + 1


def read_all(one: Peer) -> bytes:
    data = b""
    while part := one.socket.recv(1 << 16):
        data += part
    return data


def test_what_a_client_sent_before_its_end_runs_and_is_answered(
    running: Running,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add = encode_command("XADD", "k", "*", "f", "v")
    large = encode_command("ECHO", b"x" * 200_000)
    ending = add + encode_command("QUIT")
    sent = [(add * 10, 20), (add * 3000, 6000), (add + large * 4 + add, 12), (ending, 3)]
    sizes = range(250_000, 450_000, 50_000)
    sent += [(add + encode_command("ECHO", b"x" * size), 4) for size in sizes]
    for quick_s in (1.0, -1.0):  # the loop waits for the disk, or a thread
        monkeypatch.setattr(server_module, "_QUICK_S", quick_s)
        for commands, lines in sent:
            one = connect()
            one.socket.sendall(commands)
            one.socket.shutdown(socket.SHUT_WR)
            assert read_all(one).count(b"\r\n") == lines
    one, before = connect(), running.server.store.xlen("k")
    one.socket.sendall(encode_command("CLIENT", "REPLY", "OFF") + add * 3000)
    one.close()
    wait_until(lambda: running.server.store.xlen("k") == before + 3000)
    wait_until(lambda: not running.ask(lambda server: server.clients))
    assert "Traceback" not in caplog.text  # of a connection that was closed twice


def test_a_client_that_waits_at_its_end_has_gone(running: Running, connect: Connect) -> None:
    one = connect()
    add = encode_command("XADD", "k", "1-0", "f", "v")
    one.socket.sendall(add + encode_command("XREAD", "BLOCK", 0, "STREAMS", "k", "$") + add)
    one.socket.shutdown(socket.SHUT_WR)
    assert read_all(one) == b"$3\r\n1-0\r\n"
    assert not running.ask(lambda server: server.blocked.blocked)


@pytest.mark.skipif(not str(turn.__file__).endswith(".py"), reason="the modules are compiled")
def test_commands_run_apart_if_their_transaction_fails(
    running: Running, connect: Connect, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not txn_module.__file__.endswith(".py"):
        pytest.skip("compiled modules take no other transaction; the interpreted run does this")
    reader = connect()
    reader.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    connect().send("XREAD", "BLOCK", 0, "STREAMS", "k", "9-0")
    wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 2)

    class Failing:
        """A transaction whose commit fails."""

        def __init__(self, txn: Any) -> None:
            self._txn = txn

        def __getattr__(self, name: str) -> Any:
            return getattr(self._txn, name)

        def commit(self) -> None:
            """Fail as a full disk does."""
            raise OSError("no room")

    failed = []

    def begin_once(context: EngineContext, *, durable: bool, most_s: float) -> Any:
        monkeypatch.setattr(turn, "begin_write", begin_write)
        failed.append(True)
        return Failing(begin_write(context, durable=durable, most_s=most_s))

    monkeypatch.setattr(turn, "begin_write", begin_once)
    peer.socket.sendall(
        b"".join(
            encode_command(*line.split())
            for line in ("XADD k 1-0 f v", "MULTI", "SET l v", "XADD k 2-0 f v", "KEYS *", "EXEC")
        )
    )
    assert [peer.read() for _ in range(5)] == [
        b"$3\r\n1-0\r\n", b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n",
    ]  # fmt: skip
    assert peer.ask("XLEN", "k") == [Line("OK"), b"2-0", [b"k", b"l"]]  # of EXEC
    assert failed
    assert b"1-0" in reader.read()
    assert peer.read() == b":2\r\n"


QUICK_OR_SLOW = pytest.mark.parametrize(
    ("sync_s", "waits"), [(0.0, "server"), (1.0, "streamkeep sync")]
)


@QUICK_OR_SLOW
def test_the_loop_waits_for_the_disk_only_while_that_is_quick(
    running: Running, peer: Peer, sync_s: float, waits: str
) -> None:
    threads: set[str] = set()

    def watch(name: str) -> None:
        if name == "journal:sync":
            threads.add(threading.current_thread().name)

    failpoints.watch(watch)
    try:
        for number in range(1, 4):
            running.server._sync_s = sync_s
            assert peer.call("XADD", "k", f"{number}-0", "f", "v") == b"$3\r\n%d-0\r\n" % number
    finally:
        failpoints.unwatch(watch)
    assert threads & {"server", "streamkeep sync"} == {waits}
    durable = running.server.environment.durability()
    assert durable.durable_commit == durable.last_commit


def test_a_sync_that_takes_long_delays_only_clients_that_write(
    running: Running, peer: Peer, connect: Connect
) -> None:
    other = connect()
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    running.server._sync_s = 1.0
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait(PATIENCE_S)

    failpoints.arm("journal:sync", wait)
    try:
        peer.send("XADD", "k", "2-0", "f", "v")
        wait_until(lambda: running.ask(lambda server: server.turns.changes) == 2)
        assert other.call("XLEN", "k") == b":2\r\n"
        assert other.call("PING") == b"+PONG\r\n"
        durable = running.server.environment.durability()
        assert (durable.durable_commit or 0) < durable.last_commit
    finally:
        go_on.set()
        failpoints.disarm()
    assert peer.read() == b"$3\r\n2-0\r\n"


@QUICK_OR_SLOW
def test_no_client_is_told_that_an_entry_is_safe_after_a_failed_sync(
    tmp_path: Path, sync_s: float, waits: str
) -> None:
    threads: list[str] = []

    def fail() -> None:
        threads.append(threading.current_thread().name)
        raise OSError(errno.EIO, "the disk")

    with (
        pytest.raises(RecoveryNeededError),  # from the end of the store
        open_at(tmp_path / "s") as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
    ):
        running.server._sync_s = sync_s
        failpoints.arm("journal:sync", fail)
        assert peer.call("XADD", "k", "1-0", "f", "v").startswith(b"-MISCONF")
        assert peer.call("XADD", "k", "2-0", "f", "v").startswith(b"-MISCONF")
    assert threads == [waits]


def test_a_client_that_has_gone_keeps_no_other_one_waiting(
    running: Running, connect: Connect
) -> None:
    gone, other = connect(), connect()
    for one in (gone, other):
        one.call("PING")

    class Ended:
        """The transport of a connection that has ended, as uvloop's."""

        def is_closing(self) -> bool:
            return True

        def write(self, data: bytes) -> None:
            raise RuntimeError("the handler is closed")

    def their_commit_is_on_disk(server: Server) -> None:
        clients = list(server.clients.values())
        transport, clients[0].transport = clients[0].transport, Ended()
        for client in clients:
            client.reply(b"+done\r\n")
            client.waits_for_disk += 1
        server._synced(clients, False, None, 0.0)
        clients[0].transport = transport

    running.ask(their_commit_is_on_disk)
    assert other.read() == b"+done\r\n"


def test_a_full_store_refuses_appends_and_takes_deletions(tmp_path: Path) -> None:
    with (
        open_at(tmp_path / "s", max_store_bytes=1 << 20) as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
    ):
        value = random.Random(1).randbytes(50_000)
        replies = [peer.call("XADD", "k", "*", "f", value) for _ in range(40)]
        assert replies[0].startswith(b"$")
        assert replies[-1].startswith(b"-OOM command not allowed when used memory > 'maxmemory'.")
        assert peer.call("XRANGE", "k", "-", "+", "COUNT", 1).startswith(b"*1\r\n")
        assert peer.call("DEL", "k") == b":1\r\n"


@pytest.mark.parametrize("expires", [False, True])
def test_what_was_read_after_a_command_is_undone_with_it(tmp_path: Path, expires: bool) -> None:
    """They share a transaction, in which the command has succeeded until the commit fails."""
    with (
        open_at(tmp_path / "s", max_store_bytes=1 << 20) as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
    ):
        peer.call("SET", "later", "v", *(("EX", "1000") if expires else ()))
        for number in range(40):
            key = f"k{number}"
            lines = "XLEN {0}|XREAD BLOCK 1 STREAMS {0} 0|KEYS {0}|MULTI|XLEN {0}|EXEC|DBSIZE"
            reads = [one.split() for one in lines.format(key).split("|")]
            sent = [["XADD", key, "1-1", "f", "x" * 50_000], *reads]
            peer.socket.sendall(b"".join(encode_command(*words) for words in sent))
            replies = [peer.read() for _ in sent]
            if replies[0].startswith(b"-OOM"):
                break
        nothing = [b":0\r\n", b"*-1\r\n", b"*0\r\n", b"+OK\r\n", b"+QUEUED\r\n"]
        assert replies[1:] == [*nothing, b"*1\r\n:0\r\n", b":%d\r\n" % (number + 1)]
        assert running.ask(lambda server: server.turns.changes) == number + 1


def test_a_client_that_was_served_with_what_is_undone_waits_on(tmp_path: Path) -> None:
    with (
        open_at(tmp_path / "s", max_store_bytes=1 << 20) as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
        Peer(running.path) as waiting,
    ):
        for number in range(40):
            waiting.send("XREAD", "BLOCK", 0, "STREAMS", f"k{number}", "$")
            wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 1)
            added = peer.call("XADD", f"k{number}", "1-1", "f", "x" * 50_000)
            if added.startswith(b"-OOM"):
                break
            assert b"1-1" in waiting.read()
        peer.call("DEL", *[f"k{one}" for one in range(number)])
        assert peer.call("XADD", f"k{number}", "2-1", "f", "v") == b"$3\r\n2-1\r\n"
        assert b"2-1" in waiting.read()


with_users = pytest.mark.parametrize(
    "access",
    [
        Access(
            "secret",
            ["user reader on >r ~a* +@read", "user writer on >w ~a* %R~b* +@all -flushall"],
        )
    ],
    ids=[""],
)


@with_users
def test_a_client_without_a_password_learns_nothing(running: Running, peer: Peer) -> None:
    running.server.store.xadd("k", {"f": "v"})
    for words in (["XLEN", "k"], ["PING"], ["INFO"], ["CLIENT", "LIST"], ["MULTI"], ["CONFIG",
                  "GET", "*"], ["COMMAND"], ["SHUTDOWN"]):  # fmt: skip
        assert peer.call(*words) == b"-NOAUTH Authentication required.\r\n"
    assert peer.call("HELLO", 3).startswith(b"-NOAUTH HELLO must be called")
    wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    assert peer.call("AUTH", "no") == wrong
    assert peer.call("AUTH", "nosuch", "secret") == wrong
    assert peer.call("AUTH", "secret") == b"+OK\r\n"
    assert peer.call("XLEN", "k") == b":1\r\n"
    assert peer.call("RESET") == b"+RESET\r\n"
    assert peer.call("XLEN", "k") == b"-NOAUTH Authentication required.\r\n"
    peer.socket.sendall(b"*11\r\n")
    assert peer.read() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    assert peer.is_closed()


@with_users
def test_a_wrong_password_is_answered_later_and_delays_nobody_else(
    running: Running, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkeep.server.resp.server.REFUSED_S", 0.05)
    guesser, other = connect(), connect()
    began = time.monotonic()
    guesses = [encode_command("AUTH", f"guess {number}") for number in range(4)]
    guesser.socket.sendall(b"".join(guesses) + encode_command("AUTH", "secret"))
    assert other.call("AUTH", "secret") == b"+OK\r\n"
    replies = [guesser.read() for _ in range(5)]
    assert time.monotonic() - began >= 0.2
    assert [one[:10] for one in replies] == [b"-WRONGPASS"] * 4 + [b"+OK\r\n"]
    assert running.server.statistics.refused_logins == 4


@pytest.mark.parametrize("guess", [["AUTH"], ["HELLO", 3, "AUTH", "default"]])
@with_users
def test_a_transaction_has_one_guess_of_a_password(
    running: Running, peer: Peer, monkeypatch: pytest.MonkeyPatch, guess: list[Any]
) -> None:
    monkeypatch.setattr("streamkeep.server.resp.server.REFUSED_S", 0.01)
    peer.call("AUTH", "secret")
    for tried in (["secret"], ["wrong", "secret"]):
        peer.call("MULTI")
        for password in tried:
            peer.call(*guess, password)
        assert (b"-WRONGPASS" in peer.call("EXEC")) == (len(tried) == 2)
    assert running.server.statistics.refused_logins == 2
    assert peer.call(*guess, "secret")[:1] != b"-"


@with_users
def test_a_password_in_a_transaction_that_waits_for_the_disk(running: Running, peer: Peer) -> None:
    peer.call("AUTH", "secret")
    for words in (["MULTI"], ["WAITAOF", 1, 0, 0], ["AUTH", "secret"]):
        peer.call(*words)
    assert peer.call("EXEC") == b"*2\r\n*2\r\n:1\r\n:0\r\n+OK\r\n"
    assert running.server.statistics.refused_logins == 0


@with_users
def test_users_have_the_rights_of_their_rules(running: Running, connect: Connect) -> None:
    command = b"-NOPERM User %b has no permissions to run the '%b' command\r\n"
    key = b"-NOPERM No permissions to access a key\r\n"
    reader, writer = connect(), connect()
    for name in ("a", "b", "c"):
        running.server.store.xadd(name, {"f": "v"})
    assert reader.call("AUTH", "reader", "r") == b"+OK\r\n"
    assert reader.call("XLEN", "a") == b":1\r\n"
    assert reader.call("XLEN", "b") == key
    assert reader.call("XREAD", "STREAMS", "a", "b", "0", "0") == key
    assert reader.call("XADD", "a", "*", "f", "v") == command % (b"reader", b"xadd")
    assert reader.call("CLIENT", "LIST") == command % (b"reader", b"client|list")
    assert reader.ask("KEYS", "*") == [b"a"]
    assert reader.ask("SCAN", "0")[1] == [b"a"]
    assert writer.call("AUTH", "writer", "w") == b"+OK\r\n"
    assert writer.call("XADD", "a", "*", "f", "v").startswith(b"$")
    assert writer.call("XADD", "b", "*", "f", "v") == key
    assert writer.call("XLEN", "b") == b":1\r\n"
    assert writer.call("FLUSHALL") == command % (b"writer", b"flushall")
    assert writer.call("MULTI") == b"+OK\r\n"
    assert writer.call("XLEN", "c") == key
    assert writer.call("EXEC").startswith(b"-EXECABORT")
    assert (writer.call("DEL", "a"), writer.call("SET", "a", "v")) == (b":1\r\n", b"+OK\r\n")
    assert {reader.ask("RANDOMKEY") for _ in range(20)} == {b"a"}


def test_further_clients_are_refused(running: Running, connect: Connect) -> None:
    connect().call("PING")
    running.ask(lambda server: setattr(server.settings, "max_clients", 1))
    late = connect()
    assert late.read() == b"-ERR max number of clients reached\r\n"
    assert late.is_closed()


def test_a_protocol_error_ends_the_connection_after_what_came_before(peer: Peer) -> None:
    peer.socket.sendall(encode_command("PING") + b"*1\r\nx")
    assert peer.read() == b"+PONG\r\n"
    assert peer.read() == b"-ERR Protocol error: expected '$', got 'x'\r\n"
    assert peer.is_closed()


def test_a_client_over_its_query_buffer_is_closed(running: Running, peer: Peer) -> None:
    running.ask(lambda server: setattr(server.turns, "query_limit", 1 << 20))
    peer.socket.sendall(b"*1\r\n$100000000\r\n")
    with pytest.raises(OSError):  # noqa: PT011  # reset, or a broken pipe
        for _ in range(200):
            peer.socket.sendall(b"x" * 65536)
        assert peer.is_closed()
        raise ConnectionError
    wait_until(lambda: not running.ask(lambda server: server.clients))


def test_a_client_that_reads_no_replies_does_not_fill_the_memory(
    running: Running, connect: Connect, peer: Peer
) -> None:
    peer.call("XADD", "k", "1-0", "f", b"v" * 100_000)
    slow = connect()
    assert slow.call("PING") == b"+PONG\r\n"
    slow.socket.setblocking(False)
    data = encode_command("XRANGE", "k", "-", "+") * 5_000  # 500 MB of replies
    sent = 0
    while sent < len(data):
        try:
            sent += slow.socket.send(data[sent:])
        except BlockingIOError:
            break
    client = running.ask(lambda server: server.clients[max(server.clients)])

    def kept() -> int:
        assert isinstance(client, Connection)
        return int(client.transport.get_write_buffer_size() + client.out_size)

    assert isinstance(client, Connection)
    wait_until(lambda: running.ask(lambda server: client.full))
    assert running.ask(lambda server: kept()) < 8 << 20
    assert peer.call("PING") == b"+PONG\r\n"


def test_idle_clients_are_closed(running: Running, peer: Peer) -> None:
    peer.call("PING")
    running.ask(lambda server: setattr(server.settings, "timeout_s", 1))
    assert peer.is_closed()


def test_a_client_is_not_idle_after_a_wait(running: Running, connect: Connect, peer: Peer) -> None:
    waiting = connect()
    number = waiting.ask("CLIENT", "ID")
    waiting.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    wait_until(lambda: running.ask(lambda server: server.blocked.blocked) == 1)
    running.ask(lambda server: setattr(server.clients[number], "active", 0.0))
    running.ask(lambda server: setattr(server.settings, "timeout_s", 1000))
    peer.call("XADD", "k", "1-0", "f", "v")
    assert b"1-0" in waiting.read()
    running.ask(lambda server: server._close_idle())
    assert waiting.call("PING") == b"+PONG\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "timeout"])
def test_a_client_that_does_not_read_ends_too(
    running: Running, connect: Connect, peer: Peer, how: str
) -> None:
    silent = connect()
    number = silent.ask("CLIENT", "ID")
    silent.send("ECHO", b"x" * 10_000_000)
    wait_until(lambda: running.ask(lambda server: server.clients[number].full))
    if how == "kill":
        assert peer.ask("CLIENT", "KILL", "ID", number) == 1
    else:
        running.ask(lambda server: setattr(server.clients[number], "active", 0.0))
        assert peer.call("CONFIG", "SET", "timeout", 1000) == b"+OK\r\n"
    wait_until(lambda: not running.ask(lambda server: number in server.clients))
    assert peer.call("PING") == b"+PONG\r\n"


@pytest.mark.slow
def test_a_client_that_is_idle_and_reads_slowly_gets_its_reply(
    running: Running, connect: Connect
) -> None:
    slow = connect()
    number = slow.ask("CLIENT", "ID")
    slow.send("ECHO", b"x" * 10_000_000)
    wait_until(lambda: running.ask(lambda server: server.clients[number].full))
    running.ask(lambda server: setattr(server.clients[number], "active", 0.0))
    running.ask(lambda server: setattr(server.settings, "timeout_s", 1000))
    found = 0
    while part := slow.socket.recv(100_000):
        found += len(part)
        time.sleep(0.03)
    assert found == len(b"$10000000\r\n\r\n") + 10_000_000


def test_the_end_of_a_server_closes_clients_that_read_nothing(tmp_path: Path) -> None:
    with open_at(tmp_path / "s") as store, ExitStack() as stack:
        with serving(store, tmp_path / "k") as running:
            one = stack.enter_context(Peer(running.path))
            one.send("ECHO", b"x" * 10_000_000)
            wait_until(lambda: running.ask(lambda server: server.clients[1].full))
        assert running.server.clients == {}


def test_the_end_of_a_server_waits_for_no_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That of many gigabytes takes minutes, in which supervisors kill a server."""
    goes_on, ended = threading.Event(), threading.Event()

    def backup() -> None:
        goes_on.wait(5)
        ended.set()

    with open_at(tmp_path / "s") as store:
        with serving(store, tmp_path / "k", backup=backup) as running, Peer(running.path) as peer:
            assert peer.call("BGSAVE") == b"+Background saving started\r\n"
        assert not ended.is_set()
        goes_on.set()
        assert ended.wait(PATIENCE_S)
    assert "a backup has not ended" in caplog.text


@pytest.mark.slow
def test_a_client_that_reads_gets_its_reply_at_the_end_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MOMENT_S", 2.0)  # for the busiest machine
    found: list[bytes] = []
    with open_at(tmp_path / "s") as store, ExitStack() as stack:
        with serving(store, tmp_path / "k") as running:
            one = stack.enter_context(Peer(running.path))
            one.send("ECHO", b"x" * 10_000_000)
            wait_until(lambda: running.ask(lambda server: server.clients[1].full))
            reader = thread_of(lambda: found.append(read_all(one)))
        reader.join(PATIENCE_S)
    assert [len(data) for data in found] == [len(b"$10000000\r\n\r\n") + 10_000_000]


@pytest.mark.parametrize("seed", range(20))
def test_junk_harms_nobody_else(running: Running, connect: Connect, seed: int) -> None:
    source = random.Random(seed)
    other = connect()
    for _ in range(100):
        junk = connect()
        data = source.randbytes(source.randrange(1, 2000))
        if source.random() < 0.5:
            good = encode_command("XADD", "k", "*", "f", source.randbytes(20))
            place = source.randrange(len(good))
            data = good[:place] + data[:9] + good[place:]
        junk.socket.sendall(data)
        if source.random() < 0.5:
            junk.socket.shutdown(socket.SHUT_WR)
        junk.close()
    assert other.call("PING") == b"+PONG\r\n"
    other.close()
    wait_until(lambda: not running.ask(lambda server: server.clients))
