"""Replies of a server without what follows the clock, or differs between versions of Redis."""

from __future__ import annotations

import re
from typing import Any, Final

from real_redis.commands import (
    ALWAYS_A_CONSUMER,
    BUDGETS,
    CLOCKED,
    CONSUMERS,
    LAST_ENTRY,
    Version,
    Words,
)
from resp_peer import Line, decode

# Internals of the radix tree, and nodes of tombstones that a store removes.
_TREE: Final = (b"radix-tree-keys", b"radix-tree-nodes")
# Before the newest: these do not exist, or are computed without the corrections of later versions.
_NEWER: Final = (b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked",
          b"iids-added", b"iids-duplicates", b"nacked-count", b"lag", b"entries-read")  # fmt: skip
_TIMES: Final = (b"idle", b"seen-time", b"inactive", b"active-time", b"delivery-time")
_CLOCK_ID: Final = re.compile(rb"\$\d+\r\n(\d{13}-\d+)")


class Replies:
    """Makes the replies of one server comparable; one for each of the two that are compared."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self._newest = version >= BUDGETS
        self._chosen: dict[bytes, int] = {}  # IDs of the clock, in the order of their first use

    def comparable(self, words: Words, reply: bytes) -> Any:
        """Return a reply without what differs between the versions, or follows the clock."""
        if CLOCKED in words:
            reply = _CLOCK_ID.sub(self._numbered, reply)
        name = words[0].upper() if words else b""
        if name == b"DEL":
            self._chosen.clear()  # a new stream may choose an ID of the same millisecond again
        if self.version < LAST_ENTRY and name in (b"XREAD", b"XREADGROUP") and b"+" in words:
            return None  # `+` is not an ID there
        if not self._newest and reply[:1] == b"-":
            # Older servers name the command otherwise.
            pattern = rb"Unbalanced '?xread(group)?'? list.*"
            return re.sub(pattern, b"Unbalanced", as_newest(reply), flags=re.I)
        if name in (b"XINFO", b"XGROUP") and len(words) > 1 and words[1].upper() == b"HELP":
            # 7.0: the last line of HELP is "Prints this help."
            return reply if self._newest or reply[:1] != b"*" else decode(reply)[:-1]
        value = decode(reply)
        if isinstance(value, Line) or not isinstance(value, (dict, list)) or not value:
            return reply
        if name == b"XINFO":
            return self._facts(words[1].upper(), value)
        if name == b"XPENDING" and len(words) > 3:
            return [[*row[:2], row[2] == -1, row[3]] for row in value]
        if name == b"XREADGROUP" and isinstance(value, (dict, list)):
            return _claimed(value)
        return reply

    def _numbered(self, found: re.Match[bytes]) -> bytes:
        number = self._chosen.setdefault(found[1], len(self._chosen))
        name = b"clock-%d" % number
        return b"$%d\r\n%b" % (len(name), name)

    def _facts(self, kind: bytes, value: Any) -> Any:
        if kind == b"STREAM":
            found = self._without(value)
            if isinstance(found.get(b"groups"), list):
                found[b"groups"] = [self._full_group(one) for one in found[b"groups"]]
            return found
        if kind not in (b"GROUPS", b"CONSUMERS"):
            return value
        rows = [self._without(one) for one in value]
        if kind == b"CONSUMERS":
            return self._known(rows)
        if self.version < ALWAYS_A_CONSUMER:
            for one in rows:
                one.pop(b"consumers", None)
        return rows

    def _full_group(self, group: Any) -> Any:
        found = self._without(group)
        pending = b"pending" if b"pending" in found else b"pel"
        found[pending] = [[*row[:2], row[3]] for row in found[pending]]
        consumers = self._known([self._without(one) for one in found[b"consumers"]])
        for one in consumers:
            one[pending] = [[row[0], row[2]] for row in one[pending]]
        return {**found, b"consumers": consumers}

    def _known(self, consumers: list[Any]) -> list[Any]:
        """Return consumers without those that a damaged command names, where it matters."""
        if self.version >= ALWAYS_A_CONSUMER:
            return consumers
        return [one for one in consumers if one[b"name"] in CONSUMERS]

    def _without(self, pairs: Any) -> Any:
        """Return a map, flat or not, without what may differ; of times, whether there is one."""
        if isinstance(pairs, list):
            pairs = dict(zip(pairs[0::2], pairs[1::2], strict=True))
        newer = () if self._newest else _NEWER
        found = {name: value for name, value in pairs.items() if name not in _TREE + newer}
        for name in _TIMES:
            if name in found:
                if self.version < ALWAYS_A_CONSUMER or not self._newest:
                    del found[name]
                else:
                    found[name] = found[name] == -1
        return found


def as_newest(reply: bytes) -> bytes:
    """Return an error of an unknown command without the arguments that it does not have."""
    return reply.replace(b", with args beginning with: \r\n", b"\r\n")


def _claimed(value: Any) -> Any:
    """Return streams without the idle time that CLAIM adds to entries."""
    streams = value.items() if isinstance(value, dict) else value
    return [
        [name, [[*entry[:2], *entry[3:]] for entry in entries or []]] for name, entries in streams
    ]
