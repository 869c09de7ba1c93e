"""Commands of streams at random, some of them malformed, for a Redis of some version.

IDs are small and explicit, and times are pinned, so that no clock decides what a reply says; only
idempotent XADD, which must choose its IDs, has a stream of its own. What only a newer Redis knows
is left out for an older one.
"""

from __future__ import annotations

import random
from typing import Final

Words = list[bytes]
Version = tuple[int, ...]

KEYS: Final = (b"a", b"b", b"\x00\xff ")
CLOCKED: Final = b"clocked"  # the stream whose IDs the clock chooses
GROUPS: Final = (b"g", b"h")
CONSUMERS: Final = (b"ann", b"bob")
JUNK: Final = (b"", b"-", b"+", b"$", b">", b"x", b"-1", b"0", b"5-", b"(3-0", b"1-2-3", b"COUNT",
        b"99999999999999999999", b"~", b"=", b"18446744073709551615-18446744073709551615",
        b"a\r\nb", b"\xff\xfe", b"MAXLEN", b"JUSTID", b"FORCE", b"NOACK", b"STREAMS")  # fmt: skip
NEWER_JUNK: Final = (b"IDS", b"KEEPREF", b"ACKED", b"CLAIM", b"MAXCOUNT", b"MAXSIZE", b"IDMP",
        b"IDMPAUTO", b"SILENT", b"FATAL", b"RETRYCOUNT", b"1-0", b"05-2", b"+5-1", b" 5-1", b"5-+7",
        b"-5", b"5--1", b"5-*", b"*-5", b"5-1\x00-", b"MINID", b"LIMIT", b"ENTRIESREAD",
        b"MKSTREAM", b"MAXDELETEDID", b"IDLE", b"TIME", b"LASTID", b"FULL")  # fmt: skip

# Numbers at the edges of 16, 32 and 64 bits.
HUGE: Final = tuple(b"%d" % number for number in (
    32768, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
    -(2**31), -(2**63), -(2**63) - 1,
))  # fmt: skip

ALWAYS_A_CONSUMER: Final = (7, 2)  # XREADGROUP and XCLAIM create it even if they deliver nothing
LAST_ENTRY: Final = (7, 4)  # XREAD takes `+`
POLICIES: Final = (8, 2)  # KEEPREF, DELREF, ACKED, XDELEX, XACKDEL
CLAIMS: Final = (8, 4)  # XREADGROUP takes CLAIM
IDEMPOTENT: Final = (8, 6)  # XADD takes IDMP
NACKS: Final = (8, 8)  # XNACK
BUDGETS: Final = (8, 10)  # XREAD takes MAXCOUNT and MAXSIZE

_SINCE: Final = {
    "xackdel": POLICIES,
    "xcfgset": IDEMPOTENT,
    "xdelex": POLICIES,
    "xidmp": IDEMPOTENT,
    "xidmprecord": IDEMPOTENT,
    "xnack": NACKS,
}


# Commands with these words stay as they are made: they would wait, count entries backwards, or have
# an ID of the clock. So does XAUTOCLAIM with a huge COUNT, for which a server may have no memory.
_AS_MADE: Final = {b"BLOCK", b"ENTRIESADDED", b"*"}


class Generator:
    """Makes commands of streams at random, some of them malformed."""

    def __init__(self, seed: int, version: Version) -> None:
        self.random = random.Random(seed)
        self.version = version
        self._added = 0
        self._newest = version >= BUDGETS  # an older one refuses other words
        self._junk = JUNK + (NEWER_JUNK + HUGE if self._newest else ())
        self._made = {
            name[5:]: getattr(self, name)
            for name in dir(self)
            if name.startswith("make_") and version >= _SINCE.get(name[5:], (0,))
        }

    def command(self) -> list[Words]:
        """Return a command, with those that keep what an old server does otherwise from showing."""
        name = self.random.choice(sorted(self._made))
        if name == "xidmp":
            return [self._made[name]()]
        words = [name.upper().encode(), *self._made[name]()]
        if self.random.random() < 0.15:
            damaged = self._damaged(words)
            if not _AS_MADE.intersection(damaged) and not (
                name == "xautoclaim" and set(HUGE).intersection(damaged)
            ):
                words = damaged
        follow = []
        if self.version < ALWAYS_A_CONSUMER and words[0] == b"XGROUP" and len(words) > 3:
            follow = [[b"XGROUP", b"CREATECONSUMER", *words[2:4], one] for one in CONSUMERS]
        if self.random.random() < 0.1:
            words[0] = words[0].lower()
        return [words, *follow]

    def _damaged(self, words: Words) -> Words:
        place = self.random.randrange(1, len(words)) if len(words) > 1 else 0
        if self._newest and self.random.random() < 0.4:
            return self._disordered(words, place)
        kind = self.random.random()
        if kind < 0.3:
            return words[:place] + words[place + 1 :]
        if kind < 0.5:
            return [*words[:place], self.random.choice(self._junk), *words[place:]]
        if kind < 0.9:
            return [*words[:place], self.random.choice(self._junk), *words[place + 1 :]]
        return [*words, self.random.choice(self._junk)]

    def _disordered(self, words: Words, place: int) -> Words:
        """Return a command with words twice, at another place, or of another command."""
        taken = words[place : place + self.random.randrange(1, 4)]
        kind = self.random.random()
        if kind < 0.4:
            other = words
        elif kind < 0.8:
            other = words[:place] + words[place + len(taken) :]
        else:
            other = words
            taken = self._made[self.random.choice(sorted(self._made))]()
            first = self.random.randrange(len(taken))
            taken = taken[first : first + self.random.randrange(1, 4)]
        target = self.random.randrange(1, len(other) + 1) if other else 0
        return [*other[:target], *taken, *other[target:]]

    def _maybe(self, *words: bytes, chance: float = 0.3, since: Version = ()) -> Words:
        return list(words) if self.version >= since and self.random.random() < chance else []

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

    def _counted(self, ids: Words) -> Words:
        wrong = self.random.random() < 0.03
        return [b"IDS", b"%d" % (len(ids) + wrong), *ids]

    def _policy(self, chance: float = 0.5) -> Words:
        policy = self.random.choice([b"KEEPREF", b"DELREF", b"ACKED", b"acked"])
        return self._maybe(policy, chance=chance, since=POLICIES)

    def _budget(self) -> Words:
        most = b"%d" % self.random.randrange(20)
        size = b"%d" % self.random.randrange(400)
        found = self._maybe(b"MAXCOUNT", most, chance=0.15, since=BUDGETS)
        return found + self._maybe(b"MAXSIZE", size, chance=0.15, since=BUDGETS)

    def make_xadd(self) -> Words:
        pairs = [
            self.random.choice([b"f", b"", b"12", b"v" * 70, b"\xf0"])
            for _ in range(2 * self.random.randrange(1, 4))
        ]
        options = self._maybe(b"NOMKSTREAM", chance=0.1)
        options += self._maybe(b"MAXLEN", b"%d" % self.random.randrange(20), chance=0.2)
        options += self._maybe(b"MINID", b"=", self._id(), chance=0.05)
        options += self._policy(0.2)
        options += self._maybe(b"IDMP", b"p", b"i", chance=0.02, since=IDEMPOTENT)
        if self.random.random() < 0.15:
            return [self._key(), *options, b"%d-*" % self.random.randrange(40), *pairs]
        return [self._key(), *options, self._id(), *pairs]

    def make_xidmp(self) -> Words:
        """Idempotent XADD, and what shows what it has remembered."""
        kind = self.random.random()
        if kind < 0.1:
            return [b"XINFO", b"STREAM", CLOCKED, *self._maybe(b"FULL")]
        if kind < 0.2:
            return [b"XRANGE", CLOCKED, b"-", b"+", b"COUNT", b"5"]
        if kind < 0.25:
            return [b"DEL", CLOCKED]
        pairs = self.random.choice([[b"f", b"v"], [b"f", b"w"], [b"f", b"v", b"g", b"v"]])
        producer = self.random.choice([b"p", b"q", b"\xff"])
        iid = b"%d" % self.random.randrange(6)
        message = (
            [b"IDMP", producer, iid] if self.random.random() < 0.7 else [b"IDMPAUTO", producer]
        )
        trimmed = self._maybe(b"MAXLEN", b"=", b"3", chance=0.1)
        words = [b"XADD", CLOCKED, *self._maybe(b"NOMKSTREAM"), *trimmed, *message, b"*", *pairs]
        return words

    def make_xcfgset(self) -> Words:
        """XCFGSET, within its limits and outside."""
        seconds = self.random.choice([b"0", b"1000", b"86400", b"86401"])
        most = self.random.choice([b"1", b"3", b"10000", b"10001"])
        options = self._maybe(b"IDMP-DURATION", seconds, chance=0.6)
        options += self._maybe(b"IDMP-MAXSIZE", most, chance=0.6)
        return [self.random.choice([*KEYS, CLOCKED]), *options]

    def make_xidmprecord(self) -> Words:
        producer = self.random.choice([b"p", b"q", b""])
        return [self._key(), producer, b"%d" % self.random.randrange(3), self._id()]

    def make_xtrim(self) -> Words:
        """XTRIM, exact: `~` depends on tombstones, which a store removes."""
        if self.random.random() < 0.5:
            words = [b"MAXLEN", *self._maybe(b"="), self._number()]
        else:
            words = [b"MINID", self._id()]
        return [self._key(), *words, *self._policy(0.3)]

    def make_xdel(self) -> Words:
        """XDEL of IDs below those of XSETID: 7.0 does not compare it with what was deleted."""
        return [self._key(), *[b"%d-1" % self.random.randrange(30) for _ in range(2)]]

    def make_xdelex(self) -> Words:
        ids = [b"%d-%d" % (self.random.randrange(30), self.random.randrange(3)) for _ in range(3)]
        return [self._key(), *self._policy(), *self._counted(ids)]

    def make_xackdel(self) -> Words:
        ids = [b"%d-%d" % (self.random.randrange(30), self.random.randrange(3)) for _ in range(3)]
        return [*self._group(), *self._policy(), *self._counted(ids)]

    def make_xnack(self) -> Words:
        mode = self.random.choice([b"SILENT", b"FAIL", b"FATAL", b"fail"])
        options = [*self._maybe(b"RETRYCOUNT", self._number()), *self._maybe(b"FORCE")]
        return [*self._group(), mode, *self._counted(self._ids()), *options]

    def make_xlen(self) -> Words:
        return [self._key()]

    def make_xrange(self) -> Words:
        return [self._key(), self._bound(), self._bound(), *self._maybe(b"COUNT", self._number())]

    make_xrevrange = make_xrange

    def make_xread(self) -> Words:
        """XREAD, which finds something or returns at once."""
        count = self._maybe(b"COUNT", self._number())
        block = self._maybe(b"BLOCK", b"1", chance=0.02)
        keys = [self._key() for _ in range(self.random.randrange(1, 3))]
        last = [b"+"] if self.version >= LAST_ENTRY else []
        ids = [self.random.choice([self._id(), b"0", b"$", *last]) for _ in keys]
        return [*count, *self._budget(), *block, b"STREAMS", *keys, *ids]

    def make_xreadgroup(self) -> Words:
        keys = [self._key() for _ in range(self.random.randrange(1, 3))]
        ids = [self.random.choice([b">", b">", b"0", self._id()]) for _ in keys]
        options = [*self._maybe(b"COUNT", self._number()), *self._maybe(b"NOACK", chance=0.1)]
        options += self._budget()
        options += self._maybe(b"CLAIM", b"0", since=CLAIMS)
        group, consumer = self.random.choice(GROUPS), self.random.choice(CONSUMERS)
        return [b"GROUP", group, consumer, *options, b"STREAMS", *keys, *ids]

    def make_xack(self) -> Words:
        return [*self._group(), *self._ids()]

    def make_xgroup(self) -> Words:
        kind = self.random.random()
        if kind < 0.6:
            start = self.random.choice([b"0", b"$", self._id()])
            made = self._maybe(b"MKSTREAM", chance=0.7)
            return [b"CREATE", *self._group(), start, *made, *self._entries_read()]
        if kind < 0.75:
            start = self.random.choice([b"0", b"$", self._id()])
            return [b"SETID", *self._group(), start, *self._entries_read()]
        if kind < 0.82:
            return [b"DELCONSUMER", *self._group(), self.random.choice(CONSUMERS)]
        if kind < 0.85:
            return [b"CREATECONSUMER", *self._group(), self.random.choice(CONSUMERS)]
        if kind < 0.9:
            return [b"DESTROY", *self._group()]
        return [self.random.choice([b"NOSUCH", b"HELP", b"create"])]

    def _entries_read(self) -> Words:
        return self._maybe(b"ENTRIESREAD", self._number(), chance=0.2)

    def _min_idle(self) -> bytes:
        """Return a time that every entry was idle for, or none."""
        return b"0" if self.random.random() < 0.85 else b"1000000000000"

    def make_xclaim(self) -> Words:
        """XCLAIM, with times that no clock changes."""
        options = [
            *self._maybe(b"TIME", b"1000"),
            *self._maybe(b"IDLE", b"100000000", chance=0.1),
            *self._maybe(b"RETRYCOUNT", self._number()),
            *self._maybe(b"FORCE"),
            *self._maybe(b"JUSTID"),
            *self._maybe(b"LASTID", self._id(), chance=0.1),
        ]
        least = self._min_idle()
        return [*self._group(), self.random.choice(CONSUMERS), least, *self._ids(), *options]

    def make_xautoclaim(self) -> Words:
        options = [*self._maybe(b"COUNT", self._number()), *self._maybe(b"JUSTID")]
        start = self.random.choice([b"0", b"-", self._id()])
        least = self._min_idle()
        return [*self._group(), self.random.choice(CONSUMERS), least, start, *options]

    def make_xpending(self) -> Words:
        if self.random.random() < 0.4:
            return self._group()
        idle = self._maybe(b"IDLE", self._min_idle(), chance=0.2)
        consumer = self._maybe(self.random.choice(CONSUMERS))
        return [*self._group(), *idle, self._bound(), self._bound(), self._number(), *consumer]

    def make_xinfo(self) -> Words:
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
        self._added += 10_000  # never below what a group has read, which Redis counts on from
        added = self._maybe(b"ENTRIESADDED", b"%d" % self._added)
        added += self._maybe(b"MAXDELETEDID", self._id(), chance=0.2, since=BUDGETS)
        return [self._key(), b"%d-0" % self.random.randrange(30, 40), *added]

    def make_del(self) -> Words:
        return self._maybe(self._key(), chance=0.9) or [self._key(), b"no"]

    def make_rename(self) -> Words:
        return [self._key(), self._key()]

    def make_type(self) -> Words:
        return [self._key()]

    def make_exists(self) -> Words:
        return [self._key(), self._key()]

    def make_nosuch(self) -> Words:
        return [self._key()]
