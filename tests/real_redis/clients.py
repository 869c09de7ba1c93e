"""Several clients of two servers: they wait, watch, and send transactions, in lock step.

Each step is one command of one client, sent to both servers. When both have answered another
client twice, all that the command has caused is done, and the clients that wait may have replies.
"""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any, Final

from real_redis.commands import CONSUMERS, GROUPS, KEYS, Generator, Words
from real_redis.replies import Replies
from resp_peer import Peer, reply_end

STRINGS: Final = (b"lock", b"string")


class Client:
    """One client of each server."""

    def __init__(self, paths: tuple[Path | str, Path | str]) -> None:
        self.peers = [Peer(path) for path in paths]
        self.ids = [peer.ask("CLIENT", "ID") for peer in self.peers]
        self.queued: list[Words] | None = None
        self.waits: Words = []

    def replies(self) -> list[bytes | None]:
        """Return what both servers have sent; None for nothing."""
        return [_poll(peer) for peer in self.peers]


def _poll(peer: Peer) -> bytes | None:
    while True:
        end = reply_end(peer._data, 0) if peer._data else None
        if end is not None:
            reply, peer._data = peer._data[:end], peer._data[end:]
            return reply
        if not select.select([peer.socket], [], [], 0)[0]:
            return None
        more = peer.socket.recv(1 << 16)
        assert more, "a server closed a connection"
        peer._data += more


class Clients:
    """Clients, and the commands that they send at random."""

    def __init__(
        self,
        generator: Generator,
        paths: tuple[Path | str, Path | str],
        protocol: int,
        number: int = 6,
    ) -> None:
        self.generator = generator
        self.random = generator.random
        self.all = [Client(paths) for _ in range(number)]
        self.bystander = Client(paths)
        self.made = [Replies(generator.version) for _ in range(2)]
        for client in self.all:
            for peer in client.peers:
                peer.call("HELLO", protocol)

    def close(self) -> None:
        for client in [*self.all, self.bystander]:
            for peer in client.peers:
                peer.close()

    def step(self) -> list[tuple[int, Words, list[Any]]]:
        """Let one client send a command; return what both servers sent to each client that waits.

        The items are the number of the client, its command, and both replies, None for nothing.
        """
        free = [client for client in self.all if not client.waits]
        if not free or self.random.random() < 0.02:
            client = self.bystander
            other = self.random.choice(self.all)
            how = self.random.choice([[], [b"TIMEOUT"], [b"ERROR"]])
            words = [b"CLIENT", b"UNBLOCK", b"", *how]
            for peer, number in zip(client.peers, other.ids, strict=True):
                peer.send(*words[:2], b"%d" % number, *how)
        else:
            client = self.random.choice(free)
            words = self._restored() if self.random.random() < 0.02 else self._words(client)
            for peer in client.peers:
                peer.send(*words)
        found: list[tuple[int, Words, list[Any]]] = []
        answers: list[bytes | None] = [None, None]
        if b"BLOCK" not in words or client.queued is not None:
            answers = [peer.read() for peer in client.peers]
            if client is self.bystander:
                found.append((-1, words, answers))
        for _ in range(2):
            for peer in self.bystander.peers:
                assert peer.call("PING") == b"+PONG\r\n"
        for number, one in enumerate(self.all):
            if one is client or one.waits:
                replies = answers if one is client and answers[0] else one.replies()
                sent = one.waits or words
                found.append((number, sent, self._comparable(one, sent, replies)))
                one.waits = sent if replies == [None, None] else []
        return found

    def _comparable(self, client: Client, words: Words, replies: list[bytes | None]) -> list[Any]:
        name = words[0].upper()
        queued = client.queued
        if replies == [b"+QUEUED\r\n"] * 2 and queued is not None:
            queued.append(words)
        elif name == b"MULTI" and queued is None:
            client.queued = []
        elif name == b"EXEC" or (name == b"DISCARD" and len(words) == 1):
            client.queued = None
        if name == b"EXEC" and all(reply and reply[:1] == b"*" for reply in replies):
            return [
                [made.comparable(*one) for one in zip(queued or [], _elements(reply), strict=True)]
                if reply[:2] != b"*-"
                else reply
                for made, reply in zip(self.made, replies, strict=True)
                if reply
            ]
        return [
            reply and made.comparable(words, reply)
            for made, reply in zip(self.made, replies, strict=True)
        ]

    def _words(self, client: Client) -> Words:
        chance = self.random.random()
        if client.queued is not None and chance < 0.3:
            return [self.random.choice([b"EXEC", b"EXEC", b"EXEC", b"DISCARD", b"WATCH"]), *(
                [b"a"] if self.random.random() < 0.03 else []
            )]  # fmt: skip
        if chance < 0.38:
            return [b"MULTI"]
        if chance < 0.44:
            return [b"WATCH", *self._some([*KEYS, *STRINGS])]
        if chance < 0.46:
            return [self.random.choice([b"UNWATCH", b"EXEC", b"DISCARD"])]
        if chance < 0.6:
            return self._waiting()
        if chance < 0.75:
            return self._other()
        words = self.generator.command()[0]
        # No time may decide what a reply says: here, consumers see an XGROUP SETID some time later.
        return [b"PING"] if b"BLOCK" in words or b"SETID" in words else words

    def _restored(self) -> Words:
        """Return RESTORE of what one of the servers dumps."""
        payload = self.random.choice(self.bystander.peers).ask("DUMP", self.random.choice(KEYS))
        return [b"RESTORE", self.random.choice(KEYS), b"0", payload or b"none", b"REPLACE"]

    def _some(self, names: list[bytes]) -> Words:
        return [self.random.choice(names) for _ in range(self.random.randrange(1, 3))]

    def _waiting(self) -> Words:
        keys = self._some(list(KEYS))
        count = [b"COUNT", b"1"] if self.random.random() < 0.4 else []
        block = [b"BLOCK", b"0"]
        if self.random.random() < 0.4:
            ids = [self.random.choice([b"$", b"$", b"+", b"20", b"45-1"]) for _ in keys]
            return [b"XREAD", *count, *block, b"STREAMS", *keys, *ids]
        noack = [b"NOACK"] if self.random.random() < 0.2 else []
        claim = [b"CLAIM", b"10000000000"] if self.random.random() < 0.3 else []
        group, consumer = self.random.choice(GROUPS), self.random.choice(CONSUMERS)
        return [
            b"XREADGROUP", b"GROUP", group, consumer, *count, *block, *noack, *claim,
            b"STREAMS", *keys, *[b">"] * len(keys),
        ]  # fmt: skip

    def _other(self) -> Words:
        key, string = self.random.choice(KEYS), self.random.choice(STRINGS)
        value = self.random.choice([b"x", b"y"])
        one = self.random.choice([key, string])
        later = b"400000000%d" % self.random.randrange(5)
        return self.random.choice([
            [b"SET", string, value],
            [b"SET", string, value, self.random.choice([b"NX", b"XX", b"GET"])],
            [b"SET", string, value, self.random.choice([b"IFEQ", b"IFNE"]), b"x"],
            [b"GET", string],
            [b"DEL", *self._some([*KEYS, *STRINGS])],
            [b"RENAME", key, self.random.choice(KEYS)],
            [b"RENAMENX", string, self.random.choice(STRINGS)],
            [b"COPY", string, self.random.choice(STRINGS), b"REPLACE"],
            [b"COPY", key, self.random.choice(KEYS), *([b"REPLACE"] * self.random.randrange(2))],
            [b"SET", string, value, b"PXAT", later + b"123", b"GET"],
            [b"SET", string, value, b"KEEPTTL"],
            [b"EXPIREAT", one, later],
            [b"EXPIREAT", one, later, self.random.choice([b"NX", b"XX", b"GT", b"LT"])],
            [b"PEXPIRETIME", one],
            [b"PERSIST", one],
            [b"XADD", key, b"%d-0" % self.random.randrange(20, 60), b"f", b"v"],
            [b"XADD", key, b"MAXLEN", b"1", b"%d-0" % self.random.randrange(20, 60), b"f", b"v"],
            [b"XGROUP", b"CREATE", key, self.random.choice(GROUPS), b"$", b"MKSTREAM"],
            [b"XGROUP", b"DESTROY", key, self.random.choice(GROUPS)],
            [b"FLUSHALL"] if self.random.random() < 0.1 else [b"PING"],
            [b"TYPE", key],
            [b"COMMAND", b"GETKEYS", *self.generator.command()[0]],
        ])  # fmt: skip


def _elements(reply: bytes) -> list[bytes]:
    at = reply.index(b"\r\n") + 2
    elements = []
    while at < len(reply):
        end = reply_end(reply, at)
        assert end is not None, reply
        elements.append(reply[at:end])
        at = end
    return elements
