"""Bounds: what clients may need of the memory and of the time of a server, and who pays for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock, patch

import pytest

from patience import PATIENCE_S, beside, run_threads, thread_of, wait_until
from resp_peer import Peer, Running, decode
from streamkeep.commands import strings
from streamkeep.commands.command_table import BY_NAME, READS, Spec
from streamkeep.commands.replies import OK
from streamkeep.format.redis.resp import encode_command
from streamkeep.server.resp import memory
from streamkeep.server.resp.connection import Connection
from streamkeep.server.resp.server import Server
from test_server.conftest import Connect

MB = 1 << 20
LARGE = 5 * MB // 4  # of a reply
MOST = 5 * MB  # for all clients


@pytest.fixture
def bounded(running: Running) -> Running:
    """A server with little memory for clients, and a stream with a large entry."""
    running.server.store.xadd("large", {"f": b"x" * LARGE}, id="1-0")
    running.ask(lambda server: setattr(server.turns, "most_held", MOST))
    return running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client loses its connection because it is slow, as all may be on a busy machine."""
    monkeypatch.setattr(memory, "_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(memory, "_SLOW", 0)


def held(running: Running) -> int:
    return int(running.ask(lambda server: server.turns.held))


def read_large(one: Peer, *words: Any) -> bytes:
    """Send a command, and return the bytes of its reply, which is long."""
    one.socket.sendall(encode_command(*words) + encode_command("PING"))
    data = bytearray()
    while not data.endswith(b"+PONG\r\n"):
        part = one.socket.recv(MB)
        assert part
        data += part
    return bytes(data[:-7])


def look(running: Running) -> None:
    running.ask(lambda server: server.memory.look())


@pytest.mark.usefixtures("patient")
def test_clients_that_do_not_read_take_a_bounded_memory(bounded: Running, connect: Connect) -> None:
    slow = [connect() for _ in range(20)]
    for one in slow:
        one.send("XRANGE", "large", "-", "+")
    other = connect()
    wait_until(lambda: bounded.ask(waiting) >= 14)
    assert held(bounded) <= MOST
    assert other.call("PING") == b"+PONG\r\n"
    assert other.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
    assert bounded.ask(lambda server: server.memory.evicted) == 0


def test_room_is_found_for_thousands_of_clients_in_linear_time() -> None:
    compared = 0

    class Size(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    given: list[int] = []
    room = memory.Memory(Mock(turns=Mock(has_room=lambda client, size: True)))
    for number in range(1000):
        client = Mock(id=number, blocked=None)
        client.resume = partial(given.append, number * 7 % 1000)
        room.wait(client, Size(number * 7 % 1000))
    room.give()
    assert given == list(range(1000))
    assert compared < 30_000


def waiting(server: Server) -> int:
    return sum(client.waits_for_room for client in server.clients.values())


def test_a_client_that_reads_is_served_in_place_of_those_that_do_not(
    bounded: Running, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    slow = [connect() for _ in range(6)]
    for one in slow:
        one.send("XRANGE", "large", "-", "+")
    wait_until(lambda: bounded.ask(waiting) >= 1)
    good = connect()
    assert good.call("PING") == b"+PONG\r\n"
    client = bounded.ask(lambda server: server.clients[max(server.clients)])
    reader = thread_of(read_large, good, "XRANGE", "large", "-", "+")
    wait_until(lambda: bounded.ask(lambda server: client.waits_for_room))
    while bounded.ask(lambda server: client.waits_for_room):
        look(bounded)  # no more when it reads: how much it reads meanwhile is up to the machine
    reader.join()
    assert good.call("PING") == b"+PONG\r\n"
    assert 0 < bounded.ask(lambda server: server.memory.evicted) < 6
    assert "clients need too much memory" in caplog.text
    assert held(bounded) <= MOST


@pytest.mark.usefixtures("patient")
def test_clients_that_read_all_get_their_replies(bounded: Running, connect: Connect) -> None:
    readers = [connect() for _ in range(20)]
    sizes: list[int] = []

    def ask(one: Peer) -> None:
        sizes.extend(len(read_large(one, "XRANGE", "large", "-", "+")) for _ in range(2))

    threads = [threading.Thread(target=ask, args=(one,)) for one in readers]
    run_threads(threads)
    assert len(set(sizes)) == 1
    assert len(sizes) == 40
    assert bounded.ask(lambda server: server.memory.evicted) == 0
    wait_until(lambda: held(bounded) == 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("woken_by", ["a client", "another process"])
@pytest.mark.parametrize("size", [LARGE, 1_000_000])
def test_replies_of_clients_that_are_woken_wait_for_room(
    bounded: Running, connect: Connect, woken_by: str, size: int
) -> None:
    readers = [connect() for _ in range(20)]
    for one in readers:
        one.send("XREAD", "BLOCK", 0, "STREAMS", "large", "$")
    wait_until(lambda: bounded.ask(lambda server: server.blocked.blocked) == 20)
    if woken_by == "a client":
        connect().call("XADD", "large", "2-0", "f", b"x" * size)
    else:
        bounded.server.store.xadd("large", {"f": b"x" * size}, id="2-0")
    wait_until(lambda: bounded.ask(waiting) >= 14)
    assert held(bounded) <= MOST
    for one in readers:
        assert b"2-0" in one.read()
        assert one.call("PING") == b"+PONG\r\n"
    assert bounded.ask(lambda server: server.memory.evicted) == 0
    wait_until(lambda: held(bounded) == 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("event", ["room", "unblock", "reset", "delete"])
def test_a_woken_client_whose_reply_waits_may_have_it_or_go_on_without(
    bounded: Running, connect: Connect, event: str
) -> None:
    slow = [connect() for _ in range(6)]
    for each in slow:
        each.send("XRANGE", "large", "-", "+")
    wait_until(lambda: bounded.ask(waiting) > 0)
    one, other = connect(), connect()
    assert other.call("PING") == b"+PONG\r\n"

    def wake(server: Server) -> Connection:  # in the turn in which it begins to wait
        client, adder = list(server.clients.values())[-2:]
        client.data_received(encode_command("XREAD", "BLOCK", 0, "STREAMS", "large", "$"))
        adder.data_received(encode_command("XADD", "large", "2-0", "f", b"x" * LARGE))
        return client

    client = bounded.ask(wake)
    assert other.read() == b"$3\r\n2-0\r\n"
    wait_until(lambda: bounded.ask(lambda server: client.waits_for_room and not client.reserved))
    if event == "unblock":
        assert other.call("CLIENT", "UNBLOCK", client.id) == b":1\r\n"
        assert one.read() == b"*-1\r\n"
        assert one.call("PING") == b"+PONG\r\n"
    elif event == "reset":
        bounded.ask(lambda server: client.transport.abort())
    elif event == "delete":
        assert other.call("XDEL", "large", "2-0") == b":1\r\n"
    for each in slow:
        each.close()
    wait_until(lambda: len(bounded.ask(lambda server: server.clients)) <= 2)
    if event == "delete":
        wait_until(lambda: held(bounded) < MB and not bounded.ask(waiting))
        assert other.call("XADD", "large", "3-0", "f", "v") == b"$3\r\n3-0\r\n"
    if event in ("room", "delete"):
        assert one.read().count(b"-0\r\n") == 1
    wait_until(lambda: held(bounded) == 0)


def test_a_reply_that_is_larger_than_all_memory_still_comes(
    bounded: Running, connect: Connect
) -> None:
    bounded.server.store.xadd("large", {"f": b"x" * 4 * MOST}, id="2-0")
    slow = connect()
    slow.send("XRANGE", "large", "-", "+", "COUNT", 1)
    wait_until(lambda: held(bounded) > MB)
    assert len(read_large(connect(), "XRANGE", "large", "2-0", "2-0")) > 4 * MOST


def queue_commands(one: Peer) -> None:
    one.call("MULTI")
    for _ in range(40):
        one.call("XADD", "k", "*", "f", b"x" * 100_000)


def send_a_part(one: Peer) -> None:
    one.socket.sendall(b"*5\r\n$4\r\nXADD\r\n$1\r\nk\r\n$1\r\n*\r\n$1\r\nf\r\n$9000000\r\n")
    one.socket.sendall(b"x" * 4_000_000)


def send_words(one: Peer) -> None:
    """Send words that take more room as objects than as bytes."""
    one.socket.sendall(b"*1000000\r\n" + b"$0\r\n\r\n" * 40_000)


def wait_for_many(one: Peer) -> None:
    keys = [b"k%d" % number + b"x" * 4000 for number in range(500)]
    one.send("XREAD", "BLOCK", 0, "STREAMS", *keys, *["$"] * len(keys))


def watch_many(one: Peer) -> None:
    for first in range(4):
        one.send("WATCH", *[b"k%d-%d" % (first, number) for number in range(2000)])
        one.read()


HOGS = [queue_commands, send_a_part, send_words, wait_for_many, watch_many]


@pytest.mark.parametrize("hog", HOGS)
def test_what_clients_send_is_bounded_too(
    bounded: Running, connect: Connect, hog: Callable[[Peer], None]
) -> None:
    innocent = connect()
    innocent.call("MULTI")
    innocent.call("XADD", "k", "1-0", "f", "v")
    for _ in range(16):
        with suppress(OSError):  # the server closes some of these connections
            hog(connect())
        if bounded.ask(lambda server: server.memory.evicted) > 1:
            break
    wait_until(lambda: bounded.ask(lambda server: server.memory.evicted) > 0)
    assert held(bounded) <= 2 * MOST
    assert innocent.call("EXEC") == b"*1\r\n$3\r\n1-0\r\n"


def test_a_client_that_sends_faster_than_its_commands_run_is_not_read_from(
    running: Running, connect: Connect
) -> None:
    one = connect()
    assert one.call("PING") == b"+PONG\r\n"

    def flood(server: Server) -> bool:
        (client,) = server.clients.values()
        for _ in range(2):  # while no turn begins
            client.data_received(encode_command("PING") * 80_000)
        return client.paused

    assert running.ask(flood)
    for _ in range(160_000):
        assert one.read() == b"+PONG\r\n"
    assert one.call("ECHO", "x") == b"$1\r\nx\r\n"


@pytest.mark.parametrize("trusted", [True, False])
def test_a_client_may_send_a_whole_pipeline_before_it_reads(
    running: Running, connect: Connect, trusted: bool
) -> None:
    one = connect()
    assert one.call("PING") == b"+PONG\r\n"
    client = running.ask(lambda server: next(iter(server.clients.values())))
    client.parser.trusted = trusted
    data = encode_command("ECHO", b"x" * 80) * 30_000
    if trusted:
        one.socket.sendall(data)
    else:  # one without a password
        sender = thread_of(one.socket.sendall, data)
        wait_until(lambda: client.paused)
    for _ in range(30_000):
        assert one.read() == b"$80\r\n%b\r\n" % (b"x" * 80)
    if not trusted:
        sender.join()


def test_names_and_scripts_that_are_kept_are_bounded(connect: Connect) -> None:
    one = connect()
    assert one.call("CLIENT", "SETNAME", b"x" * 4096) == b"+OK\r\n"
    long = b"x" * 4097
    for reply in (
        one.call("CLIENT", "SETNAME", long),
        one.call("CLIENT", "SETINFO", "LIB-NAME", long),
    ):
        assert b"cannot be longer than 4096 bytes" in reply
    script = (
        b"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) "
        b"else return 0 end"
    )
    before = list(strings.KNOWN_DIGESTS)
    with patch.dict(strings.KNOWN_DIGESTS):
        found = [one.ask("SCRIPT", "LOAD", script + b" " * spaces) for spaces in range(1200)]
        assert len(strings.KNOWN_DIGESTS) == 1000
        known = one.ask("SCRIPT", "EXISTS", found[0], found[-1], *before)
        assert known == [0, 1, *[1] * len(before)]


def test_memory_of_clients_that_go_is_free(bounded: Running, connect: Connect) -> None:
    for act in (queue_commands, send_a_part, lambda one: one.send("XRANGE", "large", "-", "+")):
        one = connect()
        act(one)
        wait_until(lambda: held(bounded) > MB)
        one.close()
        wait_until(lambda: held(bounded) == 0)


@pytest.mark.usefixtures("patient")
def test_memory_of_clients_that_go_while_their_replies_wait_is_free(
    bounded: Running, connect: Connect
) -> None:
    clients = [connect() for _ in range(8)]
    for one in clients:
        one.send("XRANGE", "large", "-", "+")
    wait_until(lambda: bounded.ask(waiting) >= 2)
    for one in reversed(clients):  # those that wait go first
        one.close()
    wait_until(lambda: not bounded.ask(lambda server: server.clients))
    assert held(bounded) == 0


@pytest.mark.slow
def test_a_long_range_is_refused_and_a_long_delivery_is_cut(
    running: Running, connect: Connect
) -> None:
    one = connect()
    ids = [f"{number}-0" for number in range(1, 71)]
    running.server.store.xadd_many("k", [{"f": b"x" * MB}] * 70, ids=ids)
    for words in (["XRANGE", "k", "-", "+"], ["XREVRANGE", "k", "+", "-"]):
        assert b"more than 64 MB; ask for fewer entries with COUNT" in one.call(*words)
        assert len(decode(read_large(one, *words, "COUNT", 64))) == 64
    first = read_large(one, "XREAD", "STREAMS", "k", "k", "0", "0")
    assert first.count(b"\r\n$1\r\nf\r\n") == 64
    one.call("XGROUP", "CREATE", "k", "g", "0")
    found = []
    for _ in range(2):
        words = ["XREADGROUP", "GROUP", "g", "ann", "STREAMS", "k", ">"]
        ((_, entries),) = decode(read_large(one, *words))
        found += [entry_id.decode() for entry_id, _ in entries]
    assert found == ids
    assert one.ask("XPENDING", "k", "g")[0] == 70
    for begin in ("XLEN k", "XADD other 1-0 f v"):
        one.call("MULTI")
        for line in (begin, *[f"XRANGE k {number} {number}" for number in ids]):
            one.call(*line.split())
        assert b"the transaction would have more than 64 MB of replies" in one.call("EXEC")
    assert one.call("EXISTS", "other") == b":0\r\n"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A command SLOW; what it adds to at each call."""
    found: list[int] = []

    def be_slow(txn: Any, words: list[bytes], shape: int) -> Any:
        found.append(1)
        time.sleep(0.02)
        return OK

    monkeypatch.setitem(BY_NAME, b"SLOW", Spec("slow", 1, READS, run=be_slow))
    return found


def test_many_slow_commands_do_not_delay_short_ones(ran: list[int], connect: Connect) -> None:
    other = connect()
    assert connect().call("SLOW") == b"+OK\r\n"
    slow = [connect() for _ in range(30)]
    for one in slow:
        one.send("SLOW")
    for _ in range(3):
        before = len(ran)
        assert connect().call("PING") == b"+PONG\r\n"
        assert other.call("PING") == b"+PONG\r\n"
        assert len(ran) - before < 12
    assert [one.read() for one in slow] == [b"+OK\r\n"] * 30  # while others go on


@pytest.mark.usefixtures("ran")
def test_a_slow_command_runs_while_short_ones_keep_coming(connect: Connect) -> None:
    over = threading.Event()

    def keep_on(one: Peer) -> None:
        while not over.is_set():
            one.socket.sendall(encode_command("PING") * 500)
            for _ in range(500):
                one.read()

    with beside(*(partial(keep_on, connect()) for _ in range(4)), stop=over.set):
        one = connect()
        assert [one.call("SLOW") for _ in range(5)] == [b"+OK\r\n"] * 5


def test_replies_that_are_not_wanted_count_for_nothing(connect: Connect) -> None:
    one = connect()
    one.send("CLIENT", "REPLY", "OFF")
    for _ in range(30):
        one.send("ECHO", b"x" * 100_000)
    assert one.call("CLIENT", "REPLY", "ON") == b"+OK\r\n"
