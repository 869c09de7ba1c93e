"""The follower against servers that are slow, cut, strange or hostile, and against full disks."""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from patience import PATIENCE_S, beside, wait_until
from streamkeep.engine.api.views import Sync
from streamkeep.format.redis.rdb import RdbWriter
from streamkeep.format.redis.resp import encode_command
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.replication import Follower, FollowError, LinkLost, RefusedError, following, link
from streamkeep.replication import spool as spooling
from streamkeep.replication.commands import Following
from streamkeep.replication.link import Link
from streamkeep.replication.spool import Spool
from streamkeep.transfer import aof
from test_replication.test_follow import following_of

ID = "a" * 40
MARK = b"m" * 40
EMPTY = RdbWriter(TARGETS["7.2"])
FILE = EMPTY.begin(0) + EMPTY.end()
FULL = b"+FULLRESYNC %s 0\r\n" % ID.encode()
SELECT = encode_command("SELECT", 0)
ADD = SELECT + encode_command("XADD", "s", "1-1", "a", "b")


class Primary:
    """A server that answers the words of a replica as a test says."""

    def __init__(self, path: Path, scripts: list[Script], offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.asked: list[list[bytes]] = []
        self._scripts = scripts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listener.close()

    def _run(self) -> None:
        for script in self._scripts:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(ConnectionError):
                self._greet(client)
                script(self, client)

    def _greet(self, client: socket.socket) -> None:
        """Answer until PSYNC has come, whose answer is part of the script."""
        data = b""
        while b"PSYNC" not in data or not data.endswith(b"\r\n"):
            more = client.recv(4096)
            if not more:
                return
            data += more
            words = more.split(b"\r\n")[2::2]
            self.asked.append(words)
            if words[:1] == [b"INFO"]:
                text = b"# Replication\r\nmaster_repl_offset:%d\r\n" % self.offset
                client.sendall(b"$%d\r\n%s\r\n" % (len(text), text))
            elif words[:1] != [b"PSYNC"]:
                client.sendall(b"+OK\r\n")


Script = Callable[[Primary, socket.socket], None]
Make = Callable[..., Primary]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Make]:
    made: list[Primary] = []

    def make(*scripts: Script, offset: int = 0) -> Primary:
        made.append(Primary(tmp_path / f"socket{len(made)}", list(scripts), offset))
        return made[-1]

    yield make
    for one in made:
        one.close()


def drain(client: socket.socket) -> None:
    while client.recv(4096):
        pass


def full(data: bytes, then: bytes = b"") -> Script:
    def script(primary: Primary, client: socket.socket) -> None:
        client.sendall(b"\n\n+FULLRESYNC %s 0\r\n" % ID.encode())
        client.sendall(data)
        client.sendall(then)
        drain(client)

    return script


def sized(data: bytes) -> bytes:
    return b"$%d\r\n%s" % (len(data), data)


def follow(primary: Primary, store: Any, **settings: Any) -> Any:
    return Follower(f"unix://{primary.path}", store, **settings).run(once=True)


def test_bytes_may_come_one_by_one(primary: Make, store: Path) -> None:
    commands = SELECT + encode_command("XADD", "s", "1-1", "a", "b\r\n")
    data = b"$EOF:%s\r\n%s%s%s" % (MARK, FILE, MARK, commands)

    def script(one: Primary, client: socket.socket) -> None:
        client.sendall(FULL)
        for at in range(len(data)):
            client.sendall(data[at : at + 1])
        drain(client)

    server = primary(script, offset=len(commands))
    report = follow(server, store)
    assert (report.offset, report.entries) == (len(commands), 1)
    assert [b"PSYNC", b"?", b"-1"] in server.asked


def test_a_connection_that_breaks_goes_on_where_the_store_is(primary: Make, store: Path) -> None:
    """Also in the middle of a command, of a transaction and of the file."""
    two = encode_command("MULTI") + encode_command("XADD", "s", "2-1", "a", "b")
    two += encode_command("XADD", "s", "3-1", "a", "b") + encode_command("EXEC")

    def cut_file(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL + sized(FILE)[:-3])

    def cut_command(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL + sized(FILE) + ADD + two[:-20])

    def rest(server: Primary, client: socket.socket) -> None:
        client.sendall(b"+CONTINUE %s\r\n" % (b"b" * 40) + two)
        drain(client)

    server = primary(cut_file, cut_command, rest)
    follower = Follower(f"unix://{server.path}", store, told=lambda text: None)
    with beside(follower.run, stop=follower.stop.set):
        wait_until(lambda: following_of(store) is not None and following_of(store).entries == 3)
    asked = [words[1:] for words in server.asked if words[0] == b"PSYNC"]
    assert asked == [
        [b"?", b"-1"], [b"?", b"-1"], [ID.encode(), b"%d" % (len(ADD) + 1)],
    ]  # fmt: skip
    assert (following_of(store).replication_id, following_of(store).full) == ("b" * 40, 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"-NOMASTERLINK Can't SYNC while not connected\r\n", "NOMASTERLINK"),
        (b"-LOADING Redis is loading\r\n", "LOADING"),
        (b"+FULLRESYNC x\r\n", "PSYNC was answered"),
        (b"+CONTINUE\r\n", "PSYNC was answered"),
        (b"-ERR unknown command 'PSYNC'\r\n", "unknown command"),
        (b"+FULLRESYNC %s 0\r\nhello\r\n" % ID.encode(), "expected a file"),
        (b"+FULLRESYNC %s 0\r\n$20\r\n%s" % (ID.encode(), b"x" * 20), "not an RDB file"),
        (FULL + sized(FILE[:-1] + b"?"), "CRC-64"),
        (FULL + sized(FILE) + b"$5\r\n", "comes before SELECT"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "PSYNC was answered"),
        (b"x" * 100_000, "a line without an end"),
    ],
    ids=range(11),
)  # fmt: skip
def test_strange_answers_are_named(primary: Make, store: Path, data: bytes, problem: str) -> None:
    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        drain(client)

    server = primary(script, offset=1 << 30)  # so that the follower waits for commands
    with pytest.raises((LinkLost, RefusedError, FollowError), match=problem):
        follow(server, store)
    assert not store.exists() or "SELECT" in problem


def test_any_bytes_in_place_of_the_file_or_of_commands(primary: Make, tmp_path: Path) -> None:
    chance = random.Random(5)
    good = sized(FILE) + ADD * 3

    def flipped(server: Primary, client: socket.socket) -> None:
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client.sendall(FULL + data)
        client.shutdown(socket.SHUT_WR)
        drain(client)

    server = primary(*[flipped] * 40, offset=1 << 30)
    for number in range(40):
        with pytest.raises((LinkLost, RefusedError, FollowError)):
            follow(server, tmp_path / f"s{number}")
    with streamkeep.open(tmp_path / "s0") as store:
        store.xadd("own", {"a": "b"})
    assert_sound(tmp_path / "s0")


def test_a_file_may_be_larger_than_the_backlog(
    primary: Make, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits with the rest of it, and gets a sign of life meanwhile."""
    is_full, acknowledged = threading.Event(), threading.Event()

    def slow(self: Link, stop: threading.Event) -> bytes:
        wait_until(lambda: is_full.is_set() or not self.spool.room())
        is_full.set()
        assert acknowledged.wait(PATIENCE_S)
        return read(self, stop)

    read = Link.read
    monkeypatch.setattr(Link, "read", slow)
    writer = RdbWriter(TARGETS["7.2"])
    file = writer.begin(1) + writer.string(b"string", bytes(9 << 20)) + writer.end()

    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL)
        sender = threading.Thread(target=client.sendall, args=(sized(file),))
        sender.start()
        assert is_full.wait(PATIENCE_S)
        with pytest.MonkeyPatch.context() as patch:  # only now: a busy machine is silent, too
            patch.setattr(link, "_SILENCE_S", 0.5)
            for _ in range(2):
                client.recv(4096)
        acknowledged.set()
        sender.join()
        drain(client)

    report = follow(primary(script), store, backlog=1 << 20)
    assert report.full == 1


@pytest.mark.parametrize("bad", [("XADD", "t", "*"), ("XADD", "t", "0-0", "a", "b")])
def test_nothing_of_a_command_that_fails_stays(
    primary: Make, store: Path, bad: tuple[str, ...]
) -> None:
    """All before it does, also what came with it."""
    server = primary(full(sized(FILE), ADD + encode_command(*bad)), offset=1 << 30)
    with streamkeep.open(store) as opened:
        with pytest.raises(
            FollowError, match=r"command 3 at byte .*, XADD: .*everything before it"
        ):
            follow(server, opened)
        assert opened.keys() == [b"s"]
        row = following(opened)
        assert row is not None
        assert (row.offset, row.commands, row.entries) == (len(ADD), 2, 1)


def test_a_transaction_of_more_commands_than_a_batch_is_one(primary: Make, store: Path) -> None:
    adds = b"".join(encode_command("XADD", "s", f"{n}-1", "a", "b") for n in range(1, 3001))
    commands = SELECT + encode_command("MULTI") + adds
    server = primary(
        full(sized(FILE), commands + encode_command("EXEC")),
        offset=len(commands + encode_command("EXEC")),
    )
    with streamkeep.open(store) as opened:
        follow(server, opened)
        assert opened.xlen("s") == 3000
        # The first file, SELECT, and all of the transaction.
        assert opened.durability().last_commit <= 5


def test_a_batch_of_slow_commands_ends_early(
    primary: Make, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a follower that is killed again and again goes on; a transaction stays one."""
    seconds = count()
    monkeypatch.setattr(aof, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    sizes: list[int] = []
    finish = Following.finish

    def note(self: Following, batch: list[aof.Command]) -> None:
        sizes.append(len(batch))
        finish(self, batch)

    monkeypatch.setattr(Following, "finish", note)
    words = [["SELECT", "0"], ["XADD", "s", "1-1", "a", "b"], ["MULTI"]]
    words += [["XADD", "s", f"{number}-1", "a", "b"] for number in (2, 3)]
    words += [["EXEC"], ["XADD", "s", "4-1", "a", "b"]]
    commands = b"".join(encode_command(*one) for one in words)
    server = primary(full(sized(FILE), commands), offset=len(commands))
    report = follow(server, store)
    assert (report.offset, report.entries, report.commands) == (len(commands), 4, 7)
    assert sizes == [1, 1, 4, 1]


def test_a_follower_ends_in_the_middle_of_a_file(primary: Make, store: Path) -> None:
    size = 30 << 20
    head = EMPTY.begin(0) + b"\x00\x01k\x80" + size.to_bytes(4, "big")
    server = primary(full(b"$%d\r\n%s" % (len(head) + size + 9, head), bytes(size)))
    calls: list[int] = []

    def progress(done: int, total: int | None) -> None:
        calls.append(done)
        follower.stop.set()

    follower = Follower(f"unix://{server.path}", store, progress=progress)
    follower.run()
    assert len(calls) == 1


@pytest.mark.parametrize("sync", ["commit", "none"])
def test_only_what_is_on_disk_is_acknowledged_as_such(
    primary: Make, store: Path, sync: Sync
) -> None:
    said = bytearray()

    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL + sized(FILE))
        while b"\r\n0\r\n" not in said:
            said.extend(client.recv(4096))

    server = primary(script, offset=1)
    with streamkeep.open(store, sync=sync) as opened, pytest.raises(LinkLost):
        follow(server, opened)
    assert (b"FACK" in said) == (sync == "commit")


def test_nothing_is_acknowledged_before_the_file_is_in_the_store(
    primary: Make, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_ACK_S", 0.001)
    said = bytearray()

    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(b"+FULLRESYNC %s 7\r\n" % ID.encode() + sized(FILE)[:-1])
        while len(said) < 3:
            said.extend(client.recv(1))
        client.sendall(FILE[-1:])
        while not said.endswith(b"\r\n7\r\n"):
            said.extend(client.recv(4096))

    server = primary(script, offset=8)
    with pytest.raises(LinkLost):
        follow(server, store)
    signs, _, first = said.partition(b"*")
    assert len(signs) >= 3
    assert not signs.strip()
    assert first.startswith(b"5\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n7\r\n")


def test_only_a_connection_with_tls_reads_the_authorities_of_the_system(
    primary: Make, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 30 ms of processor time, each time that a lost connection is tried again."""
    read: list[object] = []
    monkeypatch.setattr(ssl, "create_default_context", lambda **given: read.append(given))
    follow(primary(full(sized(FILE))), store)
    assert read == []


def test_what_does_not_fit_into_memory_goes_through_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "_MEMORY", 100)
    monkeypatch.setattr(spooling, "_FILE", 300)
    chance = random.Random(1)
    spool = Spool(tmp_path, 10_000)
    put, taken = bytearray(), bytearray()
    for _ in range(2000):
        if chance.random() < 0.5:
            data = chance.randbytes(chance.randrange(1, 90))
            if spool.put(data):
                put += data
        elif spool.size:
            taken += spool.take(0)
        assert spool.size == len(put) - len(taken)
    spool.end(LinkLost("over"))
    while spool.size:
        taken += spool.take(0)
    with pytest.raises(LinkLost):
        spool.take(0)
    assert taken == put
    assert list(tmp_path.iterdir()) == []
    spool.close()


def test_a_process_may_have_many_open_files(primary: Make, store: Path) -> None:
    def script(server: Primary, client: socket.socket) -> None:
        client.sendall(FULL)
        client.recv(4096)  # an acknowledgement, after which it waits
        client.sendall(sized(FILE))
        drain(client)

    server = primary(script)
    taken = [os.dup(0) for _ in range(1024)]
    try:
        assert follow(server, store).full == 1
    finally:
        for one in taken:
            os.close(one)


def test_the_store_knows_when_what_it_has_came(
    primary: Make, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it was applied: so `status` says how far the store is behind."""
    now = [100.0]
    monkeypatch.setattr(spooling, "time", SimpleNamespace(time=lambda: now[0]))
    spool = Spool(tmp_path, 10_000)
    for seconds, data in ((100.0, b"a"), (105.0, b"b"), (105.5, b"c")):
        now[0] = seconds
        spool.put(data)
    assert [(spool.take(0), spool.came) for _ in range(3)] == [
        (b"a", 100.0), (b"b", 105.0), (b"c", 105.0),
    ]  # fmt: skip
    server = primary(full(sized(FILE), ADD), offset=len(ADD))
    assert follow(server, store).time_ms == 105_500


def test_the_backlog_is_bounded(
    primary: Make, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Link, stop: threading.Event) -> bytes:
        wait_until(lambda: self.loading or self.spool._ended is not None)
        return read(self, stop)

    read = Link.read
    monkeypatch.setattr(Link, "read", late)
    big = encode_command("XADD", "s", "1-1", "a", b"x" * (3 << 20))
    server = primary(full(sized(FILE), SELECT + big), offset=1 << 30)
    with pytest.raises(LinkLost, match="too much came"):
        follow(server, store, backlog=1 << 20)
