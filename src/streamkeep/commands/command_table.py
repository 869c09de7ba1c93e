"""Every command that runs in a transaction: its arity, its keys, what it needs, and its function.

A name is that of Redis in small letters; a subcommand follows a bar: `xgroup|create`. The arity is
Redis's: the number of words, or minus the least number of them. Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from streamkeep.commands import entries, groups, keys, read, strings
from streamkeep.commands.entries import ids_and_policy
from streamkeep.commands.help_lines import SUMMARIES
from streamkeep.commands.replies import Status
from streamkeep.commands.words import SHOWN, integer, option, text_of, wrong_count
from streamkeep.engine.commands import xack, xdel, xgroup, xinfo
from streamkeep.engine.commands.xgroup import HELP
from streamkeep.format.core.errors import CommandError

Run = Callable[[Any, list[bytes], int], object]  # transaction, words, shape of entries
Parse = Callable[[list[bytes], int], read.Waiting]

READS: Final = 0
WRITES: Final = 1
FREES: Final = 2  # it makes room, so that it may use the reserve of a full store

# What a command does to a key; one that only asks whether there is such a key does neither.
READ: Final = 1
WRITE: Final = 2

# As the place of the first key:
STREAMS: Final = -1  # the keys are in the first half after the word STREAMS
SCRIPT: Final = -2  # the third word is the number of the keys that follow


class Spec:
    """What the server knows of a command.

    Attributes:
        kind: READS, WRITES or FREES.
        first, last: where its keys are, as in Redis's COMMAND; `first` 0 for none, and one key by
            default.
        parse: makes a call that may wait; such a command has no `run`.
        creates: it may create a store that is missing (`streamkeep exec`).
        container: its second word names a subcommand.
        rights: what it does to its keys, in their order, the last one for all that follow; by
            default READ or WRITE as it is of that kind. XCLAIM and XAUTOCLAIM return entries, and
            so need more than in Redis.
    """

    def __init__(
        self,
        name: str,
        arity: int,
        kind: int,
        first: int = 0,
        run: Run | None = None,
        *,
        last: int = 0,
        parse: Parse | None = None,
        creates: bool = False,
        container: bool = False,
        rights: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.arity = arity
        self.kind = kind
        self.first = first
        self.last = last or max(first, 0)
        self.run = run
        self.parse = parse
        self.creates = creates
        self.container = container
        self.rights = rights

    def takes(self, count: int) -> bool:
        """Return whether a command may have this number of words."""
        return self.arity == count if self.arity > 0 else count >= -self.arity

    def rights_of(self, words: list[bytes]) -> list[tuple[bytes, int]]:
        if self.name == "set" and any(option(word) == b"GET" for word in words[3:]):
            return [(key, READ | WRITE) for key in self.keys(words)]
        return self.rights_to(self.keys(words))

    def rights_to(self, keys: list[bytes]) -> list[tuple[bytes, int]]:
        """Return these keys, each with what the command does to it."""
        rights = self.rights or (READ if self.kind == READS else WRITE,)
        return [(key, rights[min(place, len(rights) - 1)]) for place, key in enumerate(keys)]

    def keys(self, words: list[bytes]) -> list[bytes]:
        if not self.first:
            return []
        if self.first == STREAMS:
            return _stream_keys(words)
        if self.first == SCRIPT:
            return _script_keys(words)
        last = self.last if self.last > 0 else len(words) + self.last
        return words[self.first : last + 1]


_READ_OPTIONS: Final = {  # with the numbers of their words
    b"BLOCK": 2, b"CLAIM": 2, b"COUNT": 2, b"GROUP": 3, b"MAXCOUNT": 2, b"MAXSIZE": 2, b"NOACK": 1,
}  # fmt: skip


def _stream_keys(words: list[bytes]) -> list[bytes]:
    """Return the keys of XREAD and XREADGROUP; none where the words are not in order."""
    at = 1
    while at < len(words):
        name = option(words[at])
        if name == b"STREAMS":
            count = len(words) - at - 1
            return [] if count % 2 else words[at + 1 : at + 1 + count // 2]
        size = _READ_OPTIONS.get(name)
        if size is None:
            break
        at += size
    return []


def _script_keys(words: list[bytes]) -> list[bytes]:
    """Return the keys of EVAL; none where their number is not right."""
    try:
        count = integer(words[2])
    except CommandError:
        return []
    return words[3 : 3 + count] if 0 < count <= len(words) - 3 else []


SPECS: Final[tuple[Spec, ...]] = (
    Spec("xadd", -5, WRITES, 1, entries.run_xadd, creates=True),
    Spec("xtrim", -4, FREES, 1, entries.run_xtrim),
    Spec("xdel", -3, FREES, 1, lambda t, w, _: xdel.xdel(t, w[1], w[2:])),
    Spec("xdelex", -5, FREES, 1, lambda t, w, _: xack.xdelex(t, w[1], *ids_and_policy(w, 2))),
    Spec("xlen", 2, READS, 1, read.run_xlen, rights=(0,)),
    Spec(
        "xrange", -4, READS, 1, lambda t, w, shape: read.run_range(t, w, w[2], w[3], False, shape)
    ),
    Spec(
        "xrevrange", -4, READS, 1, lambda t, w, shape: read.run_range(t, w, w[3], w[2], True, shape)
    ),
    Spec("xread", -4, READS, STREAMS, parse=read.parse_xread),
    Spec("xreadgroup", -7, WRITES, STREAMS, parse=read.parse_xreadgroup, rights=(READ,)),
    Spec("xsetid", -3, WRITES, 1, entries.run_xsetid),
    Spec("xcfgset", -2, WRITES, 1, entries.run_xcfgset),
    Spec("xidmprecord", 5, WRITES, 1, entries.run_xidmprecord),
    Spec("xgroup", -2, WRITES, container=True),
    Spec("xgroup|create", -5, WRITES, 2, groups.run_xgroup_create, creates=True),
    Spec("xgroup|setid", -5, WRITES, 2, groups.run_xgroup_setid),
    Spec("xgroup|destroy", 4, FREES, 2, lambda t, w, _: int(xgroup.xgroup_destroy(t, w[2], w[3]))),
    Spec(
        "xgroup|createconsumer",
        5,
        WRITES,
        2,
        lambda t, w, _: xgroup.xgroup_createconsumer(t, *w[2:]),
    ),
    Spec("xgroup|delconsumer", 5, FREES, 2, lambda t, w, _: xgroup.xgroup_delconsumer(t, *w[2:])),
    Spec("xgroup|help", 2, READS, run=lambda *_: list(map(Status, HELP["XGROUP"]))),
    Spec("xack", -4, FREES, 1, lambda t, w, _: xack.xack(t, w[1], w[2], w[3:])),
    Spec(
        "xackdel", -6, FREES, 1, lambda t, w, _: xack.xackdel(t, w[1], w[2], *ids_and_policy(w, 3))
    ),
    Spec("xnack", -7, WRITES, 1, groups.run_xnack),
    Spec("xpending", -3, READS, 1, groups.run_xpending),
    Spec("xclaim", -6, WRITES, 1, groups.run_xclaim, rights=(READ | WRITE,)),
    Spec("xautoclaim", -6, WRITES, 1, groups.run_xautoclaim, rights=(READ | WRITE,)),
    Spec("xinfo", -2, READS, container=True),
    Spec("xinfo|stream", -3, READS, 2, groups.run_xinfo_stream),
    Spec("xinfo|groups", 3, READS, 2, lambda t, w, _: xinfo.xinfo_groups(t, w[2])),
    Spec("xinfo|consumers", 4, READS, 2, lambda t, w, _: xinfo.xinfo_consumers(t, w[2], w[3])),
    Spec("xinfo|help", 2, READS, run=lambda *_: list(map(Status, HELP["XINFO"]))),
    Spec("del", -2, FREES, 1, lambda t, w, _: strings.delete_keys(t, w[1:]), last=-1),
    Spec("unlink", -2, FREES, 1, lambda t, w, _: strings.delete_keys(t, w[1:]), last=-1),
    Spec("exists", -2, READS, 1, keys.run_exists, last=-1, rights=(0,)),
    Spec("touch", -2, READS, 1, keys.run_exists, last=-1, rights=(0,)),
    Spec("type", 2, READS, 1, keys.run_type, rights=(0,)),
    Spec("rename", 3, FREES, 1, keys.run_rename, last=2, rights=(READ | WRITE, WRITE)),
    Spec("renamenx", 3, WRITES, 1, keys.run_renamenx, last=2, rights=(READ | WRITE, WRITE)),
    Spec("copy", -3, WRITES, 1, keys.run_copy, last=2, rights=(READ, WRITE)),
    Spec("keys", 2, READS, run=keys.run_keys),
    Spec("scan", -2, READS, run=keys.run_scan),
    Spec("randomkey", 1, READS, run=keys.run_randomkey),
    Spec("dbsize", 1, READS, run=lambda t, w, _: keys.count_keys(t)),
    Spec("dump", 2, READS, 1, keys.run_dump),
    Spec("restore", -4, WRITES, 1, keys.run_restore, creates=True),
    Spec("object", -2, READS, container=True),
    Spec("object|encoding", 3, READS, 2, keys.run_object_encoding, rights=(0,)),
    Spec("object|refcount", 3, READS, 2, keys.run_object_refcount, rights=(0,)),
    Spec("object|idletime", 3, READS, 2, keys.run_object_idletime, rights=(0,)),
    Spec("object|freq", 3, READS, 2, keys.run_object_freq, rights=(0,)),
    Spec("object|help", 2, READS, run=lambda *_: help_of("object", SPECS)),
    Spec("memory", -2, READS, container=True),
    Spec("memory|usage", -3, READS, 2, keys.run_memory_usage, rights=(0,)),
    Spec("memory|help", 2, READS, run=lambda *_: help_of("memory", SPECS)),
)

# Commands that only a server has, since it must take care of deadlines.
SERVER_SPECS: Final = (
    Spec("flushdb", -1, FREES, run=keys.run_flush),
    Spec("flushall", -1, FREES, run=keys.run_flush),
    Spec("set", -3, WRITES, 1, strings.run_set),
    Spec("get", 2, READS, 1, strings.run_get),
    *(
        Spec(name, -3, WRITES, 1, strings.run_expire)
        for name in ("expire", "pexpire", "expireat", "pexpireat")
    ),
    Spec("persist", 2, WRITES, 1, strings.run_persist),
    *(
        Spec(name, 2, READS, 1, strings.run_ttl)
        for name in ("ttl", "pttl", "expiretime", "pexpiretime")
    ),
    Spec("eval", -3, WRITES, SCRIPT, strings.run_eval, rights=(READ | WRITE,)),
    Spec("evalsha", -3, WRITES, SCRIPT, strings.run_eval, rights=(READ | WRITE,)),
)


def help_of(container: str, specs: Iterable[Spec]) -> list[Status]:
    """Return the reply of HELP for a command whose subcommands are among these."""
    lines = [f"{container.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for spec in specs:
        name, _, sub = spec.name.partition("|")
        if name == container and sub not in ("", "help"):
            lines.append(sub.upper())
            if spec.name in SUMMARIES:
                lines.append(f"    {SUMMARIES[spec.name]}")
    return list(map(Status, [*lines, "HELP", "    Print this help."]))


def by_name(specs: Iterable[Spec]) -> dict[bytes, Spec]:
    found = {spec.name.encode(): spec for spec in specs}
    return {**found, **{name.upper(): spec for name, spec in found.items()}}


BY_NAME: Final = by_name(SPECS)


def find(words: list[bytes], table: dict[bytes, Spec] = BY_NAME) -> Spec:
    """Return the command that the words name, whose number of words is checked.

    Raises:
        CommandError: there is none, or it takes another number of words.
    """
    spec = look_up(words, table)
    if not spec.takes(len(words)):
        raise wrong_count(spec.name)
    return spec


def look_up(words: list[bytes], table: dict[bytes, Spec]) -> Spec:
    """Return the command that the words name, with any number of words."""
    spec = table.get(words[0])
    if spec is None:
        spec = table.get(words[0].upper())
        if spec is None:
            raise unknown(words)
    if spec.container and len(words) > 1:
        sub = table.get(words[0].upper() + b"|" + words[1].upper())
        if sub is None:
            raise CommandError(
                f"unknown subcommand '{text_of(words[1][:SHOWN])}'. Try {spec.name.upper()} HELP."
            )
        spec = sub
    return spec


def unknown(words: list[bytes]) -> CommandError:
    args = b""
    for word in words[1:]:
        if len(args) >= SHOWN:
            break
        args += b"'%b' " % word[: SHOWN - len(args)].partition(b"\0")[0]
    more = f", with args beginning with: {text_of(args)}" if args else ""
    return CommandError(f"unknown command '{text_of(words[0][:SHOWN])}'{more}")
