"""The write lock, while another process or thread has it: what waits, and what does not."""

from __future__ import annotations

import asyncio
import errno
import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from patience import thread_of, wait_until
from resp_peer import Running
from stopped import ended, stopped_with
from streamkeep.engine.journal.write_lock import LOCK_FILE
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.server.resp.server import Server
from streamkeep.server.resp.turn import Turn
from test_server.conftest import Connect


def lock_of(server: Server) -> Path:
    return Path(server.store.path, "journal", LOCK_FILE)


@contextmanager
def taken_by_a_process(server: Server) -> Iterator[None]:
    with lock_of(server).open() as file:  # a lock of an open file: the server's is another one
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def taken_by_a_thread(server: Server) -> Iterator[None]:
    with server.environment.context.thread_lock:
        yield


@pytest.mark.parametrize("taken", [taken_by_a_process, taken_by_a_thread])
def test_only_clients_that_write_wait_for_the_write_lock(
    running: Running, connect: Connect, taken: Callable[[Server], AbstractContextManager[None]]
) -> None:
    one, two, three, reader = connect(), connect(), connect(), connect()
    one.call("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
    two.call("WATCH", "k")
    three.call("SET", "short", "v", "PX", "1")
    reader.call("XADD", "over", "1-0", "f", "v")
    clock = running.server.environment.context.clock
    end_ms = clock.now_ms() + 50
    reader.call("PEXPIREAT", "over", end_ms)
    with taken(running.server):
        one.send("PING")
        one.send("XADD", "k", "1-0", "f", "v")
        one.send("XLEN", "k")
        for words in ("MULTI", "XADD k 2-0 f v", "EXEC", "XLEN k"):
            two.send(*words.split())
        three.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
        three.send("PING")
        assert one.read() == b"+PONG\r\n"
        assert (two.read(), two.read()) == (b"+OK\r\n", b"+QUEUED\r\n")
        wait_until(lambda: sum(one.waits_for_lock for one in running.server.clients.values()) == 2)
        assert reader.call("XLEN", "k") == b":0\r\n"
        wait_until(lambda: clock.now_ms() > end_ms)
        assert reader.call("XLEN", "over") == b":0\r\n"
        assert reader.ask("KEYS", "*") == reader.ask("SCAN", 0)[1] == [b"k"]
        assert {reader.ask("RANDOMKEY") for _ in range(9)} == {b"k"}
    assert (one.read(), one.read()) == (b"$3\r\n1-0\r\n", b":1\r\n")
    assert (two.read(), two.read()) == (b"*-1\r\n", b":1\r\n")  # a client changed what it watched
    assert b"1-0" in three.read()
    assert three.read() == b"+PONG\r\n"
    assert reader.call("EXISTS", "short") == b":0\r\n"


def test_a_client_that_waits_gets_a_reply_when_the_server_stops(
    running: Running, connect: Connect
) -> None:
    server, writer, silent = running.server, connect(), connect()
    silent.send("CLIENT", "REPLY", "OFF")
    with taken_by_a_process(server):
        for peer in (writer, silent):
            peer.send("XADD", "k", "1-0", "f", "v")
        wait_until(lambda: sum(one.waits_for_lock for one in server.clients.values()) == 2)
        asyncio.run_coroutine_threadsafe(server.close(0.1), running.loop)
        assert writer.read().startswith(b"-ERR the server stops")
        assert silent.socket.recv(1) == b""


def test_a_client_that_was_woken_waits_for_the_write_lock(
    running: Running, connect: Connect
) -> None:
    server, peer, reader = running.server, connect(), connect()
    peer.call("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
    peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
    wait_until(lambda: server.blocked.blocked == 1)
    with taken_by_a_process(server):
        running.ask(lambda server: server.blocked.wake(*server.blocked._by_key[b"k"]))
        wait_until(lambda: server.turns.locked_out)
        assert reader.call("XLEN", "k") == b":0\r\n"
    assert reader.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert b"1-0" in peer.read()


@pytest.mark.parametrize("woken", [True, False])
def test_a_wait_ends_in_time_while_the_write_lock_is_taken(
    running: Running, connect: Connect, woken: bool
) -> None:
    """Of a client that was not woken, it has to be written that its consumer was seen."""
    server, peer = running.server, connect()
    peer.call("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
    peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 200, "STREAMS", "k", ">")
    wait_until(lambda: server.blocked.blocked == 1)
    with taken_by_a_process(server):
        if woken:
            running.ask(lambda server: server.blocked.wake(*server.blocked._by_key[b"k"]))
        assert peer.read() == b"*-1\r\n"
        peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 100, "STREAMS", "k", ">")
        assert peer.read() == b"*-1\r\n"  # it has not even begun
        peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 60_000, "STREAMS", "k", ">")
        peer.send("PING")
    wait_until(lambda: server.blocked.blocked == 1)
    server.store.xadd("k", {"f": "v"}, "1-0")
    assert b"1-0" in peer.read()
    assert peer.read() == b"+PONG\r\n"


def test_a_client_that_was_woken_waits_for_a_turn_that_has_not_failed(
    running: Running, connect: Connect
) -> None:
    """The turn would keep the write lock: each of its later commands has its own transaction."""
    peer, writer = connect(), connect()
    peer.call("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
    peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
    wait_until(lambda: running.server.blocked.blocked == 1)

    def begins(server: Server) -> bool:
        turn = Turn(server.turns)
        turn.run_apart()  # a key that is due could not be deleted, for example
        server.store.xadd("k", {"f": "v"}, "1-0")
        server.blocked._woken.extend(server.blocked._by_key[b"k"])
        server.blocked.run_woken(turn)
        return turn.finish() is not None

    assert not running.ask(begins)
    assert b"1-0" in peer.read()
    assert writer.call("XADD", "k", "2-0", "f", "v") == b"$3\r\n2-0\r\n"


def test_commands_that_run_apart_keep_the_write_lock(running: Running) -> None:
    order = []

    def take() -> None:
        with taken_by_a_process(running.server):
            order.append("other")

    def runs(server: Server) -> None:
        turn = Turn(server.turns)
        turn.run_apart()
        with taken_by_a_process(server), pytest.raises(StillTaken):
            turn._apart(lambda txn: None, frees=False, most_s=0.05)
        turn = Turn(server.turns)
        turn.write_txn()
        other = thread_of(take)
        wait_until(lambda: "-> FLOCK" in Path("/proc/locks").read_text())
        turn.run_apart()
        for _ in range(3):
            turn._apart(lambda txn: None, frees=False, most_s=0.05)
        order.append("turn")
        other.join()

    running.ask(runs)
    assert order == ["turn", "other"]


def test_deadlines_are_not_read_again_for_each_key_that_cannot_be_deleted(
    running: Running, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = connect(), connect()
    writer.call("XADD", "over", "1-0", "f", "v")
    expiry = running.server.expiry
    with taken_by_a_process(running.server):
        writer.send("XADD", "k", "1-0", "f", "v")
        wait_until(lambda: running.server.turns.locked_out)
        read: list[None] = []
        monkeypatch.setattr(expiry, "renew", lambda: read.append(None))
        expiry.by_name[b"over"] = 0
        running.ask(lambda server: expiry._watch(True))
        assert reader.call("XLEN", "over") == b":0\r\n"
        assert reader.call("PING") == b"+PONG\r\n"  # that turn has ended
        assert not read
        monkeypatch.undo()


def in_a_transaction(server: Server) -> Path:
    server.environment.context.wait.limit_s = 0.3
    return lock_of(server)


def in_a_checkpoint(server: Server) -> Path:
    checkpoints = server.environment.checkpoints
    assert checkpoints is not None
    checkpoints.wait.limit_s = 0.3
    with checkpoints.lock:  # as if the server had just opened the store: it makes one first
        checkpoints.unpin()
    return lock_of(server).parent


@pytest.mark.parametrize("stopped", [in_a_transaction, in_a_checkpoint])
def test_a_command_is_refused_while_another_process_is_stopped(
    running: Running, connect: Connect, stopped: Callable[[Server], Path]
) -> None:
    writer, reader = connect(), connect()
    for count in range(2):
        with ended(stopped_with(stopped(running.server))):
            writer.send("XADD", "k", "*", "f", "v")
            wait_until(lambda: running.server.turns.locked_out)
            assert reader.call("XLEN", "k") == b":%d\r\n" % count
            assert b"which is stopped" in writer.read()
            assert b"which is stopped" in writer.call("XADD", "k", "*", "f", "v")
        assert writer.call("XADD", "k", "*", "f", "v").startswith(b"$")


@pytest.mark.parametrize("stopped", [in_a_transaction, in_a_checkpoint, None])
def test_a_client_that_was_woken_is_not_lost_where_no_transaction_begins(
    running: Running, connect: Connect, stopped: Callable[[Server], Path] | None
) -> None:
    """Without a stopped process, a checkpoint is due, and the thread has failed before."""
    server, peer = running.server, connect()
    peer.call("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
    peer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
    wait_until(lambda: server.environment.context.wait_table.has_readers())

    def add(server: Server) -> int:
        server.store.xadd("k", {"f": "v"}, "1-0")
        if stopped is not None:
            return stopped_with(stopped(server))
        in_a_checkpoint(server)
        server.lock_wait.failed = True
        return 0

    child = running.ask(add)
    with ended(child) if child else nullcontext():
        assert (b"1-0" if stopped is None else b"which is stopped") in peer.read()


def test_a_client_that_waits_is_not_idle_and_pays_for_its_command(
    running: Running, connect: Connect
) -> None:
    server, writer, reader = running.server, connect(), connect()
    commands = server.turns.commands
    with taken_by_a_process(server):
        writer.send("XADD", "k", "1-0", "f", "v" * 100_000)
        wait_until(lambda: server.turns.locked_out)
        assert reader.call("PING") == b"+PONG\r\n"  # that turn has ended
        assert server.turns.held > 100_000
        server.settings.timeout_s = 1
        for one in server.clients.values():
            one.active -= 60 * one.waits_for_lock
        running.ask(lambda server: server._close_idle())
        server.settings.timeout_s = 0
    assert writer.read() == b"$3\r\n1-0\r\n"
    assert reader.call("PING") == b"+PONG\r\n"
    assert server.turns.held < 100_000
    assert server.turns.commands - commands == 3


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def failing(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize(
    ("where", "fails"), [("threading.Thread.start", no_thread), ("await_write", failing)]
)
def test_clients_go_on_where_no_thread_can_wait_for_the_lock(
    running: Running,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fails: Callable[..., None],
) -> None:
    writer = connect()
    writer.call("PING")
    with monkeypatch.context() as patch:
        patch.setattr(f"streamkeep.server.resp.lock_wait.{where}", fails)
        with taken_by_a_process(running.server):
            writer.send("XADD", "k", "1-0", "f", "v")
            wait_until(lambda: running.server.turns.locked_out)
        assert writer.read() == b"$3\r\n1-0\r\n"
