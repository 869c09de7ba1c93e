"""Random clients of a server, which go in the middle of anything, while it ends or is killed.

The model is what a client knows: what it sent, in order, and the replies that came. An entry names
its client and the unit that added it, so the store shows what each has done: all of it once, if its
reply has come; else once or nothing, and nothing after a unit that has done nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import streamkeep
from certificates import make_certificate
from conftest import assert_sound
from crash.workload.worker import fork
from inside import tickets_in, wait_table_of
from patience import PATIENCE_S, wait_until
from resp_peer import Line, decode, reply_end
from stores import MODES
from streamkeep.format.redis.resp import encode_command
from streamkeep.server import serve
from streamkeep.server.access import Access
from streamkeep.server.resp.server import Server
from tiers import daily_or_all

pytestmark = pytest.mark.crash

KEYS: Final = ("a", "b", "c")  # each with the group g
COUNTER: Final = "counter"  # each entry has the value of the one before, plus one
CLIENTS: Final = 24
NO_DATA: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
Check = Callable[[list[Any]], list[str] | None]


@dataclass
class Unit:
    """Commands that a client sends together.

    Attributes:
        adds: the keys to which it adds an entry each, all or none.
        replies: how many come.
        check: returns the IDs of its entries for the replies; None if these do not say.
        always: it adds its entries, if it runs.
        waits: no reply comes to a client that has sent its last byte.
        takes: it may deliver entries to the consumer of the client.
        end: the place in what the client sends.
    """

    data: bytes
    replies: int
    check: Check
    adds: list[str]
    always: bool = True
    waits: bool = False
    takes: bool = False
    end: int = 0
    got: list[Any] = field(default_factory=list)
    ids: list[str] | None = None


class Client:
    def __init__(self, world: World, number: int, kind: str) -> None:
        self.world, self.rng, self.number, self.kind = world, world.rng, number, kind
        self.socket = world.connect(kind)
        self.units: list[Unit] = []
        self.unsent, self.sent, self.received = bytearray(), 0, b""
        self.answered = 0  # units
        self.lazy = self.last = self.killed = self.gone = False  # reads not; sends no more
        self.id = 0  # of CLIENT ID
        self.watching, self.watched = -1, -1  # the unit with WATCH; the counter then
        self.has: list[tuple[str, str]] = []  # delivered, and not acknowledged
        self.events: dict[str, list[str]] = {}  # of a key
        if kind != "http":
            self.send(words("HELLO", self.rng.choice([2, 3]), "AUTH", "default", "pw"))
            self.send(words("CLIENT", "ID"), check=self.note_id)

    def note_id(self, replies: list[Any]) -> None:
        self.id = replies[0]

    def send(
        self,
        data: bytes,
        replies: int = 1,
        check: Check = lambda found: None,
        adds: tuple[str, ...] | list[str] = (),
        **flags: Any,
    ) -> None:
        self.units.append(Unit(data, replies, check, [*adds], **flags))
        self.unsent += data
        self.units[-1].end = self.sent + len(self.unsent)

    def entry(self, part: int = 0, **more: int) -> dict[str, Any]:
        return {"client": self.number, "unit": len(self.units), "part": part, **more}

    def add(self, key: str, part: int = 0, **more: int) -> bytes:
        pairs = self.entry(part, **more).items()
        return words("XADD", key, "*", *(word for pair in pairs for word in pair))

    def act(self) -> None:
        for _ in range(self.rng.choice([1, 1, 1, 5, 30])):
            if self.last or len(self.units) - self.answered > 400:
                break
            self.rng.choice(OF_HTTP if self.kind == "http" else OF_RESP)(self)
        self.lazy ^= self.rng.random() < 0.1
        if self.rng.random() < 0.04:
            self.leave()

    def one(self) -> None:
        key = self.rng.choice(KEYS)
        how = self.rng.randrange(6)
        if how == 0:  # without a reply
            self.send(words("CLIENT", "REPLY", "SKIP") + self.add(key), 0, adds=[key])
        elif how == 1:
            data = words("CLIENT", "REPLY", "OFF") + self.add(key) + words("ECHO", "x")
            self.send(data + words("CLIENT", "REPLY", "ON"), 1, same("OK"), [key])
        else:
            self.send(self.add(key), 1, ids_of, [key])

    def ask(self) -> None:
        text = b"%d:%d" % (self.number, len(self.units)) * self.rng.choice([1, 10, 30_000])
        asked: list[tuple[bytes, Check]] = [
            (words("ECHO", text), same(text)),
            (b"PING x\r\n", same(b"x")),
            (words("WAITAOF", 1, 0, 0), same([1, 0])),
            (words("SUBSCRIBE", "x"), lambda found: found[0].index("unknown command")),
            (words("INFO"), lambda found: found[0].index(b"connected_clients")),
            (words("CLIENT", "LIST"), lambda found: found[0].index(b"addr=")),
        ]
        data, check = self.rng.choice(asked)
        self.send(data, 1, check)

    def together(self) -> None:
        keys = self.rng.choices(KEYS, k=self.rng.randint(1, 4))
        data = words("MULTI") + b"".join(self.add(key, part) for part, key in enumerate(keys))
        watching, self.watching, self.watched = self.watching, -1, -1
        if self.rng.random() < 0.1:  # its connection ends inside
            self.send(data, len(keys) + 1)
            self.leave()
        else:
            self.send(data + words("EXEC"), len(keys) + 2, ids_of, keys, always=watching < 0)

    def count(self) -> None:
        """Look at the counter; or raise it, if nobody has since."""
        if self.watching < 0:
            number = self.watching = len(self.units)

            def check(replies: list[Any]) -> None:
                if self.watching == number:
                    self.watched = int(replies[1][0][1][-1]) if replies[1] else 0

            look = words("XREVRANGE", COUNTER, "+", "-", "COUNT", 1)
            self.send(words("WATCH", COUNTER) + look, 2, check)
        elif self.watched >= 0:
            data = words("MULTI") + self.add(COUNTER, value=self.watched + 1) + words("EXEC")
            self.watching, self.watched = -1, -1
            self.send(data, 3, ids_of, [COUNTER], always=False)

    def take(self) -> None:
        key, wait = self.rng.choice(KEYS), self.rng.choice([-1, -1, 0, 1, 20, 1000])
        more: tuple[Any, ...] = ("BLOCK", wait) if wait >= 0 else ()
        more = ("COUNT", 2, *more, "STREAMS", key, ">")

        def check(replies: list[Any]) -> None:
            found = replies[0]
            if found is not None and found != UNBLOCKED:
                [[_, entries]] = found.items() if isinstance(found, dict) else found
                self.note_taken(key, [one.decode() for one, _ in entries])

        data = words("XREADGROUP", "GROUP", "g", self.number, *more)
        self.send(data, 1, check, waits=wait >= 0, takes=True)

    def read(self) -> None:
        wait = self.rng.choice([0, 1, 20, 1000])
        self.send(words("XREAD", "BLOCK", wait, "STREAMS", self.rng.choice(KEYS), "$"), waits=True)

    def note_taken(self, key: str, ids: list[str]) -> None:
        assert not any((key, one) in self.world.taken for one in ids), "delivered twice"
        self.world.taken |= {(key, one): self.number for one in ids}
        self.has += [(key, one) for one in ids]

    def acknowledge(self) -> None:
        if not self.has:
            return
        key = self.has[0][0]
        some = [one for one in self.has if one[0] == key][: self.rng.randint(1, 3)]
        self.has = [one for one in self.has if one not in some]
        self.world.acks.update(some)

        def check(replies: list[Any]) -> None:
            assert replies[0] in (len(some), {"acknowledged": len(some)})
            self.world.acked.update(some)

        ids = [one for _, one in some]
        over_http = request("POST", f"/groups/{key}/g/ack", {"ids": ids})
        self.send(over_http if self.kind == "http" else words("XACK", key, "g", *ids), 1, check)

    def disturb(self) -> None:
        """Kill another client, or end what it waits for."""
        other = self.rng.choice(self.world.clients)
        if other.id and other is not self:
            kill = self.rng.random() < 0.3
            other.killed |= kill
            how = self.rng.choice(["TIMEOUT", "ERROR"])
            data = words("CLIENT", "KILL", "ID", other.id)
            data = data if kill else words("CLIENT", "UNBLOCK", other.id, how)
            self.send(data, 1, lambda found: [] if found[0] in (0, 1) else ["?"])

    def post(self) -> None:
        key, count = self.rng.choice(KEYS), self.rng.choice([0, 0, 0, 3])
        body: Any = [self.entry(part) for part in range(count)] or self.entry()
        if not count and self.rng.random() < 0.1:
            body["large"] = "x" * 300_000
        data = request("POST", f"/streams/{key}", body)
        check: Check = lambda found: found[0].get("ids") or [found[0]["id"]]  # noqa: E731
        self.send(data, 1, check, [key] * max(count, 1))

    def deliver(self) -> None:
        key, wait = self.rng.choice(KEYS), self.rng.choice([{}, {"block_ms": 30}, LONG])

        def check(replies: list[Any]) -> None:
            if "error" in replies[0]:  # the server ends, and may have delivered something
                replies.clear()
            else:
                self.note_taken(key, [one["id"] for one in replies[0]["entries"]])

        body = {"consumer": str(self.number), "count": 2, **wait}
        data = request("POST", f"/groups/{key}/g/deliver", body)
        self.send(data, 1, check, waits=bool(wait), takes=True)
        self.last = wait == LONG

    def follow(self) -> None:
        key = self.rng.choice(KEYS)
        self.events[key] = []
        self.send(request("GET", f"/streams/{key}?after=0", kind="text/event-stream"), waits=True)
        self.last = True

    def leave(self) -> None:
        """Send no more; go at once, reset the connection, or read until the server ends it."""
        self.last = True
        how = self.rng.choice(["close", "reset", "cut", "end", "later"])
        if how == "cut" and not (self.units and self.units[-1].waits):
            self.unsent += self.rng.choice([b"*3\r\n$4\r\nXADD\r\n$1\r\na", b"POST / HTTP/1.1\r\n"])
            self.pump()
        if how == "end" and self.kind in ("unix", "tcp"):
            self.lazy = False
            wait_until(lambda: not self.pump() or not self.unsent)
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        elif how != "later":
            if how == "reset" and self.kind != "unix" and not self.gone:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    def close(self) -> None:
        self.gone = True
        self.socket.close()

    def pump(self) -> bool:
        """Send and receive what is possible; return False if the connection has ended."""
        with suppress(OSError):
            with suppress(*NO_DATA):
                while self.unsent:
                    count = self.socket.send(self.unsent[: self.rng.choice([7, 1 << 16])])
                    self.sent += count
                    del self.unsent[:count]
            with suppress(*NO_DATA):
                while not self.lazy:
                    data = self.socket.recv(1 << 16)
                    if not data:
                        self.check_end()
                        raise ConnectionError
                    self.received += data
                    self.note()
            return True
        self.close()
        return False

    def check_end(self) -> None:
        """What came before the last byte was answered."""
        if self.kind in ("unix", "tcp") and self.last and not self.killed and self.world.calm:
            assert self.unsent or self.is_answered(), self.units[self.answered]

    def is_answered(self) -> bool:
        """Return whether no reply is missing, but one that has to wait."""
        return next((one.waits for one in self.units[self.answered :] if one.replies), True)

    def note(self) -> None:
        """Compare the replies that have come with what was asked for."""
        while self.received:
            if self.events and self.units[-1].got:
                whole, end, self.received = self.received.rpartition(b"\n\n")
                found = re.findall(r"^id: (\S+)\ndata", (whole + end).decode(), re.MULTILINE)
                [*self.events.values()][-1].extend(found)
                return
            reply, self.received = (cut_http if self.kind == "http" else cut)(self.received)
            if reply is NOTHING:
                return
            while not self.units[self.answered].replies:  # it has none, and its turn has come
                self.answered += 1
            unit = self.units[self.answered]
            unit.got.append(reply)
            if len(unit.got) == unit.replies:
                unit.ids = unit.check(unit.got)
                self.answered += 1


OF_RESP: Final = (
    *[Client.one] * 7, *[Client.take, Client.count] * 3, *[Client.together, Client.acknowledge] * 2,
    Client.ask, Client.ask, Client.read, Client.disturb,
)  # fmt: skip
OF_HTTP: Final = (
    *[Client.post] * 6, Client.deliver, Client.deliver, Client.acknowledge, Client.follow
)  # fmt: skip

NOTHING: Final = object()
LONG: Final = {"block_ms": 60_000}
UNBLOCKED: Final = Line("-UNBLOCKED client unblocked via CLIENT UNBLOCK")
words: Final = encode_command


def same(wanted: object) -> Check:
    def check(replies: list[Any]) -> None:
        assert replies[-1] == wanted

    return check


def ids_of(replies: list[Any]) -> list[str]:
    """Return the ID that XADD has given, or those of EXEC, which may be nil."""
    found = replies[-1] or []
    return [one.decode() for one in ([found] if isinstance(found, bytes) else found)]


def cut(data: bytes) -> tuple[Any, bytes]:
    end = reply_end(data, 0)
    return (NOTHING, data) if end is None else (decode(data[:end]), data[end:])


def request(method: str, path: str, body: Any = None, kind: str = "*/*") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer pw\r\n"
    head += f"Accept: {kind}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def cut_http(data: bytes) -> tuple[Any, bytes]:
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return NOTHING, data
    assert re.match(rb"HTTP/1.1 (20[01]|503) ", head), data[:300]
    found = re.search(rb"content-length: (\d+)", head)
    if found is None:
        return {}, body  # an event stream
    size = int(found[1])
    return (NOTHING, data) if len(body) < size else (json.loads(body[:size]), body[size:])


def be_server(path: Path, options: serve.Options, sync: Any, uv: bool, answers: int) -> None:
    """Serve a store; tell where, and at SIGUSR1 what there is of clients."""

    def ready(server: Server) -> None:
        blocked, turns, memory = server.blocked, server.turns, server.memory
        state: Any = getattr(server.upstream.end_waits, "__self__", None)  # of HTTP

        def tell_left() -> None:
            handles = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            found = [len(each) for each in (
                server.clients, blocked._by_key, blocked.watches.by_key, turns._ready, turns._slow,
                memory._waiting, server._tasks, state.deliveries, asyncio.all_tasks(),
                [one for one in handles if one.is_socket()], threading.enumerate()[20:],
            )]  # fmt: skip
            more = blocked.count, turns.held, state.event_streams, wait_table_of(server.store)
            found += map(int, (*more[:-1], tickets_in(more[-1])))
            os.write(answers, json.dumps(found).encode() + b"\n")

        server.loop.add_signal_handler(signal.SIGUSR1, tell_left)
        os.write(answers, json.dumps(server.settings.shown).encode() + b"\n")

    options.ready = ready
    if uv:
        serve.run(path, options, sync=sync)
    else:
        with streamkeep.open(path, sync=sync, lease=False) as store:
            asyncio.run(serve.serve(store, options))


class World:
    """A store, its server and clients; all of it from one seed, but for the moments."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder, self.path, self.calm = folder, folder / "store", True
        self.clients: list[Client] = []  # of this life of the server
        self.all: list[Client] = []
        self.taken: dict[tuple[str, str], int] = {}  # key and ID: to whom it was delivered
        self.acks: set[tuple[str, str]] = set()
        self.acked: set[tuple[str, str]] = set()
        self.tls = make_certificate(folder) if self.rng.random() < 0.5 else None
        with streamkeep.open(self.path) as store:
            for key in KEYS:
                store.xgroup_create(key, "g", id="0", mkstream=True)

    def connect(self, kind: str) -> socket.socket:
        one: socket.socket = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        one.settimeout(PATIENCE_S)
        port = self.shown["http"].rpartition(":")[2] if kind == "http" else self.shown["port"]
        one.connect(self.shown["unixsocket"] if kind == "unix" else ("127.0.0.1", int(port)))
        if self.tls is not None and kind != "unix":
            context = ssl.create_default_context(cafile=str(self.tls[0]))
            one = context.wrap_socket(one, server_hostname="localhost")
        one.setblocking(False)
        return one

    def live(self, end: str, steps: int) -> None:
        """Have clients do something, end the server, and compare the store with what they know."""
        options = serve.Options(
            ["127.0.0.1:0"], self.folder / "sock", "127.0.0.1:0", Access("pw"), write=True
        )
        options.tls = None if self.tls is None else (*self.tls, None)
        sync, uv, errors = self.rng.choice(MODES), self.rng.random() < 0.5, self.folder / "errors"
        reading, writing = os.pipe()
        pid = fork(lambda: be_server(self.path, options, sync, uv, writing), errors)
        os.close(writing)
        self.clients = []
        with os.fdopen(reading) as self.answers:
            try:
                self.shown = json.loads(self.answers.readline())
                self.play(pid, end, steps)
            finally:
                self.calm = False
                os.kill(pid, signal.SIGKILL if end == "kill" else signal.SIGTERM)
                until = time.monotonic() + PATIENCE_S
                while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    self.pump()
                    if time.monotonic() > until:
                        os.kill(pid, signal.SIGABRT)  # it says where it hangs
        status, told = os.waitstatus_to_exitcode(ended[1]), errors.read_text()
        assert status == (-signal.SIGKILL if end == "kill" else 0), told[-5000:]
        assert "Traceback" not in told, told[-5000:]
        self.pump()
        for one in self.clients:
            one.close()
        self.compare()

    def play(self, pid: int, end: str, steps: int) -> None:
        before, self.calm = self.left(pid), end == "calm"
        kinds = ["unix", "unix", "tcp" if self.tls is None else "tls", "http"]
        for _ in range(steps):
            here = [one for one in self.clients if not one.gone]
            if not here or (len(here) < CLIENTS and self.rng.random() < 0.3):
                here.append(Client(self, len(self.all), self.rng.choice(kinds)))
                self.clients.append(here[-1])
                self.all.append(here[-1])
            self.rng.choice(here).act()
            time.sleep(self.rng.random() / 200)
            self.pump()
        for one in self.clients:  # a server with TLS waits until those of HTTP read its end
            one.lazy &= one.kind != "http" and not self.calm
        if self.calm:
            wait_until(lambda: all(self.pump()))
            for one in self.clients:
                one.close()
            wait_until(lambda: self.left(pid) == before)

    def pump(self) -> list[bool]:
        """Let clients send and receive; return for those that are here whether none waits."""
        return [one.is_answered() for one in self.clients if not one.gone and one.pump()]

    def left(self, pid: int) -> list[int]:
        os.kill(pid, signal.SIGUSR1)
        return json.loads(self.answers.readline())  # type: ignore[no-any-return]

    def compare(self) -> None:
        found: dict[tuple[int, int], list[tuple[int, str, str]]] = {}
        with streamkeep.open(self.path, decode_responses=True) as store:
            for key in (*KEYS, COUNTER):
                for one, fields in store.xrange(key):
                    place = int(fields["client"]), int(fields["unit"])
                    found.setdefault(place, []).append((int(fields["part"]), key, one))
            counts = [int(fields["value"]) for _, fields in store.xrange(COUNTER)]
            assert counts == list(range(1, len(counts) + 1))
            for key in KEYS:
                self.compare_group(store, key)
        for each in self.all:
            newest: dict[str, tuple[int, ...]] = {}
            missing = None  # a unit that has done nothing
            for number, unit in enumerate(each.units):
                has = sorted(found.pop((each.number, number), []))
                where = each.number, number, unit, has, missing
                assert [key for _, key, _ in has] in ([], unit.adds), where
                if number < each.answered and unit.adds:
                    names = [name for _, _, name in has]
                    assert names == unit.ids if unit.ids is not None else names, where
                elif number >= each.answered:
                    assert not has or (missing is None and unit.end <= each.sent), where
                    missing = unit if unit.always and unit.adds and not has else missing
                for _, key, name in has:
                    at = tuple(map(int, name.split("-")))
                    assert at > newest.get(key, ()), where
                    newest[key] = at
        assert not found

    def compare_group(self, store: Any, key: str) -> None:
        """What was delivered is pending where it was, or acknowledged; no event is missing."""
        ids = [one for one, _ in store.xrange(key)]
        last = store.xinfo_groups(key)[0]["last-delivered-id"]
        delivered = ids[: ids.index(last) + 1] if last in ids else []
        rows = store.xpending_range(key, "g", "-", "+", 1_000_000)
        pending = {row["message_id"]: int(row["consumer"]) for row in rows}
        assert {*pending} | {one for of, one in self.taken if of == key} <= {*delivered}
        for one in delivered:
            if one not in pending:
                assert (key, one) in self.acks, (key, one, "is lost")
                continue
            client = self.all[pending[one]]
            asked = any(unit.takes and not unit.got for unit in client.units)
            owner = self.taken.get((key, one), client.number if asked else None)
            assert owner == client.number, (key, one, owner, client.number, client.kind)
            assert (key, one) not in self.acked, (key, one)
        for events in (one.events[key] for one in self.all if key in one.events):
            assert events == ids[: len(events)]


@pytest.mark.parametrize("seed", range(daily_or_all(1, 60)))
def test_each_command_has_its_effect_once_and_nothing_is_left_of_who_has_gone(
    tmp_path: Path, seed: int
) -> None:
    pytest.importorskip("starlette")
    world = World(tmp_path, seed)
    for end in world.rng.sample(["calm", "end", "kill"], 3):
        world.live(end, daily_or_all(100, 400))
    assert_sound(world.path)
