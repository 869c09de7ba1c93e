"""Redis's glob patterns, `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, `\\x`, in time linear in the name.

A pattern is cut at its stars into parts that each match a fixed number of bytes. The first part
must be at the start of the name, the last one at its end. Each part between them is taken where it
first fits: a later place leaves less for the parts that follow, and a star takes what is left over.
So no choice is ever revised: an atomic group of a regular expression, which keeps what it has
taken. Without it, steps would double with each star.
"""

from __future__ import annotations

import re
from typing import Final

from streamkeep.format.core.errors import CommandError

MOST_BYTES: Final = 4096  # of a pattern: a part of it costs its bytes for each byte of a name
_MOST_STARS: Final = 1000  # of Redis, beyond which a pattern matches nothing
_ALL: Final = frozenset(range(256))
_STAR, _MARK, _OPEN, _CLOSE, _BACKSLASH = b"*?[]\\"


class Glob:
    """A pattern.

    Raises:
        CommandError: it is too long.
    """

    def __init__(self, pattern: bytes) -> None:
        if len(pattern) > MOST_BYTES:
            raise CommandError(f"a pattern has {len(pattern)} bytes, of {MOST_BYTES} at most")
        self._matches_empty = pattern in (b"", b"*")  # as Redis has it: `**` does not
        first, *others = _parse(pattern)
        stars = len(others) - (bool(others) and not others[-1])
        if stars > _MOST_STARS:
            others, first = [], b"(?!)"
        middle = b"".join(b"(?>.*?%b)" % part for part in others[:-1])
        last = b".*%b" % others[-1] if others else b""
        self._fits = re.compile(first + middle + last, re.DOTALL).fullmatch

    def matches(self, name: bytes) -> bool:
        return self._fits(name) is not None if name else self._matches_empty


def _parse(pattern: bytes) -> list[bytes]:
    """Return the parts as expressions; one part more than there are stars in a row."""
    parts = [b""]
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        at += 1
        if byte == _STAR:
            if parts[-1] or len(parts) == 1:
                parts.append(b"")
        elif byte == _MARK:
            parts[-1] += b"."
        elif byte == _OPEN:
            members, at = _parse_class(pattern, at)
            chosen = b"".join(b"\\x%02x" % one for one in sorted(members))
            parts[-1] += b"[%b]" % chosen if members else b"(?!)"
        else:
            if byte == _BACKSLASH and at < len(pattern):
                byte = pattern[at]
                at += 1
            parts[-1] += b"\\x%02x" % byte
    return parts


def _parse_class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """Return the bytes that fit after a `[`, and where the pattern continues."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at] != _CLOSE:
        escaped = pattern[at] == _BACKSLASH and at + 1 < len(pattern)
        at += escaped
        first = last = pattern[at]
        at += 1
        if not escaped and pattern[at : at + 1] == b"-" and at + 1 < len(pattern):
            last = pattern[at + 1]
            at += 2
        # Redis compares the ends of a range as signed.
        low, high = sorted(end - 256 if end > 127 else end for end in (first, last))
        members.update(value % 256 for value in range(low, high + 1))
    return _ALL - members if negated else frozenset(members), at + 1
