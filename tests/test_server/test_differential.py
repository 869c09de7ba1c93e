"""The server against a real redis-server: the same bytes sent, the same bytes received.

IDs and times are pinned, or taken out of the replies. Where 7.0 differs from the newest Redis,
whose commands the server has, `_same` says how, in a comment that begins with `7.0`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_redis.server import RealRedis, running_redis
from resp_peer import Line, Peer, Running, decode, serving
from stores import open_at
from streamkeep.format.redis.resp import encode_command
from tiers import daily_or_all

pytestmark = pytest.mark.redis

Words = list[bytes]
KEYS = (b"a", b"b", b"\x00\xff ")
GROUPS = (b"g", b"h")
CONSUMERS = (b"ann", b"bob")
JUNK = (b"", b"-", b"+", b"$", b">", b"x", b"-1", b"0", b"5-", b"(3-0", b"1-2-3", b"COUNT",
        b"99999999999999999999", b"~", b"=", b"18446744073709551615-18446744073709551615",
        b"a\r\nb", b"\xff\xfe", b"MAXLEN", b"JUSTID", b"FORCE", b"NOACK", b"STREAMS")  # fmt: skip


@pytest.fixture(scope="module")
def real() -> Iterator[RealRedis]:
    """A server for all tests of this file."""
    with running_redis() as server:
        yield server


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Running]:
    """The server of a store."""
    with open_at(tmp_path / "s", sync="none") as store, serving(store, tmp_path / "k") as running:
        yield running


class Generator:
    """Makes commands of streams at random, some of them malformed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._made = {
            name[5:].upper().encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("make_")
        }

    def command(self) -> list[Words]:
        """Return a command, with those that keep what 7.0 does otherwise from showing."""
        name = self.random.choice(sorted(self._made))
        words = [name, *self._made[name]()]
        if self.random.random() < 0.15:
            words = self._damaged(words)
        follow = []
        if words[0] == b"XGROUP" and len(words) > 3:
            # 7.0: XREADGROUP and XCLAIM that deliver nothing create no consumer.
            follow = [[b"XGROUP", b"CREATECONSUMER", *words[2:4], one] for one in CONSUMERS]
        if self.random.random() < 0.1:
            words[0] = words[0].lower()
        return [words, *follow]

    def _damaged(self, words: Words) -> Words:
        place = self.random.randrange(1, len(words)) if len(words) > 1 else 0
        kind = self.random.random()
        if kind < 0.3:
            return words[:place] + words[place + 1 :]
        if kind < 0.5:
            return [*words[:place], self.random.choice(JUNK), *words[place:]]
        if kind < 0.9:
            return [*words[:place], self.random.choice(JUNK), *words[place + 1 :]]
        return [*words, self.random.choice(JUNK)]

    def _maybe(self, *words: bytes, chance: float = 0.3) -> Words:
        return list(words) if self.random.random() < chance else []

    def _id(self) -> bytes:
        ms, seq = self.random.randrange(1, 40), self.random.randrange(3)
        return b"%d-%d" % (ms, seq) if self.random.random() < 0.8 else b"%d" % ms

    def _key(self) -> bytes:
        return self.random.choice(KEYS)

    def _group(self) -> Words:
        return [self._key(), self.random.choice(GROUPS)]

    def _number(self) -> bytes:
        return b"%d" % self.random.randrange(-1, 12)

    def _bound(self) -> bytes:
        return self.random.choice([b"-", b"+", self._id(), b"(" + self._id()])

    def _ids(self) -> Words:
        return [self._id() for _ in range(self.random.randrange(1, 4))]

    def make_xadd(self) -> Words:
        """XADD."""
        pairs = [
            self.random.choice([b"f", b"", b"12", b"v" * 70, b"\xf0"])
            for _ in range(2 * self.random.randrange(1, 4))
        ]
        options = self._maybe(b"NOMKSTREAM", chance=0.1)
        options += self._maybe(b"MAXLEN", b"%d" % self.random.randrange(20), chance=0.2)
        options += self._maybe(b"MINID", b"=", self._id(), chance=0.05)
        return [self._key(), *options, self._id(), *pairs]

    def make_xtrim(self) -> Words:
        """XTRIM, exact: `~` depends on tombstones, which a store removes."""
        if self.random.random() < 0.5:
            return [self._key(), b"MAXLEN", *self._maybe(b"="), self._number()]
        return [self._key(), b"MINID", self._id()]

    def make_xdel(self) -> Words:
        """XDEL of IDs below those of XSETID: 7.0 does not compare it with what was deleted."""
        return [self._key(), *[b"%d-1" % self.random.randrange(30) for _ in range(2)]]

    def make_xlen(self) -> Words:
        """XLEN."""
        return [self._key()]

    def make_xrange(self) -> Words:
        """XRANGE."""
        return [self._key(), self._bound(), self._bound(), *self._maybe(b"COUNT", self._number())]

    make_xrevrange = make_xrange

    def make_xread(self) -> Words:
        """XREAD, which finds something or returns at once."""
        count = self._maybe(b"COUNT", self._number())
        block = self._maybe(b"BLOCK", b"1", chance=0.02)
        keys = [self._key() for _ in range(self.random.randrange(1, 3))]
        ids = [self.random.choice([self._id(), b"0", b"$"]) for _ in keys]
        return [*count, *block, b"STREAMS", *keys, *ids]

    def make_xreadgroup(self) -> Words:
        """XREADGROUP."""
        keys = [self._key() for _ in range(self.random.randrange(1, 3))]
        ids = [self.random.choice([b">", b">", b"0", self._id()]) for _ in keys]
        options = [*self._maybe(b"COUNT", self._number()), *self._maybe(b"NOACK", chance=0.1)]
        group, consumer = self.random.choice(GROUPS), self.random.choice(CONSUMERS)
        return [b"GROUP", group, consumer, *options, b"STREAMS", *keys, *ids]

    def make_xack(self) -> Words:
        """XACK."""
        return [*self._group(), *self._ids()]

    def make_xgroup(self) -> Words:
        """XGROUP."""
        kind = self.random.random()
        if kind < 0.6:
            start = self.random.choice([b"0", b"$", self._id()])
            return [b"CREATE", *self._group(), start, *self._maybe(b"MKSTREAM", chance=0.7)]
        if kind < 0.75:
            return [b"SETID", *self._group(), self.random.choice([b"0", b"$", self._id()])]
        if kind < 0.85:
            return [b"DELCONSUMER", *self._group(), self.random.choice(CONSUMERS)]
        if kind < 0.9:
            return [b"DESTROY", *self._group()]
        return [self.random.choice([b"NOSUCH", b"HELP", b"create"])]

    def make_xclaim(self) -> Words:
        """XCLAIM, with times that no clock changes."""
        options = [
            *self._maybe(b"TIME", b"1000"),
            *self._maybe(b"RETRYCOUNT", self._number()),
            *self._maybe(b"FORCE"),
            *self._maybe(b"JUSTID"),
            *self._maybe(b"LASTID", self._id(), chance=0.1),
        ]
        return [*self._group(), self.random.choice(CONSUMERS), b"0", *self._ids(), *options]

    def make_xautoclaim(self) -> Words:
        """XAUTOCLAIM."""
        options = [*self._maybe(b"COUNT", self._number()), *self._maybe(b"JUSTID")]
        start = self.random.choice([b"0", b"-", self._id()])
        return [*self._group(), self.random.choice(CONSUMERS), b"0", start, *options]

    def make_xpending(self) -> Words:
        """XPENDING."""
        if self.random.random() < 0.4:
            return self._group()
        idle = self._maybe(b"IDLE", b"0", chance=0.2)
        consumer = self._maybe(self.random.choice(CONSUMERS))
        return [*self._group(), *idle, self._bound(), self._bound(), self._number(), *consumer]

    def make_xinfo(self) -> Words:
        """XINFO."""
        kind = self.random.random()
        if kind < 0.3:
            return [b"STREAM", self._key()]
        if kind < 0.5:
            return [b"STREAM", self._key(), b"FULL", *self._maybe(b"COUNT", self._number())]
        if kind < 0.7:
            return [b"GROUPS", self._key()]
        if kind < 0.9:
            return [b"CONSUMERS", *self._group()]
        return [b"HELP"]

    def make_xsetid(self) -> Words:
        """XSETID."""
        added = self._maybe(b"ENTRIESADDED", b"%d" % self.random.randrange(60))
        return [self._key(), b"%d-0" % self.random.randrange(30, 40), *added]

    def make_del(self) -> Words:
        """DEL."""
        return self._maybe(self._key(), chance=0.9) or [self._key(), b"no"]

    def make_rename(self) -> Words:
        """RENAME."""
        return [self._key(), self._key()]

    def make_type(self) -> Words:
        """TYPE."""
        return [self._key()]

    def make_exists(self) -> Words:
        """EXISTS."""
        return [self._key(), self._key()]

    def make_nosuch(self) -> Words:
        """No command of Redis."""
        return [self._key()]


def _without(pairs: Any, *names: bytes) -> Any:
    """Return a map, flat or not, without some names."""
    if isinstance(pairs, list):
        pairs = dict(zip(pairs[0::2], pairs[1::2], strict=True))
    return {name: value for name, value in pairs.items() if name not in names}


# 7.0: these do not exist, or are computed without the corrections of later versions.
_NEWER = (b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added",
          b"iids-duplicates", b"radix-tree-keys", b"radix-tree-nodes", b"nacked-count", b"lag",
          b"entries-read", b"inactive", b"active-time")  # fmt: skip
_TIMES = (b"idle", b"seen-time")


def _same(words: Words, reply: bytes) -> Any:
    """Return a reply without what differs between the versions, or follows the clock."""
    name = words[0].upper()
    if name in (b"XREAD", b"XREADGROUP") and b"+" in words:
        return None  # 7.0: `+` is not an ID
    value = decode(reply)
    if isinstance(value, Line):
        # 7.0: names the command otherwise, and has no `+` for XREAD.
        return re.sub("Unbalanced '?xread(group)?'? list.*", "Unbalanced", value, flags=re.I)
    if name == b"XINFO" and isinstance(value, (dict, list)) and value:
        kind = words[1].upper()
        if kind == b"STREAM":
            found = _without(value, *_NEWER)
            if isinstance(found.get(b"groups"), list):
                found[b"groups"] = [_full_group(one) for one in found[b"groups"]]
            return found
        if kind in (b"GROUPS", b"CONSUMERS"):
            found = [_without(one, *_NEWER, *_TIMES, b"consumers") for one in value]
            return found if kind == b"GROUPS" else _known(found)
        return value[:-1]  # 7.0: the last line of HELP is "Prints this help."
    if name == b"XGROUP" and isinstance(value, list):
        return value[:-1]
    if name == b"XPENDING" and isinstance(value, list) and len(words) > 3:
        return [[*row[:2], row[3]] for row in value]
    return reply


def _known(consumers: list[Any]) -> list[Any]:
    """Return consumers without those that a damaged command names; 7.0 may not create them."""
    return [one for one in consumers if one[b"name"] in CONSUMERS]


def _full_group(group: Any) -> Any:
    found = _without(group, *_NEWER)
    found[b"pending"] = [[*row[:2], row[3]] for row in found[b"pending"]]
    consumers = _known([_without(one, *_NEWER, *_TIMES) for one in found[b"consumers"]])
    for one in consumers:
        one[b"pending"] = [[row[0], row[2]] for row in one[b"pending"]]
    return {**found, b"consumers": consumers}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, daily_or_all(300, 2_000)), *(pytest.param(seed, 6_000, marks=[pytest.mark.slow])
                                      for seed in range(2, 10))],
)  # fmt: skip
def test_replies_are_the_bytes_of_redis(
    real: RealRedis, ours: Running, seed: int, count: int, protocol: int
) -> None:
    real.call(b"FLUSHALL")
    generator = Generator(seed)
    with Peer(real_path(real)) as theirs, Peer(ours.path) as mine:
        if protocol == 3:
            for peer in (theirs, mine):
                peer.call("HELLO", 3)
        for peer in (theirs, mine):
            peer.call("CONFIG", "SET", "stream-node-max-entries", 5)
        done = 0
        while done < count:
            batch = [words for _ in range(generator.random.randrange(1, 9))
                     for words in generator.command()]  # fmt: skip
            data = b"".join(encode_command(*words) for words in batch)
            for peer in (theirs, mine):
                peer.socket.sendall(data)
            for words in batch:
                expected, found = theirs.read(), mine.read()
                assert _same(words, found) == _same(words, expected), (done, words)
            done += len(batch)


def real_path(real: RealRedis) -> str:
    """Return the path of the server's socket."""
    return str(real._connection.path)
