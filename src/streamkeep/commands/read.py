"""XLEN, XRANGE, XREVRANGE, and the words of XREAD and XREADGROUP. Compiled by mypyc."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from streamkeep.commands.replies import NIL_ARRAY, Named
from streamkeep.commands.words import integer, option, syntax
from streamkeep.engine.blocking.calls import BlockingCall, GroupCall, ReadCall
from streamkeep.engine.commands import xread, xreadgroup
from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Found, SentEntries
from streamkeep.engine.commands.xrange import read_entries
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.errors import CommandError
from streamkeep.format.node.node import PAIRS, RESP
from streamkeep.format.node.ranges import MOST_SENT, Range

_MOST_MS: Final = (1 << 63) - 1


def run_xlen(txn: Txn, words: list[bytes], shape: int) -> object:
    stream = txn.find_stream(words[1])
    return 0 if stream is None else int(stream.record.length)


def run_range(
    txn: Txn, words: list[bytes], low: bytes, high: bytes, newest_first: bool, shape: int
) -> object:
    start = range_start(low)
    end = range_end(high)
    count = -1
    at = 4
    while at < len(words):
        if option(words[at]) != b"COUNT" or at + 1 == len(words):
            raise syntax()
        count = max(integer(words[at + 1]), 0)
        at += 2
    stream = txn.find_stream(words[1])
    if stream is None:
        return []
    if count == 0:
        return NIL_ARRAY
    limit = min(count, NO_LIMIT) if count > 0 else NO_LIMIT
    wanted = Range(start[0], start[1], end[0], end[1], limit, newest_first, shape)
    out: list[object] = []
    if stream.record.length and start <= end:
        read_entries(txn, stream, wanted, out)
    if wanted.cut:
        raise CommandError(
            f"the reply would have more than {MOST_SENT >> 20} MB; ask for fewer entries with COUNT"
        )
    if wanted.sent is not None:
        return SentEntries(limit - int(wanted.limit), wanted.sent.data())
    return out


class Waiting:
    """A call of XREAD or XREADGROUP: what it runs, and how long it may wait (-1: not at all)."""

    def __init__(self, call: BlockingCall, block_ms: int, keys: list[bytes]) -> None:
        self.call = call
        self.block_ms = block_ms
        self.keys = keys

    def run(self, txn: Txn) -> object:
        """Run it once; the null array if there is nothing to return."""
        run: Callable[[Any], Found] = self.call.run  # looked up: XREAD takes any transaction
        found = run(txn)
        return Named(found) if found else NIL_ARRAY


def parse_xread(words: list[bytes], shape: int) -> Waiting:
    options = _Options(words, False)
    streams = [(name, xread.parse_read_id(text)) for name, text in options.streams()]
    call = ReadCall(streams, options.count, options.max_count, options.max_size, shape)
    return Waiting(call, options.block_ms, [name for name, _ in streams])


def parse_xreadgroup(words: list[bytes], shape: int) -> Waiting:
    options = _Options(words, True)
    if options.max_size and shape == RESP:
        shape = int(PAIRS)
    delivery = xreadgroup.Delivery(
        options.group, options.consumer, options.count, options.noack, options.min_idle, shape
    )
    streams = [(name, xreadgroup.parse_position(text)) for name, text in options.streams()]
    call = GroupCall(streams, delivery, options.max_count, options.max_size)
    return Waiting(call, options.block_ms, [name for name, _ in streams])


class _Options:
    def __init__(self, words: list[bytes], has_group: bool) -> None:
        self.words = words
        self.count = 0
        self.block_ms = -1
        self.max_count = 0
        self.max_size = 0
        self.grouped = False
        self.group = b""
        self.consumer = b""
        self.noack = False
        self.min_idle: int | None = None
        self.first = 0  # the place of the first key
        at = 1
        while at < len(words) and not self.first:
            at += self._take(at, len(words) - at - 1, has_group)
        if not self.first:
            raise syntax()
        if has_group and not self.grouped:
            raise CommandError("Missing GROUP option for XREADGROUP")
        if 0 < self.max_count < self.count:
            raise CommandError("MAXCOUNT must be greater than or equal to COUNT")

    def _take(self, at: int, more: int, has_group: bool) -> int:
        """Read the option at a place; return how many words it has."""
        words = self.words
        name = option(words[at])
        if name == b"STREAMS" and more:
            if more % 2:
                what = "an ID or '>'" if has_group else "an ID, '+', or '$'"
                raise CommandError(
                    f"Unbalanced '{'xreadgroup' if has_group else 'xread'}' list of streams: for "
                    f"each stream key {what} must be specified."
                )
            self.first = at + 1
            return 1
        if name == b"COUNT" and more:
            self.count = max(integer(words[at + 1]), 0)
        elif name == b"BLOCK" and more:
            self.block_ms = _timeout(words[at + 1])
        elif name == b"MAXCOUNT" and more:
            self.max_count = _positive(words[at + 1], "MAXCOUNT")
        elif name == b"MAXSIZE" and more:
            self.max_size = _positive(words[at + 1], "MAXSIZE")
        elif (name == b"GROUP" and more >= 2) or name == b"NOACK" or (name == b"CLAIM" and more):
            if not has_group:
                raise CommandError(
                    f"The {name.decode()} option is only supported by XREADGROUP. You called "
                    "XREAD instead."
                )
            if name == b"NOACK":
                self.noack = True
                return 1
            if name == b"GROUP":
                self.grouped = True
                self.group = words[at + 1]
                self.consumer = words[at + 2]
                return 3
            self.min_idle = integer(
                words[at + 1], "min-idle-time is not an integer or out of range"
            )
            if self.min_idle < 0:
                raise CommandError("min-idle-time must be a positive integer")
        else:
            raise syntax()
        return 2

    def streams(self) -> list[tuple[bytes, bytes]]:
        """Return (key, text of its ID) of each stream."""
        words = self.words
        half = (len(words) - self.first) // 2
        middle = self.first + half
        return [(words[self.first + place], words[middle + place]) for place in range(half)]


def _timeout(word: bytes) -> int:
    """Return how many milliseconds a command may wait; 0 for no limit."""
    block_ms = integer(word, "timeout is not an integer or out of range")
    if block_ms < 0:
        raise CommandError("timeout is negative")
    if block_ms > _MOST_MS - time.time_ns() // 1_000_000:  # the end of the wait must be a time
        raise CommandError("timeout is out of range")
    return block_ms


def _positive(word: bytes, name: str) -> int:
    value = integer(word)
    if value <= 0:
        raise CommandError(f"{name} must be a positive integer")
    return value
