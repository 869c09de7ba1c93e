"""Redis's glob patterns as regular expressions."""

from __future__ import annotations

import re
from typing import Final

_BACKSLASH: Final = ord("\\")
_CLOSE: Final = ord("]")


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """Return the regular expression of a Redis glob: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, `\\x`."""
    out = [b"(?s:"]
    index = 0
    while index < len(pattern):
        char = pattern[index : index + 1]
        index += 1
        if char == b"*":
            out.append(b".*")
        elif char == b"?":
            out.append(b".")
        elif char == b"\\" and index < len(pattern):
            out.append(re.escape(pattern[index : index + 1]))
            index += 1
        elif char == b"[":
            text, index = _glob_class(pattern, index)
            out.append(text)
        else:
            out.append(re.escape(char))
    out.append(b")")
    return re.compile(b"".join(out))


def _glob_class(pattern: bytes, index: int) -> tuple[bytes, int]:
    """Translate the text after a `[`; return the expression and where the pattern continues."""
    negated = pattern[index : index + 1] == b"^"
    index += negated
    members: set[int] = set()
    while index < len(pattern) and pattern[index] != _CLOSE:
        escaped = pattern[index] == _BACKSLASH and index + 1 < len(pattern)
        index += escaped
        first = pattern[index]
        index += 1
        if not escaped and pattern[index : index + 1] == b"-" and index + 1 < len(pattern):
            members |= _between(first, pattern[index + 1])
            index += 2
        else:
            members.add(first)
    if negated:
        members = set(range(256)) - members
    body = b"".join(b"\\x%02x" % member for member in sorted(members))
    return (b"[" + body + b"]" if body else b"(?!)"), index + 1


def _between(first: int, last: int) -> set[int]:
    """Return the bytes of a range, whose ends Redis compares as signed."""
    low, high = sorted(end - 256 if end > 127 else end for end in (first, last))
    return {value % 256 for value in range(low, high + 1)}
