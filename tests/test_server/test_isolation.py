"""No command that fails in an unforeseen way keeps a reply from another client, or changes a thing.

The commands here are ours, with faults that no real one is known to have.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from patience import run_threads, wait_until
from resp_peer import Peer, Running, serving
from stores import open_at
from streamkeep.commands.command_table import BY_NAME, READS, WRITES, Spec
from streamkeep.commands.entries import run_xadd
from streamkeep.commands.read import Waiting
from streamkeep.engine.blocking.calls import BlockingCall
from streamkeep.engine.notify.wait_table import READ
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.server.resp.turn import HANDLERS, TABLE
from test_server.conftest import Connect

INTERNAL = b"-ERR internal error: RuntimeError: injected\r\n"


def fail(*args: object) -> Any:
    raise RuntimeError("injected")


def write_and_fail(txn: Any, words: list[bytes], shape: int) -> Any:
    run_xadd(txn, [b"XADD", b"half", b"*", b"f", b"v"], 0)
    fail()


class FailingCall(BlockingCall):
    """Finds nothing the first time, and fails when it is run again."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, txn: Any) -> Any:
        self.runs += 1
        return [] if self.runs == 1 else fail()

    def pause(self, txn: Any) -> int:
        return -1

    def interests(self) -> list[Any]:
        return [(b"k", b"", READ)]


COMMANDS = {
    "read": Spec("fread", -1, READS, run=fail),
    "write": Spec("fwrite", -1, WRITES, run=write_and_fail),
    "reply": Spec("freply", -1, READS, run=lambda txn, words, shape: object()),
    "parse": Spec("fparse", -1, READS, parse=fail),
    "wait": Spec("fwait", -1, READS, parse=lambda *_: Waiting(FailingCall(), 0, [b"k"])),
    "keys": Spec("fkeys", -1, READS, 1, fail),
    "handler": Spec("fhandler", -1, READS),
}


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in COMMANDS.values():
        for table in (BY_NAME, TABLE) if spec.run or spec.parse else (TABLE,):
            monkeypatch.setitem(table, spec.name.upper().encode(), spec)
    monkeypatch.setitem(HANDLERS, "fhandler", fail)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], bool]]:
    """A function that returns whether the fault was logged with its traceback."""
    with caplog.at_level(logging.ERROR, logger="streamkeep.server"):
        yield lambda: any("injected" in str(one.exc_info) for one in caplog.records)


@pytest.mark.parametrize("kind", ["read", "write", "reply", "parse", "keys", "handler"])
def test_in_pipelines_of_many_clients(
    running: Running, connect: Connect, kind: str, logged: Callable[[], bool]
) -> None:
    clients = [connect() for _ in range(8)]
    faulty = COMMANDS[kind].name
    started = threading.Barrier(len(clients))
    replies: dict[int, list[bytes]] = {}

    def pipeline(number: int) -> None:
        one = clients[number]
        started.wait()
        for _ in range(20):
            one.send("XADD", f"k{number}", "*", "f", "v")
            if number % 2:
                one.send(faulty, "k")
            one.send("XLEN", f"k{number}")
        replies[number] = [one.read() for _ in range(60 if number % 2 else 40)]

    threads = [threading.Thread(target=pipeline, args=(number,)) for number in range(len(clients))]
    run_threads(threads)
    for number in range(len(clients)):
        found = replies[number]
        lengths = found[2::3] if number % 2 else found[1::2]
        assert lengths == [b":%d\r\n" % count for count in range(1, 21)]
        if number % 2:
            assert all(one.startswith(b"-ERR internal error: ") for one in found[1::3])
    store = running.server.store
    assert [store.xlen(f"k{number}") for number in range(8)] == [20] * 8
    assert not store.exists("half")
    if kind != "reply":
        assert logged()


@pytest.mark.parametrize("kind", ["read", "write", "handler"])
def test_in_a_transaction(
    running: Running, connect: Connect, kind: str, logged: Callable[[], bool]
) -> None:
    one, other = connect(), connect()
    one.call("MULTI")
    for words in (["XADD", "k", "1-0", "f", "v"], [COMMANDS[kind].name, "k"], ["XLEN", "k"]):
        assert one.call(*words) == b"+QUEUED\r\n"
    one.send("EXEC")
    assert other.call("XADD", "other", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert one.read() == INTERNAL
    assert one.call("XLEN", "k") == b":0\r\n"
    assert one.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert not running.server.store.exists("half")
    assert logged()


@pytest.mark.parametrize("woken_by", ["a client", "another process"])
def test_of_a_client_that_waits(
    running: Running, connect: Connect, peer: Peer, woken_by: str, logged: Callable[[], bool]
) -> None:
    faulty, innocent = connect(), connect()
    faulty.send("FWAIT", "BLOCK", 0)
    innocent.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    wait_until(lambda: running.ask(lambda server: server.blocked.count) == 2)
    if woken_by == "a client":
        assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    else:
        running.server.store.xadd("k", {"f": "v"}, id="1-0")
    assert faulty.read() == INTERNAL
    assert b"1-0" in innocent.read()
    assert faulty.call("XLEN", "k") == b":1\r\n"
    assert logged()


def test_of_what_serves_clients_that_wait(
    running: Running, connect: Connect, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    innocent = connect()
    innocent.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
    wait_until(lambda: running.ask(lambda server: server.blocked.count) == 1)
    monkeypatch.setattr(running.server.blocked, "_serve", fail)
    assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert b"1-0" in innocent.read()  # woken as by another process
    assert peer.call("XLEN", "k") == b":1\r\n"


@pytest.mark.parametrize("what", ["begin", "end"])
def test_of_what_a_turn_has_to_do_beside_commands(
    running: Running,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    logged: Callable[[], bool],
) -> None:
    expiry = running.server.expiry
    monkeypatch.setattr(expiry, "run_due" if what == "begin" else "renew", fail)
    running.ask(lambda server: server.schedule())
    assert peer.call("SET", "k", "v") == b"+OK\r\n"
    assert peer.call("GET", "k") == b"$1\r\nv\r\n"
    wait_until(logged)


def test_a_commit_that_fails_when_it_is_made_is_told(
    running: Running, peer: Peer, connect: Connect, logged: Callable[[], bool]
) -> None:
    failpoints.arm("commit:made", fail)
    assert peer.call("XADD", "k", "1-0", "f", "v") == INTERNAL
    assert connect().call("PING") == b"+PONG\r\n"
    assert logged()


def test_a_number_of_keys_with_thousands_of_digits_is_no_number(peer: Peer) -> None:
    huge = b"9" * 5000
    assert peer.call("COMMAND", "GETKEYS", "EVAL", "x", huge, "a")[:1] in (b"-", b"*")
    assert peer.call("EVAL", "x", huge, "a").startswith(b"-ERR")
    assert peer.call("PING") == b"+PONG\r\n"


def test_a_page_that_posts_to_the_server_runs_nothing(
    running: Running, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"XADD orders * evil 1\r\n"
    for head in (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nContent-Length: 22\r\n\r\n",
        b"post / HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:6379\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhOsT: 127.0.0.1:6379\r\n\r\n",
        b"*1\r\n$4\r\nPOST\r\n",
        b"MULTI\r\nPOST / HTTP/1.1\r\n\r\nEXEC\r\n",
    ):
        one = connect()
        one.socket.sendall(head + body)
        while not one.is_closed():
            one._data = b""
    with connect() as other:
        assert other.call("XLEN", "orders") == b":0\r\n"
    wait_until(lambda: not running.ask(lambda server: server.clients))
    assert "a web page" in caplog.text


def test_a_stream_that_expired_stays_gone_after_a_command_failed(
    tmp_path: Path, clock: ManualClock
) -> None:
    with (
        open_at(tmp_path / "s", clock=clock) as store,
        serving(store, tmp_path / "k") as running,
        Peer(running.path) as peer,
    ):
        running.ask(lambda server: server.expiry.close())
        peer.call("XADD", "k", "1-0", "f", "old")
        peer.call("PEXPIREAT", "k", clock.ms + 50)
        clock.ms += 51
        for words in (["XADD", "k", "2-0", "f", "new"], ["FWRITE"], ["XLEN", "k"]):
            peer.send(*words)
        assert [peer.read() for _ in range(3)] == [b"$3\r\n2-0\r\n", INTERNAL, b":1\r\n"]
        assert running.ask(lambda server: server.expiry.expired) == 1
        running.ask(lambda server: server.expiry.renew())
        assert peer.call("TTL", "k") == b":-1\r\n"
